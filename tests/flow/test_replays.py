"""A process's own replays: bounded by bytes and time, stage by stage, and charged for what they hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soloflight.core.frames import Head, Recording
from soloflight.core.stage import Stage
from soloflight.flow.memory import Memory
from soloflight.flow.replays import Replays
from soloflight.flow.shelf import Replay

HEAD = Head(200, b"OK", ())
A, B = Stage(name="a", local_max_bytes=10_000), Stage(name="b", local_max_bytes=10_000)


class Clock:
    """Seconds that only a test moves; ``runs`` moves them at every look."""

    def __init__(self) -> None:
        self.now = 100.0
        self.runs = 0.0

    def __call__(self) -> float:
        self.now += self.runs
        return self.now


class Shelf:
    """Replays, their memory and their clock."""

    def __init__(self, limit: int = 1 << 30) -> None:
        self.clock = Clock()
        self.memory = Memory(limit)
        self.replays = Replays(self.memory, self.clock)

    def put(self, key: str, size: int = 100, stage: Stage = A, local_s: float = 30.0, number: int = 1) -> bool:
        now = self.clock.now
        recording = Recording(HEAD, (b"x" * size,), size)
        return self.replays.put(stage, key, Replay(recording, f"flight {key}", number, now, now + 300, now + local_s))

    def has(self, key: str, stage: Stage = A, fresh_s: float | None = None) -> bool:
        return self.replays.get(stage, key, fresh_s) is not None


COST = Recording(HEAD, (b"x" * 100,), 100).cost


def test_what_is_put_is_found_in_its_own_stage_alone() -> None:
    shelf = Shelf()
    assert shelf.put("k")
    assert (shelf.has("k"), shelf.has("k", B), shelf.has("other")) == (True, False, False)
    found = shelf.replays.get(A, "k", None)
    assert found is not None
    assert (found.flight, found.recording.size) == ("flight k", 100)


def test_it_goes_when_its_time_is_over() -> None:
    shelf = Shelf()
    shelf.put("k", local_s=10.0)
    shelf.clock.now += 9.9
    assert shelf.has("k")
    shelf.clock.now += 0.2
    assert not shelf.has("k")


@pytest.mark.parametrize("local_s", [0.0, -1.0])
def test_what_may_not_be_kept_here_is_not(local_s: float) -> None:
    shelf = Shelf()
    assert not shelf.put("k", local_s=local_s)
    assert (shelf.has("k"), shelf.memory.used) == (False, 0)


def test_an_answer_too_old_for_the_asker_is_still_there_for_others() -> None:
    shelf = Shelf()
    shelf.put("k")
    shelf.clock.now += 5
    assert (shelf.has("k", fresh_s=5.0), shelf.has("k", fresh_s=4.9), shelf.has("k")) == (True, False, True)


def test_a_newer_answer_takes_the_place_of_the_old_one() -> None:
    shelf = Shelf()
    shelf.put("k", 100)
    shelf.put("k", 300)
    found = shelf.replays.get(A, "k", None)
    assert found is not None
    assert found.recording.size == 300
    assert shelf.memory.used == shelf.replays.size == COST + 200


def test_over_its_bytes_a_stage_drops_what_was_used_least_recently() -> None:
    shelf = Shelf()
    stage = Stage(name="a", local_max_bytes=3 * COST)
    for key in ("1", "2", "3"):
        shelf.put(key, stage=stage)
    assert shelf.has("1", stage)
    shelf.put("4", stage=stage)
    assert [shelf.has(key, stage) for key in ("1", "2", "3", "4")] == [True, False, True, True]
    assert shelf.memory.used == shelf.replays.size == 3 * COST


def test_an_answer_larger_than_the_stages_bytes_evicts_nothing() -> None:
    shelf = Shelf()
    shelf.put("small")
    assert not shelf.put("large", 10_000)
    assert shelf.has("small")


def test_stages_do_not_evict_each_other() -> None:
    shelf = Shelf()
    shelf.put("k", stage=A)
    for number in range(50):
        shelf.put(str(number), 500, stage=B)
    assert shelf.has("k", A)


def test_other_bounds_for_a_stage_start_afresh_and_give_the_old_bytes_back() -> None:
    shelf = Shelf()
    shelf.put("k")
    assert shelf.put("l", stage=Stage(name="a", local_max_bytes=20_000))
    assert (shelf.has("k"), shelf.has("l"), shelf.memory.used) == (False, True, COST)


def test_one_answer_is_forgotten_by_its_key_and_found_by_its_flight() -> None:
    shelf = Shelf()
    shelf.put("1", stage=A)
    shelf.put("2", stage=B)
    assert (shelf.replays.key_of("flight 2"), shelf.replays.key_of("flight 3")) == ("2", None)
    assert (shelf.replays.drop("2"), shelf.replays.drop("2")) == (True, False)
    assert (shelf.has("1", A), shelf.has("2", B), shelf.memory.used) == (True, False, COST)
    assert (shelf.replays.key_of("flight 2"), shelf.replays.sizes) == (None, {"a": COST, "b": 0})


def test_a_stage_or_all_are_cleared() -> None:
    shelf = Shelf()
    for stage in (A, B):
        for key in ("1", "2"):
            shelf.put(key, stage=stage)
    assert (shelf.replays.clear("b"), shelf.replays.clear("b"), shelf.replays.clear("none")) == (2, 0, 0)
    assert (shelf.has("1", A), shelf.has("1", B), shelf.memory.used) == (True, False, 2 * COST)
    assert (shelf.replays.clear(), shelf.memory.used, shelf.replays.size) == (2, 0, 0)


def test_behind_a_purge_nothing_from_before_it_is_taken_again() -> None:
    shelf = Shelf()
    shelf.put("old")
    shelf.put("other", stage=B)
    shelf.clock.now += 10
    assert shelf.replays.purge("a") == 1
    assert (shelf.has("old"), shelf.has("other", B)) == (False, True)
    shelf.clock.now -= 1
    assert not shelf.put("old"), "sealed before the purge"
    shelf.clock.now += 2
    assert shelf.put("new")
    assert shelf.has("new")
    assert shelf.replays.accepted_s("a", None) == shelf.replays.accepted_s("a", 60.0) == 1.0
    assert (shelf.replays.accepted_s("a", 0.5), shelf.replays.accepted_s("a", -1.0)) == (0.5, -1.0)
    assert (shelf.replays.accepted_s("b", None), shelf.replays.accepted_s("b", 60.0)) == (None, 60.0)


def test_of_two_purges_the_later_one_counts_in_whatever_order_they_are_heard() -> None:
    shelf = Shelf()
    shelf.clock.now += 10
    shelf.replays.purge("a")
    shelf.replays.purge("a", age_s=5.0)
    shelf.clock.now -= 1
    assert not shelf.put("k")


def test_under_pressure_the_least_recently_used_go_first_and_no_more_than_needed() -> None:
    shelf = Shelf()
    for key in ("1", "2", "3"):
        shelf.put(key)
    shelf.has("1")
    assert shelf.replays.reclaim(COST + 1) == 2 * COST
    assert [shelf.has(key) for key in ("1", "2", "3")] == [True, False, False]
    assert shelf.replays.reclaim(0) == 0
    assert shelf.replays.reclaim(1 << 30) == COST
    assert (shelf.memory.used, shelf.replays.size) == (0, 0)


def test_what_has_expired_is_given_back_under_pressure_before_anything_else() -> None:
    shelf = Shelf(limit=3 * COST - 1)
    shelf.put("old", local_s=1.0)
    shelf.put("1")
    shelf.put("2")
    shelf.clock.now += 2
    assert not shelf.memory.full()
    assert (shelf.has("1"), shelf.has("2"), shelf.memory.used) == (True, True, 2 * COST)


def test_time_that_runs_while_room_is_made_harms_nothing() -> None:
    """Each look at the clock may be the one at which the last answer expires."""
    for step in range(1, 40):
        shelf = Shelf()
        for number in range(3):
            shelf.put(str(number), local_s=1.0)
        shelf.clock.runs = step / 20
        shelf.replays.reclaim(1 << 30)
        assert shelf.memory.used == 0


def test_many_answers_under_one_key_leave_few_marks() -> None:
    shelf = Shelf()
    for _ in range(1000):
        shelf.put("k", local_s=1000.0)
        shelf.put("l", local_s=10.0)
    kept = shelf.replays._stages["a"]
    assert (len(kept), len(kept._due) < 200) == (2, True)
    shelf.clock.now += 11
    assert (len(kept), shelf.has("k"), shelf.has("l")) == (1, True, False)


def test_the_repr_tells_each_stage() -> None:
    shelf = Shelf()
    shelf.put("k")
    shelf.put("k", stage=B)
    assert repr(shelf.replays) == f"Replays(a: {COST}, b: {COST})"


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 5), st.integers(0, 4000)),
        st.tuples(st.just("get"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("drop"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("wait"), st.just(0), st.integers(0, 20)),
        st.tuples(st.just("reclaim"), st.just(0), st.integers(0, 8000)),
        st.tuples(st.just("clear"), st.just(0), st.just(0)),
    )
)


@given(STEPS)
def test_whatever_the_order_the_charge_is_the_size_and_the_size_is_what_is_found(
    steps: list[tuple[str, int, int]],
) -> None:
    shelf = Shelf()
    for what, key, value in steps:
        stage = (A, B)[key % 2]
        if what == "put":
            shelf.put(str(key), value, stage, local_s=10.0)
        elif what == "get":
            shelf.has(str(key), stage)
        elif what == "drop":
            shelf.replays.drop(str(key))
        elif what == "wait":
            shelf.clock.now += value
        elif what == "reclaim":
            shelf.replays.reclaim(value)
        else:
            shelf.replays.clear("a")
        assert shelf.memory.used == shelf.replays.size >= 0
        found = [shelf.replays.get((A, B)[key % 2], str(key), None) for key in range(6)]
        assert sum(replay.recording.cost for replay in found if replay) <= shelf.replays.size
    shelf.replays.reclaim(0)  # settles what has expired
    found = [shelf.replays.get((A, B)[key % 2], str(key), None) for key in range(6)]
    assert sum(replay.recording.cost for replay in found if replay) == shelf.replays.size


def test_a_refresh_elsewhere_drops_what_is_older_and_what_is_on_its_way() -> None:
    shelf = Shelf()
    shelf.put("k", number=4)
    shelf.put("other", number=4)
    shelf.replays.refreshed("k", 4)
    assert shelf.has("k"), "that very answer"
    shelf.replays.refreshed("k", 5)
    assert (shelf.has("k"), shelf.has("other"), shelf.memory.used) == (False, True, COST)
    assert not shelf.put("k", number=4), "it was asked for before the refresh was told of"
    assert shelf.put("k", number=5)
    assert shelf.put("k", number=6)
