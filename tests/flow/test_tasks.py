"""Tasks have an owner, bounds have one timer, and memory has one account."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable

import pytest

from soloflight.flow.memory import Memory
from soloflight.flow.patience import Patience, Patrol
from soloflight.flow.tasks import Tasks

# ── tasks ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_task_is_counted_while_it_runs() -> None:
    tasks = Tasks("some")
    gate = asyncio.Event()
    task = tasks.spawn(gate.wait(), "waits")
    assert (len(tasks), task.get_name(), repr(tasks)) == (1, "waits", "Tasks('some', running=1)")
    gate.set()
    assert await tasks.wait_idle(5.0)
    assert (len(tasks), task.result()) == (0, True)


async def test_waiting_for_idle_has_a_bound_and_harms_nothing() -> None:
    tasks = Tasks("some")
    task = tasks.spawn(asyncio.Event().wait(), "waits")
    assert not await tasks.wait_idle(0.01)
    assert not task.done()
    await tasks.close()
    assert await tasks.wait_idle(0.0)


async def test_closing_cancels_and_waits_for_the_clean_up() -> None:
    tasks = Tasks("some")
    told: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            told.append("cleaned up")

    task = tasks.spawn(work(), "work")
    await asyncio.sleep(0)
    await tasks.close()
    assert (task.cancelled(), told, len(tasks)) == (True, ["cleaned up"], 0)


async def test_closing_has_a_bound_where_a_task_will_not_go() -> None:
    tasks = Tasks("some")
    gate = asyncio.Event()

    async def stubborn() -> None:
        try:
            await gate.wait()
        except asyncio.CancelledError:
            await gate.wait()

    task = tasks.spawn(stubborn(), "stubborn")
    await asyncio.sleep(0)
    await tasks.close(0.01)
    assert len(tasks) == 1
    gate.set()
    await task


async def test_what_a_task_raises_is_told_with_its_name(caplog: pytest.LogCaptureFixture) -> None:
    tasks = Tasks("some")

    async def fails() -> None:
        raise ValueError("x")

    tasks.spawn(fails(), "the task's name")
    await tasks.wait_idle(5.0)
    await asyncio.sleep(0)
    [record] = caplog.records
    assert record.getMessage() == "task the task's name failed: ValueError"
    assert record.exc_info is not None


async def test_a_cancelled_task_is_no_fault(caplog: pytest.LogCaptureFixture) -> None:
    tasks = Tasks("some")
    tasks.spawn(asyncio.Event().wait(), "waits")
    await asyncio.sleep(0)
    await tasks.close()
    await asyncio.sleep(0)
    assert caplog.records == []


# ── patience ────────────────────────────────────────────────────────────────────────────────────────────────────────


def patience(limit_s: float, deadline_s: float = math.inf) -> Patience:
    return Patience(Patrol(), limit_s, asyncio.get_running_loop().time() + deadline_s)


async def patient_for(bound: Patience, work: Callable[[Patience], Awaitable[object]]) -> float:
    """How long until ``bound`` ends ``work``."""
    began = asyncio.get_running_loop().time()

    async def bounded() -> None:
        with bound:
            await work(bound)

    with pytest.raises(TimeoutError):
        await bounded()
    return asyncio.get_running_loop().time() - began


async def silence(_: Patience) -> None:
    await asyncio.Event().wait()


async def test_silence_ends_at_the_limit() -> None:
    assert 0.05 <= await patient_for(patience(0.05), silence) < 2


async def test_the_deadline_ends_it_whatever_the_limit() -> None:
    assert 0.05 <= await patient_for(patience(60.0, 0.05), silence) < 2


async def test_progress_starts_the_limit_anew_and_not_the_deadline() -> None:
    async def steady(bound: Patience) -> None:
        while True:
            await asyncio.sleep(0.02)
            bound.progress()

    assert 1.0 <= await patient_for(patience(0.7, 1.0), steady) < 5


async def test_another_limit_holds_from_the_progress_that_sets_it() -> None:
    async def shorter(bound: Patience) -> None:
        bound.progress(0.05)
        assert bound.due == pytest.approx(asyncio.get_running_loop().time() + 0.05, abs=0.02)
        await silence(bound)

    assert 0.05 <= await patient_for(patience(60.0), shorter) < 2


async def test_a_longer_limit_is_waited_out() -> None:
    async def longer(bound: Patience) -> None:
        bound.progress(0.2)
        await silence(bound)

    assert 0.2 <= await patient_for(patience(0.02), longer) < 2


async def test_what_is_over_in_time_is_not_touched() -> None:
    with patience(0.01) as bound:
        pass
    assert repr(bound).startswith("Patience(limit=0.01, idle=0.0")
    await asyncio.sleep(0.03)  # past the limit: the timer must not fire into what comes after


async def test_a_cancellation_from_outside_stays_one() -> None:
    async def work() -> None:
        with patience(60.0):
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# ── memory ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_memory_is_full_over_its_limit_only() -> None:
    memory = Memory(10)
    memory.charge(10)
    assert not memory.full()
    memory.charge(1)
    assert memory.full()
    memory.charge(-1)
    assert not memory.full()
    assert repr(memory) == "Memory(used=10, limit=10)"


def test_reclaimers_are_asked_for_what_is_too_much_one_after_the_other_until_it_fits() -> None:
    memory = Memory(10)
    asked: list[tuple[str, int]] = []

    def reclaimer(name: str, frees: int) -> None:
        def reclaim(wanted: int) -> int:
            asked.append((name, wanted))
            memory.charge(-frees)
            return frees

        memory.on_pressure(reclaim)

    for name, frees in (("first", 3), ("second", 4), ("third", 100)):
        reclaimer(name, frees)
    memory.charge(17)
    assert not memory.full()
    assert asked == [("first", 7), ("second", 4)]
