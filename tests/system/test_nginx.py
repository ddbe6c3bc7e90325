"""conf/nginx.conf, and a bare ``proxy_pass``, in front of real proxies: streams flow, a retry joins, nothing paid is sent twice."""

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import quantiles
from typing import Any

import pytest

from harness.client import ask, chat, connect, fresh, request
from harness.fixtures import StartProxy, all_ready
from harness.nginx import SHIPPED, Nginx, bare, shipped
from harness.process import eventually
from harness.proxy import Proxy
from harness.redis import RedisServer
from harness.stalls import lasted
from harness.wire import Response
from soloflight.testing.chat import CH, DONE, FIN
from soloflight.testing.received import Received
from soloflight.testing.script import HANG, RESET, head, raw, sse
from soloflight.testing.script import json as json_answer
from soloflight.testing.upstream import ScriptedUpstream
from soloflight_openai.routes import ROUTES

STREAM = CH + FIN + DONE
CHAT = "/v1/chat/completions"
StartNginx = Callable[[str], Nginx]
FORMS = ["shipped", "bare"]


@pytest.fixture
def start_nginx(tmp_path: Path) -> Iterator[StartNginx]:
    started: list[Nginx] = []

    def start(site: str) -> Nginx:
        nginx = Nginx(tmp_path / f"nginx{len(started)}", site)
        started.append(nginx)
        nginx.wait_ready()
        return nginx

    yield start
    for nginx in started:
        nginx.stop()


def front(form: str, port: int) -> str:
    """A site of this form in front of one node."""
    return shipped(port) if form == "shipped" else bare(port)


@pytest.fixture
def pair(start_proxy: StartProxy, redis_server: RedisServer, upstream: ScriptedUpstream) -> list[Proxy]:
    """Two nodes of a fleet; the second one may be killed."""
    return two(start_proxy, redis_server, upstream, lease_s=20)


def two(start_proxy: StartProxy, redis_server: RedisServer, upstream: ScriptedUpstream, *, lease_s: int) -> list[Proxy]:
    config = {"stage_defaults": {"heartbeat": "200ms", "pending_lease": lease_s, "running_lease": lease_s}}
    options: dict[str, Any] = {"upstream": upstream.port, "backend": "redis", "redis_url": redis_server.url}
    return all_ready(start_proxy(config, **options, check=check, ready=False) for check in (True, False))


# ── what nginx sends, seen by a node's stand-in ─────────────────────────────────────────────────────────────────────


def test_it_knows_the_shareable_paths() -> None:
    (listed,) = re.findall(r"location ~ \((.+)\)\$ \{", SHIPPED.read_text())
    assert listed.split("|") == [route.suffix for route in ROUTES if route.method == "POST"]


async def test_connections_are_kept_and_targets_are_untouched(
    start_nginx: StartNginx, upstream: ScriptedUpstream
) -> None:
    upstream.play(raw(b"{}"))
    nginx = start_nginx(shipped(upstream.port))
    targets = ["/v1/files/a%20b?x=%7e&y", "/v1//files/../models?", "/v1/chat/completions?api-version=1"]
    async with connect(nginx.port) as client:
        for target in targets:
            await client.ask(request("POST", target, body=b"{}"))
    assert [received.target for received in upstream.requests] == targets
    assert upstream.connections == 1
    for received in upstream.requests:
        assert received.request_line.endswith(b" HTTP/1.1")
        assert received.field(b"connection") == b""
        assert received.field(b"host") == b"proxy.test"
        assert received.field(b"x-forwarded-for") == b"127.0.0.1"
        assert received.field(b"x-forwarded-proto") == b"http"
        assert re.fullmatch(b"[0-9a-f]{32}", received.field(b"x-request-id"))


async def test_what_a_client_claims_of_itself(start_nginx: StartNginx, upstream: ScriptedUpstream) -> None:
    upstream.play(raw(b"{}"))
    nginx = start_nginx(shipped(upstream.port))
    await ask(nginx.port, request("GET", "/v1/files", "X-Forwarded-For: 6.6.6.6", "X-Request-Id: mine"))
    (received,) = upstream.requests
    assert received.all(b"x-forwarded-for") == [b"127.0.0.1"]
    assert received.all(b"x-request-id") == [b"mine"]


async def test_an_upload_goes_through_as_it_comes(start_nginx: StartNginx, upstream: ScriptedUpstream) -> None:
    upstream.play(raw(b"{}"))
    nginx = start_nginx(shipped(upstream.port))
    size = 3 << 20
    async with connect(nginx.port) as client:
        await client.send(b"POST /v1/files HTTP/1.1\r\nHost: proxy.test\r\nContent-Length: %d\r\n\r\n" % size)
        await client.send_more(b"x" * (1 << 20))
        await upstream.wait_calls(1)  # nginx has a third of it
        await client.send_more(b"x" * (2 << 20))
        assert (await client.finish()).status == 200


async def test_a_shareable_body_that_would_go_alone_is_refused(
    start_nginx: StartNginx, upstream: ScriptedUpstream
) -> None:
    nginx = start_nginx(shipped(upstream.port))
    async with connect(nginx.port) as client:
        await client.send(
            b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (CHAT.encode(), (32 << 20) + 1)
        )
        assert (await client.head()).status == 413
    assert upstream.calls == 0


async def test_health_is_not_for_everybody(start_nginx: StartNginx, upstream: ScriptedUpstream) -> None:
    nginx = start_nginx(shipped(upstream.port))
    for path in ("/_soloflight/health", "/x/../_soloflight/health", "/%5fsoloflight/livez"):
        assert (await ask(nginx.port, request("GET", path))).status == 404
    assert upstream.calls == 0


# ── what is sent again ──────────────────────────────────────────────────────────────────────────────────────────────

MULTIPART = ("Content-Type: multipart/form-data; boundary=b",)
ONCE = {
    "an upload": request("POST", "/v1/files", body=b"x" * 1000),
    "a batch": request("POST", "/v1/batches", body=b"{}"),
    "fine-tuning": request("POST", "/v1/fine_tuning/jobs", body=b"{}"),
    "assistants": request("POST", "/v1/threads/t/messages", body=b"{}"),
    "an image's edit": request("POST", "/v1/images/edits", *MULTIPART, body=b"--b--\r\n"),
    "a call of its own": chat(fresh(), "Cache-Control: no-cache, No-Store"),
    "a conditional one": chat(fresh(), 'If-None-Match: "x"'),
    "a range": chat(fresh(), "Range: bytes=0-1"),
    "another spelling": chat(fresh(), target="/v1/chat%2Fcompletions"),
    "dots": chat(fresh(), target="/v1/files/../chat/completions"),
    "slashes": chat(fresh(), target="/v1//chat/completions"),
    "another method": request("PATCH", CHAT, body=b"{}"),
}
AGAIN = {
    "chat": chat(fresh()),
    "Azure": chat(fresh(), target="/openai/deployments/d/chat/completions?api-version=2024-06-01"),
    "responses": chat(fresh(), target="/v1/responses"),
    "messages": chat(fresh(), target="/v1/messages"),
    "no-cache": chat(fresh(), "Cache-Control: no-cache"),
    "audio": request("POST", "/v1/audio/transcriptions", *MULTIPART, body=b"--b--\r\n"),
}


async def joined(nodes: list[Proxy]) -> None:
    """What nginx has sent again follows the flight of the first try, on the other node."""
    await eventually(
        lambda: any(
            row["role"] == "follower" and row["owner"] for node in nodes for row in node.api("/api/flights")["flights"]
        )
    )


async def tries(data: bytes, start_nginx: StartNginx, *, fault: object) -> tuple[int, list[Received]]:
    """The status for ``data``, and what two nodes that do ``fault`` got of it."""
    async with ScriptedUpstream([fault]) as first, ScriptedUpstream([fault]) as second:
        silent = fault is HANG
        nginx = start_nginx(shipped(first.port, second.port, proxy_read_timeout="300ms" if silent else "10s"))
        status = (await ask(nginx.port, data)).status
        return status, [*first.requests, *second.requests]


@pytest.mark.parametrize("fault", [HANG, RESET], ids=["silent", "reset"])
@pytest.mark.parametrize("data", ONCE.values(), ids=ONCE.keys())
async def test_what_is_never_sent_twice(data: bytes, fault: object, start_nginx: StartNginx) -> None:
    status, received = await tries(data, start_nginx, fault=fault)
    assert status == (504 if fault is HANG else 502)
    assert len(received) == 1


@pytest.mark.parametrize("data", AGAIN.values(), ids=AGAIN.keys())
async def test_what_the_next_node_is_asked_for(data: bytes, start_nginx: StartNginx) -> None:
    _, received = await tries(data, start_nginx, fault=HANG)
    assert len(received) == 2
    assert received[0].body == received[1].body
    assert received[0].target == received[1].target


async def test_a_node_that_is_down_is_passed_over_by_all(start_nginx: StartNginx, upstream: ScriptedUpstream) -> None:
    upstream.play(raw(b"{}"))
    nginx = start_nginx(shipped(1, upstream.port))
    async with connect(nginx.port) as client:
        for data in [*ONCE.values(), *AGAIN.values()]:
            assert (await client.ask(data)).status == 200
    assert upstream.calls == len(ONCE) + len(AGAIN)


# ── real nodes behind it ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("form", FORMS)
async def test_c12_each_event_arrives_soon(
    form: str, start_nginx: StartNginx, proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    """C12 behind nginx, whose own buffering is on in the bare form: X-Accel-Buffering is what counts there."""
    events, pause_s = 20, 0.03
    steps = [step for _ in range(events) for step in (CH, pause_s)]
    upstream.play(sse(*steps, FIN, DONE))
    nginx = start_nginx(front(form, proxy.port))
    body = chat(fresh(), "Accept-Encoding: gzip, br")

    async def late(answer: Response) -> float:
        writes = upstream.requests[0].sent[1 : events + 1]
        lags = [lasted(at, answer.arrival_s(len(CH) * (n + 1))) for n, (at, _) in enumerate(writes)]
        return quantiles(lags[joined:], n=20)[-1]

    async with connect(nginx.port) as a, connect(nginx.port) as b:
        await a.send(body)
        await a.read_events(1)
        await b.send(body)
        await b.read_events(1)
        joined = len(upstream.requests[0].sent)
        answers = await asyncio.gather(a.finish(), b.finish())
    assert [answer.role for answer in answers] == ["owner", "follower"]
    for answer in answers:
        assert answer.body == CH * events + FIN + DONE
        assert answer.complete
        assert answer.get("X-Accel-Buffering") is None  # it was meant for nginx
        assert await late(answer) < 0.1


@pytest.mark.parametrize("form", FORMS)
async def test_answers_without_a_stream(
    form: str, start_nginx: StartNginx, proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    large = json_answer({"data": "x" * 300_000})
    upstream.play(large, raw(b"y" * 300_000, "X-Own: 1"))
    nginx = start_nginx(front(form, proxy.port))
    body = chat(fresh(stream=False))
    answers = [await ask(nginx.port, data) for data in (body, body, request("GET", "/v1/files/f/content"))]
    assert [answer.role for answer in answers] == ["owner", "replay", "bypass"]
    assert [answer.complete for answer in answers] == [True] * 3
    assert answers[0].body == answers[1].body == large.partition(b"\r\n\r\n")[2]
    assert answers[2].body == b"y" * 300_000


@pytest.mark.parametrize("form", FORMS)
async def test_an_error_keeps_its_status(
    form: str, start_nginx: StartNginx, proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    upstream.play(json_answer({"error": {"message": "later"}}, "Retry-After: 7", status=429))
    nginx = start_nginx(front(form, proxy.port))
    answer = await ask(nginx.port, chat(fresh()))
    assert (answer.status, answer.get("Retry-After"), upstream.calls) == (429, "7", 1)


@pytest.mark.parametrize("target", [CHAT, "/v1/unknown"])
@pytest.mark.parametrize("form", FORMS)
async def test_a_cut_stays_a_cut(
    form: str, target: str, start_nginx: StartNginx, proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    """Also where the node speaks HTTP/1.0 to nginx, and only the end of the connection ends the body."""
    gate = asyncio.Event()
    upstream.play([*sse(CH, gate, last=False), RESET])
    nginx = start_nginx(front(form, proxy.port))
    async with connect(nginx.port) as client:
        await client.send(chat(fresh(), target=target))
        if not (form == "bare" and target != CHAT):  # there nginx holds back what nobody forbade it to
            await client.read_events(1)
        gate.set()
        answer = await client.finish()
    assert not answer.complete
    assert not answer.last_chunk_seen
    assert b"[DONE]" not in answer.body


async def test_a_websocket(start_nginx: StartNginx, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    async def echo(exchange: object) -> None:
        data = await exchange.reader.readexactly(4)  # type: ignore[attr-defined]
        await exchange.write(data[::-1])  # type: ignore[attr-defined]

    upstream.play([head(101, "Connection: Upgrade", "Upgrade: websocket"), echo, HANG])
    nginx = start_nginx(shipped(proxy.port))
    fields = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: x", "Sec-WebSocket-Version: 13")
    async with connect(nginx.port) as client:
        await client.send(request("GET", "/v1/realtime?model=m", *fields))
        assert (await client.head()).status == 101
        await client.send_more(b"abcd")
        client.sock.setblocking(False)
        loop = asyncio.get_running_loop()
        got = client.left_over + client.parser.rest
        async with asyncio.timeout(5):
            while len(got) < 4:
                got += await loop.sock_recv(client.sock, 100)
        assert got == b"dcba"


async def silent_until_nginx_gives_up(nginx: Nginx, times: int) -> None:
    await eventually(lambda: nginx.log.count("upstream timed out") == times)


async def test_c52_a_retry_after_nginx_has_given_up_joins_the_running_flight(
    start_nginx: StartNginx, pair: list[Proxy], upstream: ScriptedUpstream
) -> None:
    gate = asyncio.Event()
    upstream.play([gate, *sse(CH, FIN, DONE)])
    nginx = start_nginx(shipped(*(proxy.port for proxy in pair), proxy_read_timeout="1s"))
    async with connect(nginx.port) as client:
        await client.send(chat(fresh()))
        await silent_until_nginx_gives_up(nginx, 1)
        await joined(pair)
        gate.set()
        answer = await client.finish()
    assert (answer.status, answer.body) == (200, STREAM)
    assert answer.role == "follower"
    assert upstream.calls == 1


async def test_c52_and_so_does_the_client_s_own_retry(
    start_nginx: StartNginx, pair: list[Proxy], upstream: ScriptedUpstream
) -> None:
    """The case's own figures, halved: both nodes are given up on, and the client sends it again."""
    gate = asyncio.Event()
    upstream.play([gate, *sse(CH, FIN, DONE)])
    nginx = start_nginx(shipped(*(proxy.port for proxy in pair), proxy_read_timeout="500ms"))
    body = chat(fresh())
    assert (await ask(nginx.port, body)).status == 504
    async with connect(nginx.port) as client:
        await client.send(body)
        await silent_until_nginx_gives_up(nginx, 3)
        gate.set()
        answer = await client.finish()
    assert (answer.status, answer.body, upstream.calls) == (200, STREAM, 1)


async def test_c11_a_silent_first_byte(start_nginx: StartNginx, pair: list[Proxy], upstream: ScriptedUpstream) -> None:
    """C11 behind nginx: longer than its read timeout, and then an error. Status fidelity holds through the retry."""
    gate = asyncio.Event()
    error = json_answer({"error": {"message": "later"}}, "Retry-After: 7", status=429)
    upstream.play([gate, error])
    nginx = start_nginx(shipped(*(proxy.port for proxy in pair), proxy_read_timeout="700ms"))
    body = chat(fresh())
    async with connect(nginx.port) as a, connect(pair[0].port) as b:
        await a.send(body)
        await upstream.wait_calls(1)
        await b.send(body)
        await silent_until_nginx_gives_up(nginx, 1)
        await joined(pair)
        gate.set()
        answers = [await a.finish(), await b.finish()]
    for answer in answers:
        assert (answer.status, answer.get("Retry-After")) == (429, "7")
        assert json.loads(answer.body)["error"]["message"] == "later"
    assert upstream.calls == 1


def test_c11_its_own_patience_is_longer_than_any_stages() -> None:
    (read_timeout,) = re.findall(r"^    proxy_read_timeout (\d+)s;", SHIPPED.read_text(), re.MULTILINE)
    assert int(read_timeout) > 600  # first_byte_timeout


async def test_a_node_that_dies_under_a_request_is_replaced_by_the_other(
    start_nginx: StartNginx, start_proxy: StartProxy, redis_server: RedisServer, upstream: ScriptedUpstream
) -> None:
    upstream.play([HANG], sse(CH, FIN, DONE))
    stays, dies = two(start_proxy, redis_server, upstream, lease_s=1)
    nginx = start_nginx(shipped(dies.port, stays.port))  # the first request goes to the first one
    async with connect(nginx.port) as client:
        await client.send(chat(fresh()))
        await upstream.wait_calls(1)
        dies.kill()
        answer = await client.finish()
    assert (answer.status, answer.body, upstream.calls) == (
        200,
        STREAM,
        2,
    )  # a takeover: the first call died with its node
