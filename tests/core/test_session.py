"""The session lock: one holder, a queue by arrival, tickets that lapse, fences, and the notices that move it along."""

import pytest

from sessions.words import BEGIN, LEASE_MS, TICKET_MS, Door, acquire, contest, kept, turn
from soloflight.core.flight import Done, Fence, Refusal, Refused
from soloflight.core.session import (
    REMEMBERED_MS,
    Busy,
    Granted,
    Held,
    Hold,
    Queued,
    Release,
    SessionLock,
    Ticket,
    Withdraw,
    anchored,
    collect_at,
    session_key,
    spent,
)
from soloflight.core.session_table import LOOKS, SessionTable

FENCED = Refused(Refusal.FENCED)


@pytest.fixture
def door() -> Door:
    return Door()


# ── taking and giving back ──────────────────────────────────────────────────────────────────────────────────


def test_a_free_lock_is_granted(door: Door) -> None:
    assert door.do(acquire("a")) == Granted(Fence(BEGIN * 1000, "a"), 0)
    assert door.lock is not None
    assert door.lock.holder is not None
    assert (door.lock.holder.node, door.lock.holder.flight) == ("a's", "flight-a")
    assert door.notices == []


def test_the_same_question_again_finds_the_same_grant(door: Door) -> None:
    fence = door.take("a")
    door.do(acquire("b"))
    door.now += LEASE_MS
    assert door.do(acquire("a")) == Granted(fence, 0)  # b's ticket is over
    door.now += LEASE_MS
    assert door.do(Hold(fence, LEASE_MS)) == Held(0)


def test_a_second_one_waits_and_goes_on_when_the_first_is_through(door: Door) -> None:
    first = door.take("a")
    assert door.do(acquire("b")) == Queued(0, TICKET_MS // 3)
    assert door.do(Release(first)) == Done()
    assert door.notices == [turn("b")]
    second = door.take("b")
    assert second.number > first.number
    assert door.queue == []


def test_a_release_twice_is_done_once(door: Door) -> None:
    fence = door.take("a")
    door.do(Release(fence))
    assert door.do(Release(fence)) == Done(duplicate=True)
    second = door.take("b")
    assert door.do(Release(fence)) == Done(duplicate=True)
    assert door.do(Hold(second, LEASE_MS)) == Held(0)


@pytest.mark.parametrize("part", ["number", "nonce"])
def test_a_fence_is_compared_in_both_parts(door: Door, part: str) -> None:
    fence = door.take("a")
    wrong = Fence(fence.number + 1, fence.nonce) if part == "number" else Fence(fence.number, "b")
    assert door.do(Hold(wrong, LEASE_MS)) == FENCED
    assert door.do(Release(wrong)) == Done(duplicate=True)
    assert door.do(Hold(fence, LEASE_MS)) == Held(0)


def test_numbers_rise_within_a_millisecond_and_on_a_clock_that_steps_back(door: Door) -> None:
    numbers = []
    for nonce in "abcd":
        fence = door.take(nonce)
        door.do(Release(fence))
        numbers.append(fence.number)
        door.now -= 100 if nonce == "b" else 0
    assert numbers == sorted(set(numbers))


# ── the queue ───────────────────────────────────────────────────────────────────────────────────────────────


def test_those_who_wait_go_by_arrival(door: Door) -> None:
    fence = door.take("a")
    for rank, nonce in enumerate("bcd"):
        assert door.do(acquire(nonce)) == Queued(rank, TICKET_MS // 3)
    for nonce in "dcb":
        door.do(acquire(nonce))  # asking again keeps the place
    assert door.queue == ["b", "c", "d"]
    served = []
    for nonce in "bcd":
        door.do(Release(fence))
        assert door.notices == [turn(nonce)]
        fence = door.take(nonce)
        served.append(nonce)
    assert served == ["b", "c", "d"]


def test_nobody_goes_ahead_of_the_first_while_the_lock_is_free(door: Door) -> None:
    fence = door.take("a")
    door.do(acquire("b"))
    door.do(Release(fence))
    assert door.do(acquire("c")) == Queued(1, TICKET_MS // 3)
    assert door.do(acquire("d", max_queue=0)) == Busy(TICKET_MS + 1, 2)
    assert door.notices == []
    assert door.take("b")


def test_a_waiter_that_died_does_not_block_the_queue(door: Door) -> None:
    fence = door.take("a")
    door.do(acquire("dead"))
    door.do(acquire("dead too"))
    door.now += TICKET_MS
    assert door.do(acquire("b")) == Queued(2, TICKET_MS // 3)
    door.now += 1
    door.do(Release(fence))
    assert door.notices == [turn("b")]
    assert door.take("b")


def test_a_first_that_dies_after_its_turn_is_passed_over(door: Door) -> None:
    fence = door.take("a")
    door.do(acquire("dead"))
    door.do(acquire("b", ticket_ms=2_000))
    door.do(Release(fence))
    assert door.notices == [turn("dead")]
    assert door.do(acquire("b", ticket_ms=2_000)) == Queued(1, TICKET_MS + 1)
    door.now += TICKET_MS + 1
    door.do(acquire("c"))
    assert door.notices == [turn("b")]
    assert door.take("b")


def test_a_waiter_that_leaves_does_not_block_the_queue(door: Door) -> None:
    fence = door.take("a")
    for nonce in "bcd":
        door.do(acquire(nonce))
    assert door.do(Withdraw("c")) == Done()
    assert door.do(Withdraw("c")) == Done(duplicate=True)
    door.do(Release(fence))
    assert door.do(Withdraw("b")) == Done()
    assert door.notices == [turn("d")]
    assert door.take("d")


def test_a_ticket_that_lapsed_has_lost_its_place(door: Door) -> None:
    door.take("a", lease_ms=9_000)
    door.do(acquire("b"))
    door.now += TICKET_MS
    door.do(acquire("c"))
    door.now += 1
    assert door.do(acquire("b")) == Queued(1, TICKET_MS // 3)
    assert door.queue == ["c", "b"]


def test_a_grant_whose_reply_was_lost_is_taken_back_by_its_nonce(door: Door) -> None:
    door.do(acquire("a"))
    door.do(acquire("b"))
    assert door.do(Withdraw("a")) == Done()
    assert door.notices == [turn("b")]
    assert door.take("b")


def test_the_queue_has_a_bound(door: Door) -> None:
    door.take("a")
    door.do(acquire("b", max_queue=2))
    door.do(acquire("c", max_queue=2))
    assert door.do(acquire("d", max_queue=2)) == Busy(LEASE_MS + 1, 2)
    assert door.do(acquire("c", max_queue=2)) == Queued(1, TICKET_MS // 3)
    assert door.queue == ["b", "c"]


def test_who_does_not_wait_takes_no_place(door: Door) -> None:
    fence = door.take("a")
    assert door.do(acquire("b", max_queue=0)) == Busy(LEASE_MS + 1, 0)
    assert door.queue == []
    door.do(Release(fence))
    assert door.take("b", max_queue=0)


def test_it_says_when_asking_again_may_help(door: Door) -> None:
    door.take("a", lease_ms=100)
    assert door.do(acquire("b")) == Queued(0, 101)
    assert door.do(acquire("c", ticket_ms=2)) == Queued(1, 1)
    door.now += 100
    assert door.do(acquire("b")) == Queued(0, 1)
    door.now += 1
    assert door.take("b")


# ── leases ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_holder_that_died_frees_the_lock_within_its_lease(door: Door) -> None:
    dead = door.take("a")
    door.now += LEASE_MS
    assert isinstance(door.do(acquire("b")), Queued)
    door.now += 1
    assert door.take("b")
    assert door.do(Hold(dead, LEASE_MS)) == FENCED


def test_a_holder_that_was_late_goes_on_if_nobody_waits(door: Door) -> None:
    fence = door.take("a")
    door.now += LEASE_MS + 1
    assert door.do(Hold(fence, LEASE_MS)) == Held(0)
    assert isinstance(door.do(acquire("b")), Queued)


def test_a_holder_that_was_late_gives_way_to_who_waits(door: Door) -> None:
    fence = door.take("a")
    door.do(acquire("b", ticket_ms=5_000))
    door.now += LEASE_MS + 1
    assert door.do(Hold(fence, LEASE_MS)) == FENCED
    assert door.notices == [turn("b")]
    assert door.take("b")


def test_a_renewed_lease_lasts(door: Door) -> None:
    fence = door.take("a")
    for _ in range(5):
        door.now += LEASE_MS
        assert door.do(Hold(fence, LEASE_MS)) == Held(0)
    assert isinstance(door.do(acquire("b")), Queued)
    assert door.do(Hold(fence, LEASE_MS)) == Held(1)


# ── contests ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_newcomer_contests_and_the_first_does_again(door: Door) -> None:
    door.take("a")
    door.do(acquire("b"))
    assert door.notices == [contest("a", 1)]
    door.do(acquire("c"))
    assert door.notices == [contest("a", 2)]
    door.do(acquire("c"))
    assert door.notices == []
    door.do(acquire("b"))
    assert door.notices == [contest("a", 2)]
    door.do(acquire("d", max_queue=0))
    assert door.notices == [contest("a", 2)]


def test_a_holder_that_stays_says_so_to_the_first(door: Door) -> None:
    fence = door.take("a")
    assert door.do(Hold(fence, LEASE_MS, keep=True)) == Held(0)
    assert door.notices == []
    door.do(acquire("b"))
    door.do(acquire("c"))
    assert door.do(Hold(fence, LEASE_MS, keep=True)) == Held(2)
    assert door.notices == [kept("b")]


# ── time ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_clock_that_steps_back_leaves_what_was_left(door: Door) -> None:
    fence = door.take("a")
    door.do(acquire("b"))
    door.now -= 500_000
    assert door.do(Withdraw("nobody")) == Done(duplicate=True)
    assert door.lock is not None
    assert door.lock.seen == door.now
    door.now += TICKET_MS
    assert door.do(Hold(fence, LEASE_MS)) == Held(1)
    door.now += 1
    assert door.do(Hold(fence, LEASE_MS)) == Held(0)


def test_a_time_never_comes_before_the_beginning(door: Door) -> None:
    door.take("a", lease_ms=10)
    door.now += 11
    door.do(acquire("b", max_queue=0, lease_ms=10))
    door.do(acquire("c", ticket_ms=5))
    door.now += 8
    door.do(acquire("d", ticket_ms=5))
    door.now += 500
    door.do(Withdraw("d"))
    assert door.lock is not None
    assert door.lock.holder is not None
    early = anchored(door.lock, 1)
    assert early.holder is not None
    assert (early.seen, early.holder.until, early.queue) == (1, 1, ())


def test_a_ticket_older_than_the_step_is_set_to_the_beginning() -> None:
    lock = SessionLock(7, 1_000, queue=(Ticket("a", "a's", 900), Ticket("b", "b's", 1_100)))
    assert [ticket.until for ticket in anchored(lock, 5).queue] == [1, 105]


def test_a_record_is_remembered_past_its_last_date_and_no_longer(door: Door) -> None:
    fence = door.take("a", lease_ms=5_000)
    door.do(acquire("b", ticket_ms=7_000))
    assert door.lock is not None
    assert collect_at(door.lock) == BEGIN + 7_000 + REMEMBERED_MS
    door.do(Withdraw("b"))
    assert collect_at(door.lock) == BEGIN + 5_000 + REMEMBERED_MS
    door.now += 5_000 + REMEMBERED_MS
    assert not spent(door.lock, door.now)
    assert spent(door.lock, door.now + 1)
    assert door.do(Hold(fence, 5_000)) == Held(0)
    door.do(Release(fence))
    assert collect_at(door.lock) == door.now + REMEMBERED_MS


def test_garbage_counts_as_nothing_but_its_number(door: Door) -> None:
    fence = door.take("a")
    garbage = door.lock
    door.now += LEASE_MS + REMEMBERED_MS + 1
    assert door.do(Hold(fence, LEASE_MS)) == FENCED
    assert door.lock is garbage
    assert door.take("b").number > fence.number


def test_what_changes_nothing_stores_nothing(door: Door) -> None:
    assert door.do(Release(Fence(1, "a"))) == Done(duplicate=True)
    assert door.do(Hold(Fence(1, "a"), 1)) == FENCED
    assert door.do(Withdraw("a")) == Done(duplicate=True)
    assert door.lock is None
    door.take("a")
    before = door.lock
    door.do(acquire("b", max_queue=0))
    assert door.lock is before


# ── keys ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_ids_and_scopes_never_run_into_each_other() -> None:
    pairs = [
        ("a", b"b:c"),
        ("a:b", b"c"),
        ("a", b"b"),
        ("", b"ab"),
        ("ab", b""),
        ("a", b"\x00\xff{}\r\n b"),
        ("a\udc80", b"b"),
    ]
    keys = {session_key(scope, session) for scope, session in pairs}
    assert len(keys) == len(pairs)
    assert all(set(key) <= set("0123456789abcdef") and len(key) == 48 for key in keys)
    assert session_key("a", b"b") == session_key("a", b"b")


# ── the table ───────────────────────────────────────────────────────────────────────────────────────────────


def test_the_table_keeps_locks_apart() -> None:
    table = SessionTable()
    assert isinstance(table.execute("s", acquire("a"), BEGIN)[0], Granted)
    assert isinstance(table.execute("t", acquire("b"), BEGIN)[0], Granted)
    reply, notices = table.execute("s", acquire("c"), BEGIN)
    assert isinstance(reply, Queued)
    assert notices == (contest("a", 1),)
    assert repr(table) == "SessionTable(locks=2, held=2, waiting=1)"
    assert table.get("s") != table.get("t")


def test_the_table_stores_nothing_for_nothing() -> None:
    table = SessionTable()
    table.execute("s", Withdraw("a"), BEGIN)
    assert len(table) == 0
    assert table.get("s") is None


def test_a_flood_of_sessions_does_not_grow_the_table() -> None:
    table, now, most = SessionTable(), BEGIN, 0
    for number in range(2_000):
        reply, _ = table.execute(f"s{number}", acquire("a"), now)
        assert isinstance(reply, Granted)
        if number % 2:
            table.execute(f"s{number}", Release(reply.fence), now)
        now += 1_000
        most = max(most, len(table))
    assert most <= (REMEMBERED_MS + LEASE_MS) // 1_000 + 2


def test_what_a_burst_left_goes_a_few_at_a_time() -> None:
    table = SessionTable()
    for number in range(100):
        table.execute(f"s{number}", acquire("a"), BEGIN)
    late = BEGIN + LEASE_MS + REMEMBERED_MS + 1
    table.execute("one more", acquire("a"), late)
    assert len(table) == 101 - LOOKS
    for number in range(30):
        table.execute(f"more {number}", acquire("a"), late)
    assert len(table) == 31
