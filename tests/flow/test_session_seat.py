"""A seat at a session lock: taken in turn, renewed, given back once on every path; contests, and a backend that is away."""

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from sessions.floor import KEY, QUEUE, REJECT, Floor, Node, until
from soloflight.core.errors import Code
from soloflight.core.session import Acquire, Hold, Release, SessionNotice, SessionNoticeKind, Withdraw
from soloflight.flow import session


@pytest_asyncio.fixture
async def floor() -> AsyncIterator[Floor]:
    async with Floor() as floor:
        yield floor


# ── taking and giving back ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("stage", [QUEUE, REJECT], ids=["queue", "reject"])
async def test_a_free_seat_costs_one_command_each_way(floor: Floor, stage: session.Stage) -> None:
    node = await floor.node()
    seat = node.seats.seat(KEY, replace(stage, heartbeat=1.0), "flight", never_asked)
    async with seat:
        assert seat.seated
        assert floor.holder() == seat.nonce
        assert [type(op) for op in node.ops] == [Acquire]
    assert not seat.seated
    assert floor.holder() is None
    assert [type(op) for op in node.ops] == [Acquire, Release]


async def never_asked() -> bool:
    raise AssertionError("nobody contests")


async def test_a_seat_says_what_it_is(floor: Floor) -> None:
    node = await floor.node()
    seat = await floor.job(node).seated()
    assert floor.lock() is not None
    number = floor.lock().holder.fence.number  # type: ignore[union-attr]
    assert (
        repr(seat) == f"SessionSeat(session, seated=True, fences=[{number}, {seat._places[1].fence.number}], waiting=0)"
    )  # type: ignore[union-attr]
    assert repr(node.seats) == "SessionSeats(1, node='a')"
    assert repr(node.seats.own) == "OwnLocks(SessionTable(locks=1, held=1, waiting=0))"


async def test_those_who_wait_are_seated_by_arrival_over_all_nodes(floor: Floor) -> None:
    a, b = await floor.node(), await floor.node()
    first = floor.job(a)
    await first.seated()
    waiting = [await floor.waiting(node) for node in (b, a, b, a)]
    before = first
    for job in waiting:
        assert [other.task.done() for other in waiting].count(True) == waiting.index(job)
        await before.seat.release()
        seat = await job.seated()
        assert floor.holder() == seat.nonce
        before = job
    assert waiting[-1].seat.waited_s > 0


async def test_two_sessions_do_not_wait_for_each_other(floor: Floor) -> None:
    node = await floor.node()
    one, two = floor.job(node, key="one"), floor.job(node, key="two")
    assert (await one.seated()).seated
    assert (await two.seated()).seated


async def test_a_seat_is_given_back_once(floor: Floor) -> None:
    node = await floor.node()
    first = await floor.job(node).seated()
    await first.release()
    second = await floor.job(node).seated()
    await first.release()
    assert second.seated
    assert floor.holder() == second.nonce
    assert (node.count(Release), node.count(Withdraw)) == (1, 0)


async def test_it_is_given_back_even_if_who_waits_for_that_is_cancelled(floor: Floor) -> None:
    node = await floor.node()
    seat = await floor.job(node).seated()
    node.gate = asyncio.Event()
    leaving = asyncio.create_task(seat.release())
    await until(lambda: node.count(Release))
    leaving.cancel()
    await asyncio.wait((leaving,))
    assert leaving.cancelled()
    node.gate.set()
    await until(lambda: floor.holder() is None and not len(node.seats))


async def test_a_seat_that_was_never_wished_for_is_given_back_for_nothing(floor: Floor) -> None:
    node = await floor.node()
    seat = node.seats.seat(KEY, QUEUE, "flight", never_asked)
    assert not await seat.wanted()
    await seat.release()
    assert node.ops == []


async def test_closing_waits_for_what_is_being_given_back(floor: Floor) -> None:
    node = await floor.node()
    seat = await floor.job(node).seated()
    node.gate = asyncio.Event()
    leaving = asyncio.create_task(seat.release())
    await until(lambda: node.count(Release))
    closing = asyncio.create_task(node.seats.close())
    await until(lambda: len(node.seats.tasks) == 1)
    assert not closing.done()
    node.gate.set()
    await closing
    await leaving
    assert floor.holder() is None


# ── waiting ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_lost_turn_is_found_by_looking_again(floor: Floor) -> None:
    node = await floor.node()
    first = await floor.job(node).seated()
    second = await floor.waiting(node)
    node.deaf = True
    await first.release()
    assert (await second.seated()).seated


async def test_a_dead_holder_is_followed_within_its_lease(floor: Floor) -> None:
    dead, node = await floor.node(), await floor.node()
    await floor.job(dead).seated()
    dead.cut = True
    job = await floor.waiting(node)
    floor.now += 31
    assert (await job.seated()).seated


async def test_a_waiter_that_is_cancelled_leaves_the_queue(floor: Floor) -> None:
    node = await floor.node()
    first = await floor.job(node).seated()
    second, third = await floor.waiting(node), await floor.waiting(node)
    second.task.cancel()
    await until(lambda: floor.queue() == [third.seat.nonce])
    await first.release()
    assert (await third.seated()).seated
    assert second.task.cancelled()


async def test_a_question_in_flight_is_taken_back_when_cancelled(floor: Floor) -> None:
    node = await floor.node()
    node.gate = asyncio.Event()
    job = floor.job(node)
    await until(lambda: floor.holder() == job.seat.nonce)
    job.task.cancel()
    node.gate.set()
    await until(lambda: floor.holder() is None and not len(node.seats))
    assert node.count(Withdraw) == 1


async def test_a_wait_has_an_end(floor: Floor) -> None:
    a, b = await floor.node(), await floor.node()
    first = await floor.job(a).seated()
    error = await floor.job(b, replace(QUEUE, session_wait=0.05)).refused()
    assert (error.fault.code, error.fault.retry_after_s) == (Code.SESSION_BUSY, 1)
    assert b.count(Acquire) < 20, "it did not ask at every notice"
    await until(lambda: floor.queue() == [])
    assert floor.holder() == first.nonce


async def test_a_queue_that_is_full_is_busy_at_once(floor: Floor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "MAX_QUEUE", 1)
    node = await floor.node()
    await floor.job(node).seated()
    waiting = await floor.waiting(node)
    assert (await floor.job(node).refused()).fault.code is Code.SESSION_BUSY
    assert floor.queue() == [waiting.seat.nonce]


async def test_a_turn_that_comes_at_the_last_moment_is_taken(floor: Floor) -> None:
    a, b = await floor.node(), await floor.node()
    first = await floor.job(a).seated()
    b.gate = asyncio.Event()
    second = await floor.waiting(b, replace(QUEUE, session_wait=0.0))
    await first.release()
    b.gate.set()
    assert (await second.seated()).seated


# ── rejecting ───────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_newcomer_is_busy_as_soon_as_the_holder_has_answered(
    floor: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "GIVE_WAY_S", 100.0)
    a, b = await floor.node(), await floor.node()
    first = floor.job(a, REJECT)
    await first.seated()
    error = await floor.job(b, replace(REJECT, pending_lease=200.0)).refused()
    assert (error.fault.code, error.fault.retry_after_s) == (Code.SESSION_BUSY, 1)
    assert first.contests == 1
    assert first.seat.seated
    await until(lambda: floor.queue() == [])
    (asked,) = [op for op in b.ops if isinstance(op, Acquire)]
    assert asked.ticket_ms == 100_000, "no longer than it waits"


async def test_a_holder_that_works_for_nobody_gives_way(floor: Floor) -> None:
    a, b = await floor.node(), await floor.node()
    first = floor.job(a, REJECT)
    await first.seated()
    first.listened = False
    second = await floor.job(b, REJECT).seated()
    assert not first.seat.seated
    assert floor.holder() == second.nonce


async def test_a_holder_that_does_not_answer_is_waited_for_a_moment(
    floor: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "GIVE_WAY_S", 0.03)
    dead, node = await floor.node(), await floor.node()
    await floor.job(dead).seated()
    dead.deaf = dead.cut = True
    assert (await floor.job(node, REJECT).refused()).fault.code is Code.SESSION_BUSY
    monkeypatch.setattr(session, "GIVE_WAY_S", 100.0)
    job = await floor.waiting(node, REJECT)
    floor.now += 31
    assert (await job.seated()).seated


async def test_a_newcomer_does_not_line_up_behind_those_who_wait(floor: Floor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "GIVE_WAY_S", 100.0)
    node = await floor.node()
    await floor.job(node).seated()
    waiting = await floor.waiting(node)
    assert (await floor.job(node, REJECT).refused()).fault.code is Code.SESSION_BUSY
    assert floor.queue() == [waiting.seat.nonce]


# ── holding ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_seat_is_renewed_until_it_is_given_back(floor: Floor) -> None:
    node = await floor.node()
    seat = await floor.job(node).seated()
    for _ in range(3):
        floor.now += 30
        beats = node.count(Hold)
        await until(lambda beats=beats: node.count(Hold) >= beats + 2)
    await seat.release()
    assert seat._timer is not None
    assert seat._timer.cancelled()
    after = node.count(Hold)
    await floor.job(node, key="another").seated()
    await until(lambda: node.count(Hold) >= after + 3)
    assert all(op.fence.nonce != seat.nonce for op in node.ops[-3:] if isinstance(op, Hold))


async def test_a_beat_waits_for_the_one_before(floor: Floor) -> None:
    node = await floor.node()
    seat = await floor.job(node).seated()
    node.gate = asyncio.Event()
    await until(lambda: node.count(Hold) >= 1 and seat._commands.locked())
    beats, timers = node.count(Hold), {seat._timer}
    await until(lambda: timers.add(seat._timer) or len(timers) >= 4)
    assert node.count(Hold) == beats
    assert len(node.seats.tasks) == 1
    node.gate.set()


async def test_giving_back_waits_for_a_beat_on_its_way(floor: Floor) -> None:
    node = await floor.node()
    seat = await floor.job(node).seated()
    node.gate = asyncio.Event()
    await until(lambda: node.count(Hold) and seat._commands.locked())
    leaving = asyncio.create_task(seat.release())
    await turns()
    assert node.count(Release) == 0
    node.gate.set()
    await leaving
    assert isinstance(node.ops[-1], Release)


async def turns() -> None:
    """Let what can go on go on."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_holder_knows_that_it_is_waited_for(floor: Floor) -> None:
    a, b = await floor.node(), await floor.node()
    first = floor.job(a)
    seat = await first.seated()
    assert not await seat.wanted()
    second = await floor.waiting(b)
    assert seat.waiting == 1
    assert first.contests >= 1
    assert await seat.wanted()
    second.task.cancel()
    await until(lambda: floor.queue() == [])
    assert not await seat.wanted()
    await seat.release()
    asked = len(a.ops)
    assert not await seat.wanted()
    assert len(a.ops) == asked, "who has no seat asks nothing"


async def test_who_is_seated_before_others_knows_of_them_at_once(floor: Floor) -> None:
    node = await floor.node()
    first = await floor.job(node).seated()
    second, _third = await floor.waiting(node), await floor.waiting(node)
    await first.release()
    assert (await second.seated()).waiting == 1


async def test_one_answer_serves_contests_that_came_meanwhile(floor: Floor) -> None:
    node = await floor.node()
    answered, contests = asyncio.Event(), 0

    async def slow() -> bool:
        nonlocal contests
        contests += 1
        await answered.wait()
        return False

    async with node.seats.seat(KEY, replace(QUEUE, heartbeat=1.0), "flight", slow) as seat:
        for waiting in range(1, 6):
            node.seats.told(KEY, SessionNotice(SessionNoticeKind.CONTEST, seat.nonce, waiting))
        await until(lambda: contests == 1)
        assert seat.waiting == 5, "known before it is answered"
        node.seats.told(KEY, SessionNotice(SessionNoticeKind.CONTEST, seat.nonce, 9))
        await turns()
        assert contests == 1
        answered.set()
        await until(lambda: node.count(Hold) == 2)
        assert contests == 2
    node.seats.told(KEY, SessionNotice(SessionNoticeKind.CONTEST, seat.nonce, 9))
    seat.told(SessionNotice(SessionNoticeKind.CONTEST, seat.nonce, 9))
    await turns()
    assert contests == 2


async def test_a_notice_for_nobody_here_is_nothing(floor: Floor) -> None:
    node = await floor.node()
    job = floor.job(node)
    await job.seated()
    node.seats.told(KEY, SessionNotice(SessionNoticeKind.CONTEST, "nobody", 1))
    node.seats.told("another", SessionNotice(SessionNoticeKind.CONTEST, job.seat.nonce, 1))
    assert job.seat.waiting == job.contests == 0


# ── a backend that forgets, or is away ──────────────────────────────────────────────────────────────────────


async def test_a_lock_that_was_forgotten_is_held_again(floor: Floor, caplog: pytest.LogCaptureFixture) -> None:
    node = await floor.node()
    seat = await floor.job(node).seated()
    floor.flush()
    await until(lambda: floor.holder() == seat.nonce)
    assert seat.seated
    await until(lambda: isinstance(node.ops[-1], Hold))
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


async def test_a_lock_that_another_took_is_not_given_back_for_it(floor: Floor) -> None:
    a, b = await floor.node(), await floor.node()
    first = await floor.job(a).seated()
    a.gate = asyncio.Event()
    await until(first._commands.locked)
    floor.now += 31
    second = await floor.job(b).seated()
    a.gate.set()
    a.gate = None
    await until(lambda: first._places[0].fence is None)
    tries = a.count(Acquire)
    await until(lambda: a.count(Acquire) >= tries + 2)
    assert floor.queue() == [], "it does not wait for what its job has no use for"
    assert first.seated, "the job goes on"
    await first.release()
    assert floor.holder() == second.nonce
    assert second.seated


async def test_without_a_backend_a_session_is_locked_in_each_process(floor: Floor) -> None:
    a, b = await floor.node(), await floor.node()
    before = await floor.job(a).seated()
    a.cut = b.cut = True
    second = floor.job(a)
    assert (await floor.job(b).seated()).seated
    await until(lambda: "waiting=1" in repr(a.seats.own))
    await until(lambda: before.waiting == 1)
    own = before._places[1].ask
    assert own.lease_ms == own.ticket_ms == session.OWN_MS
    assert not second.task.done()
    assert before.seated
    await before.release()
    assert (await second.seated()).seated


async def test_a_seat_comes_back_to_the_fleet_when_the_backend_does(floor: Floor) -> None:
    a, b = await floor.node(), await floor.node()
    a.cut = True
    first = await floor.job(a).seated()
    assert floor.holder() is None
    a.cut = False
    await until(lambda: floor.holder() == first.nonce)
    second = await floor.waiting(b)
    await first.release()
    assert (await second.seated()).seated


async def test_one_that_was_seated_alone_contends_with_the_fleet_s_in_its_process(floor: Floor) -> None:
    a = await floor.node()
    a.cut = True
    alone = await floor.job(a, replace(QUEUE, heartbeat=100.0)).seated()
    a.cut = False
    second = floor.job(a)
    await until(lambda: floor.holder() == second.seat.nonce)
    assert not second.task.done()
    await alone.release()
    assert (await second.seated()).seated


async def test_a_silent_backend_is_asked_again_while_the_ticket_holds(
    floor: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "LOOK_AGAIN_S", 0.001)
    a, b = await floor.node(), await floor.node()
    first = await floor.job(a).seated()
    job = await floor.waiting(b, replace(QUEUE, pending_lease=100.0))
    b.cut = True
    b.seats.told(KEY, SessionNotice(SessionNoticeKind.TURN, job.seat.nonce))
    asked = b.count(Acquire)
    await until(lambda: b.count(Acquire) >= asked + 3)
    assert not job.task.done()
    b.cut = False
    await first.release()
    assert (await job.seated()).seated
    assert floor.holder() == job.seat.nonce


async def test_a_ticket_that_ran_out_at_a_silent_backend_is_worth_nothing(
    floor: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "LOOK_AGAIN_S", 0.001)
    a, b = await floor.node(), await floor.node()
    await floor.job(a).seated()
    job = await floor.waiting(b)
    b.cut = True
    assert (await job.seated()).seated
    assert floor.holder() != job.seat.nonce


async def test_a_stage_that_rejects_without_a_backend_says_so(floor: Floor) -> None:
    node = await floor.node(reject=True)
    node.cut = True
    error = await floor.job(node).refused()
    assert (error.fault.code, error.fault.retry_after_s) == (Code.BACKEND_UNAVAILABLE, 1)
    await until(lambda: not len(node.seats))


async def test_what_can_not_be_given_back_lapses(floor: Floor) -> None:
    a, b = await floor.node(), await floor.node()
    seat = await floor.job(a).seated()
    a.cut = True
    await seat.release()
    assert floor.holder() == seat.nonce
    floor.now += 31
    assert (await floor.job(b).seated()).seated


# ── many ────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_crowd_goes_in_one_at_a_time(floor: Floor) -> None:
    nodes = [await floor.node() for _ in range(3)]
    inside = most = 0

    async def come(node: Node) -> None:
        nonlocal inside, most
        async with node.seats.seat(KEY, QUEUE, "flight", stays):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1

    async with asyncio.timeout(20), asyncio.TaskGroup() as crowd:
        for _ in range(30):
            for node in nodes:
                crowd.create_task(come(node))
    assert most == 1


async def stays() -> bool:
    return False
