"""A client's connection: the bounds on it, how it is refused, drained, cut, and what of aiohttp's inside it stands on."""

from __future__ import annotations

import asyncio
import inspect
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.web_protocol import RequestHandler

from harness.client import ask, chat, connect, fresh, raw_request, request
from harness.process import eventually
from nodes.house import House, OpenHouse
from soloflight.testing.chat import CH, DONE, FIN
from soloflight.testing.script import CLOSE, HANG, chunked, raw, sse
from soloflight.testing.upstream import ScriptedUpstream
from soloflight.web.begun import declared_length
from soloflight.web.connection import ClientGone, Connection, sent

ANSWER = CH + FIN + DONE
HEALTH = request("GET", "/_soloflight/health")


def error_code(body: bytes) -> str:
    value = json.loads(body)["error"]
    assert value["type"] == "soloflight_error"
    return str(value["code"])


# ── the head's bound ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("begun", [b"", b"GET /v1/models HT", b"GET /v1/models HTTP/1.1\r\nHost: a\r\nX: "])
async def test_a_head_that_does_not_come_whole_in_time_ends_the_connection(open_house: OpenHouse, begun: bytes) -> None:
    house = await open_house({"server": {"header_timeout": 0.2}})
    async with connect(house.port) as client:
        if begun:
            await client.send(begun)
        assert await client.ended(within_s=2) == "fin"


async def test_bytes_now_and_then_do_not_move_the_heads_bound(open_house: OpenHouse) -> None:
    house = await open_house({"server": {"header_timeout": 0.3}})
    loop = asyncio.get_running_loop()
    async with connect(house.port) as client:
        began = loop.time()
        await client.send(b"GET / HTTP/1.1\r\n")
        ending = asyncio.create_task(client.ended(within_s=3))
        while not ending.done() and loop.time() - began < 2:
            try:
                await client.send_more(b"X: 1\r\n")
            except ConnectionError:
                break
            await asyncio.sleep(0.05)
        await ending
        assert 0.25 < loop.time() - began < 1


async def test_behind_an_answer_a_new_head_has_its_own_bound(open_house: OpenHouse) -> None:
    house = await open_house({"server": {"header_timeout": 0.3}})
    async with connect(house.port) as client:
        for _ in range(3):
            await asyncio.sleep(0.15)
            assert (await client.ask(HEALTH)).status == 200
        await asyncio.sleep(0.4)
        assert (await client.ask(HEALTH)).status == 200, "an idle connection has begun no head"
        await client.send(b"GET / HTTP/1.1\r\n")
        assert await client.ended(within_s=2) == "fin"


async def test_a_body_that_stops_coming_is_told_so(open_house: OpenHouse) -> None:
    house = await open_house({"server": {"body_timeout": 0.2}})
    async with connect(house.port) as client:
        await client.send(request("POST", "/v1/chat/completions", "Content-Length: 10") + b"half")
        response = await client.finish()
        assert (response.status, error_code(response.body), response.get("Connection")) == (
            408,
            "request_timeout",
            "close",
        )


# ── refusals ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("head", "status", "code"),
    [
        (b"nonsense\r\n\r\n", 400, "bad_request"),
        (b"GET / HTTP/1.1\r\nHost a\r\n\r\n", 400, "bad_request"),
        (b"GET / HTTP/9.9\r\nHost: a\r\n\r\n", 400, "bad_request"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n", 400, "bad_request"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n", 400, "bad_request"),
        (b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 431, "headers_too_large"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 200_000 + b"\r\n\r\n", 431, "headers_too_large"),
    ],
)
async def test_what_the_parser_refuses_is_told_in_the_apis_form_and_closes(
    house: House, head: bytes, status: int, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    response = await ask(house.port, head)
    assert (response.status, error_code(response.body), response.get("Connection")) == (status, code, "close")
    assert response.get("Server") is None
    assert (await ask(house.port, HEALTH)).status == 200
    assert not [made for made in caplog.records if made.exc_info]


async def test_a_handler_that_fails_is_a_500_and_a_log_line(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(house.app.front, "serve", fails)
    response = await ask(house.port, chat(fresh()))
    assert (response.status, error_code(response.body), response.get("Connection")) == (500, "internal_error", "close")
    assert "a bug" not in response.body.decode()
    assert [made.getMessage() for made in caplog.records if made.exc_info] == ["a handler failed: RuntimeError"]


async def test_a_refused_request_whose_body_was_read_keeps_its_connection(house: House) -> None:
    async with connect(house.port) as client:
        first = await client.ask(chat(fresh(), "X-Soloflight-Stage: none"))
        assert (first.status, first.get("Connection")) == (400, None)
        assert (await client.ask(HEALTH)).status == 200


@pytest.mark.parametrize("over", [chat({}, target="/v1/files"), chat({"x": "y" * 300})])
async def test_a_body_over_its_bound_is_refused(open_house: OpenHouse, over: bytes) -> None:
    house = await open_house({"server": {"max_body": 200, "max_shared_body": 100}})
    big = (
        over
        if len(over) > 400
        else request("POST", "/v1/files", "Transfer-Encoding: chunked") + b"12c\r\n" + b"x" * 300 + b"\r\n0\r\n\r\n"
    )
    response = await ask(house.port, big)
    assert (response.status, error_code(response.body)) == (413, "body_too_large")


# ── expectations, versions, peers ───────────────────────────────────────────────────────────────────────────────────


async def test_a_body_is_asked_for_only_when_it_is_wanted(house: House, upstream: ScriptedUpstream) -> None:
    upstream.play(sse(CH, FIN, DONE))
    block = chat(fresh(), "Expect: 100-continue")
    head_end = block.index(b"\r\n\r\n") + 4
    async with connect(house.port) as client:
        await client.send(block[:head_end])
        await client.read_until(lambda response: bool(response.informational))
        assert client.response.informational == [b"HTTP/1.1 100 Continue\r\n\r\n"]
        await client.send_more(block[head_end:])
        assert (await client.finish()).body == ANSWER
    async with connect(house.port) as client:
        refused = await client.ask(chat(fresh(), "Expect: 100-continue", "X-Soloflight-Stage: none")[:-5])
        assert (refused.status, refused.informational) == (400, [])


async def test_a_unix_socket_is_a_trusted_peer_without_an_address(
    open_house: OpenHouse, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    path = tmp_path / "soloflight.sock"
    upstream.play(raw(b"ok"))
    house = await open_house({"server": {"listen": f"unix:{path}"}, "upstream": {"forwarded": "x-forwarded"}})
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(request("GET", "/v1/files", "X-Forwarded-For: 1.1.1.1", "Connection: close"))
    assert (await reader.read()).endswith(b"ok")
    writer.close()
    assert upstream.requests[0].all(b"x-forwarded-for") == [b"1.1.1.1, unknown"]
    assert house.requests[0].peer == ""


async def test_an_address_in_either_notation_is_one_peer(house: House) -> None:
    assert house.app._door is not None
    connection = house.app._door()
    transport = FakeTransport(("::ffff:10.0.0.7", 5, 0, 0))
    connection.connection_made(transport)  # type: ignore[arg-type]
    assert isinstance(connection, Connection)
    assert (connection.peer, connection.trusted_peer) == ("10.0.0.7", False)
    connection.connection_lost(None)


class FakeTransport(asyncio.Transport):
    """A transport that only knows its peer."""

    def __init__(self, peer: tuple[object, ...]) -> None:
        super().__init__({"peername": peer})

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        pass


# ── clients that leave, or do not read ──────────────────────────────────────────────────────────────────────────────


async def test_a_client_that_leaves_is_told_of_and_disturbs_nobody(house: House, upstream: ScriptedUpstream) -> None:
    gate = asyncio.Event()
    upstream.play(sse(CH, gate, FIN, DONE))
    block = chat(fresh())
    async with connect(house.port) as stays:
        async with connect(house.port) as leaves:
            await leaves.send(block)
            await leaves.read_body(len(CH))
            await stays.send(block)
            await stays.read_body(len(CH))
        await eventually(lambda: len(house.requests) == 1)
        gate.set()
        assert (await stays.finish()).body == ANSWER
    assert (house.requests[0].cut, house.requests[0].reason) == (True, "client_gone")
    assert upstream.calls == 1


@pytest.mark.parametrize("target", ["/v1/chat/completions", "/v1/files"])
async def test_a_client_that_takes_nothing_is_cut(
    open_house: OpenHouse, upstream: ScriptedUpstream, target: str
) -> None:
    house = await open_house({"server": {"write_timeout": 0.3}})
    upstream.play(chunked(*[b"x" * (1 << 20)] * 40))
    async with connect(house.port, receive_buffer=4096) as client:
        await client.send(chat(fresh(), target=target))
        await client.head()
        await eventually(lambda: len(house.requests) == 1)
        assert house.requests[0].cut
    assert house.app.front is not None
    assert house.app.front.running == 0


async def test_a_client_that_reads_slowly_is_not_cut(open_house: OpenHouse, upstream: ScriptedUpstream) -> None:
    house = await open_house({"server": {"write_timeout": 0.3}})
    size = 6 << 20
    upstream.play(raw(b"x" * size))
    async with connect(house.port, receive_buffer=65536) as client:
        await client.send(request("GET", "/v1/files"))
        while client.response.ended is None:
            have = len(client.response.kept)
            await client.read_body(min(size, have + (1 << 18)))
            await asyncio.sleep(0.03)
        assert (client.response.ended, len(client.response.kept)) == ("complete", size)


async def test_a_cut_answer_ends_in_a_reset_behind_all_that_was_sent(house: House, upstream: ScriptedUpstream) -> None:
    gate = asyncio.Event()
    body = CH * 2000
    upstream.play(sse(body, gate, CLOSE, last=False))
    async with connect(house.port, receive_buffer=8192) as client:
        await client.send(chat(fresh()))
        await client.read_body(1)
        gate.set()
        await asyncio.sleep(0.1)
        response = await client.finish()
        assert response.ended == "rst"
        assert response.body.startswith(body), "nothing that was sent before the cut is lost"
        assert b"upstream_truncated" in response.body[len(body) :]
        assert not response.last_chunk_seen


# ── draining ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_drain_finishes_what_runs_and_lets_go_of_the_rest(
    open_house: OpenHouse, upstream: ScriptedUpstream
) -> None:
    house = await open_house({"server": {"drain_timeout": 5.0, "drain_delay": 0.2}})
    gate = asyncio.Event()
    upstream.play(sse(CH, gate, FIN, DONE))
    async with connect(house.port) as running, connect(house.port) as idle, connect(house.port) as other:
        await running.send(chat(fresh()))
        await running.read_body(len(CH))
        await idle.ask(HEALTH)
        draining = asyncio.create_task(house.app.drain())
        await asyncio.sleep(0)
        ready = await idle.ask(HEALTH)
        assert (ready.status, ready.get("Connection")) == (503, "close")
        assert (await ask(house.port, request("GET", "/_soloflight/livez"))).status == 200, "the listener waits"
        await eventually(lambda: refuses(house.port))
        answered = await other.ask(request("GET", "/_soloflight/livez"))
        assert (answered.status, answered.get("Connection")) == (200, "close")
        assert not draining.done()
        gate.set()
        response = await running.finish()
        assert (response.body, response.ended) == (ANSWER, "complete")
        await asyncio.wait_for(draining, 2)


async def test_what_does_not_end_in_time_is_cut_visibly(open_house: OpenHouse, upstream: ScriptedUpstream) -> None:
    house = await open_house({"server": {"drain_timeout": 0.2}})
    upstream.play(sse(CH, HANG, last=False))
    async with connect(house.port) as client:
        await client.send(chat(fresh()))
        await client.read_body(len(CH))
        await house.app.drain()
        await house.app.close()
        assert (await client.finish()).ended == "rst"
    await upstream.wait_until(lambda: upstream.open_now == 0)


def refuses(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) != 0


async def test_a_close_twice_is_one(open_house: OpenHouse) -> None:
    house = await open_house()
    await house.app.close()
    await house.app.close()
    assert refuses(house.port)


# ── pieces ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("head", "length"),
    [
        (b"GET / HTTP/1.1\r\nHost: a", 0),
        (b"POST / HTTP/1.1\r\nContent-Length: 12", 12),
        (b"POST / HTTP/1.1\r\ncontent-LENGTH:\t12 ", 12),
        (b"POST / HTTP/1.1\r\nContent-Length: 12\r\nHost: a", 12),
        (b"POST / HTTP/1.1\r\nX-Content-Length: 12", 0),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked", None),
        (b"GET / HTTP/1.1\r\nUPGRADE: websocket", None),
        (b"\r\nGET / HTTP/1.1", None),
        (b"POST / HTTP/1.1\r\nContent-Length: x", None),
    ],
)
def test_the_length_of_a_request_is_told_where_its_framing_is_simple(head: bytes, length: int | None) -> None:
    data = head + b"\r\n\r\nbody"
    assert declared_length(data, data.index(b"\r\n\r\n")) == length


def test_an_answer_that_is_out_already_is_two_values() -> None:
    assert (sent(keep_alive=True).keep_alive, sent(keep_alive=False).keep_alive) == (True, False)
    assert sent(keep_alive=True) is sent(keep_alive=True)


@pytest.mark.parametrize(
    "act", [lambda c: c.send(b"x"), lambda c: c.drain(1.0), lambda c: c.reset(), lambda c: c.abort()]
)
async def test_without_a_connection_writing_fails_and_ending_does_nothing(
    house: House, act: Callable[[Connection], Any]
) -> None:
    async with connect(house.port) as client:
        await client.ask(HEALTH)
        assert house.app._door is not None
        [connection] = house.app._door.connections
    await eventually(lambda: connection.transport is None)
    assert isinstance(connection, Connection)
    connection._paused = True
    try:
        result = act(connection)
        if inspect.isawaitable(result):
            await result
    except ClientGone:
        gone = True
    else:
        gone = False
    assert gone is (act.__code__.co_names[0] in ("send", "drain"))


def test_aiohttp_has_the_inside_that_this_stands_on() -> None:
    """Private names: a release without one of them must fail here."""
    slots = {name for kind in (RequestHandler, BaseProtocol) for name in kind.__slots__}
    used = {
        "_waiter", "_messages", "_current_request", "_close", "_force_close", "_paused", "_keepalive_timeout",
        "_next_keepalive_close_time", "_message_tail", "_lingering_time", "_buffer_paused", "transport",
    }  # fmt: skip
    assert used <= slots
    for method in ("_drain_helper", "_resume_reading_for_buffer", "force_close", "handle_error", "data_received"):
        assert callable(getattr(RequestHandler, method))


async def test_many_requests_in_one_write_are_answered_in_order(house: House, upstream: ScriptedUpstream) -> None:
    upstream.play(lambda received: raw(received.target.encode()))
    blocks = [request("GET", f"/v1/files/{number}") for number in range(30)]
    answer = await raw_request(house.port, b"".join(blocks[:-1]) + request("GET", "/v1/files/29", "Connection: close"))
    places = [answer.index(b"\r\n\r\n/v1/files/%d" % number) for number in range(30)]
    assert places == sorted(places)
    assert upstream.calls == 30


async def test_nothing_follows_an_answer_that_only_the_close_ends(house: House, upstream: ScriptedUpstream) -> None:
    """HTTP/1.0 and a stream of unknown length: whatever came after it would be read as a part of it."""
    upstream.play(sse(CH, 0.05, FIN, DONE))
    block = chat(fresh()).replace(b"HTTP/1.1\r\n", b"HTTP/1.0\r\nConnection: keep-alive\r\n", 1)
    response = await ask(house.port, block + HEALTH)
    assert (response.framing, response.ended, response.body) == ("close", "fin", ANSWER)
