"""The log: frames in order for every cursor, a window past the limit, and an account that is never off."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soloflight.core.errors import Code, Fault
from soloflight.core.frames import Body, End, Frame, Head
from soloflight.core.log import WAKE_SLICE, WINDOW_FLOOR, Cursor, FellBehind, Log

HEAD = Head(200, b"OK", ((b"Content-Type", b"text/plain"),))
FAULT = Fault(Code.UPSTREAM_TRUNCATED, "cut")


def bodies(*data: bytes) -> list[Frame]:
    return [Body(one) for one in data]


@dataclass
class Account:
    """What a log has charged."""

    held: int = 0
    changes: list[int] = field(default_factory=list)

    def __call__(self, delta: int) -> None:
        self.held += delta
        self.changes.append(delta)


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_cursor_sees_every_frame_once_and_the_very_same_objects() -> None:
    log = Log(100)
    frames = [HEAD, *bodies(b"a", b"bc"), End()]
    log.append(*frames[:2])
    cursor = log.attach()
    first = cursor.take()
    log.append(*frames[2:])
    second = cursor.take()
    assert [id(frame) for frame in first + second] == [id(frame) for frame in frames]
    assert cursor.take() == []
    assert (cursor.position, cursor.offset) == (4, 3)


def test_what_a_listener_does_with_its_frames_touches_nobody_else() -> None:
    log = Log(100)
    log.append(HEAD, Body(b"a"))
    log.attach().take().clear()
    assert log.attach().take() == [HEAD, Body(b"a")]


def test_a_late_cursor_starts_at_byte_zero() -> None:
    log = Log(100)
    log.append(HEAD, *bodies(b"a", b"b"))
    early = log.attach()
    early.take()
    log.append(Body(b"c"))
    assert log.attach().take() == [HEAD, *bodies(b"a", b"b", b"c")]
    assert early.take() == [Body(b"c")]


def test_a_wake_is_called_once_at_the_next_append() -> None:
    log = Log(100)
    cursor = log.attach()
    woken: list[int] = []
    cursor.wait(lambda: woken.append(log.frames))
    log.append(HEAD, Body(b"a"))
    log.append(Body(b"b"))
    assert woken == [2]


def test_a_cursor_that_waits_again_when_it_is_woken_is_woken_again() -> None:
    log = Log(100)
    cursor = log.attach()
    seen: list[list[Frame]] = []

    def read() -> None:
        seen.append(cursor.take())
        cursor.wait(read)

    cursor.wait(read)
    log.append(HEAD)
    log.append(Body(b"a"))
    assert seen == [[HEAD], [Body(b"a")]]


def test_who_has_left_is_not_woken() -> None:
    log = Log(100)
    cursor = log.attach()
    woken: list[bool] = []
    cursor.wait(lambda: woken.append(True))
    cursor.detach()
    log.append(HEAD)
    assert woken == []


def test_a_crowd_is_woken_in_turns_of_the_loop_each_once() -> None:
    turns: list[Callable[[], None]] = []
    log = Log(100, later=turns.append)
    woken: list[int] = []
    for number in range(2 * WAKE_SLICE + 1):
        log.attach().wait(partial(woken.append, number))
    log.append(HEAD)
    assert (woken, len(turns)) == (list(range(WAKE_SLICE)), 1)
    log.append(Body(b"a"))
    turns.pop()()
    assert (len(woken), len(turns)) == (2 * WAKE_SLICE, 1)
    turns.pop()()
    assert (woken, turns) == (list(range(2 * WAKE_SLICE + 1)), [])


def test_without_a_loop_a_crowd_is_woken_at_once() -> None:
    log = Log(100)
    woken: list[int] = []
    for number in range(WAKE_SLICE + 1):
        log.attach().wait(partial(woken.append, number))
    log.append(HEAD)
    assert len(woken) == WAKE_SLICE + 1


@pytest.mark.parametrize(("frames", "faulted"), [([], False), ([HEAD, End()], False), ([HEAD, End(FAULT)], True)])
def test_a_cursor_knows_whether_its_log_ended_in_a_fault(frames: list[Frame], faulted: bool) -> None:
    log = Log(100)
    cursor = log.attach()
    log.append(*frames)
    assert cursor.faulted is faulted


def test_listeners_are_counted_without_taps_and_leave_once() -> None:
    log = Log(100)
    client, tap = log.attach(), log.attach(tap=True)
    assert log.listeners == 1
    client.detach()
    client.detach()
    tap.detach()
    tap.detach()
    assert log.listeners == 0


@pytest.mark.parametrize(
    ("frames", "joinable"),
    [
        ([], True),
        ([HEAD, Body(b"a")], True),
        ([HEAD, Body(b"a"), End()], True),
        ([HEAD, Body(b"a"), End(FAULT)], False),
        ([HEAD, Body(b"a" * 11)], False),
    ],
)
def test_joinable_is_who_can_give_the_whole_answer(frames: list[Frame], joinable: bool) -> None:
    log = Log(10)
    log.append(*frames)
    assert log.joinable is joinable


def test_a_recording_keeps_the_boundaries_of_the_frames() -> None:
    log = Log(100)
    assert log.recording() is None
    log.append(HEAD, *bodies(b"a", b"bc"))
    recording = log.recording()
    assert recording is not None
    assert (recording.head, recording.body, recording.size) == (HEAD, (b"a", b"bc"), 3)


# ── the window ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_exactly_the_limit_is_recorded_and_one_byte_more_is_not() -> None:
    log = Log(10)
    log.append(HEAD, Body(b"a" * 10))
    assert not log.windowed
    assert log.recording() is not None
    log.append(Body(b"b"))
    assert log.windowed
    assert log.recording() is None


def test_a_small_limit_cuts_nobody_who_keeps_pace() -> None:
    """A limit smaller than one read still leaves the frames to those who are there."""
    log = Log(10)
    fast = log.attach()
    log.append(HEAD)
    big = Body(b"x" * 300_000)
    log.append(big)
    assert fast.take() == [HEAD, big]
    log.append(big, big)
    assert fast.take() == [big, big]


def test_what_all_have_read_is_dropped() -> None:
    account = Account()
    log = Log(10, account)
    first, second = log.attach(), log.attach()
    log.append(HEAD, Body(b"a" * 11))
    first.take()
    assert account.held == 11
    second.take()
    assert (account.held, log.retained, log.size) == (0, 0, 11)


def test_a_laggard_falls_out_of_the_window_and_is_told_so_while_the_fast_one_reads_on() -> None:
    log = Log(10)
    fast, slow = log.attach(), log.attach()
    piece = Body(b"x" * (WINDOW_FLOOR // 4))
    log.append(HEAD)
    for _ in range(4):
        log.append(piece)
        fast.take()
    assert log.retained == WINDOW_FLOOR
    log.append(piece)
    assert fast.take() == [piece]
    assert log.retained <= WINDOW_FLOOR
    with pytest.raises(FellBehind):
        slow.take()
    with pytest.raises(FellBehind):
        slow.take()


def test_a_limit_above_the_floor_is_the_window() -> None:
    limit = 2 * WINDOW_FLOOR
    log = Log(limit)
    fast, slow = log.attach(), log.attach()
    piece = Body(b"x" * WINDOW_FLOOR)
    for _ in range(2):
        log.append(piece)
        fast.take()
    assert not log.windowed
    log.append(Body(b"x"))
    assert log.retained == WINDOW_FLOOR + 1
    with pytest.raises(FellBehind):
        slow.take()


def test_nobody_who_reads_keeps_nothing() -> None:
    account = Account()
    log = Log(10, account)
    log.append(HEAD, Body(b"x" * 11))
    assert (account.held, log.retained, log.frames) == (0, 0, 2)


def test_a_laggard_that_leaves_takes_its_frames_with_it() -> None:
    account = Account()
    log = Log(10, account)
    fast, slow = log.attach(), log.attach()
    log.append(HEAD, Body(b"x" * 11))
    fast.take()
    assert account.held == 11
    slow.detach()
    assert account.held == 0


def test_stop_recording_becomes_a_window_under_the_limit() -> None:
    account = Account()
    log = Log(1 << 30, account)
    reader = log.attach()
    log.append(HEAD, Body(b"x" * 100))
    log.stop_recording()
    assert (log.windowed, log.joinable, log.recording()) == (True, False, None)
    assert reader.take() == [HEAD, Body(b"x" * 100)]
    assert account.held == 0
    reader.detach()
    for _ in range(3):
        log.append(Body(b"x" * WINDOW_FLOOR))
    assert account.held == 0


# ── the writer's wait ───────────────────────────────────────────────────────────────────────────────────────────────


def test_unread_is_measured_from_the_fastest_and_is_nothing_where_nobody_reads() -> None:
    log = Log(1)
    fast, slow = log.attach(), log.attach()
    log.append(HEAD, Body(b"abc"), Body(b"de"))
    assert log.unread() == 5
    fast.take()
    assert log.unread() == 0
    log.append(Body(b"fgh"))
    slow.take()
    fast.detach()
    assert log.unread() == 0
    log.append(Body(b"i"))
    assert log.unread() == 1
    slow.detach()
    assert log.unread() == 0


@pytest.mark.parametrize("how", ["take", "detach"])
def test_room_is_told_once_when_a_reader_reads_on_or_leaves(how: str) -> None:
    log = Log(1)
    reader = log.attach()
    log.append(HEAD, Body(b"abc"))
    told: list[int] = []
    log.wait_for_room(lambda: told.append(1))
    getattr(reader, how)()
    assert told == [1]
    log.append(Body(b"d"))
    reader.detach()
    assert told == [1]


def test_taking_nothing_makes_no_room() -> None:
    log = Log(1)
    reader = log.attach()
    log.append(HEAD, Body(b"abc"))
    reader.take()
    told: list[int] = []
    log.wait_for_room(lambda: told.append(1))
    assert reader.take() == []
    assert told == []


# ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_retired_log_gives_its_bytes_back_with_its_last_reader() -> None:
    account = Account()
    log = Log(100, account)
    first, second, tap = log.attach(), log.attach(), log.attach(tap=True)
    log.append(HEAD, Body(b"abc"), End())
    log.retire()
    assert account.held == 3
    assert first.take() == [HEAD, Body(b"abc"), End()]
    first.detach()
    tap.detach()
    assert account.held == 3
    assert second.take() == [HEAD, Body(b"abc"), End()]
    second.detach()
    second.detach()
    assert (account.held, account.changes) == (0, [3, -3])


def test_a_log_that_nobody_reads_is_given_back_when_it_retires() -> None:
    account = Account()
    log = Log(100, account)
    log.append(HEAD, Body(b"abc"), End(FAULT))
    log.retire()
    log.retire()
    assert (account.held, account.changes) == (0, [3, -3])


@pytest.mark.parametrize(
    ("frames", "state"),
    [
        ([], "open"),
        ([HEAD, Body(b"x" * 11)], "windowed"),
        ([HEAD, End()], "ended"),
        ([Body(b"x" * 11), End()], "ended"),
    ],
)
def test_the_repr_tells_the_state_and_the_counts(frames: list[Frame], state: str) -> None:
    log = Log(10)
    cursor = log.attach()
    log.append(*frames)
    assert repr(log) == f"Log({state}, frames={len(frames)}, bytes={log.size}, cursors=1)"
    assert repr(cursor) == "Cursor(position=0, offset=0)"


# ── whatever the order ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Reader:
    """A cursor and what it has seen."""

    cursor: Cursor
    seen: list[Frame] = field(default_factory=list)
    cut: bool = False
    left: bool = False

    def take(self) -> None:
        if self.cut or self.left:
            return
        try:
            self.seen += self.cursor.take()
        except FellBehind:
            self.cut = True


# Sizes around a floor that the test makes small, so that the window is met often.
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 30)),
        st.tuples(st.just("attach"), st.booleans()),
        st.tuples(st.just("take"), st.integers(0, 7)),
        st.tuples(st.just("detach"), st.integers(0, 7)),
        st.tuples(st.just("stop recording"), st.none()),
    ),
    max_size=40,
)


@given(limit=st.integers(0, 120), steps=STEPS)
def test_whatever_the_order_who_is_not_cut_sees_exactly_the_appended_frames(
    limit: int, steps: list[tuple[str, int]]
) -> None:
    account = Account()
    log = Log(limit, account, floor=40)
    appended: list[Frame] = [HEAD]
    log.append(HEAD)
    readers: list[Reader] = []
    for what, value in steps:
        if what == "append":
            appended.append(Body(b"%d" % len(appended) * value))
            log.append(appended[-1])
        elif what == "attach" and log.joinable:
            readers.append(Reader(log.attach(tap=bool(value))))
        elif what == "take" and value < len(readers):
            readers[value].take()
        elif what == "detach" and value < len(readers):
            readers[value].cursor.detach()
            readers[value].left = True
        elif what == "stop recording":
            log.stop_recording()
        kept = [frame for frame in log._frames if isinstance(frame, Body)]
        assert account.held == log.retained == sum(len(frame.data) for frame in kept)
        if log.windowed and any(step == "append" for step, _ in steps):
            assert log.retained <= max(limit, 40) + 60  # a stop is felt at the next append
    log.append(End())
    for reader in readers:
        reader.take()
        if not reader.cut and not reader.left:
            assert reader.seen == [*appended, End()]
        assert reader.seen == [*appended, End()][: len(reader.seen)]
        if not log.windowed:
            assert not reader.cut
    log.retire()
    for reader in readers:
        reader.cursor.detach()
    assert (account.held, log.retained, log.listeners) == (0, 0, 0)
