"""The bulkhead: first come, first served; who leaves the queue takes no slot along; stages are apart."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from soloflight.core.errors import Code, SoloflightError
from soloflight.core.stage import Stage
from soloflight.flow.slots import Slots

ONE = Stage(name="one", max_upstream=1, queue_wait=5.0)


async def waiting(slots: Slots, stage: str, count: int) -> None:
    while slots.waiting(stage) != count:
        await asyncio.sleep(0)


async def test_no_limit_never_waits() -> None:
    slots = Slots()
    for _ in range(100):
        await slots.take(Stage())
    assert (slots.taken("default"), slots.waiting("default")) == (100, 0)


async def test_a_slot_goes_to_who_waits_longest() -> None:
    slots, order = Slots(), []

    async def work(name: str) -> None:
        await slots.take(ONE)
        order.append(name)

    await slots.take(ONE)
    tasks = []
    for count, name in enumerate("abc", 1):
        tasks.append(asyncio.create_task(work(name)))
        await waiting(slots, "one", count)
    for _ in range(3):
        slots.give(ONE)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert order == ["a", "b", "c"]
    assert slots.taken("one") == 1


async def test_a_newcomer_does_not_overtake() -> None:
    slots = Slots()
    await slots.take(ONE)
    first = asyncio.create_task(slots.take(ONE))
    await waiting(slots, "one", 1)
    slots.give(ONE)  # the slot is the first one's, though its task has not run yet
    late = asyncio.create_task(slots.take(ONE))
    await first
    await waiting(slots, "one", 1)
    assert not late.done()
    slots.give(ONE)
    await late


async def test_too_long_is_saturated_and_leaves_no_trace() -> None:
    slots, short = Slots(), replace(ONE, queue_wait=0.02)
    await slots.take(short)
    with pytest.raises(SoloflightError) as refused:
        await slots.take(short)
    assert (refused.value.fault.code, refused.value.fault.retry_after_s) == (Code.SATURATED, 1)
    assert (slots.taken("one"), slots.waiting("one")) == (1, 0)


@pytest.mark.parametrize("granted", [False, True])
async def test_who_is_cancelled_takes_no_slot_along(granted: bool) -> None:
    slots = Slots()
    await slots.take(ONE)
    left = asyncio.create_task(slots.take(ONE))
    await waiting(slots, "one", 1)
    if granted:
        slots.give(ONE)  # at the same moment
    left.cancel()
    with pytest.raises(asyncio.CancelledError):
        await left
    assert (slots.taken("one"), slots.waiting("one")) == (0 if granted else 1, 0)


async def test_who_left_when_a_slot_is_given_is_passed_over() -> None:
    """It was cancelled, its task has not run yet, and the slot goes to the one behind it."""
    slots = Slots()
    await slots.take(ONE)
    left, next_one = (asyncio.create_task(slots.take(ONE)) for _ in range(2))
    await waiting(slots, "one", 2)
    left.cancel()
    slots.give(ONE)
    with pytest.raises(asyncio.CancelledError):
        await left
    await next_one
    assert (slots.taken("one"), slots.waiting("one")) == (1, 0)


@pytest.mark.parametrize(("limit", "let_in"), [(2, 1), (3, 2), (0, 3), (1, 0)])
async def test_new_rules_reach_those_who_wait(limit: int, let_in: int) -> None:
    slots = Slots()
    slots.rule([ONE])
    await slots.take(ONE)
    tasks = [asyncio.create_task(slots.take(ONE)) for _ in range(3)]
    await waiting(slots, "one", 3)
    slots.rule([replace(ONE, max_upstream=limit)])
    assert (slots.taken("one"), slots.waiting("one")) == (1 + let_in, 3 - let_in)
    await asyncio.sleep(0)
    assert [task.done() for task in tasks] == [number < let_in for number in range(3)]
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_a_call_of_older_rules_does_not_bring_their_limit_back() -> None:
    slots = Slots()
    slots.rule([replace(ONE, max_upstream=2)])
    await slots.take(ONE)
    await slots.take(ONE)
    late = asyncio.create_task(slots.take(replace(ONE, max_upstream=9)))
    await waiting(slots, "one", 1)
    slots.give(ONE)
    await late


async def test_stages_are_apart_and_a_new_limit_holds_at_once() -> None:
    slots = Slots()
    await slots.take(ONE)
    await slots.take(replace(ONE, name="two"))
    wider = replace(ONE, max_upstream=2)
    await slots.take(wider)
    assert repr(slots) == "Slots(one: 2+0, two: 1+0)"
