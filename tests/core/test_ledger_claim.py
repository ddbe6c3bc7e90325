"""A claim by example: each clause, their order, and the difference between 0 and None."""

import pytest

from exploration.words import FAULT, Table, append, claim, fail, renew, seal, start
from soloflight.core.errors import Code
from soloflight.core.flight import (
    Absent,
    Answered,
    Faulted,
    Fence,
    Joined,
    Mismatch,
    Notice,
    NoticeKind,
    Owned,
    Refusal,
    Refused,
    Reply,
    Stale,
    State,
    Wait,
)
from soloflight.core.ledger import KEY


@pytest.fixture
def table() -> Table:
    return Table()


def owned(reply: Reply) -> Owned:
    assert isinstance(reply, Owned), reply
    return reply


def faulted(reply: Reply) -> Faulted:
    assert isinstance(reply, Faulted), reply
    return reply


# ── begins, absent ──────────────────────────────────────────────────────────────────────────────────


def test_the_first_claim_owns_in_pending(table: Table) -> None:
    reply = owned(table.do(claim()))
    assert reply == Owned(Fence(table.now * 1000, "n1"), "flight-n1", 1, State.PENDING)
    assert table.notices == []
    assert table.flight is not None
    assert table.flight.owner == "a"
    assert table.flight.lease_until == table.now + 1_000
    assert table.flight.progress_until == 0
    assert table.flight.deadline == table.now + 60_000


def test_a_direct_claim_is_running_at_once(table: Table) -> None:
    reply = owned(table.do(claim(direct=True, running_ms=700, first_byte_ms=400)))
    assert reply.state is State.RUNNING
    assert table.flight is not None
    assert table.flight.lease_until == table.now + 700
    assert table.flight.progress_until == table.now + 400


def test_a_direct_claim_with_first_byte_0_has_no_progress_bound(table: Table) -> None:
    table.run(first_byte_ms=0)
    assert table.flight is not None
    assert table.flight.progress_until == 0


def test_a_pending_claim_has_no_progress_bound(table: Table) -> None:
    table.own(first_byte_ms=400)
    assert table.flight is not None
    assert table.flight.progress_until == 0


def test_a_look_at_nothing_finds_nothing_and_leaves_nothing(table: Table) -> None:
    assert table.do(claim(claim=False)) == Absent()
    assert table.flight is None


def test_a_look_at_an_ended_flight_finds_nothing(table: Table) -> None:
    table.do(fail(table.run()))
    before = table.flight
    assert table.do(claim("n2", "b", claim=False)) == Absent()
    assert table.flight is before


# ── owned again ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("direct", [False, True])
def test_the_same_nonce_gets_the_same_ownership(table: Table, direct: bool) -> None:
    first = table.do(claim(direct=direct))
    before = table.flight
    table.now += 10
    assert table.do(claim(direct=direct)) == first
    assert table.flight is before


def test_the_same_nonce_owns_again_even_after_a_lapse(table: Table) -> None:
    first = table.do(claim())
    table.now += 5_000
    assert table.do(claim()) == first


def test_the_same_nonce_of_a_look_owns_again_too(table: Table) -> None:
    first = table.do(claim())
    assert table.do(claim(claim=False)) == first


# ── joined ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_second_node_joins_watches_and_rings(table: Table) -> None:
    fence = table.own()
    assert table.do(claim("n2", "b")) == Joined(fence.number, "flight-n1", "a", State.PENDING, 0, 1_001)
    assert table.flight is not None
    assert table.flight.watchers == {"b": table.now + 3_000}
    assert table.notices == [("a", Notice(NoticeKind.RING, fence.number))]


def test_the_owner_s_own_node_joins_without_a_ring(table: Table) -> None:
    table.own()
    assert isinstance(table.do(claim("n2", "a")), Joined)
    assert table.flight is not None
    assert set(table.flight.watchers) == {"a"}
    assert table.notices == []


def test_watch_0_only_looks(table: Table) -> None:
    table.own()
    before = table.flight
    assert isinstance(table.do(claim("n2", "b", watch_ms=0)), Joined)
    assert table.flight is before
    assert table.notices == []


def test_a_look_can_watch_too(table: Table) -> None:
    table.own()
    assert isinstance(table.do(claim("n2", "b", claim=False)), Joined)
    assert table.flight is not None
    assert set(table.flight.watchers) == {"b"}


def test_joining_again_renews_the_watch_and_forgets_those_that_are_past(table: Table) -> None:
    fence = table.run()
    table.do(claim("n2", "b", watch_ms=100))
    table.do(claim("n3", "c", watch_ms=200))
    table.now += 150
    table.do(renew(fence))
    table.do(claim("n3", "c"))
    assert table.flight is not None
    assert table.flight.watchers == {"c": table.now + 3_000}


@pytest.mark.parametrize(
    ("more", "due_ms"),
    [
        ({"running_ms": 300, "first_byte_ms": 500, "deadline_ms": 700}, 301),
        ({"running_ms": 700, "first_byte_ms": 300, "deadline_ms": 500}, 301),
        ({"running_ms": 700, "first_byte_ms": 500, "deadline_ms": 300}, 301),
        ({"running_ms": 700, "first_byte_ms": 0, "deadline_ms": 500}, 501),
    ],
)
def test_an_attempt_lapses_at_the_nearest_of_its_bounds(table: Table, more: dict, due_ms: int) -> None:
    table.run(**more)
    reply = table.do(claim("n2", "b", claim=False))
    assert isinstance(reply, Joined)
    assert reply.due_ms == due_ms
    table.now += due_ms - 1
    assert isinstance(table.do(claim("n2", "b", claim=False)), Joined)
    table.now += 1
    assert isinstance(table.do(claim("n2", "b", claim=False)), Stale)


# ── takes over, stale ───────────────────────────────────────────────────────────────────────────────


def test_a_lapsed_attempt_is_taken_over(table: Table) -> None:
    first = table.run()
    table.do(append(first, 1))
    table.do(claim("n2", "b"))
    table.do(claim("n3", "c"))
    table.now += 1_001
    reply = owned(table.do(claim("n4", "b")))
    assert (reply.flight, reply.attempt, reply.state) == ("flight-n1", 2, State.PENDING)
    assert reply.fence.number > first.number
    assert table.notices == [(KEY, Notice(NoticeKind.TAKEN, reply.fence.number))]
    assert table.flight is not None
    assert (table.flight.frames, table.flight.size, table.flight.progress) == (0, 0, 0)
    assert set(table.flight.watchers) == {"c"}


def test_a_look_leaves_a_lapsed_attempt_as_it_is(table: Table) -> None:
    fence = table.run()
    table.now += 1_001
    before = table.flight
    assert table.do(claim("n2", "b", claim=False)) == Stale(fence.number)
    assert table.flight is before


def test_a_takeover_within_one_millisecond_still_has_a_higher_number(table: Table) -> None:
    first = table.own(pending_ms=0)
    table.do(fail(first, retry=True, backoff_ms=0))
    second = table.own("n2")
    assert second.number == first.number + 1


def test_a_claim_past_the_deadline_is_a_takeover_too(table: Table) -> None:
    fence = table.run()
    table.now += 60_000
    table.do(renew(fence))
    table.now += 1
    assert owned(table.do(claim("n2", "b"))).attempt == 2


# ── retry ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_retry_is_waited_for_and_then_taken(table: Table) -> None:
    fence = table.run()
    table.do(fail(fence, retry=True, backoff_ms=500))
    assert table.do(claim("n2", "b")) == Wait(fence.number, 500)
    table.now += 499
    assert table.do(claim("n2", "b", claim=False)) == Wait(fence.number, 1)
    table.now += 1
    assert table.do(claim("n2", "b", claim=False)) == Stale(fence.number)
    reply = owned(table.do(claim("n2", "b")))
    assert (reply.flight, reply.attempt) == ("flight-n1", 2)
    assert table.notices == [(KEY, Notice(NoticeKind.TAKEN, reply.fence.number))]


def test_backoff_0_may_be_claimed_at_once(table: Table) -> None:
    table.do(fail(table.run(), retry=True, backoff_ms=0))
    assert owned(table.do(claim("n2", "b"))).attempt == 2


# ── exhausted, poisoned ─────────────────────────────────────────────────────────────────────────────


def exhaust(table: Table, **more: int) -> Fence:
    fence = table.run("n1", **more)
    for nonce in ("n2", "n3"):
        table.now += 1_001
        fence = table.run(nonce, **more)
    table.now += 1_001
    return fence


def test_the_last_lapse_fails_and_poisons(table: Table) -> None:
    fence = exhaust(table)
    reply = faulted(table.do(claim("n4", "b")))
    assert (reply.number, reply.flight, reply.ttl_ms) == (fence.number, "flight-n1", 5_000)
    assert reply.fault.code is Code.ATTEMPTS_EXHAUSTED
    assert reply.fault.retry_after_s == 5
    assert table.notices == [(KEY, Notice(NoticeKind.FAILED, fence.number))]
    assert table.flight is not None
    assert table.flight.state is State.FAILED


def test_a_poisoned_key_answers_at_once_until_the_poison_is_past(table: Table) -> None:
    fence = exhaust(table)
    table.do(claim("n4", "b"))
    table.now += 4_500
    for asked in (claim("n5", "c"), claim("n5", "c", claim=False), claim("n5", "c", follow=fence.number)):
        reply = faulted(table.do(asked))
        assert reply.ttl_ms == 500
        assert table.notices == []
    assert faulted(table.do(claim("n5", "c"))).fault.retry_after_s == 1
    table.now += 501
    assert owned(table.do(claim("n5", "c"))).attempt == 1


def test_poison_0_is_not_remembered(table: Table) -> None:
    fence = exhaust(table)
    assert faulted(table.do(claim("n4", "b", poison_ms=0))).ttl_ms == 0
    assert faulted(table.do(claim("n5", "c", follow=fence.number))).number == fence.number
    assert owned(table.do(claim("n6", "d"))).attempt == 1


def test_an_exhausted_attempt_s_fence_is_void(table: Table) -> None:
    fence = exhaust(table)
    table.do(claim("n4", "b"))
    for op in (seal(fence), fail(fence), renew(fence), start(fence)):
        assert table.do(op) == Refused(Refusal.FENCED)


def test_a_look_sees_the_exhaustion_too(table: Table) -> None:
    exhaust(table)
    faulted(table.do(claim("n4", "b", claim=False)))


def test_one_attempt_may_be_all(table: Table) -> None:
    table.run()
    table.now += 1_001
    faulted(table.do(claim("n2", "b", max_attempts=1)))


def test_a_new_flight_forgets_the_poison(table: Table) -> None:
    exhaust(table)
    table.do(claim("n4", "b"))
    table.now += 5_001
    fence = table.run("n5")
    table.do(fail(fence))
    assert table.flight is not None
    assert table.flight.poisoned_until == 0


# ── replayed ────────────────────────────────────────────────────────────────────────────────────────


def test_an_answer_is_replayed_until_it_expires(table: Table) -> None:
    fence = table.run()
    table.do(seal(fence, retention_ms=10_000))
    table.now += 10_000
    assert table.do(claim("n2", "b")) == Answered(fence.number, "flight-n1", 6, 10_000, 0)
    table.now += 1
    assert owned(table.do(claim("n2", "b"))).flight == "flight-n2"


@pytest.mark.parametrize(("fresh_ms", "fits"), [(None, True), (500, True), (499, False), (0, False), (-1, False)])
def test_an_answer_may_be_too_old(table: Table, fresh_ms: int | None, fits: bool) -> None:
    table.do(seal(table.run()))
    table.now += 500
    reply = table.do(claim("n2", "b", fresh_ms=fresh_ms))
    assert isinstance(reply, Answered if fits else Owned)


def test_fresh_0_takes_an_answer_of_this_millisecond_and_minus_1_does_not(table: Table) -> None:
    table.do(seal(table.run()))
    assert isinstance(table.do(claim("n2", "b", fresh_ms=0, claim=False)), Answered)
    assert isinstance(table.do(claim("n2", "b", fresh_ms=-1, claim=False)), Absent)


# ── refresh ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def refresh(table: Table) -> Fence:
    """The fence of a refresh that runs over an answer sealed a second before."""
    table.do(seal(table.run(), b"old", retention_ms=10_000))
    table.now += 1_000
    return table.run("n2", "b", fresh_ms=-1)


def test_the_old_answer_is_replayed_while_a_refresh_runs(table: Table, refresh: Fence) -> None:
    reply = table.do(claim("n3", "c"))
    assert isinstance(reply, Answered)
    assert reply.size == 3
    assert reply.number < refresh.number


def test_refreshes_share_one_flight(table: Table, refresh: Fence) -> None:
    reply = table.do(claim("n3", "c", fresh_ms=-1))
    assert isinstance(reply, Joined)
    assert reply.number == refresh.number


def test_a_sealed_refresh_is_the_answer(table: Table, refresh: Fence) -> None:
    table.do(seal(refresh, b"newer"))
    reply = table.do(claim("n3", "c"))
    assert isinstance(reply, Answered)
    assert (reply.number, reply.size, reply.age_ms) == (refresh.number, 5, 0)


@pytest.mark.parametrize(
    "end",
    [
        lambda fence: fail(fence),
        lambda fence: fail(fence, retry=True, backoff_ms=500),
        lambda fence: seal(fence, b"unkept", retention_ms=0),
    ],
)
def test_a_refresh_that_fails_leaves_the_old_answer(table: Table, refresh: Fence, end) -> None:
    table.do(end(refresh))
    reply = table.do(claim("n3", "c"))
    assert isinstance(reply, Answered)
    assert (reply.size, reply.age_ms) == (3, 1_000)


def test_a_lost_refresh_leaves_the_old_answer(table: Table, refresh: Fence) -> None:
    table.now += 1_001
    assert isinstance(table.do(claim("n3", "c")), Answered)
    assert owned(table.do(claim("n4", "c", fresh_ms=-1))).attempt == 2
    assert isinstance(table.do(claim("n5", "d")), Answered)


def test_a_poisoned_refresh_leaves_the_old_answer(table: Table, refresh: Fence) -> None:
    table.now += 1_001
    faulted(table.do(claim("n3", "c", fresh_ms=-1, max_attempts=1)))
    assert isinstance(table.do(claim("n4", "d")), Answered)
    faulted(table.do(claim("n5", "d", fresh_ms=-1)))


def test_an_expired_answer_is_not_carried_into_a_new_attempt(table: Table) -> None:
    table.do(seal(table.run(), retention_ms=100))
    refresh = table.run("n2", fresh_ms=-1)
    table.now += 101
    table.do(renew(refresh))
    assert isinstance(table.do(claim("n3", "b")), Joined)
    table.now += 1_001
    table.do(claim("n4", "b"))
    assert table.flight is not None
    assert table.flight.answer is None


# ── followed ────────────────────────────────────────────────────────────────────────────────────────


def test_a_follower_gets_an_unkept_result_and_a_newcomer_does_not(table: Table) -> None:
    fence = table.run()
    table.do(seal(fence, retention_ms=0))
    table.now += 500
    assert table.do(claim("n2", "b", follow=fence.number)) == Answered(
        fence.number, "flight-n1", 6, 0, 1_500, kept=False
    )
    assert table.do(claim("n3", "c", claim=False)) == Absent()
    assert owned(table.do(claim("n3", "c"))).attempt == 1


def test_a_follower_of_another_attempt_does_not_get_it(table: Table) -> None:
    fence = table.run()
    table.do(seal(fence, retention_ms=0))
    assert table.do(claim("n2", "b", follow=fence.number - 1, claim=False)) == Absent()


def test_an_unkept_result_is_told_for_its_grace_only(table: Table) -> None:
    fence = table.run()
    table.do(seal(fence, retention_ms=0, grace_ms=2_000))
    table.now += 2_000
    assert isinstance(table.do(claim("n2", "b", follow=fence.number, claim=False)), Answered)
    table.now += 1
    assert table.do(claim("n2", "b", follow=fence.number, claim=False)) == Absent()


def test_a_follower_gets_its_outcome_while_a_newcomer_s_attempt_runs(table: Table) -> None:
    fence = table.run(payload="x")
    table.do(fail(fence))
    table.run("n2", "b", payload="y")
    reply = faulted(table.do(claim("n3", "c", follow=fence.number, payload="x")))
    assert (reply.fault, reply.ttl_ms) == (FAULT, 2_000)
    assert isinstance(table.do(claim("n4", "d", payload="y")), Joined)


def test_an_old_outcome_is_not_carried_further_than_it_is_told(table: Table) -> None:
    table.do(fail(table.run()))
    table.now += 2_001
    table.run("n2", "b")
    assert table.flight is not None
    assert table.flight.outcome is None


def test_a_follower_gets_the_answer_it_followed_however_fresh_it_must_be(table: Table) -> None:
    fence = table.run(fresh_ms=-1)
    table.do(seal(fence))
    table.now += 500
    reply = table.do(claim("n2", "b", follow=fence.number, fresh_ms=-1))
    assert isinstance(reply, Answered)
    assert reply.kept


# ── mismatched ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("asked", ["", "x"])
@pytest.mark.parametrize("stored", ["", "x"])
def test_payloads_that_do_not_differ_join(table: Table, stored: str, asked: str) -> None:
    table.run(payload=stored)
    assert isinstance(table.do(claim("n2", "b", payload=asked)), Joined)


def test_another_payload_is_a_mismatch_while_live_lapsed_retried_or_kept(table: Table) -> None:
    other = claim("n9", "b", payload="y")
    fence = table.run(payload="x")
    assert table.do(other) == Mismatch()
    table.now += 1_001
    assert table.do(other) == Mismatch()
    table.do(fail(fence, retry=True, backoff_ms=0))
    assert table.do(other) == Mismatch()
    fence = table.run("n2", payload="x")
    table.do(seal(fence))
    assert table.do(other) == Mismatch()


def test_a_failed_try_may_be_run_again_with_another_payload(table: Table) -> None:
    table.do(fail(table.run(payload="x")))
    assert isinstance(table.do(claim("n2", "b", payload="y")), Owned)


def test_an_expired_answer_s_payload_does_not_bind(table: Table) -> None:
    table.do(seal(table.run(payload="x"), retention_ms=100))
    table.now += 101
    assert isinstance(table.do(claim("n2", "b", payload="y")), Owned)


def test_a_takeover_without_payload_keeps_the_flight_s(table: Table) -> None:
    table.run(payload="x")
    table.now += 1_001
    table.run("n2", "b")
    assert table.do(claim("n3", "c", payload="y")) == Mismatch()
