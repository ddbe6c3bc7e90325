"""Malformed and unwelcome requests: the contract's error, nothing upstream, nobody else affected, no traceback.

Ambiguous framing has its own case (C73), injection too (C81).
"""

import json

import pytest

from harness.client import ask, chat, connect, fresh, request, settle
from harness.fixtures import StartProxy
from harness.proxy import Proxy
from harness.refusals import refused
from soloflight.testing.received import Received
from soloflight.testing.script import raw
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

HOST = b"Host: proxy.test\r\n"
BAD = (400, "bad_request")
TOO_LARGE = (431, "headers_too_large")
ROUTES = ["/v1/chat/completions", "/v1/files"]


def echo(received: Received) -> bytes:
    return raw(received.target.encode("latin-1"))


async def assert_unaffected(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    """Another client is served, and the upstream has seen nobody else."""
    assert upstream.calls == 0
    answer = await ask(proxy.port, request("GET", "/v1/files/next"))
    assert (answer.status, answer.body) == (200, b"/v1/files/next")


MALFORMED: dict[str, tuple[bytes, tuple[int, str]]] = {
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64), BAD),
    "binary": (bytes(range(256)), BAD),
    "SSH": (b"SSH-2.0-OpenSSH_9.6\r\n", BAD),
    "HTTP/2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", BAD),
    "method alone": (b"GET\r\n\r\n", BAD),
    "no version": (b"GET /v1/files\r\n" + HOST + b"\r\n", BAD),
    "HTTP/9.9": (b"GET / HTTP/9.9\r\n" + HOST + b"\r\n", BAD),
    "HTTP/2.0": (b"GET / HTTP/2.0\r\n" + HOST + b"\r\n", BAD),
    "HTTP/1.1x": (b"GET / HTTP/1.1x\r\n" + HOST + b"\r\n", BAD),
    "two words too many": (b"GET / HTTP/1.1 x y\r\n" + HOST + b"\r\n", BAD),
    "lower-case method": (b"get / HTTP/1.1\r\n" + HOST + b"\r\n", BAD),
    "odd method": (b"G(T / HTTP/1.1\r\n" + HOST + b"\r\n", BAD),
    "no Host": (b"GET / HTTP/1.1\r\n\r\n", BAD),
    "two Hosts": (b"GET / HTTP/1.1\r\n" + HOST + HOST + b"\r\n", BAD),
    "no colon": (b"GET / HTTP/1.1\r\n" + HOST + b"X-A b\r\n\r\n", BAD),
    "space in a name": (b"GET / HTTP/1.1\r\n" + HOST + b"X A: b\r\n\r\n", BAD),
    "space before a colon": (b"GET / HTTP/1.1\r\n" + HOST + b"X-A : b\r\n\r\n", BAD),
    "no name": (b"GET / HTTP/1.1\r\n" + HOST + b": b\r\n\r\n", BAD),
    "first field indented": (b"GET / HTTP/1.1\r\n " + HOST + b"\r\n", BAD),
    "control character": (b"GET / HTTP/1.1\r\n" + HOST + b"X-A: \x01\r\n\r\n", BAD),
    "NUL in the target": (b"GET /\0 HTTP/1.1\r\n" + HOST + b"\r\n", BAD),
    "long target": (b"GET /" + b"x" * 300_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", TOO_LARGE),
    "long field": (b"GET / HTTP/1.1\r\n" + HOST + b"X-A: " + b"x" * 300_000 + b"\r\n\r\n", TOO_LARGE),
    "long name": (b"GET / HTTP/1.1\r\n" + HOST + b"x" * 300_000 + b": x\r\n\r\n", TOO_LARGE),
    "many fields": (b"GET / HTTP/1.1\r\n" + HOST + b"X-A: x\r\n" * 5000 + b"\r\n", BAD),
}


@pytest.mark.parametrize("what", MALFORMED)
async def test_malformed(what: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    data, expected = MALFORMED[what]
    upstream.play(echo)
    async with connect(proxy.port) as client, connect(proxy.port) as other:
        await other.send(b"GET /v1/files/other HT")  # somebody else, in the middle of a head
        answer = await client.ask(data)
        assert refused(answer) == expected
        assert answer.get("Connection") == "close"
        await client.ended()
        assert client.parser.rest + client.left_over == b""
        await assert_unaffected(proxy, upstream)
        await other.send_more(b"TP/1.1\r\n" + HOST + b"\r\n")
        assert (await other.finish()).body == b"/v1/files/other"


@pytest.mark.parametrize("what", MALFORMED)
async def test_malformed_behind_a_good_one(what: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    data, expected = MALFORMED[what]
    upstream.play(echo)
    async with connect(proxy.port) as client:
        answer = await client.ask(request("GET", "/v1/files/first"))
        assert answer.body == b"/v1/files/first"
        assert refused(await client.ask(data)) == expected
        await client.ended()
    assert upstream.calls == 1


async def test_half_a_request_and_gone(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(echo)
    whole = request("POST", "/v1/chat/completions", "Content-Type: application/json", body=b'{"model":"m"}')
    for cut in range(1, len(whole), 7):
        async with connect(proxy.port) as client:
            await client.send(whole[:cut])
            if cut % 2:
                client.reset()
    await settle(proxy.port)
    await assert_unaffected(proxy, upstream)


# ── targets ───────────────────────────────────────────────────────────────────────────────────────────────────────────

GOOD_TARGETS = {
    "http://other.example/v1/files?a=b": "/v1/files?a=b",
    "HTTPS://other.example:1234/v1//x/../y": "/v1//x/../y",
    "http://user:secret@other.example/v1/files": "/v1/files",
    "http://169.254.169.254/latest/meta-data": "/latest/meta-data",
    "http://other.example": "/",
    "http://other.example?a=b": "/?a=b",
    "//other.example/v1/files": "//other.example/v1/files",
    "/http://other.example/": "/http://other.example/",
    "/v1/files?url=http://other.example/?x": "/v1/files?url=http://other.example/?x",
    "/@other.example": "/@other.example",
}


@pytest.mark.parametrize("target", GOOD_TARGETS)
async def test_an_absolute_form_counts_by_its_path(target: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(echo)
    answer = await ask(proxy.port, request("GET", target))
    assert (answer.status, answer.body.decode()) == (200, GOOD_TARGETS[target])
    assert upstream.requests[0].all(b"host") == [f"127.0.0.1:{upstream.port}".encode()]


async def test_both_forms_share_one_flight(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(raw(b"{}", type="application/json"))
    target = "/absolute/v1/models"
    roles = [(await ask(proxy.port, request("GET", form))).role for form in (target, f"http://any.example{target}")]
    assert (roles, upstream.calls) == (["owner", "replay"], 1)


BAD_TARGETS = [
    ("GET", "/v1/files#fragment"),
    ("GET", "/v1/files?a=b#"),
    ("GET", "#"),
    ("GET", "http://other.example/v1/files#fragment"),
    ("GET", "http://other.example#fragment"),
    ("POST", "/v1/chat/completions#x"),
    ("OPTIONS", "*"),
    ("GET", "*"),
    ("GET", "v1/files"),
    ("GET", "other.example:80"),
    ("GET", "ftp://other.example/v1/files"),
    ("GET", "file:///etc/passwd"),
    ("CONNECT", "other.example:443"),
    ("CONNECT", "127.0.0.1:1"),
    ("CONNECT", "/v1/files"),
    ("TRACE", "/v1/files"),
]


@pytest.mark.parametrize(("method", "target"), BAD_TARGETS)
async def test_other_targets_are_refused(method: str, target: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(echo)
    async with connect(proxy.port) as client:
        answer = await client.ask(request(method, target))
        assert refused(answer) == BAD
        if answer.get("Connection") == "close":
            await client.ended()
        else:
            assert (await client.ask(request("GET", "/v1/files/next"))).body == b"/v1/files/next"
            upstream.requests.clear()
    await assert_unaffected(proxy, upstream)


# ── control fields ────────────────────────────────────────────────────────────────────────────────────────────────────

BAD_FIELDS = {
    "unknown stage": ["X-Soloflight-Stage: nowhere"],
    "empty stage": ["X-Soloflight-Stage:"],
    "two stages": ["X-Soloflight-Stage: default", "X-Soloflight-Stage: default"],
    "empty session": ["X-Soloflight-Session: "],
    "long session": ["X-Soloflight-Session: " + "s" * 10_000],
    "empty key": ["Idempotency-Key:"],
    "two keys": ["Idempotency-Key: a", "idempotency-key: b"],
    "long key": ["Idempotency-Key: " + "k" * 10_000],
    "max-age is no number": ["Cache-Control: max-age=soon"],
    "max-age is negative": ["Cache-Control: max-age=-1"],
}


@pytest.mark.parametrize("what", BAD_FIELDS)
async def test_bad_control_fields(what: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(echo)
    async with connect(proxy.port) as client:
        answer = await client.ask(chat(fresh(), *BAD_FIELDS[what]))
        assert refused(answer) == BAD
        for field in BAD_FIELDS[what]:
            value = field.partition(":")[2].strip().encode()
            assert len(value) < 4 or value not in answer.raw_head + answer.body
        assert upstream.calls == 0
        again = await client.ask(request("GET", "/v1/files/next"))  # the request was whole: the connection is good
        assert again.body == b"/v1/files/next"


# ── what is said of the client ────────────────────────────────────────────────────────────────────────────────────────

CLAIMS = [
    "X-Forwarded-For: 192.0.2.1, 192.0.2.2",
    "X-Forwarded-Proto: https",
    "X-Forwarded-Host: public.example",
    "X-Forwarded-Port: 443",
    "X-Real-IP: 192.0.2.3",
    "Forwarded: for=192.0.2.4;proto=https",
]
NAMES = ("x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "x-forwarded-port", "x-real-ip", "forwarded")
TOLD: dict[tuple[str, bool], dict[str, str]] = {
    ("off", True): {},
    ("off", False): {},
    ("x-forwarded", True): {
        "x-forwarded-for": "192.0.2.1, 192.0.2.2, 127.0.0.1",
        "x-forwarded-proto": "https",
        "x-forwarded-host": "public.example",
    },
    ("x-forwarded", False): {
        "x-forwarded-for": "127.0.0.1",
        "x-forwarded-proto": "http",
        "x-forwarded-host": "proxy.test",
    },
    ("rfc7239", True): {
        "forwarded": 'for=192.0.2.4;proto=https, for=127.0.0.1;host="proxy.test";proto=http',
    },
    ("rfc7239", False): {"forwarded": 'for=127.0.0.1;host="proxy.test";proto=http'},
}


@pytest.mark.parametrize(("how", "trusted"), TOLD)
async def test_forwarded_fields(how: str, trusted: bool, start_proxy: StartProxy, upstream: ScriptedUpstream) -> None:
    config = {
        "server": {"trusted_proxies": ["127.0.0.0/8"] if trusted else ["192.0.2.0/24"]},
        "upstream": {"forwarded": how},
    }
    proxy = start_proxy(config, upstream=upstream.port)
    upstream.play(raw(b"{}", type="application/json"))
    for target in ROUTES:
        await ask(proxy.port, chat(fresh(stream=False), *CLAIMS, "Via: 1.0 fred, 1.1 p.example", target=target))
        received = upstream.requests[-1]
        told = {name: received.field(name.encode()).decode() for name in NAMES if received.field(name.encode())}
        assert told == TOLD[how, trusted]
        assert received.all(b"via") == [b"1.0 fred, 1.1 p.example, 1.1 soloflight"]
    await ask(proxy.port, request("GET", "/v1/files"))
    assert upstream.requests[-1].all(b"via") == [b"1.1 soloflight"]


# ── health ────────────────────────────────────────────────────────────────────────────────────────────────────────────

KEYS = {"server": {"client_keys": ["ck-first", "ck-second"]}}


@pytest.mark.parametrize("path", ["/_soloflight/health", "/_soloflight/livez", "/_soloflight/readyz"])
async def test_health_is_not_proxied(path: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    async with connect(proxy.port) as client:
        for target in (path, f"{path}?x=1", f"http://any.example{path}"):
            answer = await client.ask(request("GET", target))
            assert (answer.status, answer.get("Content-Type")) == (200, "application/json")
            assert json.loads(answer.body) == {"status": "ok", "ready": True, "degraded": None}
        answer = await client.ask(request("HEAD", path))
        assert (answer.status, answer.body) == (200, b"")
        assert (await client.ask(request("POST", path, body=b"x" * 100))).status == 200
        assert (await client.ask(request("GET", path))).status == 200
    assert upstream.calls == 0


# ── client keys ───────────────────────────────────────────────────────────────────────────────────────────────────────

FORMS = ["Authorization: Bearer {}", "authorization: bearer {}", "api-key: {}", "X-Api-Key: {}", "x-goog-api-key: {}"]
UNWELCOME = {
    "none": [],
    "another": ["Authorization: Bearer sk-other"],
    "a part": ["Authorization: Bearer ck-firs"],
    "longer": ["Authorization: Bearer ck-first1"],
    "other case": ["Authorization: Bearer CK-FIRST"],
    "in a cookie": ["Cookie: key=ck-first"],
    "both in one": ["api-key: ck-first, ck-second"],
    "not ASCII": [b"api-key: \xff\xfeck-first"],
}


async def test_client_keys(start_proxy: StartProxy, upstream: ScriptedUpstream) -> None:
    proxy = start_proxy(KEYS, upstream=upstream.port)
    upstream.play(raw(b"{}", type="application/json"))
    handshake = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: x", "Sec-WebSocket-Version: 13")
    for fields in UNWELCOME.values():
        for target in ROUTES:
            answer = await ask(proxy.port, request("POST", target, *fields, body=b"{}"))
            assert refused(answer) == (401, "unauthorized")
        assert (await ask(proxy.port, request("HEAD", "/v1/files", *fields))).status == 401
        assert refused(await ask(proxy.port, request("GET", "/v1/realtime", *handshake, *fields)))[0] == 401
    assert (await ask(proxy.port, request("GET", "/_soloflight/health"))).status == 200
    assert upstream.calls == 0

    for form in FORMS:
        for key in ("ck-first", "ck-second"):
            for target in ROUTES:
                fields = [form.format(key), "x-other-key: own", "Cookie: own=1"]
                sent = request("POST", target, "Content-Type: application/json", *fields, body=b'{"k":"%s"}' % b"v")
                assert (await ask(proxy.port, sent)).status == 200
                received = upstream.requests[-1]
                assert key.encode() not in received.head
                assert (received.field(b"x-other-key"), received.field(b"cookie")) == (b"own", b"own=1")
    both = request("GET", "/v1/files", "Authorization: Bearer sk-own", "api-key: ck-first")
    assert (await ask(proxy.port, both)).status == 200
    assert upstream.requests[-1].field(b"authorization") == b"Bearer sk-own"
    assert upstream.requests[-1].field(b"api-key") == b""
    assert "ck-first" not in proxy.log
    assert "sk-own" not in proxy.log


async def test_client_keys_before_an_operators_credential(start_proxy: StartProxy, upstream: ScriptedUpstream) -> None:
    config = {**KEYS, "upstream": {"headers": {"api-key": "sk-operator"}}}
    proxy = start_proxy(config, upstream=upstream.port)
    upstream.play(raw(b"{}", type="application/json"))
    for target in ROUTES:
        sent = chat(fresh(stream=False), "x-api-key: ck-second", target=target, key="ck-first")
        assert (await ask(proxy.port, sent)).status == 200
        received = upstream.requests[-1]
        assert b"ck-" not in received.head
        assert received.all(b"api-key") == [b"sk-operator"]
        assert received.field(b"authorization") == b""
