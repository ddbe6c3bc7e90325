"""What time does to a record: the clock that steps back, garbage, and what is still referenced."""

import pytest

from exploration.words import BEGIN, Table, append, claim, fail, renew, seal
from soloflight.core.flight import Absent, Answered, Flight, Gap, Joined, Owned, Refusal, Refused, Stale, State
from soloflight.core.ledger import Referenced, collect_at, referenced, without_answer
from soloflight.core.standing import REMEMBERED_MS, anchored, spent


@pytest.fixture
def table() -> Table:
    return Table()


def stored(table: Table) -> Flight:
    assert table.flight is not None
    return table.flight


# ── the clock steps back ────────────────────────────────────────────────────────────────────────────


def test_a_step_back_leaves_what_was_left_of_a_lease(table: Table) -> None:
    table.run()
    table.do(claim("n2", "b"))
    table.now -= 500_000
    reply = table.do(claim("n3", "c", claim=False, watch_ms=0))
    assert isinstance(reply, Joined)
    assert reply.due_ms == 1_001
    assert stored(table).watchers == {"b": table.now + 3_000}
    table.now += 1_001
    assert isinstance(table.do(claim("n3", "c", claim=False, watch_ms=0)), Stale)


def test_a_step_back_is_written_back_even_by_a_refusal(table: Table) -> None:
    fence = table.run()
    table.now -= 500_000
    assert table.do(append(fence, 5)) == Gap(0)
    assert stored(table).seen == table.now
    assert stored(table).lease_until == table.now + 1_000


def test_every_time_is_shifted_and_zero_stays_zero(table: Table) -> None:
    kept = table.run(first_byte_ms=700)
    table.do(seal(kept, retention_ms=10_000))
    told = table.run("n2", fresh_ms=-1)
    table.do(fail(told))
    live = table.run("n3", fresh_ms=-1, first_byte_ms=700)
    table.do(claim("n4", "b", fresh_ms=-1))
    before = stored(table)
    after = anchored(before, table.now - 250)
    assert after.seen == table.now - 250
    assert after.lease_until == before.lease_until - 250
    assert after.progress_until == before.progress_until - 250
    assert after.deadline == before.deadline - 250
    assert (after.retry_at, after.poisoned_until) == (0, 0)
    assert before.answer is not None
    assert after.answer is not None
    assert (after.answer.sealed, after.answer.expires) == (
        before.answer.sealed - 250,
        before.answer.expires - 250,
    )
    assert before.outcome is not None
    assert after.outcome is not None
    assert after.outcome.until == before.outcome.until - 250
    assert after.watchers == {"b": before.watchers["b"] - 250}
    assert after.fence == live


def test_retry_and_poison_are_shifted(table: Table) -> None:
    fence = table.run()
    table.do(fail(fence, retry=True, backoff_ms=500))
    assert anchored(stored(table), table.now - 100).retry_at == table.now + 400
    table.now += 500
    table.run("n2")
    table.now += 1_001
    table.do(claim("n3", "b", max_attempts=1))
    assert anchored(stored(table), table.now - 100).poisoned_until == table.now + 4_900


def test_a_time_that_is_set_never_becomes_unset(table: Table) -> None:
    table.run(first_byte_ms=1)
    assert anchored(stored(table), 1).progress_until == 2
    table.now += 1_001
    table.do(renew(stored(table).fence, progress=1, progress_ms=1))
    late = anchored(stored(table), 1)
    assert late.progress_until == 2
    assert late.deadline > 0


def test_a_time_older_than_the_step_is_set_to_the_beginning(table: Table) -> None:
    table.do(seal(table.run(), retention_ms=10_000))
    table.now += 9_000
    table.run("n2", fresh_ms=-1)
    answer = anchored(stored(table), 5).answer
    assert answer is not None
    assert (answer.sealed, answer.expires) == (1, 1_005)


def test_a_clock_that_goes_on_changes_nothing(table: Table) -> None:
    table.run()
    assert anchored(stored(table), table.now) is table.flight
    assert anchored(stored(table), table.now + 1) is table.flight


# ── garbage ─────────────────────────────────────────────────────────────────────────────────────────


def garbage_after(table: Table) -> int:
    """Ms until the record is garbage; checks both sides of the border."""
    left = collect_at(stored(table)) - table.now
    assert not spent(stored(table), table.now + left)
    assert spent(stored(table), table.now + left + 1)
    return left


def test_a_live_attempt_is_remembered_past_its_deadline(table: Table) -> None:
    table.run()
    assert garbage_after(table) == 60_000 + REMEMBERED_MS


def test_a_retry_is_remembered_past_its_date(table: Table) -> None:
    table.do(fail(table.run(), retry=True, backoff_ms=500))
    assert garbage_after(table) == 500 + REMEMBERED_MS


def test_an_answer_is_worth_its_retention(table: Table) -> None:
    table.do(seal(table.run(), retention_ms=10_000))
    assert garbage_after(table) == 10_000


def test_an_outcome_is_worth_its_grace(table: Table) -> None:
    table.do(fail(table.run()))
    assert garbage_after(table) == 2_000


def test_poison_is_worth_its_time(table: Table) -> None:
    table.run()
    table.now += 1_001
    table.do(claim("n2", "b", max_attempts=1))
    assert garbage_after(table) == 5_000


def test_the_last_of_several_times_counts(table: Table) -> None:
    table.do(seal(table.run(), retention_ms=10_000))
    table.do(fail(table.run("n2", fresh_ms=-1)))
    assert garbage_after(table) == 10_000


def test_garbage_counts_as_no_record_but_its_number_counts(table: Table) -> None:
    fence = table.run()
    table.do(seal(fence, retention_ms=100))
    table.now += 101
    before = table.flight
    assert table.do(claim("n2", "b", claim=False)) == Absent()
    assert table.do(seal(fence)) == Refused(Refusal.GONE)
    assert table.flight is before
    reply = table.do(claim("n2", "b"))
    assert isinstance(reply, Owned)
    assert (reply.flight, reply.attempt) == ("flight-n2", 1)
    assert reply.fence.number > fence.number


def test_a_number_rises_over_garbage_even_when_the_clock_is_slow(table: Table) -> None:
    fence = table.run()
    table.do(seal(fence, retention_ms=100))
    table.now -= 1_000
    table.do(claim("n2", "b"))
    table.now += 101
    assert table.own("n3").number == fence.number + 1


def test_a_forgotten_live_attempt_is_a_new_flight(table: Table) -> None:
    table.run()
    table.now += 60_000 + REMEMBERED_MS + 1
    reply = table.do(claim("n2", "b"))
    assert isinstance(reply, Owned)
    assert (reply.flight, reply.attempt) == ("flight-n2", 1)


# ── what is referenced ──────────────────────────────────────────────────────────────────────────────


def test_a_live_attempt_needs_its_log(table: Table) -> None:
    fence = table.own()
    assert referenced(stored(table)) == Referenced(fence.number, ())


def test_an_answer_needs_its_result_and_no_log(table: Table) -> None:
    fence = table.run()
    table.do(seal(fence))
    assert referenced(stored(table)) == Referenced(None, (fence.number,))


def test_an_unkept_result_is_needed_as_long_as_it_is_told(table: Table) -> None:
    fence = table.run()
    table.do(seal(fence, retention_ms=0))
    assert referenced(stored(table)) == Referenced(None, (fence.number,))


def test_a_fault_needs_the_log_of_what_came_before_it(table: Table) -> None:
    fence = table.run()
    table.do(fail(fence))
    assert referenced(stored(table)) == Referenced(fence.number, ())


def test_a_retry_needs_nothing(table: Table) -> None:
    table.do(fail(table.run(), retry=True))
    assert referenced(stored(table)) == Referenced(None, ())


def test_a_refresh_needs_the_old_result_and_its_own_log(table: Table) -> None:
    old = table.run()
    table.do(seal(old))
    unkept = table.run("n2", fresh_ms=-1)
    table.do(seal(unkept, retention_ms=0))
    live = table.run("n3", fresh_ms=-1)
    assert referenced(stored(table)) == Referenced(live.number, (old.number, unkept.number))


def test_a_takeover_makes_the_old_log_garbage(table: Table) -> None:
    table.run()
    table.now += 1_001
    second = table.run("n2", "b")
    assert referenced(stored(table)) == Referenced(second.number, ())


def test_an_older_attempt_s_fault_needs_no_log(table: Table) -> None:
    table.do(fail(table.run()))
    newer = table.run("n2")
    table.do(seal(newer, retention_ms=10_000))
    assert referenced(stored(table)) == Referenced(None, (newer.number,))


# ── purge ───────────────────────────────────────────────────────────────────────────────────────────


def test_purging_the_answer_leaves_nothing(table: Table) -> None:
    table.do(seal(table.run()))
    assert without_answer(stored(table), table.now) == (None, True)


def test_purging_leaves_a_refresh_running(table: Table) -> None:
    table.do(seal(table.run()))
    refresh = table.run("n2", fresh_ms=-1)
    table.flight, there = without_answer(stored(table), table.now)
    assert there
    assert stored(table).state is State.RUNNING
    reply = table.do(claim("n3", "b"))
    assert isinstance(reply, Joined)
    assert reply.number == refresh.number


def test_purging_an_expired_answer_purges_none(table: Table) -> None:
    table.do(seal(table.run(), retention_ms=100))
    table.now += 101
    assert without_answer(stored(table), table.now) == (None, False)


def test_purging_does_not_touch_an_unkept_outcome(table: Table) -> None:
    fence = table.run()
    table.do(seal(fence, retention_ms=0))
    table.flight, there = without_answer(stored(table), table.now)
    assert not there
    assert isinstance(table.do(claim("n2", "b", follow=fence.number)), Answered)


def test_purging_after_a_step_back_re_anchors(table: Table) -> None:
    table.do(seal(table.run(), retention_ms=100))
    rest, there = without_answer(stored(table), BEGIN - 50_000)
    assert (rest, there) == (None, True)
