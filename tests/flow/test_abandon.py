"""The last listener leaves: how long the work goes on, and that nobody ever joins a dying flight."""

from __future__ import annotations

import asyncio

import pytest

from nodes import Town
from soloflight.core.errors import Code
from soloflight.core.flight import Abandon, Claim, Dropped, Kept, Leave, Operation, Reply
from soloflight.ports import Role
from soloflight.testing.chat import CH, DONE, FIN
from soloflight.testing.script import HANG, sse

ANSWER = CH + FIN + DONE
LONG = 60.0
NOW = 0.01


async def test_under_finish_the_answer_is_kept_for_the_retry(town: Town) -> None:
    gate = asyncio.Event()
    town.upstream.play([gate, *sse(CH, FIN, DONE)])
    node = await town.node()
    client = await node.ask(town.call())
    await town.upstream.wait_calls(1)
    client.leave()
    client.leave()
    gate.set()
    await node.idle()
    again = await node.answer(town.call())
    assert (again.role, again.body, town.upstream.calls) == (Role.REPLAY, ANSWER, 1)


async def test_a_retry_joins_the_flight_that_goes_on_for_nobody(town: Town) -> None:
    gate = asyncio.Event()
    town.upstream.play([gate, *sse(CH, FIN, DONE)])
    node = await town.node()
    client = await node.ask(town.call())
    await town.upstream.wait_calls(1)
    client.leave()
    again = await node.ask(town.call())
    gate.set()
    await again.read()
    assert (again.role, again.body, town.upstream.calls) == (Role.FOLLOWER, ANSWER, 1)


@pytest.mark.parametrize(
    ("stage", "first_byte"),
    [
        ({"max_abandoned": NOW, "max_abandoned_stream": LONG}, False),
        ({"max_abandoned": LONG, "max_abandoned_stream": NOW}, True),
        ({"on_abandon": "cancel", "abandon_grace": NOW, "max_abandoned": LONG, "max_abandoned_stream": LONG}, False),
        ({"on_abandon": "cancel", "abandon_grace": NOW, "max_abandoned": LONG, "max_abandoned_stream": LONG}, True),
    ],
    ids=["finish, waiting", "finish, streaming", "cancel, waiting", "cancel, streaming"],
)
async def test_past_its_bound_the_upstream_is_let_go(town: Town, stage: dict[str, object], first_byte: bool) -> None:
    town.upstream.play(sse(CH, HANG, last=False) if first_byte else [HANG], sse(CH, FIN, DONE))
    node = await town.node()
    client = await node.ask(town.call(**stage))
    if first_byte:
        await client.until_bytes(1)
    await town.upstream.wait_calls(1)
    client.leave()
    await town.upstream.wait_until(lambda: town.upstream.requests[0].left is not None)
    await node.idle()
    assert node.wire.replies(Dropped)
    again = await node.answer(town.call(**stage))
    assert (again.role, again.body, town.upstream.calls) == (Role.OWNER, ANSWER, 2)


@pytest.mark.parametrize("stage", [{"max_abandoned": 0.1}, {"on_abandon": "cancel", "abandon_grace": 0.1}])
async def test_who_comes_back_in_time_saves_the_flight(town: Town, stage: dict[str, object]) -> None:
    gate = asyncio.Event()
    town.upstream.play([gate, *sse(CH, FIN, DONE)])
    node = await town.node()
    client = await node.ask(town.call(**stage))
    await town.upstream.wait_calls(1)
    client.leave()
    again = await node.ask(town.call(**stage))
    await asyncio.sleep(0.2)  # past the bound: nothing must happen, and nothing tells of nothing
    assert node.wire.done(Abandon) == []
    gate.set()
    assert ((await again.read()).body, town.upstream.calls) == (ANSWER, 1)


async def test_a_listener_that_leaves_while_others_listen_changes_nothing(town: Town) -> None:
    gate = asyncio.Event()
    town.upstream.play(sse(CH, gate, FIN, DONE))
    node = await town.node()
    stage = {"on_abandon": "cancel", "abandon_grace": NOW}
    first, second = await node.ask(town.call(**stage)), await node.ask(town.call(**stage))
    await first.until_bytes(1)
    first.leave()
    await asyncio.sleep(0.05)
    gate.set()
    assert ((await second.read()).body, town.upstream.calls) == (ANSWER, 1)


# ── joining a flight that is being abandoned ────────────────────────────────────────────────────────────────────────


@pytest.fixture
def cancelling() -> dict[str, object]:
    return {"on_abandon": "cancel", "abandon_grace": 0.0, "heartbeat": 30.0, "running_lease": 100.0}


async def closing(town: Town, stage: dict[str, object]) -> tuple[object, asyncio.Event]:
    """A node whose only flight waits for the coordinator's word on its end."""
    town.upstream.play(sse(CH, HANG, last=False), sse(CH, FIN, DONE))
    node = await town.node()
    client = await (await node.ask(town.call(**stage))).until_bytes(1)
    held = node.wire.held = asyncio.Event()
    client.leave()
    await node.wire.until(lambda: any(isinstance(op, Abandon) for op in node.wire.waiting))
    return node, held


async def test_who_comes_while_it_ends_waits_and_gets_a_flight_of_its_own(
    town: Town, cancelling: dict[str, object]
) -> None:
    node, held = await closing(town, cancelling)
    asking = asyncio.create_task(node.answer(town.call(**cancelling)))
    await asyncio.sleep(0)
    held.set()
    client = await asking
    assert (client.role, client.body, client.whole) == (Role.OWNER, ANSWER, True)
    assert town.upstream.calls == 2


async def test_one_who_gives_up_waiting_takes_nobody_with_it(town: Town, cancelling: dict[str, object]) -> None:
    node, held = await closing(town, cancelling)
    impatient, patient = (asyncio.create_task(node.answer(town.call(**cancelling))) for _ in range(2))
    await asyncio.sleep(0)
    impatient.cancel()
    with pytest.raises(asyncio.CancelledError):
        await impatient
    held.set()
    async with asyncio.timeout(5):
        client = await patient
    assert (client.body, client.whole) == (ANSWER, True)


async def test_a_newcomer_never_hears_of_the_fault_of_those_who_left(town: Town) -> None:
    """Joins and departures in every order around the coordinator's word: all who stay get a whole answer."""
    town.upstream.play(lambda _: sse(CH, FIN, DONE))
    node = await town.node()
    stage = {"on_abandon": "cancel", "abandon_grace": 0.0, "replay": "never", "share": "always"}

    async def come(number: int) -> None:
        client = await node.ask(town.call(**stage))
        for _ in range(number % 5):
            await asyncio.sleep(0)
        if number % 3:
            client.leave()
        else:
            await client.read()
            assert (client.body, client.code) == (ANSWER, None)

    for start in range(0, 120, 12):
        await asyncio.gather(*(come(number) for number in range(start, start + 12)))
    await node.idle()


# ── more than one node ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_owner_goes_on_while_another_node_listens_and_ends_when_that_leaves(town: Town) -> None:
    town.upstream.play(sse(CH, HANG, last=False))
    owner, other = await town.node(), await town.node()
    stage = {"on_abandon": "cancel", "abandon_grace": NOW}
    first, second = await owner.ask(town.call(**stage)), await other.ask(town.call(**stage))
    await first.until_bytes(1)
    await second.until_bytes(1)
    first.leave()
    await owner.wire.until(lambda: owner.wire.replies(Kept))
    assert second.end is None
    assert town.upstream.requests[0].left is None
    second.leave()
    await other.wire.until(lambda: other.wire.done(Leave))
    await town.upstream.wait_until(lambda: town.upstream.requests[0].left is not None)
    await owner.idle()


async def test_a_node_whose_followers_left_leaves_the_owner_alone(town: Town) -> None:
    gate = asyncio.Event()
    town.upstream.play(sse(CH, gate, FIN, DONE))
    owner, other = await town.node(), await town.node()
    first, second = await owner.ask(town.call()), await other.ask(town.call())
    await second.until_bytes(1)
    second.leave()
    await other.idle()
    assert other.wire.done(Leave)
    gate.set()
    assert (await first.read()).body == ANSWER


async def test_a_follower_may_leave_and_come_back(town: Town) -> None:
    gate = asyncio.Event()
    town.upstream.play(sse(CH, gate, FIN, DONE))
    owner, other = await town.node(), await town.node()
    await owner.ask(town.call())
    second = await (await other.ask(town.call())).until_bytes(1)
    second.leave()
    again = await other.ask(town.call())
    gate.set()
    await again.read()
    assert (again.body, again.whole, town.upstream.calls) == (ANSWER, True, 1)


async def test_a_node_that_closes_cuts_its_listeners_and_gives_its_seat_back(town: Town) -> None:
    town.upstream.play(sse(CH, HANG, last=False), sse(CH, FIN, DONE))
    owner, other = await town.node(), await town.node()
    stage = {"heartbeat": 20.0, "running_lease": 60.0}
    first = await owner.ask(town.call(**stage))
    second = await other.ask(town.call(**stage), commits=False)
    await first.until_bytes(1)
    await second.until_bytes(1)
    await owner.node.close()
    await first.read()
    assert first.code is Code.DRAINING
    await second.read()
    assert (second.body, second.whole) == (ANSWER, True), "it need not wait for the lease to lapse"


async def test_a_claim_that_is_never_answered_does_not_hold_a_flight_without_listeners(town: Town) -> None:
    node = await town.node()
    node.wire.held = asyncio.Event()
    client = await node.ask(town.call(max_abandoned=NOW))
    await node.wire.until(lambda: any(isinstance(op, Claim) for op in node.wire.waiting))
    client.leave()
    await node.idle()
    assert town.upstream.calls == 0


async def test_a_seat_whose_claim_nobody_waited_for_is_given_back(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody had left before the claim's reply came; it was executed. Others need not wait for its lease to lapse."""
    town.upstream.play(sse(CH, FIN, DONE))
    stage = {"on_abandon": "cancel", "abandon_grace": NOW, "running_lease": LONG}
    first, second = await town.node(), await town.node()
    executed, reply_comes, step = asyncio.Event(), asyncio.Event(), first.wire.step

    async def late(key: str, op: Operation) -> Reply:
        reply = await step(key, op)
        if not executed.is_set():
            executed.set()
            await reply_comes.wait()
        return reply

    monkeypatch.setattr(first.wire, "step", late)
    client = await first.ask(town.call(**stage))
    await executed.wait()
    client.leave()
    await first.idle()
    answer = await second.answer(town.call(**stage))
    assert (answer.role, answer.body, town.upstream.calls) == (Role.OWNER, ANSWER, 1)
    assert len(first.wire.replies(Dropped)) == 1
