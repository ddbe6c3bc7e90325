"""C73: Content-Length and Transfer-Encoding that can be read in two ways, from clients and from upstreams.

Source: tinyproxy/tinyproxy#609, litespeedtech/openlitespeed#392, sozu-proxy/sozu#726, aio-libs/aiohttp#6182.
Right: RFC 9112 sections 6.3 and 11.2: 400 and close, or one safe reading; framing towards the upstream is always made
anew. An ambiguous answer is a 502, its connection is not used again, nothing of it is kept. No answer is ever
delivered to another request. All of it with both of aiohttp's parsers.
"""

import json
from collections.abc import Iterator

import pytest

from harness.client import ask, chat, connect, fresh, request, settle
from harness.proxy import Proxy
from harness.refusals import refused
from soloflight.testing.received import Received
from soloflight.testing.script import Step, head, raw
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

KEY = b"Authorization: Bearer k1"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
TARGETS = ["/v1/chat/completions", "/v1/files"]


@pytest.fixture(scope="module", params=[{}, {"AIOHTTP_NO_EXTENSIONS": "1"}], ids=["C parser", "Python parser"])
def proxy(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, upstream_port: int
) -> Iterator[Proxy]:
    """The module's proxy, once with each parser."""
    config = {"server": {"body_timeout": "2s"}}
    running = Proxy(config, upstream=upstream_port, folder=tmp_path_factory.mktemp("proxy"), env=request.param)
    running.wait_ready()
    yield running
    running.stop()


def post(target: str, *fields: bytes, body: bytes = b"") -> bytes:
    """A POST with ``fields`` as the only ones that frame it."""
    lines = [b"POST " + target.encode() + b" HTTP/1.1", b"Host: proxy.test", KEY, *fields]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def nonce(received: Received) -> bytes:
    """An answer that tells whose it is."""
    return raw(json.dumps({"target": received.target, "body": received.body.decode("latin-1")}).encode())


async def assert_next_is_its_own(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    """Whoever comes next, by whichever connection to the upstream, gets the answer to what it asked."""
    upstream.play(nonce)
    for number in range(3):
        target = f"/v1/next/{number}"
        answer = await ask(proxy.port, request("GET", target))
        assert (answer.status, json.loads(answer.body)["target"]) == (200, target)


# ── requests ──────────────────────────────────────────────────────────────────────────────────────────────────────────

CHUNKED = b"Transfer-Encoding: chunked"
ZERO = b"0\r\n\r\n" + SMUGGLED
REFUSED: dict[str, tuple[list[bytes], bytes]] = {
    "CL and TE": ([b"Content-Length: 5", CHUNKED], ZERO),
    "TE and CL": ([CHUNKED, b"Content-Length: 5"], ZERO),
    "two lengths": ([b"Content-Length: 0", b"Content-Length: 40"], SMUGGLED),
    "list of lengths": ([b"Content-Length: 0, 40"], SMUGGLED),
    "signed length": ([b"Content-Length: +2"], b"hi" + SMUGGLED),
    "negative length": ([b"Content-Length: -1"], SMUGGLED),
    "hexadecimal length": ([b"Content-Length: 0x2"], b"hi" + SMUGGLED),
    "underscored length": ([b"Content-Length: 1_0"], b"0123456789" + SMUGGLED),
    "two numbers": ([b"Content-Length: 2 0"], b"hi" + SMUGGLED),
    "other digits": (["Content-Length: ٢".encode()], b"hi" + SMUGGLED),
    "empty length": ([b"Content-Length:"], SMUGGLED),
    "length beyond all": ([b"Content-Length: 99999999999999999999999"], SMUGGLED),
    "space before colon": ([b"Transfer-Encoding : chunked"], ZERO),
    "tab before colon": ([b"Transfer-Encoding\t: chunked"], ZERO),
    "space before colon of length": ([b"Content-Length : 0"], SMUGGLED),
    "xchunked": ([b"Transfer-Encoding: xchunked"], ZERO),
    "chunked, identity": ([b"Transfer-Encoding: chunked, identity"], ZERO),
    "chunked twice": ([b"Transfer-Encoding: chunked, chunked"], ZERO),
    "quoted chunked": ([b'Transfer-Encoding: "chunked"'], ZERO),
    "vertical tab": ([b"Transfer-Encoding: \x0bchunked"], ZERO),
    "line folding": ([b"Transfer-Encoding:\r\n chunked"], ZERO),
    "bare LF": ([b"X-A: b\nTransfer-Encoding: chunked"], ZERO),
    "bare CR": ([b"X-A: b\rTransfer-Encoding: chunked"], ZERO),
    "NUL": ([b"X-A: b\0", b"Content-Length: 0"], SMUGGLED),
    "no name": ([b": b", b"Content-Length: 0"], SMUGGLED),
    "two hosts": ([b"Host: other.test", b"Content-Length: 0"], SMUGGLED),
    "chunk size in C form": ([CHUNKED], b"0x2\r\nhi\r\n" + ZERO),
    "signed chunk size": ([CHUNKED], b"+2\r\nhi\r\n" + ZERO),
    "chunk size beyond all": ([CHUNKED], b"fffffffffffffffff\r\nhi\r\n" + ZERO),
    "empty chunk size": ([CHUNKED], b"\r\nhi\r\n" + ZERO),
    "chunk extension with bare LF": ([CHUNKED], b"2;a\nhi\r\n" + ZERO),
    "chunk longer than its size": ([CHUNKED], b"2\r\nhi!\r\n" + ZERO),
    "chunk without CRLF": ([CHUNKED], b"2\r\nhi" + ZERO),
}


# The Python parser knows no largest number; what follows is refused for another reason.
OTHERWISE = {"length beyond all": (413, "body_too_large"), "chunk size beyond all": (408, "request_timeout")}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("form", REFUSED)
@pytest.mark.parametrize("writes", ["one write", "two writes"])
async def test_refused_and_closed(
    form: str, target: str, writes: str, proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    fields, body = REFUSED[form]
    upstream.play(nonce)
    async with connect(proxy.port) as client:
        if writes == "one write":
            await client.send(post(target, *fields, body=body))
        else:
            await client.send(post(target, *fields))
            await settle(proxy.port)
            await client.send_more(body)
        answer = await client.finish()
        assert refused(answer) in ((400, "bad_request"), OTHERWISE.get(form))
        assert answer.get("Connection") == "close"
        if answer.status == 400:
            await client.ended()  # else it lingers for the rest of the body
        assert client.parser.rest + client.left_over == b"", "one answer, then the end"
    whole = [received for received in upstream.requests if received.body_complete]
    assert whole == [], "nothing that was refused counts as a request upstream"
    await assert_next_is_its_own(proxy, upstream)


ACCEPTED: dict[str, tuple[list[bytes], bytes, bytes]] = {
    "chunked": ([CHUNKED], b"2\r\nhi\r\n0\r\n\r\n", b"hi"),
    "ChUnKeD": ([b"transfer-encoding:ChUnKeD"], b"2\r\nhi\r\n0\r\n\r\n", b"hi"),
    "chunk extension": ([CHUNKED], b'2;a=b;c="d"\r\nhi\r\n0\r\n\r\n', b"hi"),
    "trailer": ([CHUNKED], b"2\r\nhi\r\n0\r\nX-Trailer: 40\r\n\r\n", b"hi"),
    "leading zeros": ([CHUNKED], b"00002\r\nhi\r\n000\r\n\r\n", b"hi"),
    "length": ([b"Content-Length: 2"], b"hi", b"hi"),
    "length with zeros": ([b"Content-Length: 002"], b"hi", b"hi"),
    "smuggled in the body": ([b"Content-Length: %d" % len(SMUGGLED)], SMUGGLED, SMUGGLED),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("form", ACCEPTED)
async def test_one_safe_reading(form: str, target: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    fields, body, meant = ACCEPTED[form]
    upstream.play(nonce)
    unshared = b"Cache-Control: no-store"
    async with connect(proxy.port) as client:
        pipelined = post(target, unshared, *fields, body=body) + request("GET", "/v1/second")
        first = await client.ask(pipelined)
        assert (first.status, json.loads(first.body)["body"]) == (200, meant.decode())
        second = await client.ask(b"")
        assert (second.status, json.loads(second.body)["target"]) == (200, "/v1/second")
    assert [(received.target, received.body) for received in upstream.requests] == [
        (target, meant),
        ("/v1/second", b""),
    ]
    framed = upstream.requests[0]
    lengths, codings = framed.all(b"content-length"), framed.all(b"transfer-encoding")
    assert (lengths, codings) in (([b"%d" % len(meant)], []), ([], [b"chunked"]))
    await assert_next_is_its_own(proxy, upstream)


EITHER: dict[str, tuple[list[bytes], bytes]] = {
    "tab behind chunked": ([CHUNKED + b"\t"], b"2\r\nhi\r\n"),
    "chunk extension with bare CR": ([CHUNKED], b"2;a\rb\r\nhi\r\n"),
    "length in a trailer": ([CHUNKED], b"2\r\nhi\r\n0\r\nContent-Length: 40\r\n\r\n"),
    "two equal lengths": ([b"Content-Length: 2", b"Content-Length: 2"], b"hi"),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("form", EITHER)
async def test_refused_or_read_in_the_one_safe_way(
    form: str, target: str, proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    fields, body = EITHER[form]
    ending = b"" if b"0\r\n" in body or b"Content-Length" in fields[0] else b"0\r\n\r\n"
    upstream.play(nonce)
    async with connect(proxy.port) as client:
        sent = post(target, b"Cache-Control: no-store", *fields, body=body + ending)
        answer = await client.ask(sent + request("GET", "/v1/second"))
        if answer.status == 400:
            assert refused(answer) == (400, "bad_request")
            await client.ended()
            assert client.parser.rest + client.left_over == b""
            assert not any(received.body_complete for received in upstream.requests)
        else:
            assert json.loads(answer.body) == {"target": target, "body": "hi"}
            assert json.loads((await client.ask(b"")).body)["target"] == "/v1/second"
            assert upstream.calls == 2
    await assert_next_is_its_own(proxy, upstream)


async def test_a_body_on_get_is_a_body(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(nonce)
    for target in ("/v1/files", "/v1/body/models"):
        async with connect(proxy.port) as client:
            answer = await client.ask(request("GET", target, KEY, body=SMUGGLED) + request("GET", "/v1/second"))
            assert json.loads(answer.body) == {"target": target, "body": SMUGGLED.decode()}
            assert json.loads((await client.ask(b"")).body)["target"] == "/v1/second"
    assert upstream.calls == 4


async def test_many_pipelined_requests_keep_their_order(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(nonce)
    targets = [f"/v1/pipelined/{number}" for number in range(50)]
    async with connect(proxy.port) as client:
        await client.send(b"".join(request("GET", target) for target in targets))
        for target in targets:
            answer = await client.finish()
            assert json.loads(answer.body)["target"] == target
            await client.send(b"")
    assert [received.target for received in upstream.requests] == targets


# ── answers ───────────────────────────────────────────────────────────────────────────────────────────────────────────

EVIL = raw(b'{"target":"evil"}')
OPENINGS: dict[str, bytes] = {
    "CL and TE": head(200, "Content-Length: 2", "Transfer-Encoding: chunked") + b"0\r\n\r\n",
    "TE and CL": head(200, "Transfer-Encoding: chunked", "Content-Length: 2") + b"0\r\n\r\n",
    "two lengths": head(200, "Content-Length: 2", "Content-Length: 9") + b"hi",
    "two equal lengths": head(200, "Content-Length: 2", "Content-Length: 2") + b"hi",
    "list of lengths": head(200, "Content-Length: 2, 9") + b"hi",
    "signed length": head(200, "Content-Length: +2") + b"hi",
    "negative length": head(200, "Content-Length: -2") + b"hi",
    "underscored length": head(200, "Content-Length: 0_2") + b"hi",
    "empty length": head(200, "Content-Length:") + b"hi",
    "xchunked": head(200, "Transfer-Encoding: xchunked") + b"2\r\nhi\r\n0\r\n\r\n",
    "chunked, identity": head(200, "Transfer-Encoding: chunked, identity") + b"2\r\nhi\r\n0\r\n\r\n",
    "two codings": head(200, "Transfer-Encoding: chunked", "Transfer-Encoding: chunked") + b"2\r\nhi\r\n0\r\n\r\n",
    "gzip, chunked": head(200, "Transfer-Encoding: gzip, chunked") + b"2\r\nhi\r\n0\r\n\r\n",
    "space before colon": head(200, "Transfer-Encoding : chunked", "Content-Length: 2") + b"hi",
    "NUL": head(200, "X-A: b\0c", "Content-Length: 2") + b"hi",
    "no version": b"200 OK\r\nContent-Length: 2\r\n\r\nhi",
    "no status": b"HTTP/1.1 OK\r\nContent-Length: 2\r\n\r\nhi",
    "chunk size in C form": head(200, "Transfer-Encoding: chunked") + b"0x2\r\nhi\r\n0\r\n\r\n",
    "signed chunk size": head(200, "Transfer-Encoding: chunked") + b"+2\r\nhi\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("form", OPENINGS)
async def test_an_ambiguous_answer_is_a_502(form: str, target: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(OPENINGS[form] + EVIL)
    sent = chat(fresh(stream=False), target=target)
    for call in (1, 2):
        assert refused(await ask(proxy.port, sent)) == (502, "upstream_invalid")
        assert upstream.calls == call
    await assert_next_is_its_own(proxy, upstream)
    used = [received.connection for received in upstream.requests[:3]]
    assert len(set(used)) == 3, "such a connection is not used again"


BEHIND: dict[str, bytes] = {
    "behind a length": raw(b'{"target":"own"}'),
    "behind chunks": head(200, "Transfer-Encoding: chunked") + b'10\r\n{"target":"own"}\r\n0\r\n\r\n',
    "behind 204": head(204),
    "behind 304": head(304),
    "behind an empty body": head(200, "Content-Length: 0"),
}
EXTRA = {
    "an answer": EVIL,
    "half an answer": EVIL[:20],
    "no HTTP": b"\0\xff\r\n\r\n",
    "an interim answer": head(100) + EVIL,
}


@pytest.mark.parametrize("pause_s", [None, 0.0, 0.05], ids=["same write", "next write", "later"])
@pytest.mark.parametrize("extra", EXTRA)
@pytest.mark.parametrize("what", BEHIND)
async def test_extra_bytes_are_nobodys_answer(
    what: str, extra: str, pause_s: float | None, proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    own, stray = BEHIND[what], EXTRA[extra]
    script: list[Step] = [own + stray] if pause_s is None else [own, pause_s, stray]
    upstream.play(script)
    for target in TARGETS:
        first = await ask(proxy.port, chat(fresh(stream=False), target=target))
        if first.status == 502:
            assert refused(first) == (502, "upstream_invalid")
        else:
            assert first.raw_head.startswith(own.partition(b"\r\n")[0])
            assert first.body in (b"", b'{"target":"own"}')
            assert first.complete
        await upstream.wait_until(lambda: all(received.finished_at for received in upstream.requests))
        await settle(proxy.port)
    calls = upstream.calls
    await assert_next_is_its_own(proxy, upstream)
    spoiled = {received.connection for received in upstream.requests[:calls]}
    assert spoiled.isdisjoint(received.connection for received in upstream.requests[calls:])


async def test_an_answer_to_head_has_no_body(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(EVIL)
    answer = await ask(proxy.port, request("HEAD", "/v1/files"))
    assert answer.status in (200, 502)
    assert answer.body == b""
    await settle(proxy.port)
    await assert_next_is_its_own(proxy, upstream)
    assert len({received.connection for received in upstream.requests[:2]}) == 2
