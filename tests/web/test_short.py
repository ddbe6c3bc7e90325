"""The short ways: a request whose head, or all of it, was seen before ends where the long way would have ended it."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import json
import logging
import weakref
from typing import Any

import pytest

from harness.client import RawClient, chat, connect, fresh, request, settle
from harness.process import eventually
from harness.wire import Response, ResponseParser
from nodes.house import House, OpenHouse
from soloflight.flow.exchange import Exchange
from soloflight.flow.listen import Listener
from soloflight.ports import RequestEnded, Role
from soloflight.testing.chat import CH, DONE, FIN, content
from soloflight.testing.received import Received
from soloflight.testing.script import CLOSE, HANG, Script, sse
from soloflight.testing.script import json as json_answer
from soloflight.testing.upstream import ScriptedUpstream
from soloflight.web.connection import Connection
from soloflight.web.respond import Responder
from soloflight.web.short import Seat
from soloflight.web.visit import Visit

WHOLE = CH + FIN + DONE
LEFT = {"stage": [{"name": "default", "on_abandon": "cancel", "abandon_grace": 0.0}]}


def echo(received: Received) -> Script:
    return json_answer({"target": received.target, "body": received.body_sha256})


async def streaming(
    house: House, upstream: ScriptedUpstream, body: bytes, *first: bytes
) -> tuple[RawClient, asyncio.Event]:
    """A client whose flight runs, with ``first`` out and a gate before the rest."""
    gate = asyncio.Event()
    upstream.play(sse(*first, gate, FIN, DONE))
    owner = await RawClient.open(house.port)
    await owner.send(body)
    await owner.read_events(len(first))
    return owner, gate


def told(answer: Response) -> Any:
    return json.loads(answer.body)


def ended(house: House, role: Role) -> list[RequestEnded]:
    return [event for event in house.requests if event.role is role]


# ── known heads ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("target", ["/v1/chat/completions", "/v1/files?a=%2F"])
async def test_a_known_head_with_another_body_is_another_request(
    house: House, upstream: ScriptedUpstream, target: str
) -> None:
    upstream.play(echo)
    blocks = [chat(b'{"model": "m", "temperature": 0, "n": %d}' % number, target=target) for number in (1, 2, 3)]
    async with connect(house.port) as client:
        answers = [await client.ask(block) for block in blocks]
    assert house.unparsed == 2
    assert len({answer.body for answer in answers}) == 3
    assert [told(answer)["target"] for answer in answers] == [target] * 3
    assert len({answer.get("X-Soloflight-Request-Id") for answer in answers}) == 3
    assert upstream.calls == len(house.requests) == 3
    assert {received.body for received in upstream.requests} == {block.partition(b"\r\n\r\n")[2] for block in blocks}


async def test_a_known_head_of_a_request_without_a_body(house: House, upstream: ScriptedUpstream) -> None:
    upstream.play(echo)
    block = request("GET", "/v1/files", "Authorization: Bearer k1")
    async with connect(house.port) as client:
        answers = [await client.ask(block) for _ in range(3)]
    assert (house.unparsed, upstream.calls) == (2, 3)
    assert [answer.get("X-Soloflight-Role") for answer in answers] == ["bypass"] * 3


async def test_a_known_head_whose_client_closes(house: House, upstream: ScriptedUpstream) -> None:
    upstream.play(echo)
    block = request("GET", "/v1/files", "Connection: close")
    for unparsed in (0, 1):
        async with connect(house.port) as client:
            answer = await client.ask(block)
            assert (answer.status, answer.get("Connection"), house.unparsed) == (200, "close", unparsed)
            assert await client.ended() == "fin"


async def test_of_a_known_head_more_than_one_request_takes_the_long_way(
    house: House, upstream: ScriptedUpstream
) -> None:
    upstream.play(echo)
    block = chat(b'{"model": "m"}', target="/v1/files")
    async with connect(house.port) as client:
        await client.ask(block)
        await client.send(block + block)
        assert (await client.finish()).status == 200
        client.left_over += client.parser.rest
        assert (await client.ask(b"")).status == 200
    assert (house.unparsed, upstream.calls) == (0, 3)


async def test_what_is_refused_behind_a_known_head_keeps_its_connection(
    house: House, upstream: ScriptedUpstream
) -> None:
    upstream.play(echo)
    head = b"Content-Encoding: gzip"
    async with connect(house.port) as client:
        for unparsed in (0, 1):
            answer = await client.ask(chat(b"no gzip, %d" % unparsed, head))
            assert (answer.status, answer.get("Connection"), house.unparsed) == (400, None, unparsed)
    assert [event.status for event in house.requests] == [400, 400]


async def test_a_short_way_that_fails_is_a_500_and_a_log_line(
    house: House, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(*_: object) -> None:
        raise RuntimeError("a bug")

    upstream.play(echo)
    async with connect(house.port) as client:
        await client.ask(request("GET", "/v1/files"))
        monkeypatch.setattr(house.app.front, "_alone", fails)
        answer = await client.ask(request("GET", "/v1/files"))
        assert (answer.status, answer.get("Connection"), house.unparsed) == (500, "close", 1)
        assert await client.ended() == "fin"
    assert [made.getMessage() for made in caplog.records if made.exc_info] == ["a handler failed: RuntimeError"]
    assert house.requests[-1].status == 500


async def test_a_client_that_leaves_ends_the_call_of_its_known_head(house: House, upstream: ScriptedUpstream) -> None:
    upstream.play(echo, [HANG])
    block = request("GET", "/v1/files")
    async with connect(house.port) as client:
        await client.ask(block)
        await client.send(block)
        await upstream.wait_calls(2)
        assert house.app.front is not None
        assert house.app.front.running == 1
    await eventually(lambda: len(house.requests) == 2)
    assert (house.unparsed, house.requests[-1].reason, house.app.front.running) == (1, "route", 0)
    assert house.requests[-1].cut


async def test_a_client_that_is_gone_before_its_task_has_begun(house: House, upstream: ScriptedUpstream) -> None:
    """The loop reads the request and the reset in one turn: the task is cancelled before its first step."""
    upstream.play(echo)
    block = request("GET", "/v1/files")
    front, door = house.app.front, house.app._door
    assert front is not None
    assert door is not None
    async with connect(house.port) as client:
        await client.ask(block)
        take = door.short_way
        assert take is not None

        def gone(data: bytes, connection: Connection) -> bool:
            taken = take(data, connection)
            connection.connection_lost(ConnectionResetError())
            return taken

        door.short_way = gone
        await client.send(block)
        await eventually(lambda: len(house.requests) == 2)
    assert (house.unparsed, house.requests[1].reason, house.requests[1].cut) == (1, "client_gone", True)
    await eventually(lambda: not front._tasks)
    assert (front.running, upstream.calls) == (0, 1)


async def test_a_seat_that_is_gone_before_the_task_that_takes_it_over_has_begun(
    house: House, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = chat(fresh())
    owner, gate = await streaming(house, upstream, block, CH)
    genuine = Responder.push

    def push(self: Responder, listener: Listener, frames: list[Any]) -> bool:
        return not (gate.is_set() and listener.role is Role.FOLLOWER) and genuine(self, listener, frames)

    monkeypatch.setattr(Responder, "push", push)
    late = await RawClient.open(house.port)
    await late.send(block)
    await late.read_events(1)
    attend = house.app.front.attend  # type: ignore[union-attr]

    def attend_and_lose(visit: Visit, answering: Any) -> None:
        attend(visit, answering)
        visit.connection.connection_lost(ConnectionResetError())

    monkeypatch.setattr(house.app.front, "attend", attend_and_lose)
    gate.set()
    assert (await owner.finish()).body == WHOLE
    await eventually(lambda: len(house.requests) == 2)
    assert {event.reason for event in house.requests} == {"", "client_gone"}
    await eventually(lambda: house.app.front is not None and not house.app.front.running)
    for client in (owner, late):
        client.close()


@pytest.mark.parametrize("size", [100_000, 700_000])
async def test_a_large_body_behind_a_known_head_is_gathered(
    house: House, upstream: ScriptedUpstream, size: int
) -> None:
    upstream.play(echo)
    async with connect(house.port) as client:
        for mark in (b"a", b"b", b"a"):
            block = chat(b'{"model": "m", "temperature": 0, "x": "' + mark * size + b'"}')
            answer = await client.ask(block)
            assert told(answer)["body"] == hashlib.sha256(block.partition(b"\r\n\r\n")[2]).hexdigest()
    assert (house.unparsed, upstream.calls) == (2, 2)
    assert [event.role for event in house.requests] == [Role.OWNER, Role.OWNER, Role.REPLAY]


@pytest.mark.parametrize("ends", ["silence", "more", "leaves"])
async def test_a_body_behind_a_known_head_that_does_not_come_as_announced(
    house: House, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    monkeypatch.setattr("soloflight.web.short.GATHER_S", 0.1)
    upstream.play(echo)
    block = chat(b'{"model": "m", "temperature": 0, "x": "' + b"a" * 100_000 + b'"}')
    other = request("GET", "/v1/files")
    async with connect(house.port) as client:
        first = await client.ask(block)
        await client.send(block[:90_000])
        await eventually(lambda: house.unparsed == 1)
        if ends == "leaves":
            client.close()
            await eventually(lambda: len(house.requests) == 2)
            assert house.requests[1].reason == "client_gone"
            return
        if ends == "silence":
            await eventually(
                lambda: house.app.front is not None and house.app.front.running == 1 and house.requests[1:] == []
            )
            await asyncio.sleep(0.2)
        await client.send_more(block[90_000:] + (other if ends == "more" else b""))
        second = await client.finish()
        assert (second.body, second.get("X-Soloflight-Role")) == (first.body, "replay")
        if ends == "more":
            client.left_over += client.parser.rest
            assert (await client.ask(b"")).status == 200


async def test_what_comes_behind_a_request_under_way_is_answered_next(house: House, upstream: ScriptedUpstream) -> None:
    gate = asyncio.Event()
    upstream.play(echo, [gate, json_answer({"second": 1})], json_answer({"third": 1}))
    block = request("GET", "/v1/files")
    async with connect(house.port) as client:
        await client.ask(block)
        await client.send(block)
        await upstream.wait_calls(2)
        await client.send_more(block)
        gate.set()
        assert told(await client.finish()) == {"second": 1}
        client.left_over += client.parser.rest
        assert told(await client.ask(b"")) == {"third": 1}
    assert house.unparsed == 2


async def test_much_that_comes_behind_a_request_under_way_waits_at_its_sender(
    house: House, upstream: ScriptedUpstream
) -> None:
    gate = asyncio.Event()
    upstream.play(echo, [gate, json_answer({"second": 1})], echo)
    block = request("GET", "/v1/files")
    large = chat(b"x" * (8 << 20), target="/v1/files")
    async with connect(house.port) as client:
        await client.ask(block)
        await client.send(block)
        await upstream.wait_calls(2)
        sending = asyncio.create_task(client.send_more(large))
        await asyncio.sleep(0.2)
        assert not sending.done()
        gate.set()
        assert told(await client.finish()) == {"second": 1}
        await sending
        client.left_over += client.parser.rest
        assert (await client.ask(b"")).status == 200
    assert upstream.requests[-1].body == large.partition(b"\r\n\r\n")[2]


# ── seats ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_seat_gets_the_answer_from_byte_0_and_live(house: House, upstream: ScriptedUpstream) -> None:
    block = chat(fresh())
    owner, gate = await streaming(house, upstream, block, CH, content("a"))
    async with connect(house.port) as late:
        await late.send(block)
        assert (await late.read_events(2)).body == CH + content("a")
        assert house.unparsed == 1
        gate.set()
        answers = [await client.finish() for client in (owner, late)]
        assert [answer.body for answer in answers] == [CH + content("a") + FIN + DONE] * 2
        assert [answer.get("X-Soloflight-Role") for answer in answers] == ["owner", "follower"]
        assert answers[0].get("X-Soloflight-Flight") == answers[1].get("X-Soloflight-Flight")
        again = await late.ask(block)
        assert again.get("X-Soloflight-Role") == "replay"
    owner.close()
    await eventually(lambda: len(house.requests) == 3)
    (follower,) = ended(house, Role.FOLLOWER)
    assert (follower.status, follower.cut, follower.sent) == (200, False, len(answers[0].body))
    assert follower.lag_s is not None
    assert follower.usage == ended(house, Role.OWNER)[0].usage
    assert upstream.calls == 1


async def test_a_crowd_of_seats_needs_no_tasks(house: House, upstream: ScriptedUpstream) -> None:
    block = chat(fresh())
    owner, gate = await streaming(house, upstream, block, CH)
    idle = [await RawClient.open(house.port) for _ in range(50)]
    await asyncio.gather(*(client.send(block) for client in idle[:1]))
    await idle[0].read_events(1)
    assert house.app.front is not None
    tasks = len(house.app.front._tasks)
    await asyncio.gather(*(client.send(block) for client in idle[1:]))
    await asyncio.gather(*(client.read_events(1) for client in idle))
    assert (house.unparsed, len(house.app.front._tasks)) == (50, tasks)
    assert house.app.front.running == 51
    gate.set()
    answers = await asyncio.gather(*(client.finish() for client in (owner, *idle)))
    assert {answer.body for answer in answers} == {WHOLE}
    for client in (owner, *idle):
        client.close()
    assert upstream.calls == 1


async def test_who_leaves_a_seat_is_told_of_and_missed_by_nobody(house: House, upstream: ScriptedUpstream) -> None:
    block = chat(fresh())
    owner, gate = await streaming(house, upstream, block, CH)
    async with connect(house.port) as late:
        await late.send(block)
        await late.read_events(1)
    await eventually(lambda: bool(house.requests))
    assert (house.requests[0].reason, house.requests[0].cut, house.unparsed) == ("client_gone", True, 1)
    gate.set()
    assert (await owner.finish()).body == WHOLE
    owner.close()


async def test_the_last_who_leaves_a_seat_ends_the_call(open_house: OpenHouse, upstream: ScriptedUpstream) -> None:
    house = await open_house(LEFT)
    block = chat(fresh())
    owner, _ = await streaming(house, upstream, block, CH)
    async with connect(house.port) as late:
        await late.send(block)
        await late.read_events(1)
        owner.close()
        await eventually(lambda: len(house.requests) == 1)
        assert upstream.open_now == 1
    await eventually(lambda: upstream.open_now == 0)
    assert house.unparsed == 1


async def test_a_seat_whose_client_takes_no_bytes_goes_on_in_a_task(house: House, upstream: ScriptedUpstream) -> None:
    body = chat(fresh())
    parts = [content(str(number) * 60_000) for number in range(60)]
    gate = asyncio.Event()
    upstream.play(sse(CH, gate, *parts, FIN, DONE))
    owner = await RawClient.open(house.port)
    await owner.send(body)
    await owner.read_events(1)
    slow = await RawClient.open(house.port, receive_buffer=4096)
    await slow.send(body)
    await slow.read_events(1)
    assert house.app.front is not None
    assert (house.unparsed, len(house.app.front._tasks)) == (1, 0)
    gate.set()
    assert (await owner.finish()).body == CH + b"".join(parts) + FIN + DONE
    assert len(house.app.front._tasks) == 1
    assert (await slow.finish()).body == CH + b"".join(parts) + FIN + DONE
    for client in (owner, slow):
        client.close()


@pytest.mark.parametrize(("cut", "how"), [([CLOSE], "rst"), ([DONE], "complete")], ids=["broken", "incomplete"])
async def test_a_seat_at_a_call_that_breaks_is_cut_as_its_owner_is(
    house: House, upstream: ScriptedUpstream, cut: list[object], how: str
) -> None:
    block = chat(fresh())
    gate = asyncio.Event()
    upstream.play(sse(CH, gate, *cut, last=False))
    async with connect(house.port) as owner, connect(house.port) as late:
        await owner.send(block)
        await owner.read_events(1)
        await late.send(block)
        await late.read_events(1)
        gate.set()
        answers = [await client.finish() for client in (owner, late)]
    assert house.unparsed == 1
    assert answers[0].body == answers[1].body
    assert [answer.ended for answer in answers] == [how, how]


async def test_a_seat_before_the_first_byte_gets_the_error_that_its_owner_gets(
    house: House, upstream: ScriptedUpstream
) -> None:
    block = chat(fresh())
    gate = asyncio.Event()
    upstream.play([gate, CLOSE])
    async with connect(house.port) as owner, connect(house.port) as late:
        await owner.send(block)
        await upstream.wait_calls(1)
        await late.send(block)
        await eventually(lambda: house.unparsed == 1)
        gate.set()
        answers = [await client.finish() for client in (owner, late)]
        assert [answer.status for answer in answers] == [502, 502]
        assert told(answers[0]) == told(answers[1])


async def test_a_seat_whose_answer_can_not_be_written_harms_nobody(
    house: House, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A fault of ours in one listener's rendering: its own client is cut, the owner and the others go on."""
    caplog.set_level(logging.ERROR)
    block = chat(fresh())
    owner, gate = await streaming(house, upstream, block, CH)
    genuine, broken = Responder.push, []

    def push(self: Responder, listener: Listener, frames: list[object]) -> bool:
        if listener.committed and not broken:
            broken.append(self)
            raise RuntimeError("a bug")
        return genuine(self, listener, frames)  # type: ignore[arg-type]

    monkeypatch.setattr(Responder, "push", push)
    async with connect(house.port) as first, connect(house.port) as second:
        for client in (first, second):
            await client.send(block)
            await client.read_events(1)
        monkeypatch.setattr(Responder, "push", push)
        gate.set()
        answers = await asyncio.gather(*(client.finish() for client in (owner, first, second)))
    owner.close()
    assert sorted(answer.ended or "" for answer in answers) == ["complete", "complete", "rst"]


async def test_the_end_of_the_process_cuts_who_sits(open_house: OpenHouse, upstream: ScriptedUpstream) -> None:
    house = await open_house()
    block = chat(fresh())
    owner, _ = await streaming(house, upstream, block, CH)
    async with connect(house.port) as late:
        await late.send(block)
        await late.read_events(1)
        assert house.app.front is not None
        assert house.app.front.listening == 2
        await house.app.close()
        answers = [await client.finish() for client in (owner, late)]
    assert (house.unparsed, [answer.ended for answer in answers]) == (1, ["rst", "rst"])
    assert house.app.front.running == 0
    owner.close()


async def test_a_draining_process_knows_nobody(house: House, upstream: ScriptedUpstream) -> None:
    upstream.play(echo)
    block = request("GET", "/v1/files")
    async with connect(house.port) as client:
        await client.ask(block)
        house.app.state.draining = True
        answer = await client.ask(block)
        assert (answer.get("Connection"), house.unparsed) == ("close", 0)
    other = request("GET", "/v1/files?other")
    for draining, close in ((True, "close"), (False, None), (False, None)):
        house.app.state.draining = draining
        async with connect(house.port) as client:
            assert (await client.ask(other)).get("Connection") == close, "what a drain says is not learned"
    assert house.unparsed == 1


# ── a crowd in one moment ───────────────────────────────────────────────────────────────────────────────────────────


async def crowd(house: House, count: int) -> list[RawClient]:
    """So many clients whose connections stand."""
    return [await RawClient.open(house.port) for _ in range(count)]


def all_at_once(clients: list[RawClient], block: bytes) -> None:
    """Each one's request is in the kernel before the loop turns."""
    for client in clients:
        client.parser = ResponseParser()
        assert client.sock.send(block) == len(block)


async def test_of_a_crowd_in_one_moment_one_request_is_parsed(house: House, upstream: ScriptedUpstream) -> None:
    """More than one slice, and nothing of it was seen before: not even the head."""
    gate = asyncio.Event()
    upstream.play(sse(CH, gate, FIN, DONE))
    clients = await crowd(house, 120)
    all_at_once(clients, chat(fresh()))
    await asyncio.gather(*(client.read_events(1) for client in clients))
    assert house.unparsed == 119
    assert house.app.front is not None
    assert house.app.front.running == 120
    gate.set()
    answers = await asyncio.gather(*(client.finish() for client in clients))
    assert {answer.body for answer in answers} == {WHOLE}
    assert sorted(answer.get("X-Soloflight-Role") or "" for answer in answers) == ["follower"] * 119 + ["owner"]
    assert len({answer.get("X-Soloflight-Request-Id") for answer in answers}) == 120
    await eventually(lambda: len(house.requests) == 120)
    assert (upstream.calls, house.app.front.running) == (1, 0)
    again = await asyncio.gather(*(client.ask(chat(fresh())) for client in clients[:3]))
    assert {answer.status for answer in again} == {200}
    for client in clients:
        client.close()


async def test_a_crowd_behind_a_known_head_is_served_by_one_call(house: House, upstream: ScriptedUpstream) -> None:
    upstream.play(sse(CH, FIN, DONE))
    clients = await crowd(house, 10)
    bodies = [chat({"model": "m", "temperature": 0, "stream": True, "n": number}) for number in (1, 2)]
    await clients[0].ask(bodies[0])
    all_at_once(clients, bodies[1])
    answers = await asyncio.gather(*(client.finish() for client in clients))
    assert {answer.body for answer in answers} == {WHOLE}
    assert (house.unparsed, upstream.calls) == (10, 2)
    for client in clients:
        client.close()


async def test_a_crowd_that_is_not_shared_makes_a_call_each(house: House, upstream: ScriptedUpstream) -> None:
    upstream.play(echo)
    clients = await crowd(house, 5)
    all_at_once(clients, chat(fresh(), "Cache-Control: no-store"))
    answers = await asyncio.gather(*(client.finish() for client in clients))
    assert [answer.get("X-Soloflight-Role") for answer in answers] == ["bypass"] * 5
    assert (house.unparsed, upstream.calls) == (4, 5)
    for client in clients:
        client.close()


async def test_a_crowd_of_what_is_no_request_is_refused_one_by_one(house: House, upstream: ScriptedUpstream) -> None:
    clients = await crowd(house, 5)
    all_at_once(clients, b"no request\r\n\r\n")
    answers = await asyncio.gather(*(client.finish() for client in clients))
    assert [(answer.status, answer.get("Connection")) for answer in answers] == [(400, "close")] * 5
    for client in clients:
        client.close()


async def test_who_leaves_a_crowd_before_its_verdict_is_not_served(house: House, upstream: ScriptedUpstream) -> None:
    upstream.play(sse(CH, FIN, DONE))
    clients = await crowd(house, 5)
    all_at_once(clients, chat(fresh()))
    for client in clients[1:3]:
        client.close()
    answers = await asyncio.gather(*(client.finish() for client in (clients[0], *clients[3:])))
    assert {answer.body for answer in answers} == {WHOLE}
    await eventually(lambda: house.app.front is not None and not house.app.front.running)
    assert upstream.calls == 1
    for client in clients:
        client.close()


async def test_who_comes_from_another_address_tells_the_upstream_of_its_own(
    open_house: OpenHouse, upstream: ScriptedUpstream
) -> None:
    """The same bytes from two addresses: whoever has to call, the upstream hears of that one's."""
    house = await open_house({"upstream": {"forwarded": "x-forwarded"}, "server": {"trusted_proxies": []}})
    block = chat(fresh())
    owner, gate = await streaming(house, upstream, block)
    await upstream.wait_calls(1)
    front = house.app.front
    assert front is not None
    late = await RawClient.open(house.port)
    door = house.app._door
    assert door is not None
    await eventually(lambda: len(door.connections) == 2)
    (newest,) = [one for one in door.connections if isinstance(one, Connection) and not front_has(front, one)]
    newest.peer = "192.0.2.9"
    await late.send(block)
    await eventually(lambda: front.running == 2)
    await settle(house.port)
    assert house.unparsed == 0, "not a seat: it has another address"
    (flight,) = list(house.app.node.flights.all)  # type: ignore[union-attr]
    flight.send_away("busy")
    await upstream.wait_calls(3)
    gate.set()
    answers = await asyncio.gather(*(client.finish() for client in (owner, late)))
    assert [answer.status for answer in answers] == [200, 200]
    told_of = sorted(received.field(b"x-forwarded-for").decode() for received in upstream.requests[1:])
    assert told_of == ["127.0.0.1", "192.0.2.9"]
    for client in (owner, late):
        client.close()


def front_has(front: Any, connection: Connection) -> bool:
    return any(visit.connection is connection for visit in front.visits)


async def test_a_head_that_begins_behind_a_request_under_way_has_its_bound(
    open_house: OpenHouse, upstream: ScriptedUpstream
) -> None:
    house = await open_house({"server": {"header_timeout": 0.3}})
    gate = asyncio.Event()
    upstream.play([gate, json_answer({"first": 1})])
    async with connect(house.port) as client:
        await client.send(request("GET", "/v1/files"))
        await upstream.wait_calls(1)
        await client.send_more(b"GET /v1/fi")
        gate.set()
        assert told(await client.finish()) == {"first": 1}
        assert await client.ended(within_s=5) == "fin"


async def test_a_call_that_broke_leaves_no_cycle(
    house: House, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the collector: it hardly ever walks over what has lived for a while (web.serve)."""
    made: list[weakref.ref[Exchange]] = []
    genuine = Exchange.__init__

    def noted(self: Exchange, *arguments: Any) -> None:
        made.append(weakref.ref(self))
        genuine(self, *arguments)

    monkeypatch.setattr(Exchange, "__init__", noted)
    upstream.play(sse(CH, CLOSE, last=False))
    gc.disable()
    try:
        for target in ("/v1/chat/completions", "/v1/files"):
            async with connect(house.port) as client:
                assert (await client.ask(chat(fresh(), target=target))).ended == "rst"
        assert len(made) == 2
        await eventually(lambda: not [one for one in made if one() is not None])
    finally:
        gc.enable()


async def test_a_fault_in_serving_one_of_a_crowd_harms_nobody_else(
    house: House, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    upstream.play(sse(CH, FIN, DONE))
    clients = await crowd(house, 70)
    front = house.app.front
    assert front is not None
    genuine, served = front.shortcuts._serve_one, []

    def fails_once(block: Any, connection: Connection, began: float) -> None:
        served.append(connection)
        if len(served) == 1:
            raise RuntimeError("a bug")
        genuine(block, connection, began)

    monkeypatch.setattr(front.shortcuts, "_serve_one", fails_once)
    all_at_once(clients, chat(fresh()))
    answers = await asyncio.gather(*(client.finish() for client in clients))
    assert sorted(answer.ended or "" for answer in answers) == ["complete"] * 69 + ["rst"]
    assert [made.getMessage() for made in caplog.records if made.exc_info] == [
        "a request could not be answered: RuntimeError"
    ]
    for client in clients:
        client.close()


async def test_a_crowd_that_a_drain_meets_is_told_to_close(
    house: House, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream.play(sse(CH, FIN, DONE))
    clients = await crowd(house, 3)
    front = house.app.front
    assert front is not None
    genuine = front.shortcuts._turn

    def drains(block: Any, left: int) -> None:
        house.app.state.draining = True
        genuine(block, left)

    monkeypatch.setattr(front.shortcuts, "_turn", drains)
    all_at_once(clients, chat(fresh()))
    answers = await asyncio.gather(*(client.finish() for client in clients))
    assert {(answer.status, answer.get("Connection")) for answer in answers} == {(200, "close")}
    for client in clients:
        client.close()


@pytest.mark.parametrize("digits", [19, 5000])
async def test_a_length_of_very_many_digits_is_refused_as_any_bad_length(
    house: House, upstream: ScriptedUpstream, digits: int
) -> None:
    upstream.play(echo)
    for _ in range(2):
        async with connect(house.port) as client:
            await client.send(request("POST", "/v1/files", "Content-Length: " + "9" * digits))
            answer = await client.finish()
            assert answer.status in (400, 413)
            assert json.loads(answer.body)["error"]["type"] == "soloflight_error"


async def test_a_fault_behind_one_served_seat_harms_nobody_else(
    house: House, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All have their answer; each one's connection goes on, but for the one that we fail at."""
    block = chat(fresh())
    owner, gate = await streaming(house, upstream, block, CH)
    clients = await crowd(house, 5)
    for client in clients:
        await client.send(block)
        await client.read_events(1)
    assert house.unparsed == 5
    genuine, left = Seat.leave, []

    def fails_once(self: Seat) -> None:
        left.append(self)
        if len(left) == 1:
            raise RuntimeError("a bug")
        genuine(self)

    monkeypatch.setattr(Seat, "leave", fails_once)
    gate.set()
    assert {(await client.finish()).body for client in (owner, *clients)} == {WHOLE}
    await eventually(lambda: len(left) >= 5)
    ends = []
    for client in clients:
        try:
            ends.append((await client.ask(chat(fresh()))).ended)
        except ConnectionError:
            ends.append("rst")
    assert sorted(end or "" for end in ends) == ["complete"] * 4 + ["rst"]
    assert [made.getMessage() for made in caplog.records if made.exc_info] == [
        "a request could not be answered: RuntimeError"
    ]
    for client in (owner, *clients):
        client.close()
