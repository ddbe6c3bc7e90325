"""Answers too large to be kept, and memory that is short: who listens still gets everything, and memory stays bounded."""

from __future__ import annotations

import asyncio

import pytest

from nodes import NodeAt, Town
from soloflight.core.errors import Code
from soloflight.core.log import WINDOW_FLOOR
from soloflight.flow.flights import GoAlone
from soloflight.flow.owner import WINDOW_LEAD
from soloflight.ports import Role
from soloflight.testing.chat import CH, DONE, FIN, content
from soloflight.testing.script import Step, chunked, sse

MIB = 1 << 20
# What lies between the upstream's script and a log: socket buffers of both ends, and aiohttp's read buffer.
ON_THE_WAY = 12 * MIB


def large(count: int, *, gate: asyncio.Event | None = None) -> list[Step]:
    """A binary answer of ``count`` MiB; ``gate`` opens after the first one."""
    pieces: list[Step] = [bytes([number % 256]) * MIB for number in range(count)]
    return chunked(*pieces[:1], *([gate] if gate else []), *pieces[1:])


def body_of(count: int) -> bytes:
    return b"".join(bytes([number % 256]) * MIB for number in range(count))


async def test_an_answer_over_the_limit_reaches_its_listener_whole_and_is_not_kept(town: Town) -> None:
    town.upstream.play(large(20))
    node = await town.node()
    client = await node.answer(town.call(max_recording=2 * MIB))
    assert client.body == body_of(20)
    assert client.whole
    assert [(event.kept, event.size) for event in node.ended] == [("too_large", 20 * MIB)]
    assert node.replays.size == 0


async def test_a_limit_smaller_than_one_read_cuts_nobody(town: Town) -> None:
    town.upstream.play(sse(CH, FIN, DONE))
    node = await town.node()
    client = await node.answer(town.call(max_recording=1))
    assert (client.body, client.whole, client.fell_behind) == (CH + FIN + DONE, True, False)
    assert [event.kept for event in node.ended] == ["too_large"]


async def test_a_newcomer_to_a_window_goes_alone(town: Town) -> None:
    gate = asyncio.Event()
    town.upstream.play(large(4, gate=gate))
    node = await town.node()
    client = await node.ask(town.call(max_recording=100))
    await client.until_bytes(MIB)
    with pytest.raises(GoAlone, match="too_large"):
        await node.ask(town.call(max_recording=100))
    gate.set()
    assert (await client.read()).body == body_of(4)


async def test_a_slow_listener_is_cut_and_the_fast_one_is_not_held_up(town: Town) -> None:
    town.upstream.play(large(30))
    node = await town.node()
    fast, slow = [await node.ask(town.call(max_recording=MIB)) for _ in range(2)]
    await slow.until_bytes(1)
    await fast.read()
    assert (fast.body, fast.whole) == (body_of(30), True)
    await slow.until(lambda: False)
    assert (slow.fell_behind, slow.end) == (True, None)


async def test_a_slow_listener_under_the_limit_is_only_late(town: Town) -> None:
    town.upstream.play(large(8))
    node = await town.node()
    fast, slow = [await node.ask(town.call()) for _ in range(2)]
    await fast.read()
    assert (await slow.read()).body == fast.body == body_of(8)


async def test_the_upstream_waits_for_the_fastest_listener(town: Town) -> None:
    town.upstream.play(large(60))
    node = await town.node()
    client = await (await node.ask(town.call(max_recording=MIB))).until_bytes(1)
    await asyncio.sleep(0.3)  # long enough to read all of it, were it not held
    sent = sum(size for _, size in town.upstream.requests[0].sent)
    assert sent < len(client.body) + WINDOW_LEAD + ON_THE_WAY
    assert node.memory.used <= WINDOW_FLOOR
    assert (await client.read()).body == body_of(60)


async def test_nobody_left_at_a_window_is_the_end_of_it(town: Town) -> None:
    town.upstream.play(large(60))
    node = await town.node()
    client = await (await node.ask(town.call(max_recording=MIB))).until_bytes(2 * MIB)
    client.leave()
    await town.upstream.wait_until(lambda: town.upstream.requests[0].left is not None)
    await node.idle()


async def test_a_follower_elsewhere_gets_a_large_answer_to_its_end(town: Town) -> None:
    gate = asyncio.Event()
    town.upstream.play(large(6, gate=gate))
    owner, other = await town.node(), await town.node()
    stage = {"max_recording": 2 * MIB, "running_lease": 5.0}
    first = await owner.ask(town.call(**stage))
    second = await other.ask(town.call(**stage))
    await second.until_bytes(MIB)
    gate.set()
    await asyncio.gather(first.read(), second.read())
    assert (first.body, first.whole) == (body_of(6), True)
    assert (second.body, second.whole) == (body_of(6), True)
    assert town.upstream.calls == 1


async def test_a_newcomer_elsewhere_does_not_wait_for_what_it_can_not_get(town: Town) -> None:
    """Nobody there had joined before the beginning was dropped: the key is free, and the owner goes on for its own."""
    gate = asyncio.Event()
    town.upstream.play(chunked(*[b"x" * MIB] * 6, gate, b"end"), sse(CH, FIN, DONE))
    owner, other = await town.node(), await town.node()
    first = await (await owner.ask(town.call(max_recording=MIB))).until_bytes(6 * MIB)
    second = await other.answer(town.call(max_recording=MIB))
    assert (second.role, second.body) == (Role.OWNER, CH + FIN + DONE)
    gate.set()
    await first.read()
    assert (first.body, first.whole) == (b"x" * 6 * MIB + b"end", True)
    assert owner.refused == []


# ── memory ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def busy(town: Town, gate: asyncio.Event) -> NodeAt:
    """A node whose 2 MiB are used up by one flight."""
    town.upstream.play(large(3, gate=gate))
    node = await town.node(memory=2 * MIB)
    await (await node.ask(town.call())).until_bytes(MIB)
    return node


async def test_without_memory_a_running_flight_goes_on_unrecorded(town: Town) -> None:
    gate = asyncio.Event()
    node = await busy(town, gate)
    gate.set()
    client = await node.clients[0].read()
    assert (client.body, client.whole) == (body_of(3), True)
    assert [event.kept for event in node.ended] == ["memory"]


async def test_without_memory_new_work_is_not_recorded(town: Town) -> None:
    node = await town.node(memory=1000)
    town.upstream.play(sse(content("z" * 2000), FIN, DONE))
    slow = await node.ask(town.call(town.fresh()))
    await slow.until_bytes(1)
    node.memory.charge(1)
    with pytest.raises(GoAlone, match="memory"):
        await node.ask(town.call(town.fresh()))
    node.memory.charge(-1)


async def test_replays_make_room_for_work(town: Town) -> None:
    town.upstream.play(lambda _: sse(CH, FIN, DONE))
    node = await town.node()
    for _ in range(3):
        await node.answer(town.call(town.fresh()))
    assert node.replays.size == node.memory.used > 0
    limit = node.memory.limit = node.replays.size - 1
    assert (await node.answer(town.call(town.fresh()))).role is Role.OWNER
    assert node.memory.used <= limit + 1, "one went before the new one came"


async def test_an_answer_that_does_not_fit_any_more_is_cut_for_none(town: Town) -> None:
    """Every flight stops recording under pressure; all of their listeners get all of their bytes."""
    gate = asyncio.Event()
    town.upstream.play(lambda _: large(3, gate=gate))
    node = await town.node(memory=4 * MIB)
    clients = [await (await node.ask(town.call(town.fresh()))).until_bytes(MIB) for _ in range(4)]
    gate.set()
    await asyncio.gather(*(client.read() for client in clients))
    assert {client.body for client in clients} == {body_of(3)}
    assert [client.code for client in clients] == [None] * 4


async def test_a_flight_that_ends_in_a_fault_gives_its_memory_back(town: Town) -> None:
    town.upstream.play(chunked(b"x" * MIB, b"y", 0.01, last=False))
    node = await town.node()
    client = await node.ask(town.call(progress_timeout=0.1))
    await client.until(lambda: False)
    assert client.code is Code.UPSTREAM_TIMEOUT
    assert node.memory.used == MIB + 1
    client.leave()
    await node.idle()
    assert node.memory.used == 0
