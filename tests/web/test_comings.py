"""The short ways where requests come in one moment, in parts, behind each other, and where their clients leave."""

from __future__ import annotations

import asyncio
import gc
import gzip
import hashlib
import json
import logging
import random
import socket
from contextlib import AsyncExitStack
from itertools import pairwise

import pytest

from harness.client import RawClient, chat, connect, fresh, request
from harness.process import eventually
from harness.wire import ResponseParser
from nodes.house import House, OpenHouse, settings_for
from soloflight.core.frames import Body
from soloflight.flow.listen import Listener
from soloflight.ports import Role
from soloflight.testing.chat import CH, DONE, FIN, completion_object, content
from soloflight.testing.received import Received
from soloflight.testing.script import CLOSE, Script, sse
from soloflight.testing.script import json as json_answer
from soloflight.testing.upstream import ScriptedUpstream
from soloflight.web.connection import Connection
from soloflight.web.handlers import Front

WHOLE = CH + FIN + DONE
TURNS = [1, 2, 3, 4, 6]
"""The loop's turns between two parts: the client's own are among them, so that each of the server's is met."""


def write(client: RawClient, data: bytes) -> None:
    """In this turn of the loop, together with what else is written in it."""
    assert client.sock.send(data) == len(data)


async def turns(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


def front_of(house: House) -> Front:
    assert house.app.front is not None
    return house.app.front


async def crowd(stack: AsyncExitStack, house: House, number: int) -> list[RawClient]:
    """So many connections, all of them accepted."""
    clients = [await stack.enter_async_context(connect(house.port)) for _ in range(number)]
    for client in clients:
        await client.ask(request("GET", "/_soloflight/health"))
    return clients


async def next_answer(client: RawClient) -> bytes:
    """The body of what comes behind an answer that was read."""
    client.left_over += client.parser.rest
    client.parser = ResponseParser()
    return (await client.finish(within_s=5)).body


# ── in parts, and behind each other ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("number", TURNS)
@pytest.mark.parametrize("part", ["head", "half a head"])
async def test_a_crowd_whose_requests_come_in_two_parts(
    house: House, upstream: ScriptedUpstream, part: str, number: int
) -> None:
    """Many clients write head and body apart: who waits for the first of the crowd must not wait without its own body."""
    upstream.play(json_answer(completion_object("a")))
    block = chat(fresh())
    at = block.index(b"\r\n\r\n") + 4 if part == "head" else 30
    async with AsyncExitStack() as stack:
        clients = await crowd(stack, house, 3)
        for client in clients:
            client.parser = ResponseParser()
            write(client, block[:at])
        await turns(number)
        for client in clients:
            write(client, block[at:])
        answers = await asyncio.gather(*(client.finish(within_s=5) for client in clients))
    assert [answer.status for answer in answers] == [200] * 3
    assert upstream.calls == 1


@pytest.mark.parametrize("number", TURNS)
async def test_what_comes_behind_who_waits_for_the_first_of_its_crowd(
    house: House, upstream: ScriptedUpstream, number: int
) -> None:
    """The block is new, its answer is kept: who waits is answered at once, and what is behind it is next."""
    upstream.play(json_answer(completion_object("a")), json_answer({"behind": 1}))
    body = fresh()
    async with AsyncExitStack() as stack:
        clients = await crowd(stack, house, 3)
        await clients[0].ask(chat(body))
        for client in clients:
            client.parser = ResponseParser()
            write(client, chat(body, "X-Other: 1"))
        await turns(number)
        write(clients[1], request("GET", "/v1/files"))
        answers = await asyncio.gather(*(client.finish(within_s=5) for client in clients))
        assert [answer.get("X-Soloflight-Role") for answer in answers] == ["replay"] * 3
        assert json.loads(await next_answer(clients[1])) == {"behind": 1}


# ── who leaves ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("number", TURNS)
@pytest.mark.parametrize("how", ["fin", "reset"])
async def test_who_leaves_a_crowd_harms_nobody_in_it(
    house: House, upstream: ScriptedUpstream, how: str, number: int
) -> None:
    """Half a close counts as one, too: the loop closes what it has read a FIN of."""
    upstream.play(json_answer(completion_object("a")))
    body = fresh()
    front = front_of(house)
    async with AsyncExitStack() as stack:
        clients = await crowd(stack, house, 6)
        await clients[0].ask(chat(body))
        for client in clients:
            client.parser = ResponseParser()
            write(client, chat(body, "X-Other: 1"))
        await turns(number)
        for client in clients[1:3]:
            getattr(client, how)()
        others = [clients[0], *clients[3:]]
        answers = await asyncio.gather(*(client.finish(within_s=5) for client in others))
        assert [answer.get("X-Soloflight-Role") for answer in answers] == ["replay"] * 4
    await eventually(lambda: front.running == 0)


async def test_who_leaves_a_seat_in_the_turn_of_a_frame_is_missed_by_nobody(
    house: House, upstream: ScriptedUpstream
) -> None:
    gate = asyncio.Event()
    upstream.play(sse(CH, gate, FIN, DONE))
    block, front = chat(fresh()), front_of(house)
    async with connect(house.port) as owner, connect(house.port) as late:
        for client in (owner, late):
            await client.send(block)
            await client.read_events(1)
        (flight,) = front.node.flights.all
        visit = next(one for one in front.visits if one.delivery and one.delivery.role is Role.FOLLOWER)
        assert visit.connection.transport is not None
        visit.connection.transport.close()  # what the loop does at a client's FIN
        flight.log.append(Body(content("a")))
        await eventually(lambda: front.running == 1)
        assert (flight.followers, flight.log.listeners) == (0, 1)
        (event,) = house.requests
        assert (event.role, event.cut, event.reason, event.status) == (Role.FOLLOWER, True, "client_gone", 200)
        gate.set()
        assert (await owner.finish()).body == CH + content("a") + FIN + DONE


async def test_who_leaves_with_its_whole_answer_was_not_cut(
    house: House, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who was served is told of when the crowd has been; one that had all it wanted may leave before."""
    gate = asyncio.Event()
    upstream.play(sse(CH, gate, FIN, DONE))
    block, front = chat(fresh()), front_of(house)
    settle, settled = front.shortcuts._settle, []
    monkeypatch.setattr(front.shortcuts, "_settle", lambda *left: settled.append(left))
    async with connect(house.port) as owner:
        async with connect(house.port) as late:
            for client in (owner, late):
                await client.send(block)
                await client.read_events(1)
            gate.set()
            answers = [await client.finish() for client in (late, owner)]
        await eventually(lambda: len(house.requests) == 2)
        settle(1, 0)
    assert [answer.body for answer in answers] == [WHOLE] * 2
    (event,) = (event for event in house.requests if event.role is Role.FOLLOWER)
    assert (event.cut, event.reason, event.sent) == (False, "", len(WHOLE))
    assert event.lag_s is not None
    assert len(settled) == 1


async def test_who_resets_while_it_is_being_reset_leaves_no_error_in_the_log(
    open_house: OpenHouse, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It took no bytes for too long; its own RST comes while what was written may still leave."""
    house = await open_house({"server": {"write_timeout": 0.2}})
    upstream.play(sse(CH, *[content("x" * 60_000)] * 100, FIN, DONE))
    genuine, resetting = Connection.reset, asyncio.Event()

    async def reset(self: Connection) -> None:
        resetting.set()
        await genuine(self)

    monkeypatch.setattr(Connection, "reset", reset)
    slow = await RawClient.open(house.port, receive_buffer=4096)
    await slow.send(chat(fresh()))
    await slow.read_events(1)
    async with asyncio.timeout(5):
        await resetting.wait()
    slow.reset()
    await eventually(lambda: len(house.requests) == 1 and front_of(house).running == 0)
    gc.collect()
    assert not [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


# ── what is told, and what is known ─────────────────────────────────────────────────────────────────────────────────


async def test_who_comes_from_another_address_is_told_of_with_it(
    open_house: OpenHouse, upstream: ScriptedUpstream
) -> None:
    house = await open_house({"server": {"trusted_proxies": ["127.0.0.0/8"]}})
    gate = asyncio.Event()
    upstream.play(sse(CH, gate, FIN, DONE))
    block = chat(fresh())
    other = socket.create_connection(("127.0.0.1", house.port), source_address=("127.0.0.2", 0))
    other.setblocking(False)
    with other:
        late = RawClient(other)
        async with connect(house.port) as owner:
            for client in (owner, late):
                await client.send(block)
                await client.read_events(1)
            gate.set()
            for client in (owner, late):
                await client.finish()
        assert house.unparsed == 0, "no seat: its call would tell the upstream of the other one"
        await eventually(lambda: len(house.requests) == 2)
    assert {event.role: event.peer for event in house.requests} == {
        Role.OWNER: "127.0.0.1",
        Role.FOLLOWER: "127.0.0.2",
    }


async def test_what_was_judged_by_old_rules_is_not_known_under_new_ones(
    house: House, upstream: ScriptedUpstream
) -> None:
    """A reload comes while a body is decoded: its request is answered by the old rules, the next one by the new ones."""
    upstream.play(json_answer(completion_object("a")))
    block, front = chat(gzip.compress(json.dumps(fresh()).encode()), "Content-Encoding: gzip"), front_of(house)
    async with connect(house.port) as client:
        async with front.admission._decoding:
            await client.send(block)
            await eventually(lambda: front.running == 1)
            house.app.reload(settings_for(upstream, {"server": {"client_keys": ["another"]}}))
        assert (await client.finish()).status == 200
        assert (await client.ask(block)).status == 401


async def test_who_sits_before_the_first_byte_needs_no_task(house: House, upstream: ScriptedUpstream) -> None:
    gate = asyncio.Event()
    upstream.play(sse(gate, CH, FIN, DONE))
    block, front = chat(fresh()), front_of(house)
    async with AsyncExitStack() as stack:
        clients = await crowd(stack, house, 5)
        await clients[0].send(block)
        await upstream.wait_calls(1)
        for client in clients[1:]:
            await client.send(block)
        await eventually(lambda: front.running == 5)
        assert (house.unparsed, len(front._tasks)) == (4, 0)
        gate.set()
        answers = await asyncio.gather(*(client.finish() for client in clients))
    assert {answer.body for answer in answers} == {WHOLE}


async def test_where_nothing_is_recognised_nobody_waits_for_another(
    open_house: OpenHouse, upstream: ScriptedUpstream
) -> None:
    house = await open_house({"server": {"recognise": False}})
    upstream.play(json_answer(completion_object("a")))
    block = chat(fresh())
    async with AsyncExitStack() as stack:
        clients = await crowd(stack, house, 3)
        for client in clients:
            client.parser = ResponseParser()
            write(client, block)
        answers = await asyncio.gather(*(client.finish(within_s=5) for client in clients))
    assert {answer.status for answer in answers} == {200}
    assert house.unparsed == 0


def living() -> set[int]:
    """Listeners and connections in this process, other tests' among them."""
    return {id(one) for one in gc.get_objects() if isinstance(one, (Listener, Connection))}


@pytest.mark.parametrize("recognise", [True, False])
@pytest.mark.parametrize("how", ["whole", "left", "broken"])
async def test_who_was_served_leaves_nothing_for_the_collector(
    open_house: OpenHouse, upstream: ScriptedUpstream, how: str, recognise: bool
) -> None:
    """It walks over what has lived for a while as good as never (web.serve)."""
    house = await open_house({"server": {"recognise": recognise}})
    gate = asyncio.Event()
    upstream.play(sse(CH, gate, *([CLOSE] if how == "broken" else [FIN, DONE]), last=how != "broken"))
    block, front = chat(fresh()), front_of(house)
    gc.collect()
    others = living()
    gc.disable()
    try:
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(connect(house.port)) for _ in range(5)]
            for client in clients:
                await client.send(block)
                await client.read_events(1)
            if how != "left":
                gate.set()
                await asyncio.gather(*(client.finish() for client in clients))
        gate.set()
        await eventually(lambda: front.running == 0 and not front.node.flights.all)
        await eventually(lambda: living() <= others)
    finally:
        gc.enable()


async def test_who_expects_an_answer_before_its_body_gets_it_at_once(house: House, upstream: ScriptedUpstream) -> None:
    upstream.play(json_answer(completion_object("a")))
    block = chat(fresh(), "Expect: 100-continue")
    at = block.index(b"\r\n\r\n") + 4
    loop = asyncio.get_running_loop()
    for _ in range(2):
        async with connect(house.port) as client:
            await client.send(block[:at])
            async with asyncio.timeout(0.9):  # less than what a body is gathered for
                interim = await loop.sock_recv(client.sock, 1000)
            assert interim.startswith(b"HTTP/1.1 100 ")
            await client.send_more(block[at:])
            assert (await client.finish()).status == 200


# ── all of it at once ───────────────────────────────────────────────────────────────────────────────────────────────


def some_answer(received: Received) -> Script:
    """An answer that tells what was asked, in one of several forms and paces; which one depends on the request alone."""
    mark = f"{received.target}|{received.body_sha256}"
    chance = random.Random(mark)

    def gate() -> asyncio.Event:
        event = asyncio.Event()
        asyncio.get_running_loop().call_later(chance.random() * 0.02, event.set)
        return event

    kind = chance.randrange(4)
    if kind == 0:
        return json_answer(completion_object(mark))
    if kind == 1:
        return json_answer({"error": mark}, status=429)
    if kind == 2:
        return sse(CH, gate(), content(mark), gate(), FIN, DONE)
    return sse(content(mark), gate(), content("x" * chance.randrange(200_000)), gate(), FIN, DONE)


class Asked:
    """One request as bytes, and what its answer must hold."""

    def __init__(self, block: bytes) -> None:
        head, _, body = block.partition(b"\r\n\r\n")
        self.block = block
        self.head = len(head) + 4
        self.mark = head.split(b" ")[1] + b"|" + hashlib.sha256(body).hexdigest().encode()


async def come_and_go(house: House, chance: random.Random, requests: list[Asked]) -> None:
    """One connection: requests, some behind each other, some in parts; it may leave at any time."""
    async with connect(house.port) as client:
        for _ in range(chance.randrange(1, 4)):
            wanted = [chance.choice(requests) for _ in range(chance.choice([1, 1, 1, 2, 3]))]
            cuts, data = {0}, b""
            for one in wanted:
                cuts |= {len(data), len(data) + one.head} if chance.random() < 0.5 else set()
                data += one.block
            cuts |= {chance.randrange(len(data))} if chance.random() < 0.3 else set()
            places = [*sorted(cuts), len(data)]
            for start, end in pairwise(places):
                await client.send_more(data[start:end])
                await turns(chance.randrange(5))
            if chance.random() < 0.15:
                await turns(chance.randrange(6))
                if chance.random() < 0.7:
                    chance.choice([client.reset, client.fin])()
                return
            for one in wanted:
                assert one.mark in await next_answer(client)


@pytest.mark.parametrize("seed", range(8))
async def test_whoever_comes_and_goes_each_gets_its_own_answer(
    open_house: OpenHouse, upstream: ScriptedUpstream, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(seed)
    stage = {
        "name": "default",
        "on_abandon": chance.choice(["cancel", "finish"]),
        "abandon_grace": 0.0,
        "replay": chance.choice(["always", "never"]),
        "local_retention": chance.choice([0.0, 0.05, 30.0]),
        "retention": 30.0,
    }
    house = await open_house({"stage": [stage]})
    front = front_of(house)
    upstream.play(some_answer)
    bodies = [fresh() for _ in range(4)]
    requests = [Asked(chat(body, *more)) for body in bodies for more in ((), ("X-V: 1",), ("Cache-Control: no-cache",))]
    requests += [Asked(request("GET", f"/v1/files?{number}")) for number in range(2)]
    for wave in range(4):
        alike = chance.choice([1, 4])  # so many do the same in the same moment
        await asyncio.gather(
            *(come_and_go(house, random.Random(f"{seed} {wave} {one // alike}"), requests) for one in range(12))
        )
    await eventually(lambda: front.running == 0 and not front.node.flights.all and not len(front._tasks))
    assert len({event.request_id for event in house.requests}) == len(house.requests)
    assert (front.shortcuts._coming, front.shortcuts._served) == ({}, [])
    assert not [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
