"""An owner is lost: whoever has sent nothing gets the next attempt, whoever has is cut, and no two attempts are joined."""

from __future__ import annotations

import asyncio
import math

import pytest

from harness.process import eventually
from nodes import Town
from soloflight.core.errors import Code
from soloflight.core.flight import Owned, Renew, Seal
from soloflight.core.log import WAKE_SLICE
from soloflight.flow.patience import Patience, Patrol
from soloflight.ports import Role
from soloflight.testing.chat import CH, DONE, FIN, content
from soloflight.testing.script import HANG, sse

ANSWER = CH + FIN + DONE


@pytest.mark.lapse
async def test_an_owner_lost_before_the_first_byte_is_replaced_unseen(town: Town) -> None:
    town.upstream.play([HANG], sse(CH, FIN, DONE))
    owner, other = await town.node(), await town.node()
    await owner.ask(town.call())
    await town.upstream.wait_calls(1)
    second = await other.ask(town.call())
    await owner.crash()
    await second.read()
    assert (second.body, second.whole, second.heads) == (ANSWER, True, 1)
    assert town.upstream.calls == 2
    assert [(event.outcome, event.kept) for event in other.ended] == [("complete", "kept")]


@pytest.mark.lapse
async def test_with_bytes_sent_a_follower_is_cut_and_without_it_starts_again(town: Town) -> None:
    town.upstream.play(sse(CH, CH, HANG, last=False), sse(content("new"), FIN, DONE))
    owner, other = await town.node(), await town.node()
    await owner.ask(town.call())
    sent = await other.ask(town.call())
    unsent = await other.ask(town.call(), commits=False)
    await sent.until_bytes(2 * len(CH))
    await unsent.until_bytes(2 * len(CH))
    await owner.crash()
    late = await other.ask(town.call())
    await sent.read()
    await unsent.read()
    await late.read()
    assert (sent.body, sent.code) == (CH + CH, Code.OWNER_LOST)
    assert (unsent.body, unsent.whole, unsent.heads) == (content("new") + FIN + DONE, True, 2)
    assert late.body == unsent.body
    assert town.upstream.calls == 2


@pytest.mark.lapse
@pytest.mark.parametrize("pushed", [True, False])
async def test_a_crowd_that_had_sent_nothing_moves_to_the_new_attempt_whole(town: Town, pushed: bool) -> None:
    """More than are woken in one turn of the loop: those of the later turns stand in the new log already when they are."""
    town.upstream.play(sse(CH, HANG, last=False), sse(content("new"), FIN, DONE))
    owner, other = await town.node(), await town.node()
    await owner.ask(town.call())
    crowd = [await other.ask(town.call(), commits=False, pushed=pushed) for _ in range(WAKE_SLICE * 2 + 50)]
    reading = [asyncio.create_task(client.read()) for client in crowd]
    await eventually(lambda: all(client.body == CH for client in crowd))
    await owner.crash()
    await asyncio.gather(*reading)
    assert {client.body for client in crowd} == {content("new") + FIN + DONE}
    assert all(client.whole for client in crowd)


@pytest.mark.lapse
async def test_of_many_nodes_one_takes_over_and_the_others_follow_it(town: Town) -> None:
    town.upstream.play([HANG], sse(CH, FIN, DONE))
    owner, *others = [await town.node() for _ in range(4)]
    await owner.ask(town.call())
    await town.upstream.wait_calls(1)
    clients = [await node.ask(town.call()) for node in others]
    await owner.crash()
    for client in clients:
        assert (await client.read()).body == ANSWER
    assert town.upstream.calls == 2
    assert sorted(len(node.wire.replies(Owned)) for node in others) == [0, 0, 1]


@pytest.mark.lapse
async def test_a_takeover_whose_answer_is_whole_at_once_reaches_who_had_sent_nothing(town: Town) -> None:
    """The record is sealed before the follower looks again: the old log is left behind in the same step that ends the flight."""
    town.upstream.play(sse(CH, HANG, last=False), sse(content("new"), FIN, DONE))
    owner, other, third = await town.node(), await town.node(), await town.node()
    await owner.ask(town.call())
    unsent = await other.ask(town.call(), commits=False)
    await unsent.until_bytes(len(CH))
    other.wire.cut = True  # it hears nothing of the takeover
    await owner.crash()
    made = await (await third.ask(town.call(), commits=False)).read()
    other.wire.cut = False
    await unsent.read()
    assert (unsent.body, unsent.whole, unsent.fell_behind) == (made.body, True, False)


@pytest.mark.lapse
async def test_attempts_are_capped_and_the_fault_is_remembered(town: Town) -> None:
    town.upstream.play([HANG])
    first, second, third = await town.node(), await town.node(), await town.node()
    stage = {"max_attempts": 2, "poison_ttl": 0.4}
    await first.ask(town.call(**stage))
    await town.upstream.wait_calls(1)
    await second.ask(town.call(**stage))
    await third.ask(town.call(**stage))
    await first.crash()
    await town.upstream.wait_calls(2)
    taker, follower = (second, third) if second.wire.replies(Owned) else (third, second)
    await taker.crash()
    survivor = follower.clients[0]
    await survivor.read()
    assert survivor.code is Code.ATTEMPTS_EXHAUSTED
    newcomer = await follower.answer(town.call(**stage))
    assert newcomer.code is Code.ATTEMPTS_EXHAUSTED
    assert town.upstream.calls == 2


@pytest.mark.lapse
async def test_an_owner_that_lost_its_seat_serves_its_own_clients_and_no_one_else(town: Town) -> None:
    """It was cut off past its lease, not dead: its writes are refused and counted, its client's stream goes on."""
    gate = asyncio.Event()
    town.upstream.play(sse(CH, gate, content("old"), FIN, DONE), sse(content("new"), FIN, DONE))
    owner, other = await town.node(), await town.node()
    own = await (await owner.ask(town.call())).until_bytes(len(CH))
    owner.wire.cut = True
    made = await other.answer(town.call())
    assert made.body == content("new") + FIN + DONE
    owner.wire.cut = False
    await owner.wire.until(lambda: owner.refused)
    gate.set()
    await own.read()
    assert (own.body, own.whole) == (CH + content("old") + FIN + DONE, True)
    assert owner.refused == ["fenced"]
    assert owner.wire.done(Seal) == []
    third = await town.node()
    assert (await third.answer(town.call())).body == made.body, "the accepted result stands"


@pytest.mark.lapse
async def test_an_owner_that_beats_without_progress_is_replaced(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is stuck where it would have noticed the silence itself; its heartbeat lives."""

    class Endless(Patience):
        def __init__(self, patrol: Patrol, *_: float) -> None:
            super().__init__(patrol, math.inf)

        def progress(self, limit_s: float | None = None) -> None:
            pass

    town.upstream.play(sse(CH, HANG, last=False), sse(CH, FIN, DONE))
    owner, other = await town.node(), await town.node()
    monkeypatch.setattr("soloflight.flow.upstream.Patience", Endless)
    first = await (await owner.ask(town.call(progress_timeout=0.2))).until_bytes(len(CH))
    monkeypatch.undo()
    second = await other.ask(town.call(), commits=False)
    await second.read()
    assert (second.body, second.whole, town.upstream.calls) == (ANSWER, True, 2)
    assert len(owner.wire.done(Renew)) > 2
    await owner.wire.until(lambda: owner.refused)
    assert owner.refused[0] in ("stalled", "fenced")
    assert first.end is None, "its own client keeps what it has"


@pytest.mark.parametrize("trial", range(10))
async def test_a_silent_upstream_ends_the_flight_for_all_without_a_second_call(town: Town, trial: int) -> None:
    """The owner's own patience ends before a follower could count the attempt as lapsed."""
    town.upstream.play([HANG])
    owner, other = await town.node(), await town.node()
    stage = {"first_byte_timeout": 0.2}
    first = await owner.ask(town.call(**stage))
    second = await other.ask(town.call(**stage))
    await first.read()
    await second.read()
    assert (first.code, second.code) == (Code.UPSTREAM_TIMEOUT, Code.UPSTREAM_TIMEOUT)
    assert town.upstream.calls == 1


@pytest.mark.lapse
async def test_a_follower_has_the_role_of_who_makes_its_answer(town: Town) -> None:
    town.upstream.play([HANG], sse(CH, FIN, DONE))
    owner, other = await town.node(), await town.node()
    await owner.ask(town.call())
    await town.upstream.wait_calls(1)
    second = await other.ask(town.call())
    await other.wire.until(lambda: other.wire.subscriptions)
    await owner.crash()
    await second.read()
    assert second.role is Role.OWNER
