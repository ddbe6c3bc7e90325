"""What goes alone, and what is shared, on its way to real sockets: streamed, bounded, and cut so that it shows."""

from __future__ import annotations

import asyncio
import random

import pytest

from harness.client import RawClient, ask, chat, connect, fresh, request
from harness.ports import free_port
from harness.process import eventually
from harness.wire import Response
from nodes.house import House, OpenHouse
from soloflight.core.errors import Code
from soloflight.testing.chat import CH, DONE, FIN, content
from soloflight.testing.script import CLOSE, HANG, RESET, Script, chunk, chunked, head, raw, sse
from soloflight.testing.upstream import ScriptedUpstream

FILES = request("GET", "/v1/files")
ALONE, SHARED = "/v1/files", "/v1/chat/completions"


# ── alone ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("script", "method", "framing", "body"),
    [
        (raw(b"hello"), "GET", "length", b"hello"),
        (chunked(b"hel", b"lo"), "GET", "chunked", b"hello"),
        ([head(200), b"hello", CLOSE], "GET", "close", b"hello"),
        ([head(200, "Content-Length: 5")], "HEAD", "none", b""),
        ([head(204)], "GET", "none", b""),
        ([head(304, "Content-Length: 5")], "GET", "none", b""),
        (raw(b""), "GET", "length", b""),
        (chunked(), "GET", "chunked", b""),
        (raw(b"no", status=404), "GET", "length", b"no"),
    ],
)
async def test_an_answer_is_relayed_in_its_own_framing(
    house: House, upstream: ScriptedUpstream, script: Script, method: str, framing: str, body: bytes
) -> None:
    upstream.play(script)
    async with connect(house.port) as client:
        for _ in range(2):
            response = await client.ask(request(method, ALONE))
            assert (response.framing, bytes(response.kept), response.role) == (framing, body, "bypass")
            if framing == "close":
                break
    assert response.ended == ("fin" if framing == "close" else "complete")


async def test_bytes_are_relayed_as_they_come(house: House, upstream: ScriptedUpstream) -> None:
    gate = asyncio.Event()
    upstream.play(chunked(b"one", gate, b"two"))
    async with connect(house.port) as client:
        await client.send(FILES)
        assert bytes((await client.read_body(3)).kept) == b"one"
        gate.set()
        assert bytes((await client.finish()).kept) == b"onetwo"


CUTS = {
    "length": [head(200, "Content-Length: 9"), b"hel", 0.02],
    "chunks": [head(200, "Transfer-Encoding: chunked"), chunk(b"hel"), 0.02],
}


@pytest.mark.parametrize("leaving", [CLOSE, RESET])
@pytest.mark.parametrize("how", CUTS)
async def test_an_answer_that_breaks_off_is_cut_with_a_reset(
    house: House, upstream: ScriptedUpstream, how: str, leaving: object
) -> None:
    upstream.play([*CUTS[how], leaving])
    response = await ask(house.port, FILES)
    assert (bytes(response.kept), response.ended, response.last_chunk_seen) == (b"hel", "rst", False)
    await eventually(lambda: bool(house.requests))
    assert (house.requests[0].cut, house.requests[0].code) == (True, Code.UPSTREAM_TRUNCATED)


async def test_a_reset_is_no_end_of_an_answer_that_only_the_close_ends(
    house: House, upstream: ScriptedUpstream
) -> None:
    upstream.play([head(200), b"hel", 0.02, RESET])
    response = await ask(house.port, FILES)
    assert (bytes(response.kept), response.ended) == (b"hel", "rst")


TIMES = {"stage_defaults": {"first_byte_timeout": 0.2, "progress_timeout": 0.2}}


@pytest.mark.parametrize("target", [ALONE, SHARED])
async def test_silence_before_the_answer_is_a_504_and_within_it_a_cut(
    open_house: OpenHouse, upstream: ScriptedUpstream, target: str
) -> None:
    house = await open_house(TIMES)
    upstream.play([HANG], chunked(b"hel", HANG, last=False))
    silent = await ask(house.port, chat(fresh(), target=target))
    assert (silent.status, silent.get("x-should-retry")) == (504, "false")
    stuck = await ask(house.port, chat(fresh(), target=target))
    assert (bytes(stuck.kept), stuck.ended) == (b"hel", "rst")
    assert [event.code for event in house.requests] == [Code.UPSTREAM_TIMEOUT] * 2
    await upstream.wait_until(lambda: upstream.open_now == 0)


@pytest.mark.parametrize("target", [ALONE, SHARED])
async def test_nobody_upstream_is_a_502(open_house: OpenHouse, target: str) -> None:
    house = await open_house({"upstream": {"url": f"http://127.0.0.1:{free_port()}"}})
    response = await ask(house.port, chat(fresh(), target=target))
    assert response.status == 502
    assert b"upstream_unreachable" in response.body


async def test_a_slow_client_slows_its_upstream_down(house: House, upstream: ScriptedUpstream) -> None:
    upstream.play(chunked(*[b"x" * (1 << 20)] * 60))
    async with connect(house.port, receive_buffer=4096) as client:
        await client.send(FILES)
        await client.head()
        await asyncio.sleep(0.3)  # long enough to take all of it, were it not held
        assert sum(size for _, size in upstream.requests[0].sent) < 30 << 20


async def test_a_client_that_leaves_ends_its_call(house: House, upstream: ScriptedUpstream) -> None:
    upstream.play(chunked(b"hel", HANG, last=False))
    async with connect(house.port) as client:
        await client.send(FILES)
        await client.read_body(3)
    await upstream.wait_until(lambda: upstream.requests[0].left is not None)
    await eventually(lambda: bool(house.requests))
    assert (house.requests[0].cut, house.requests[0].reason) == (True, "route")


# ── tunnels ─────────────────────────────────────────────────────────────────────────────────────────────────────────

UPGRADE = request("GET", "/v1/realtime", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Protocol: a, b")
SWITCH = head(101, "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Protocol: b")


async def test_a_tunnel_carries_bytes_both_ways_until_one_side_ends(house: House, upstream: ScriptedUpstream) -> None:
    async def echo(exchange: object) -> None:
        while data := await exchange.reader.read(1000):  # type: ignore[attr-defined]
            await exchange.write(data.upper())  # type: ignore[attr-defined]

    upstream.play([SWITCH + b"early", echo, CLOSE])
    async with connect(house.port) as client:
        await client.send(UPGRADE)
        response = await client.head()
        assert (response.status, response.get("Sec-WebSocket-Protocol")) == (101, "b")
        got = bytearray(client.parser.rest)
        for piece in (b"one", b"two" * 50_000):
            await client.send_more(piece)
            while not got.endswith(piece.upper()):
                got += await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client.sock, 1 << 16), 5)
        assert got == b"early" + b"ONE" + b"TWO" * 50_000
        client.fin()
        assert await client.ended() in ("fin", "rst")
    await upstream.wait_until(lambda: upstream.open_now == 0)
    await eventually(lambda: bool(house.requests))
    assert (house.requests[0].status, house.requests[0].reason) == (101, "upgrade")


async def test_a_silent_tunnel_ends(open_house: OpenHouse, upstream: ScriptedUpstream) -> None:
    house = await open_house({"stage_defaults": {"first_byte_timeout": 0.2}})
    upstream.play([SWITCH, HANG])
    async with connect(house.port) as client:
        await client.send(UPGRADE)
        assert (await client.head()).status == 101
        assert await client.ended(within_s=3) == "fin"
    await upstream.wait_until(lambda: upstream.open_now == 0)


async def test_a_refused_upgrade_is_an_answer_like_any(house: House, upstream: ScriptedUpstream) -> None:
    upstream.play(raw(b"no", status=403))
    async with connect(house.port) as client:
        assert (await client.ask(UPGRADE)).status == 403
        assert (await client.ask(FILES)).status == 403


# ── shared ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def paced(client: RawClient, pace_s: float) -> Response:
    """Read a little, pause, and so on to the end."""
    await client.head()
    while client.response.ended is None:
        have = len(client.response.kept)
        await client.read_body(have + 60_000)
        await asyncio.sleep(pace_s)
    return client.response


async def test_a_crowd_of_quick_and_slow_clients_gets_the_same_bytes(house: House, upstream: ScriptedUpstream) -> None:
    """Some are written to in the owner's own call, some by their tasks; they join at any byte and read at any pace."""
    rng = random.Random(3)
    pieces = [content(str(number) * rng.randrange(1, 60_000)) for number in range(60)]
    steps = [step for piece in pieces for step in (piece, 0.003)]
    upstream.play(sse(*steps, FIN, DONE))
    block = chat(fresh())
    clients = [await RawClient.open(house.port, receive_buffer=(None, 4096, 65536)[number % 3]) for number in range(40)]
    try:
        reading = []
        for number, client in enumerate(clients):
            await client.send(block)
            reading.append(asyncio.create_task(paced(client, 0.002 * (number % 3))))
            await asyncio.sleep(rng.random() / 100)
        responses = await asyncio.gather(*reading)
    finally:
        for client in clients:
            client.close()
    assert {bytes(response.kept) for response in responses} == {b"".join(pieces) + FIN + DONE}
    assert all(response.ended == "complete" for response in responses)
    assert len({response.get("X-Soloflight-Flight") for response in responses}) == 1
    assert upstream.calls == 1


async def test_a_client_too_slow_for_a_long_answer_is_cut(open_house: OpenHouse, upstream: ScriptedUpstream) -> None:
    house = await open_house({"stage_defaults": {"max_recording": 1 << 20}})
    gate = asyncio.Event()
    upstream.play(chunked(b"x", gate, *[b"y" * (1 << 20)] * 40))
    block = chat(fresh())
    async with connect(house.port) as fast, connect(house.port, receive_buffer=4096) as slow:
        for client in (fast, slow):
            await client.send(block)
            await client.read_body(1)
        gate.set()
        assert (await fast.finish()).ended == "complete"
        response = await slow.finish()
        assert response.ended == "rst"
        assert not response.last_chunk_seen
    await eventually(lambda: len(house.requests) == 2)
    assert {(event.cut, event.code) for event in house.requests} == {(False, None), (True, Code.OWNER_LOST)}


@pytest.mark.parametrize("http10", [False, True])
async def test_a_cut_stream_has_one_error_event_and_no_end(
    house: House, upstream: ScriptedUpstream, http10: bool
) -> None:
    upstream.play(sse(CH, 0.05, CLOSE, last=False))
    block = chat(fresh())
    if http10:
        block = block.replace(b"HTTP/1.1", b"HTTP/1.0", 1)
    response = await ask(house.port, block)
    assert response.ended == "rst"
    assert response.body.startswith(CH)
    assert response.body.count(b'"error"') == 1
    assert b"[DONE]" not in response.body


async def test_inside_an_event_a_cut_is_just_a_reset(house: House, upstream: ScriptedUpstream) -> None:
    upstream.play(sse(CH + b"data: {", 0.05, CLOSE, last=False))
    response = await ask(house.port, chat(fresh()))
    assert (response.body, response.ended) == (CH + b"data: {", "rst")
