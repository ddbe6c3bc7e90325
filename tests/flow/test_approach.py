"""A flight at the gate: it waits with every session that asks for it, on every node, and each is refused for itself alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from harness.process import eventually
from nodes import Client, NodeAt, Town
from soloflight.core.errors import Code, SoloflightError
from soloflight.core.session import Acquire, Release
from soloflight.flow.flights import Call, Reelect
from soloflight.ports import Role, SessionWaited
from soloflight.testing.chat import CH, DONE, FIN
from soloflight.testing.received import Received
from soloflight.testing.script import CLOSE, Script, sse

ANSWER = CH + FIN + DONE
QUEUE: dict[str, Any] = {"session": "queue", "session_wait": 5.0}
REJECT: dict[str, Any] = {"session": "reject"}
MOMENT_S = 0.3
"""Longer than anything that should happen at once takes."""


class World:
    """Nodes, and jobs that hold a session's lock until they are told."""

    def __init__(self, town: Town, stage: dict[str, Any]) -> None:
        self.town = town
        self.stage = stage
        self.gates: dict[bytes, asyncio.Event] = {}
        town.upstream.play(self._answer)

    def _answer(self, received: Received) -> Script:
        gate = self.gates.get(received.field(b"x-gate"))
        return sse(CH, gate, FIN, DONE) if gate is not None else sse(CH, FIN, DONE)

    def call(self, session: str, prompt: str = "the same", *fields: tuple[bytes, bytes]) -> Call:
        named = [(b"X-Soloflight-Session", session.encode())] if session else []
        return self.town.call(self.town.body(prompt=prompt), *named, *fields, **self.stage)

    async def hold(self, node: NodeAt, session: str) -> asyncio.Event:
        """Lock ``session`` until the event is set."""
        gate = self.gates[session.encode()] = asyncio.Event()
        client = await node.ask(self.call(session, f"holds {session}", (b"X-Gate", session.encode())))
        await client.until_bytes(1)
        return gate

    async def waits(self, node: NodeAt, session: str, *fields: tuple[bytes, bytes]) -> Client:
        """Somebody with that session who asks for the one answer, and waits."""
        calls = self.town.upstream.calls
        client = await node.ask(self.call(session, "the same", *fields))
        await asyncio.sleep(0.05)  # nothing tells that nothing happens
        assert self.town.upstream.calls == calls
        return client

    async def answered(self, *clients: Client) -> None:
        """They have the one answer, soon."""
        async with asyncio.timeout(MOMENT_S):
            for client in clients:
                assert (await client.read()).body == ANSWER


async def refused(client: Client) -> Code:
    """The code with which a client is sent away."""
    with pytest.raises(SoloflightError) as error:
        await client.read()
    client.leave()
    return error.value.fault.code


# ── one node ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("first", ["a", "b", "c"])
async def test_the_first_session_that_is_free_goes_for_all(first: str, town: Town) -> None:
    world, node = World(town, QUEUE), await town.node()
    gates = {session: await world.hold(node, session) for session in "abc"}
    clients = [await world.waits(node, session) for session in "abca"]
    gates[first].set()
    await world.answered(*clients)
    assert [client.role for client in clients] == [Role.OWNER, *[Role.FOLLOWER] * 3]
    assert town.upstream.calls == 4
    for session in "abc":
        gates[session].set()
        await node.clients["abc".index(session)].read()
        assert (await node.answer(world.call(session, f"next {session}"))).whole, "every lock was given back"


async def test_who_needs_no_lock_goes_ahead(town: Town) -> None:
    world, node = World(town, QUEUE), await town.node()
    gate = await world.hold(node, "a")
    waiting = await world.waits(node, "a")
    await world.answered(await node.ask(world.call("")), waiting)
    gate.set()


async def test_each_wait_ends_by_itself(town: Town) -> None:
    """The first one's time is up: it alone is told so, at its own time. The other one's session is free a little later."""
    world, node = World(town, {**QUEUE, "session_wait": 0.4}), await town.node()
    gates = {session: await world.hold(node, session) for session in "ab"}
    first = await world.waits(node, "a")
    await asyncio.sleep(0.2)
    second = await world.waits(node, "b")
    assert await refused(first) is Code.SESSION_BUSY
    gates["b"].set()
    await world.answered(second)
    gates["a"].set()


async def test_when_everybody_is_refused_each_is_told(town: Town) -> None:
    world, node = World(town, {**QUEUE, "session_wait": 0.1}), await town.node()
    gates = [await world.hold(node, session) for session in "ab"]
    clients = [await node.ask(world.call(session)) for session in "aba"]
    assert [await refused(client) for client in clients] == [Code.SESSION_BUSY] * 3
    await eventually(lambda: len(node.node.flights) == 2)
    for gate in gates:
        gate.set()


async def test_a_refusal_leaves_nothing_behind(town: Town) -> None:
    """The next one with that session waits anew, while the flight still waits with another."""
    world, node = World(town, {**QUEUE, "session_wait": 0.3}), await town.node()
    gates = {session: await world.hold(node, session) for session in "ab"}
    first = await world.waits(node, "a")
    await asyncio.sleep(0.15)
    other = await world.waits(node, "b")
    assert await refused(first) is Code.SESSION_BUSY
    again = await world.waits(node, "a")
    gates["a"].set()
    await world.answered(other, again)
    gates["b"].set()


async def test_who_may_cause_no_call_is_not_refused_but_asks_again(town: Town) -> None:
    world, node = World(town, REJECT), await town.node()
    gate = await world.hold(node, "a")
    first = await node.ask(world.call("a"))
    only = await node.ask(world.call("a", "the same", (b"Cache-Control", b"only-if-cached")))
    assert await refused(first) is Code.SESSION_BUSY
    with pytest.raises(Reelect):
        await only.read()
    only.leave()
    assert (
        await node.answer(only_call := world.call("a", "the same", (b"Cache-Control", b"only-if-cached")))
    ).code is (Code.NOT_CACHED), only_call
    gate.set()


async def test_a_session_that_nobody_waits_with_any_more_is_left_alone(town: Town) -> None:
    """Its listener is gone: its lock is not taken for the others when it comes free."""
    world, node = World(town, QUEUE), await town.node()
    gates = {session: await world.hold(node, session) for session in "ab"}
    leaver, stayer = await world.waits(node, "a"), await world.waits(node, "b")
    leaver.leave()
    await asyncio.sleep(0.05)
    gates["a"].set()
    await asyncio.sleep(0.05)
    assert stayer.end is None
    assert town.upstream.calls == 2
    assert (await node.answer(world.call("a", "free"))).whole
    gates["b"].set()
    await world.answered(stayer)


async def test_who_comes_just_as_the_last_of_its_session_leaves_waits_like_any_other(town: Town) -> None:
    world, node = World(town, QUEUE), await town.node()
    gates = {session: await world.hold(node, session) for session in "ab"}
    leaver, stayer = await world.waits(node, "a"), await world.waits(node, "b")
    leaver.leave()
    newcomer = await node.ask(world.call("a"))
    gates["a"].set()
    await world.answered(newcomer, stayer)
    gates["b"].set()


async def test_nobody_waits_at_the_gate_for_nobody(town: Town) -> None:
    """Its client left before the coordinator had answered; the stage would finish what it has begun, but this has not."""
    world, node = World(town, {**QUEUE, "max_abandoned": 60.0}), await town.node()
    gate = await world.hold(node, "a")
    node.wire.held = asyncio.Event()
    (await node.ask(world.call("a"))).leave()
    node.wire.held.set()
    await eventually(lambda: len(node.node.flights) == 1)
    gate.set()
    await node.clients[0].read()
    assert town.upstream.calls == 1


async def test_of_two_locks_that_come_free_at_once_one_is_kept(town: Town) -> None:
    world, node = World(town, {**QUEUE, "max_upstream": 3}), await town.node()
    gates = [await world.hold(node, session) for session in "abc"]
    waiting = [await world.waits(node, session) for session in "abc"]
    for gate in gates:
        gate.set()
    await world.answered(*waiting)
    assert town.upstream.calls == 4
    for session in "abc":
        assert (await node.answer(world.call(session, f"next {session}"))).whole
    assert node.node.gate.slots.taken("default") == 0


async def test_a_full_stage_refuses_everybody(town: Town) -> None:
    world, node = World(town, {**QUEUE, "max_upstream": 1, "queue_wait": 0.1}), await town.node()
    gate = await world.hold(node, "a")
    clients = [await node.ask(world.call(session)) for session in "bcb"]
    assert [await refused(client) for client in clients] == [Code.SATURATED] * 3
    gate.set()
    await node.clients[0].read()
    assert (await node.answer(world.call("b"))).whole


async def test_between_two_attempts_the_lock_is_kept(town: Town) -> None:
    """The upstream can not be reached: nobody else gets in between, and the call itself is not refused."""
    world, node = World(town, REJECT), await town.node()
    await town.upstream.stop()
    first = await node.ask(world.call("a"))
    await asyncio.sleep(0.02)
    second = await node.ask(world.call("a", "another"))
    assert await refused(second) is Code.SESSION_BUSY
    assert (await first.read()).code is Code.UPSTREAM_UNREACHABLE
    await town.upstream.start()
    assert (await node.answer(world.call("a", "third"))).whole


async def test_waits_are_told(town: Town) -> None:
    world, node = World(town, {**QUEUE, "session_wait": 0.2}), await town.node()
    gates = {session: await world.hold(node, session) for session in "ab"}
    clients = [await world.waits(node, session) for session in "ab"]
    gates["a"].set()
    await world.answered(*clients)
    told = [event.outcome for event in node.events if isinstance(event, SessionWaited)]
    assert told == ["granted", "granted", "granted", "left"]
    late = await node.ask(world.call("b", "late"))
    assert await refused(late) is Code.SESSION_BUSY
    gates["b"].set()
    assert [event.outcome for event in node.events if isinstance(event, SessionWaited)][4:] == ["busy"]


async def test_it_says_what_it_is(town: Town) -> None:
    world, node = World(town, QUEUE), await town.node()
    gate = await world.hold(node, "a")
    await world.waits(node, "a")
    (flight,) = (flight for flight in node.node.flights.all if flight.approach and flight.approach.open)
    assert repr(flight.approach) == f"Approach({flight.id}, waiting=1, ahead=None, through=False)"
    gate.set()


# ── several nodes ───────────────────────────────────────────────────────────────────────────────────────────────────


async def nodes_of(town: Town, count: int) -> list[NodeAt]:
    return [await town.node() for _ in range(count)]


@pytest.mark.parametrize("stage", [{}, {"replay": "never"}], ids=["kept", "not kept"])
@pytest.mark.parametrize("first", [0, 1, 2])
async def test_whichever_node_is_through_first_takes_the_flight_over(
    first: int, stage: dict[str, Any], town: Town
) -> None:
    """Three sessions are taken, and wait on three nodes: the answer comes when any of them is free, by one call for all."""
    world, nodes = World(town, {**QUEUE, **stage}), await nodes_of(town, 3)
    gates = [await world.hold(nodes[0], session) for session in "abc"]
    clients = [await world.waits(node, session) for node, session in zip(nodes, "abc", strict=True)]
    gates[first].set()
    await world.answered(*clients)
    assert [client.role for client in clients].count(Role.FOLLOWER) >= 2
    assert town.upstream.calls == 4
    for gate in gates:
        gate.set()
    for session in "abc":
        assert (await nodes[0].answer(world.call(session, f"next {session}"))).whole, "every lock was given back"


async def test_a_place_is_kept_whoever_owns_the_flight(town: Town) -> None:
    """Another node joins with the same session: the flight keeps its turn before who came between."""
    world, (one, other) = World(town, QUEUE), await nodes_of(town, 2)
    gate = await world.hold(one, "a")
    first = await world.waits(one, "a")
    between = await one.ask(world.call("a", "between", (b"X-Gate", b"between")))
    world.gates[b"between"] = asyncio.Event()
    await asyncio.sleep(0.05)
    mate = await world.waits(other, "a")
    await asyncio.sleep(0.3)
    gate.set()
    await world.answered(first, mate)
    world.gates[b"between"].set()
    assert (await between.read()).whole


async def test_a_full_node_leaves_it_to_one_with_a_place(town: Town) -> None:
    world, (one, other) = World(town, {"max_upstream": 1, "queue_wait": 5.0}), await nodes_of(town, 2)
    gate = world.gates[b"x"] = asyncio.Event()
    busy = await one.ask(world.call("", "busy", (b"X-Gate", b"x")))
    await busy.until_bytes(1)
    first = await world.waits(one, "")
    second = await other.ask(world.call(""))
    await world.answered(second, first)
    assert (second.role, first.role) == (Role.OWNER, Role.FOLLOWER)
    gate.set()


async def test_a_follower_is_not_refused_for_its_owner(town: Town) -> None:
    """The owner's session stays taken for longer than it waits; the follower's is free a little later."""
    world, (one, other) = World(town, {**QUEUE, "session_wait": 0.4}), await nodes_of(town, 2)
    gates = {session: await world.hold(one, session) for session in "ab"}
    first = await world.waits(one, "a")
    await asyncio.sleep(0.2)
    second = await world.waits(other, "b")
    assert await refused(first) is Code.SESSION_BUSY
    gates["b"].set()
    await world.answered(second)
    gates["a"].set()


async def test_a_followers_own_wait_has_an_end(town: Town) -> None:
    """It came first to its queue, though last to the flight, which still waits elsewhere."""
    world, (one, other) = World(town, {**QUEUE, "session_wait": 0.3}), await nodes_of(town, 2)
    gates = {session: await world.hold(one, session) for session in "ab"}
    second_way = World(town, {**QUEUE, "session_wait": 5.0})
    second_way.gates = world.gates
    first = await second_way.waits(one, "a")
    second = await world.waits(other, "b")
    assert await refused(second) is Code.SESSION_BUSY
    gates["a"].set()
    await world.answered(first)
    gates["b"].set()


async def test_where_nobody_queues_a_follower_joins_what_may_still_run(town: Town) -> None:
    """Its owner waits for a holder that works for nobody to give way: the same session elsewhere is not refused meanwhile."""
    world, (one, other) = World(town, {**REJECT, "max_abandoned_stream": 60.0}), await nodes_of(town, 2)
    await world.hold(one, "a")
    one.clients[0].leave()
    (flight,) = one.node.flights.all
    slow = asyncio.Event()

    async def give_way() -> bool:
        await slow.wait()
        return await one.node._give_way(flight)

    assert flight.approach is not None
    flight.approach._ahead._seat._on_contest = give_way  # type: ignore[union-attr]
    first = await world.waits(one, "a")
    second = await world.waits(other, "a")
    slow.set()
    await world.answered(first, second)


async def test_a_lock_is_given_back_before_followers_see_the_end(town: Town) -> None:
    """Also on other nodes: the lock is free before the seal is out, whether the answer is whole, an error, or broken off."""
    one = await town.node()
    order: list[str] = []

    def record(method: Callable[..., Any]) -> Callable[..., Any]:
        async def recorded(key: str, op: Any) -> Any:
            order.append(type(op).__name__)
            return await method(key, op)

        return recorded

    one.wire.session_step = record(one.wire.session_step)  # type: ignore[method-assign]
    one.wire.step = record(one.wire.step)  # type: ignore[method-assign]
    for ending, terminal in ((sse(CH, FIN, DONE), "Seal"), ([CLOSE], "Fail"), (sse(CH, CLOSE, last=False), "Fail")):
        order.clear()
        town.upstream.play(ending)
        body = town.fresh()
        named = (b"X-Soloflight-Session", b"s")
        await one.answer(town.call(body, named, **REJECT))
        assert order.index("Acquire") < order.index("Start") < order.index("Release") < order.index(terminal), order


@pytest.mark.lapse
async def test_a_node_that_dies_at_the_gate(town: Town) -> None:
    """It was first in its queue: the follower goes when its own session is free, or the dead one's lease is over."""
    world, (one, other) = World(town, QUEUE), await nodes_of(town, 2)
    gate = await world.hold(other, "a")
    await world.waits(one, "a")
    second = await world.waits(other, "a")
    await one.crash()
    gate.set()
    assert (await second.read()).body == ANSWER


async def test_it_ends_with_its_last_listener_on_any_node(town: Town) -> None:
    world, (one, other) = World(town, QUEUE), await nodes_of(town, 2)
    gate = await world.hold(one, "a")
    first, second = await world.waits(one, "a"), await world.waits(other, "a")
    first.leave()
    second.leave()
    await other.idle()
    await eventually(lambda: len(one.node.flights) == 1)
    gate.set()
    await one.clients[0].read()
    await asyncio.sleep(0.1)
    assert town.upstream.calls == 1


async def test_a_seat_is_one_question_each(town: Town) -> None:
    """Who is free asks once and gives back once: a flight alone costs no more for what others may need."""
    world, node = (
        World(town, {**QUEUE, "heartbeat": 30.0, "running_lease": 100.0, "pending_lease": 100.0}),
        await town.node(),
    )
    asked: list[type] = []
    inner = node.wire.session_step

    async def counted(key: str, op: Any) -> Any:
        asked.append(type(op))
        return await inner(key, op)

    node.wire.session_step = counted  # type: ignore[method-assign]
    await node.answer(world.call("a"))
    assert asked == [Acquire, Release]
