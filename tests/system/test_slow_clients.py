"""Clients that are slow to ask, slow to send, or slow to take: each is bounded, and none is felt by others."""

import asyncio
import hashlib
import itertools
import time

import pytest

from harness.bystander import bystander
from harness.client import RawClient, ask, chat, connect, fresh, request
from harness.process import eventually
from harness.proxy import Proxy
from harness.refusals import refused
from harness.stalls import lasted
from soloflight.testing.chat import CH, DONE, FIN, content
from soloflight.testing.script import Script, Step, chunk, head, json, raw, sse
from soloflight.testing.upstream import ScriptedUpstream

MIB = 1 << 20
HEADER_S, BODY_S, WRITE_S = 0.6, 1.2, 1.5
LATE_S = 2.0  # on a busy machine
PROXY = {
    "server": {
        "header_timeout": f"{int(HEADER_S * 1000)}ms",
        "body_timeout": f"{int(BODY_S * 1000)}ms",
        "write_timeout": f"{int(WRITE_S * 1000)}ms",
    },
    "stage_defaults": {"max_recording": "8MiB", "max_abandoned_stream": "200ms"},
}
ROUTES = ["/v1/chat/completions", "/v1/files"]
CROWD = 10


# ── slow to ask ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("begun", [b"", b"G", b"GET /v1/files HTTP/1.1\r\nHost: proxy.test\r\nX-A: "])
async def test_a_head_that_does_not_come(begun: bytes, proxy: Proxy) -> None:
    async with connect(proxy.port) as client:
        start = time.monotonic()
        if begun:
            await client.send(begun)
        assert await client.ended() in ("fin", "rst")
        assert time.monotonic() - start > HEADER_S * 0.9
        assert lasted(start) < HEADER_S + LATE_S


async def test_a_head_that_trickles(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    """One byte now and then does not buy time: the whole head must be there."""
    async with connect(proxy.port) as client:
        start = time.monotonic()
        await client.send(b"GET /v1/files HTTP/1.1\r\nHost: proxy.test\r\n")
        gone = asyncio.create_task(client.ended())
        for _ in range(100):
            if gone.done():
                break
            try:
                await client.send_more(b"X-A: b\r\n")
            except ConnectionError:
                break
            await asyncio.sleep(0.05)
        assert await gone in ("fin", "rst")
        assert time.monotonic() - start > HEADER_S * 0.9
        assert lasted(start) < HEADER_S + LATE_S
    assert upstream.calls == 0


async def test_a_second_head_that_trickles(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(json({}))
    async with connect(proxy.port) as client:
        assert (await client.ask(request("GET", "/v1/files"))).status == 200
        await asyncio.sleep(HEADER_S * 1.5)  # between two requests a client may think
        assert (await client.ask(request("GET", "/v1/files"))).status == 200
        start = time.monotonic()
        await client.send(b"GET /v1/files HTTP/1.1\r\n")
        assert await client.ended() in ("fin", "rst")
        assert time.monotonic() - start > HEADER_S * 0.9
        assert lasted(start) < HEADER_S + LATE_S


async def test_a_long_answer_is_no_late_head(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(sse(CH, HEADER_S * 2, FIN, DONE))
    async with connect(proxy.port) as client:
        answer = await client.ask(chat(fresh()))
        assert (answer.body, answer.complete) == (CH + FIN + DONE, True)
        assert (await client.ask(request("GET", "/_soloflight/health"))).status == 200


# ── slow to send ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("framing", ["Content-Length: 1000", "Transfer-Encoding: chunked"])
@pytest.mark.parametrize("target", ROUTES)
async def test_a_body_that_stops(target: str, framing: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(json({}))
    async with connect(proxy.port) as client:
        await client.send(request("POST", target, framing))
        await client.send_more(b"{" * 100 if "Length" in framing else chunk(b"{" * 100))
        start = time.monotonic()
        answer = await client.finish()
        assert refused(answer) == (408, "request_timeout")
        assert answer.get("Connection") == "close"
        assert time.monotonic() - start > BODY_S * 0.9
        assert lasted(start) < BODY_S + LATE_S
    await upstream.wait_until(lambda: upstream.open_now == 0)
    assert not any(received.body_complete for received in upstream.requests)


@pytest.mark.parametrize("target", ROUTES)
async def test_a_body_that_trickles_is_a_body(target: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    """The bound is on silence: a slow line is served."""
    upstream.play(json({"choices": []}))
    body = b'{"model":"m"}' + b" " * 7
    async with connect(proxy.port) as client:
        await client.send(request("POST", target, f"Content-Length: {len(body)}"))
        for start in range(0, len(body), 4):
            await client.send_more(body[start : start + 4])
            await asyncio.sleep(BODY_S / 4)
        assert (await client.finish()).status == 200
    assert upstream.requests[0].body == body


# ── slow to take ──────────────────────────────────────────────────────────────────────────────────────────────────────

LARGE = content("x" * 1000) * 64


def endless() -> Script:
    return itertools.chain(
        [head(200, "Content-Type: text/event-stream", "Transfer-Encoding: chunked")], itertools.repeat(chunk(LARGE))
    )


async def take(client: RawClient, size: int) -> None:
    """Read ``size`` bytes and forget them."""
    buffer, taken = bytearray(MIB), 0
    async with asyncio.timeout(10):
        while taken < size:
            taken += await asyncio.get_running_loop().sock_recv_into(client.sock, buffer)


async def test_a_client_that_takes_nothing_is_cut(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(lambda _: endless())
    small = MIB // 16
    async with connect(proxy.port, receive_buffer=small) as shared, connect(proxy.port, receive_buffer=small) as alone:
        for client, target in zip((shared, alone), ROUTES, strict=True):
            await client.send(chat(fresh(), target=target))
            await client.read_events(1)
        start = time.monotonic()
        await upstream.wait_until(lambda: all(one.left for one in upstream.requests), WRITE_S + 5 * LATE_S)
        assert time.monotonic() - start > WRITE_S * 0.9
        for client in (shared, alone):
            assert await client.ended() == "rst"


async def test_it_is_cut_while_others_go_on(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    """One flight, two listeners: the one that stalls is cut, the other one gets every byte."""
    pieces = 400
    gate = asyncio.Event()
    sent: list[Step] = [LARGE, gate, *[LARGE] * (pieces - 1), FIN, DONE]
    upstream.play(sse(*sent))
    body = chat(fresh())
    digest = hashlib.sha256(LARGE * pieces + FIN + DONE).hexdigest()
    async with connect(proxy.port, receive_buffer=MIB // 16) as stalled, connect(proxy.port) as quick:
        for client in (stalled, quick):
            await client.send(body)
            await client.read_body(len(LARGE))
        gate.set()
        async with bystander(proxy) as other:
            answer = await quick.finish(within_s=20)
        assert answer.complete
        assert hashlib.sha256(answer.body).hexdigest() == digest
        assert other.longest_s < 0.2
        assert await stalled.ended() == "rst"
    assert upstream.calls == 1


@pytest.mark.parametrize("target", ROUTES)
async def test_a_slow_client_gets_everything(target: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    """It takes a little before each bound runs out; the answer is larger than what is recorded."""
    size = 24 * MIB
    answer = raw(bytes(range(256)) * (size // 256), "X-Large: yes", type="application/octet-stream")
    upstream.play(answer)
    before = proxy.reset_peak()
    async with connect(proxy.port, receive_buffer=MIB // 16) as client:
        await client.send(chat(fresh(stream=False), target=target))
        await client.head()
        for _ in range(4):
            await asyncio.sleep(WRITE_S * 0.4)
            await client.read_body(len(client.response.kept) + MIB)
        got = await client.finish(within_s=20)
    assert got.complete
    assert got.body == answer.partition(b"\r\n\r\n")[2]
    assert proxy.peak_rss() - before < 48 * MIB


async def test_a_crowd_that_takes_nothing(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(lambda _: endless())
    before = proxy.reset_peak()
    clients = [await RawClient.open(proxy.port, receive_buffer=4096) for _ in range(CROWD)]
    try:
        for client, target in zip(clients, itertools.cycle(ROUTES), strict=False):
            await client.send(chat(fresh(), target=target))
        await upstream.wait_until(lambda: upstream.calls == CROWD)
        await upstream.wait_until(lambda: upstream.open_now == 0, WRITE_S + 5 * LATE_S)
    finally:
        for client in clients:
            client.close()
    assert proxy.peak_rss() - before < CROWD * 8 * MIB
    assert (await ask(proxy.port, request("GET", "/_soloflight/health"))).status == 200
    upstream.play(sse(CH, FIN, DONE))
    assert (await ask(proxy.port, chat(fresh()))).body == CH + FIN + DONE


async def test_a_stalled_client_of_an_answer_that_is_over(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    """The flight has ended and is kept; a replay to a client that takes nothing is bounded as well."""
    size = 6 * MIB
    upstream.play(raw(b'{"a":"' + b"x" * size + b'"}', type="application/json"))
    body = chat(fresh(stream=False))
    assert (await ask(proxy.port, body)).role == "owner"
    async with connect(proxy.port, receive_buffer=4096) as client:
        await client.send(body)
        assert (await client.head()).role == "replay"
        held = proxy.open_files()
        await eventually(lambda: proxy.open_files() < held, WRITE_S + 3 * LATE_S)
        assert await client.ended() == "rst"
