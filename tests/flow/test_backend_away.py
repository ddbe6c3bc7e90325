"""The coordinator is away, for a moment or for good: requests are answered all the same, and nobody waits without a bound."""

from __future__ import annotations

import asyncio

import pytest

from nodes import Town
from soloflight.core.errors import Code
from soloflight.core.flight import Append, Notice, NoticeKind, Seal
from soloflight.ports import BackendError, Role
from soloflight.testing.chat import CH, DONE, FIN, content
from soloflight.testing.script import HANG, sse

ANSWER = CH + FIN + DONE


async def test_without_a_backend_a_node_shares_and_replays_by_itself(town: Town) -> None:
    gate = asyncio.Event()
    town.upstream.play(sse(CH, gate, FIN, DONE))
    node = await town.node()
    node.wire.cut = True
    clients = [await node.ask(town.call()) for _ in range(5)]
    for client in clients:
        await client.until_bytes(1)
    gate.set()
    assert {(await client.read()).body for client in clients} == {ANSWER}
    assert (await node.answer(town.call())).role is Role.REPLAY
    assert town.upstream.calls == 1


async def test_an_operator_may_have_requests_refused_instead(town: Town) -> None:
    node = await town.node(reject_without_backend=True)
    node.wire.cut = True
    client = await node.answer(town.call())
    assert (client.code, town.upstream.calls) == (Code.BACKEND_UNAVAILABLE, 0)
    assert client.end is not None
    assert client.end.fault is not None
    assert client.end.fault.retry_after_s == 1
    node.wire.cut = False
    town.upstream.play(sse(CH, FIN, DONE))
    assert (await node.answer(town.call())).body == ANSWER


async def test_a_backend_that_goes_away_behind_the_claim_costs_no_stream(town: Town) -> None:
    gate = asyncio.Event()
    town.upstream.play(sse(CH, gate, FIN, DONE))
    node = await town.node()
    client = await (await node.ask(town.call())).until_bytes(1)
    failed: list[object] = []
    node.wire.fails = lambda op: not failed.append(op)
    await node.wire.until(lambda: len(failed) > 1)
    gate.set()
    assert ((await client.read()).body, client.whole) == (ANSWER, True)
    assert (await node.answer(town.call())).role is Role.REPLAY


async def test_publishing_goes_on_when_the_backend_is_back(town: Town) -> None:
    """Appends fail for a while; what came meanwhile follows, in order, long before the end."""
    gates = [asyncio.Event() for _ in range(3)]
    town.upstream.play(sse(CH, gates[0], content("1"), gates[1], content("2"), gates[2], FIN, DONE))
    owner, other = await town.node(), await town.node()
    await owner.ask(town.call())
    second = await (await other.ask(town.call())).until_bytes(len(CH))
    failed: list[int] = []

    def fails(op: object) -> bool:
        if isinstance(op, Append):
            failed.append(op.index)
        return isinstance(op, Append)

    owner.wire.fails = fails
    gates[0].set()
    await owner.wire.until(lambda: len(failed) >= 3)
    owner.wire.fails = lambda _: False
    gates[1].set()
    await second.until_bytes(len(CH + content("1") + content("2")))
    assert (second.body, second.end) == (CH + content("1") + content("2"), None)
    gates[2].set()
    assert (await second.read()).whole


async def test_a_lost_ring_is_made_good_by_the_next_renewal(town: Town) -> None:
    gate = asyncio.Event()
    town.upstream.play(sse(CH, gate, FIN, DONE))
    owner, other = await town.node(), await town.node()
    first = await (await owner.ask(town.call())).until_bytes(1)
    rung: list[str] = []
    owner.node._rung = rung.append  # type: ignore[method-assign]
    await owner.node.open()
    second = await (await other.ask(town.call())).until_bytes(len(CH))
    assert rung
    gate.set()
    assert (await first.read()).body == (await second.read()).body == ANSWER


@pytest.mark.parametrize("lost", [1, 2])
async def test_a_lost_notice_is_repaired_from_the_log(town: Town, lost: int) -> None:
    gates = [asyncio.Event() for _ in range(3)]
    town.upstream.play(sse(CH, gates[0], content("1"), gates[1], content("2"), gates[2], FIN, DONE))
    owner, other = await town.node(), await town.node()
    other.wire.loses = lambda notice: notice.kind is NoticeKind.APPENDED and notice.index == lost
    first = await owner.ask(town.call())
    second = await other.ask(town.call())
    await first.until_bytes(len(CH))
    for count, gate in enumerate(gates[:2], 2):
        gate.set()
        await owner.wire.until(lambda count=count: len(owner.wire.done(Append)) >= count)
    await second.until_bytes(len(CH + content("1")))
    gates[2].set()
    await second.read()
    assert (second.body, second.whole) == (CH + content("1") + content("2") + FIN + DONE, True)


@pytest.mark.lapse
async def test_a_lost_word_of_the_end_is_found_by_looking(town: Town) -> None:
    gate = asyncio.Event()
    town.upstream.play(sse(CH, gate, FIN, DONE))
    owner, other = await town.node(), await town.node()
    other.wire.loses = lambda notice: notice.kind is NoticeKind.SEALED
    first = await owner.ask(town.call())
    second = await (await other.ask(town.call())).until_bytes(1)
    gate.set()
    assert (await first.read()).body == (await second.read()).body == ANSWER


async def test_a_subscription_that_lost_its_connection_says_look_again(town: Town) -> None:
    """Kind RETRY with number 0 (the port's word for a gap): the record is asked at once, not when the lease is due."""
    gate = asyncio.Event()
    town.upstream.play(sse(CH, gate, FIN, DONE))
    owner, other = await town.node(), await town.node()
    stage = {"running_lease": 30.0, "heartbeat": 10.0}
    deaf = False
    listeners = []
    subscribe = other.wire.subscribe

    async def listening(key, listener):  # type: ignore[no-untyped-def]
        listeners.append(listener)
        return await subscribe(key, lambda notice: None if deaf else listener(notice))

    other.wire.subscribe = listening  # type: ignore[method-assign]
    first = await owner.ask(town.call(**stage))
    second = await (await other.ask(town.call(**stage))).until_bytes(len(CH))
    deaf = True
    gate.set()
    await first.read()
    listeners[0](Notice(NoticeKind.RETRY, 0))
    assert (await second.read()).body == ANSWER


@pytest.mark.lapse
async def test_a_follower_without_a_backend_works_alone_past_the_lease(town: Town) -> None:
    town.upstream.play(sse(CH, HANG, last=False), sse(content("own"), FIN, DONE))
    owner, other = await town.node(), await town.node()
    await owner.ask(town.call())
    second = await other.ask(town.call(), commits=False)
    await second.until_bytes(1)
    other.wire.cut = True
    await second.read()
    assert (second.body, second.whole, town.upstream.calls) == (content("own") + FIN + DONE, True, 2)


@pytest.mark.lapse
async def test_a_follower_without_any_sign_of_its_flight_is_told_so(town: Town) -> None:
    town.upstream.play([HANG])
    owner, other = await town.node(), await town.node()
    stage = {"follower_wait": 0.2}
    await owner.ask(town.call(**stage))
    second = await other.ask(town.call(**stage))
    await other.wire.until(lambda: other.wire.subscriptions)
    other.wire.cut = True
    await second.read()
    assert (second.code, town.upstream.calls) == (Code.FOLLOWER_TIMEOUT, 1)
    newcomer = other.node.flights.get(town.call(**stage).key)
    assert newcomer is None, "nobody finds a flight that has ended"


async def test_a_follower_that_can_not_subscribe_works_alone(town: Town) -> None:
    town.upstream.play(sse(CH, HANG, last=False), sse(CH, FIN, DONE))
    owner, other = await town.node(), await town.node()
    await owner.ask(town.call())

    async def refuses(*_: object) -> None:
        other.wire.cut = True
        raise BackendError("no more subscriptions")

    other.wire.subscribe = refuses  # type: ignore[method-assign]
    second = await other.answer(town.call())
    assert (second.body, second.whole) == (ANSWER, True)


@pytest.mark.lapse
async def test_a_lost_seal_leaves_the_owner_its_own_answer(town: Town) -> None:
    town.upstream.play(sse(CH, FIN, DONE))
    owner, other = await town.node(), await town.node()
    owner.wire.fails = lambda op: isinstance(op, Seal)
    assert (await owner.answer(town.call())).whole
    assert (await owner.answer(town.call())).role is Role.REPLAY
    assert (await other.answer(town.call())).body == ANSWER
    assert town.upstream.calls == 2
