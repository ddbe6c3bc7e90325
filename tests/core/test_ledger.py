"""The ledger by example: each operation in each state."""

import pytest

from exploration.words import FAULT, Table, abandon, append, claim, fail, renew, seal, start
from soloflight.core.errors import Code
from soloflight.core.flight import (
    Answered,
    Done,
    Dropped,
    Faulted,
    Fence,
    Gap,
    Joined,
    Kept,
    Leave,
    Notice,
    NoticeKind,
    Operation,
    Owned,
    Refusal,
    Refused,
    Retrying,
    State,
)
from soloflight.core.ledger import KEY, step

ZOMBIE = Fence(1, "zombie")
FENCED = Refused(Refusal.FENCED)
GONE = Refused(Refusal.GONE)


@pytest.fixture
def table() -> Table:
    return Table()


def test_a_flight_from_claim_to_replay(table: Table) -> None:
    fence = table.own()
    assert table.do(start(fence)) == Done()
    assert table.do(append(fence, 1)) == Done()
    assert table.do(seal(fence)) == Done()
    table.now += 1_000
    assert table.do(claim("n2", "b")) == Answered(fence.number, "flight-n1", 6, 1_000, 9_000)


# ── no record ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("op", [start(ZOMBIE), renew(ZOMBIE), append(ZOMBIE, 1), seal(ZOMBIE), fail(ZOMBIE)], ids=type)
def test_without_a_record_an_owner_is_told_that_it_is_gone(table: Table, op: Operation) -> None:
    assert table.do(op) == GONE
    assert table.flight is None


def test_without_a_record_there_is_nothing_to_drop_or_leave(table: Table) -> None:
    assert table.do(abandon(ZOMBIE)) == Dropped()
    assert table.do(Leave("b", 1)) == Done(duplicate=True)
    assert table.flight is None


# ── the fence ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("other", ["number", "nonce"])
@pytest.mark.parametrize("op", [start, renew, seal, fail, abandon, lambda fence: append(fence, 1)])
@pytest.mark.parametrize("state", [State.PENDING, State.RUNNING, State.RETRY, State.COMPLETE, State.FAILED])
def test_a_fence_that_differs_in_either_part_writes_nothing(table: Table, state: State, op, other: str) -> None:
    fence = bring(table, state)
    before = table.flight
    wrong = Fence(fence.number + 1, fence.nonce) if other == "number" else Fence(fence.number, "zombie")
    assert table.do(op(wrong)) == FENCED
    assert table.flight is before


def bring(table: Table, state: State) -> Fence:
    fence = table.own(direct=state is not State.PENDING)
    match state:
        case State.RETRY:
            table.do(fail(fence, retry=True, backoff_ms=500))
        case State.COMPLETE:
            table.do(seal(fence))
        case State.FAILED:
            table.do(fail(fence))
    assert table.flight is not None
    assert table.flight.state is state
    return fence


@pytest.mark.parametrize(
    ("state", "op"),
    [
        (State.PENDING, lambda fence: append(fence, 1)),
        (State.PENDING, seal),
        *(
            (state, op)
            for state in (State.RETRY, State.COMPLETE, State.FAILED)
            for op in (start, renew, lambda fence: append(fence, 1))
        ),
        (State.RETRY, seal),
        (State.COMPLETE, fail),
        (State.COMPLETE, abandon),
        (State.FAILED, seal),
        (State.FAILED, abandon),
    ],
)
def test_an_operation_that_does_not_fit_the_state_is_refused(table: Table, state: State, op) -> None:
    fence = bring(table, state)
    before = table.flight
    assert table.do(op(fence)) == FENCED
    assert table.flight is before


# ── start ───────────────────────────────────────────────────────────────────────────────────────────


def test_start_runs_and_tells(table: Table) -> None:
    fence = table.own()
    table.now += 10
    assert table.do(start(fence, lease_ms=300, first_byte_ms=700)) == Done()
    assert table.flight is not None
    assert table.flight.state is State.RUNNING
    assert table.flight.lease_until == table.now + 300
    assert table.flight.progress_until == table.now + 700
    assert table.notices == [(KEY, Notice(NoticeKind.STARTED, fence.number))]


def test_first_byte_0_is_no_bound(table: Table) -> None:
    fence = table.own()
    table.do(start(fence, first_byte_ms=0))
    assert table.flight is not None
    assert table.flight.progress_until == 0


def test_start_again_changes_nothing(table: Table) -> None:
    fence = table.own()
    table.do(start(fence))
    before = table.flight
    table.now += 10
    assert table.do(start(fence)) == Done(duplicate=True)
    assert table.flight is before
    assert table.notices == []


def test_start_after_a_lapse_that_nobody_took_is_accepted(table: Table) -> None:
    fence = table.own()
    table.now += 30_000
    assert table.do(start(fence)) == Done()


def test_start_past_the_deadline_is_refused(table: Table) -> None:
    fence = table.own()
    table.now += 60_000
    assert table.do(renew(fence)) == Done()
    table.now += 1
    assert table.do(start(fence)) == Refused(Refusal.EXPIRED)


# ── renew ───────────────────────────────────────────────────────────────────────────────────────────


def test_renew_extends_the_lease_even_after_a_lapse(table: Table) -> None:
    fence = table.run()
    table.now += 5_000
    assert table.do(renew(fence, lease_ms=400)) == Done()
    assert table.flight is not None
    assert table.flight.lease_until == table.now + 400
    assert table.notices == []


def test_renew_past_the_deadline_is_refused(table: Table) -> None:
    fence = table.run()
    table.now += 60_001
    assert table.do(renew(fence, progress=1)) == Refused(Refusal.EXPIRED)


def test_renew_without_progress_past_its_deadline_is_refused(table: Table) -> None:
    fence = table.run(first_byte_ms=500)
    table.now += 500
    assert table.do(renew(fence, progress=0, progress_ms=500)) == Done()
    table.now += 1
    before = table.flight
    assert table.do(renew(fence, progress=0, progress_ms=500)) == Refused(Refusal.STALLED)
    assert table.flight is before


def test_only_more_progress_moves_the_progress_deadline(table: Table) -> None:
    fence = table.run(first_byte_ms=500)
    table.now += 501
    assert table.do(renew(fence, progress=7, progress_ms=600)) == Done()
    assert table.flight is not None
    assert table.flight.progress_until == table.now + 600
    table.now += 600
    assert table.do(renew(fence, progress=7, progress_ms=600)) == Done()
    table.now += 1
    assert table.do(renew(fence, progress=7, progress_ms=600)) == Refused(Refusal.STALLED)
    assert table.do(renew(fence, progress=6, progress_ms=600)) == Refused(Refusal.STALLED)
    assert table.do(renew(fence, progress=8, progress_ms=600)) == Done()


def test_progress_0_ms_lifts_the_bound(table: Table) -> None:
    fence = table.run(first_byte_ms=500)
    assert table.do(renew(fence, progress=1, progress_ms=0)) == Done()
    table.now += 50_000
    assert table.do(renew(fence, progress=1, progress_ms=0)) == Done()


def test_renew_counts_the_live_watchers(table: Table) -> None:
    fence = table.run()
    table.do(claim("n2", "b", watch_ms=3_000))
    table.do(claim("n3", "c", watch_ms=200))
    assert table.do(renew(fence)) == Done(watchers=2)
    table.now += 201
    assert table.do(renew(fence)) == Done(watchers=1)


# ── append ──────────────────────────────────────────────────────────────────────────────────────────


def test_append_counts_renews_and_carries_its_frames(table: Table) -> None:
    fence = table.run()
    table.do(claim("n2", "b"))
    table.now += 100
    op = append(fence, 1)
    assert table.do(op) == Done(watchers=1)
    assert table.notices == [(KEY, Notice(NoticeKind.APPENDED, fence.number, 1, op.frames))]
    assert table.flight is not None
    assert (table.flight.frames, table.flight.size, table.flight.progress) == (1, 1, 1)
    assert table.flight.lease_until == table.now + 1_000


def test_append_again_is_a_duplicate_even_past_the_deadline(table: Table) -> None:
    fence = table.run()
    table.do(append(fence, 1))
    before = table.flight
    table.now += 60_001
    assert table.do(append(fence, 1)) == Done(duplicate=True)
    assert table.flight is before
    assert table.notices == []


def test_append_that_skips_a_batch_is_a_gap(table: Table) -> None:
    fence = table.run()
    table.do(append(fence, 1))
    before = table.flight
    assert table.do(append(fence, 3)) == Gap(1)
    assert table.flight is before


def test_append_past_the_deadline_is_refused(table: Table) -> None:
    fence = table.run()
    table.now += 60_001
    assert table.do(append(fence, 1)) == Refused(Refusal.EXPIRED)


def test_append_of_old_bytes_is_no_progress(table: Table) -> None:
    fence = table.run(first_byte_ms=500)
    table.do(renew(fence, progress=9, progress_ms=500))
    table.now += 501
    assert table.do(append(fence, 1, progress=9, progress_ms=500)) == Refused(Refusal.STALLED)
    assert table.do(append(fence, 1, progress=10, progress_ms=500)) == Done()


# ── seal ────────────────────────────────────────────────────────────────────────────────────────────


def test_seal_keeps_an_answer_and_tells(table: Table) -> None:
    fence = table.run()
    table.do(claim("n2", "b"))
    assert table.do(seal(fence, b"hello", retention_ms=10_000)) == Done()
    assert table.notices == [(KEY, Notice(NoticeKind.SEALED, fence.number, 5))]
    assert table.flight is not None
    assert table.flight.state is State.COMPLETE
    assert table.flight.watchers == {}
    assert table.flight.outcome is None


def test_seal_again_is_a_duplicate(table: Table) -> None:
    fence = table.run()
    table.do(seal(fence))
    before = table.flight
    assert table.do(seal(fence)) == Done(duplicate=True)
    assert table.flight is before
    assert table.notices == []


def test_an_unkept_seal_again_is_a_duplicate(table: Table) -> None:
    fence = table.run()
    table.do(seal(fence, retention_ms=0))
    assert table.do(seal(fence, retention_ms=0)) == Done(duplicate=True)


def test_seal_is_accepted_past_lease_and_deadline_if_nobody_took_over(table: Table) -> None:
    fence = table.run()
    table.now += 61_000
    assert table.do(seal(fence)) == Done()


def test_seal_after_a_takeover_is_refused(table: Table) -> None:
    fence = table.run()
    table.now += 1_001
    table.run("n2", "b")
    before = table.flight
    assert table.do(seal(fence)) == FENCED
    assert table.flight is before


# ── fail ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("state", [State.PENDING, State.RUNNING])
def test_a_retryable_failure_waits_for_its_backoff(table: Table, state: State) -> None:
    fence = bring(table, state)
    table.do(claim("n2", "b"))
    assert table.do(fail(fence, retry=True, backoff_ms=500)) == Retrying()
    assert table.notices == [(KEY, Notice(NoticeKind.RETRY, fence.number))]
    assert table.flight is not None
    assert table.flight.state is State.RETRY
    assert table.flight.retry_at == table.now + 500
    assert set(table.flight.watchers) == {"b"}


def test_a_retryable_failure_again_is_a_duplicate(table: Table) -> None:
    fence = table.run()
    table.do(fail(fence, retry=True))
    before = table.flight
    assert table.do(fail(fence, retry=True)) == Retrying(duplicate=True)
    assert table.flight is before


def test_the_last_attempt_fails_for_good_without_poison(table: Table) -> None:
    first = table.run("n1")
    table.do(fail(first, retry=True))
    second = table.run("n2")
    table.do(fail(second, retry=True))
    third = table.run("n3", "c")
    assert table.do(fail(third, retry=True)) == Done()
    assert table.do(claim("n4", "d", follow=third.number)) == Faulted(third.number, "flight-n1", FAULT, 2_000)
    assert isinstance(table.do(claim("n5", "e")), Owned)


@pytest.mark.parametrize("state", [State.PENDING, State.RUNNING])
def test_a_final_failure_is_told_to_followers_only(table: Table, state: State) -> None:
    fence = bring(table, state)
    assert table.do(fail(fence)) == Done()
    assert table.notices == [(KEY, Notice(NoticeKind.FAILED, fence.number))]
    assert table.do(claim("n2", "b", follow=fence.number, claim=False)) == Faulted(
        fence.number, "flight-n1", FAULT, 2_000
    )
    reply = table.do(claim("n3", "c"))
    assert isinstance(reply, Owned)
    assert reply.attempt == 1


def test_a_final_failure_again_is_a_duplicate(table: Table) -> None:
    fence = table.run()
    table.do(fail(fence))
    before = table.flight
    assert table.do(fail(fence)) == Done(duplicate=True)
    assert table.flight is before


# ── the last word, re-sent behind a new claim ───────────────────────────────────────────────────────


LAST_WORDS = [
    lambda fence: seal(fence),
    lambda fence: seal(fence, retention_ms=0),
    lambda fence: fail(fence),
]
"""Each leaves the key to the next claim that asks for a fresh answer."""


@pytest.mark.parametrize("word", LAST_WORDS)
@pytest.mark.parametrize("then", [State.PENDING, State.RUNNING, State.RETRY, State.FAILED])
def test_an_attempt_s_last_word_is_known_again_behind_a_newer_attempt(table: Table, word, then: State) -> None:
    fence = table.run("n1")
    assert table.do(word(fence)) == Done()
    newer = table.own("n2", fresh_ms=-1, direct=then is not State.PENDING)
    match then:
        case State.RETRY:
            table.do(fail(newer, retry=True, backoff_ms=500))
        case State.FAILED:
            table.do(abandon(newer))
    before = table.flight
    assert table.do(word(fence)) == Done(duplicate=True)
    assert table.do(word(Fence(fence.number, "zombie"))) == FENCED
    assert table.do(word(Fence(fence.number + 5, fence.nonce))) == FENCED
    assert table.flight is before


def test_an_attempt_has_only_one_last_word(table: Table) -> None:
    failed = table.run("n1")
    table.do(fail(failed))
    assert table.do(seal(failed)) == FENCED
    sealed = table.run("n2")
    table.do(seal(sealed, retention_ms=0))
    assert table.do(fail(sealed)) == FENCED
    assert table.do(fail(failed)) == FENCED


# ── abandon and leave ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("state", [State.PENDING, State.RUNNING, State.RETRY])
def test_abandon_alone_drops_the_record(table: Table, state: State) -> None:
    fence = bring(table, state)
    assert table.do(abandon(fence)) == Dropped()
    assert table.flight is None
    assert table.notices == [(KEY, Notice(NoticeKind.ABANDONED, fence.number))]
    assert table.do(abandon(fence)) == Dropped()


def test_abandon_keeps_a_flight_that_another_node_watches(table: Table) -> None:
    fence = table.run()
    table.do(claim("n2", "b"))
    table.do(claim("n3", "a"))
    assert table.do(abandon(fence, "a")) == Kept(1)
    assert table.flight is not None
    assert set(table.flight.watchers) == {"b"}
    before = table.flight
    assert table.do(abandon(fence, "a")) == Kept(1)
    assert table.flight is before
    assert table.notices == []


def test_abandon_does_not_count_a_watcher_whose_time_is_past(table: Table) -> None:
    fence = table.run()
    table.do(claim("n2", "b", watch_ms=100))
    table.now += 100
    assert table.do(abandon(fence)) == Kept(1)
    table.now += 1
    assert table.do(abandon(fence)) == Dropped()


def test_abandon_by_force_drops_a_watched_flight(table: Table) -> None:
    fence = table.run()
    table.do(claim("n2", "b"))
    assert table.do(abandon(fence, force=True)) == Dropped()
    assert table.flight is None


def test_nobody_joins_a_dropped_flight(table: Table) -> None:
    fence = table.run()
    table.do(abandon(fence))
    reply = table.do(claim("n2", "b"))
    assert isinstance(reply, Owned)
    assert (reply.flight, reply.attempt) == ("flight-n2", 1)


def test_a_dropped_refresh_leaves_the_old_answer(table: Table) -> None:
    old = table.run()
    table.do(seal(old, retention_ms=10_000))
    refresh = table.run("n2", fresh_ms=-1)
    assert table.do(abandon(refresh)) == Dropped()
    assert isinstance(table.do(claim("n3", "b")), Answered)
    assert table.do(abandon(refresh)) == Dropped()
    assert table.do(seal(refresh)) == FENCED
    assert table.do(fail(refresh)) == FENCED


def test_a_dropped_attempt_leaves_the_outcome_of_the_one_before(table: Table) -> None:
    old = table.run()
    table.do(seal(old, retention_ms=0))
    newer = table.run("n2")
    assert table.do(abandon(newer)) == Dropped()
    reply = table.do(claim("n3", "b", follow=old.number))
    assert isinstance(reply, Answered)
    assert not reply.kept


def test_leave_removes_the_watcher_of_this_attempt(table: Table) -> None:
    fence = table.run()
    table.do(claim("n2", "b"))
    assert table.do(Leave("b", fence.number)) == Done()
    assert table.do(Leave("b", fence.number)) == Done(duplicate=True)
    assert table.do(abandon(fence)) == Dropped()


def test_leave_of_another_attempt_removes_nothing(table: Table) -> None:
    fence = table.run()
    table.do(claim("n2", "b"))
    assert table.do(Leave("b", fence.number - 1)) == Done(duplicate=True)
    assert table.do(abandon(fence)) == Kept(1)


@pytest.mark.parametrize("state", [State.COMPLETE, State.FAILED])
def test_leave_after_the_end_is_nothing(table: Table, state: State) -> None:
    fence = bring(table, state)
    assert table.do(Leave("b", fence.number)) == Done(duplicate=True)


def test_a_step_is_pure() -> None:
    table = Table()
    fence = table.run()
    table.do(claim("n2", "b"))
    assert table.flight is not None
    watchers = dict(table.flight.watchers)
    for op in (claim("n3", "c"), abandon(fence), Leave("b", fence.number), seal(fence)):
        step(table.flight, op, table.now)
    assert table.flight.watchers == watchers


def test_joined_says_what_is_published_and_when_to_look_again(table: Table) -> None:
    fence = table.run()
    table.do(append(fence, 1))
    table.now += 400
    assert table.do(claim("n2", "b")) == Joined(fence.number, "flight-n1", "a", State.RUNNING, 1, 601)


def test_exhaustion_is_an_error_of_its_own(table: Table) -> None:
    for nonce in ("n1", "n2", "n3"):
        table.run(nonce)
        table.now += 1_001
    reply = table.do(claim("n4", "b"))
    assert isinstance(reply, Faulted)
    assert reply.fault.code is Code.ATTEMPTS_EXHAUSTED
    assert reply.fault.retry_after_s == 5
