"""Laws of the end: sealed results, faults, refreshes, purges, abandoned flights."""

from __future__ import annotations

from soloflight.core.flight import (
    Absent,
    Answered,
    Done,
    Dropped,
    Faulted,
    Fence,
    Joined,
    Kept,
    Owned,
    Retrying,
)
from soloflight.flow.tasks import Tasks
from soloflight.testing.laws import FENCED, GONE, Laws
from soloflight.testing.party import ANSWER, EMPTY, FAULT, PATIENCE_S, Party, recording

OLDER = recording(b"older")


class EndingLaws(Laws):
    """How an attempt ends, and what stays of it."""

    async def test_a_sealed_result_is_replayed_whole(self) -> None:
        async with self.parties(2) as (a, b):
            for result in (ANSWER, EMPTY, recording(b"x" * 300_000)):
                fence = await a.run("n", fresh_ms=-1)
                assert await a.seal(fence, result) == Done()
                await self.advance(1_000)
                assert await b.claim() == Answered(fence.number, "flight-n", result.size, age_ms=1_000, ttl_ms=9_000)
                assert await b.result(fence.number) == result
                assert await b.result(fence.number + 1) is None

    async def test_a_seal_sent_twice_is_accepted_once(self) -> None:
        async with self.parties(1) as (a,):
            for retention_ms in (10_000, 0):
                fence = await a.run(fresh_ms=-1)
                assert await a.seal(fence, retention_ms=retention_ms) == Done()
                assert await a.seal(fence, OLDER, retention_ms=retention_ms) == Done(duplicate=True)
                assert await a.result(fence.number) == ANSWER

    async def test_a_last_word_sent_twice_is_known_behind_a_new_claim(self) -> None:
        async with self.parties(2) as (a, b):
            kept = await a.run()
            await a.seal(kept)
            unkept = await a.run(fresh_ms=-1)
            await a.seal(unkept, retention_ms=0)
            newer = await b.run(fresh_ms=-1)
            assert await a.seal(kept) == Done(duplicate=True)
            assert await a.seal(unkept, retention_ms=0) == Done(duplicate=True)
            assert await a.fail(unkept) == FENCED
            await b.fail(newer)
            await a.run(fresh_ms=-1)
            assert await b.fail(newer) == Done(duplicate=True)
            assert await b.seal(newer) == FENCED

    async def test_of_two_attempts_that_seal_one_is_accepted(self) -> None:
        async with self.parties(3) as (a, b, c):
            old = await a.run()
            await self.advance(1_001)
            new = await b.run()
            tasks = Tasks("seals")
            stale, accepted = tasks.spawn(a.seal(old, OLDER), "old"), tasks.spawn(b.seal(new), "new")
            assert await tasks.wait_idle(PATIENCE_S)
            assert (stale.result(), accepted.result()) == (FENCED, Done())
            assert await c.result(new.number) == ANSWER
            assert await c.result(old.number) is None

    async def test_an_answer_is_as_fresh_as_asked_for(self) -> None:
        async with self.parties(2) as (a, b):
            await a.seal(await a.run(), retention_ms=10_000)
            assert isinstance(await b.look(fresh_ms=0), Answered)
            assert await b.look(fresh_ms=-1) == Absent()
            await self.advance(500)
            assert isinstance(await b.look(fresh_ms=None), Answered)
            assert isinstance(await b.look(fresh_ms=500), Answered)
            assert await b.look(fresh_ms=499) == Absent()
            assert await b.look(fresh_ms=0) == Absent()
            await self.advance(9_500)
            assert isinstance(await b.look(), Answered)
            await self.advance(1)
            assert await b.look() == Absent()
            assert isinstance(await b.claim(), Owned)

    async def test_an_unkept_result_is_for_those_who_followed(self) -> None:
        async with self.parties(3) as (a, b, c):
            fence = await a.run("n")
            await b.claim()
            assert await a.seal(fence, retention_ms=0, grace_ms=2_000) == Done()
            assert await c.look() == Absent()
            await self.advance(500)
            assert await b.claim(follow=fence.number) == Answered(
                fence.number, "flight-n", ANSWER.size, age_ms=0, ttl_ms=1_500, kept=False
            )
            assert await b.result(fence.number) == ANSWER
            assert isinstance(await c.claim(), Owned)
            assert isinstance(await b.claim(follow=fence.number), Answered)
            assert await b.result(fence.number) == ANSWER

    async def test_an_unkept_result_is_told_for_its_grace(self) -> None:
        async with self.parties(2) as (a, b):
            fence = await a.run()
            await a.seal(fence, retention_ms=0, grace_ms=2_000)
            await self.advance(2_000)
            assert isinstance(await b.look(follow=fence.number), Answered)
            await self.advance(1)
            assert await b.look(follow=fence.number) == Absent()

    async def test_a_fault_is_told_to_followers_and_forgotten_for_newcomers(self) -> None:
        async with self.parties(3) as (a, b, c):
            for starts in (False, True):
                fence = await a.own(f"n-{starts}", direct=starts)
                assert await a.fail(fence, grace_ms=2_000) == Done()
                assert await a.fail(fence) == Done(duplicate=True)
                told = Faulted(fence.number, f"flight-n-{starts}", FAULT, ttl_ms=2_000)
                assert await b.claim(follow=fence.number) == told
                newer = await c.own()
                assert await b.claim(follow=fence.number) == told
                await c.abandon(newer)
                assert await b.claim(follow=fence.number) == told
                await self.advance(2_001)
                assert await b.look(follow=fence.number) == Absent()

    async def test_what_came_before_a_fault_can_be_read_while_it_is_told(self) -> None:
        async with self.parties(2) as (a, b):
            fence = await a.run()
            await a.append(fence, 1)
            await a.append(fence, 2)
            await a.fail(fence)
            assert [index for index, _ in await b.log(fence.number, after=1)] == [2]

    async def test_a_retryable_fault_at_the_last_attempt_is_final_and_no_poison(self) -> None:
        async with self.parties(2) as (a, b):
            for _ in range(2):
                assert await a.fail(await a.run(), retry=True) == Retrying()
            last = await a.run()
            assert await a.fail(last, retry=True) == Done()
            assert isinstance(await b.claim(follow=last.number), Faulted)
            assert isinstance(await b.claim(), Owned)

    async def test_a_retryable_fault_sent_twice_is_one(self) -> None:
        async with self.parties(1) as (a,):
            fence = await a.run()
            assert await a.fail(fence, retry=True) == Retrying()
            assert await a.fail(fence, retry=True) == Retrying(duplicate=True)
            reply = await a.claim()
            assert isinstance(reply, Owned)
            assert reply.attempt == 2

    async def test_a_refresh_is_shared_and_replaces_the_answer_when_sealed(self) -> None:
        async with self.parties(3) as (a, b, c):
            old, new = await self.refreshed(a, b)
            during = await c.claim()
            assert isinstance(during, Answered)
            assert during.number == old.number
            joined = await c.claim(fresh_ms=-1)
            assert isinstance(joined, Joined)
            assert joined.number == new.number
            assert await b.seal(new) == Done()
            after = await c.claim()
            assert isinstance(after, Answered)
            assert (after.number, after.age_ms) == (new.number, 0)
            assert await c.result(new.number) == ANSWER

    async def test_a_refresh_that_fails_leaves_the_answer(self) -> None:
        async with self.parties(3) as (a, b, c):
            for end in ("fail", "unkept", "abandon", "lost"):
                old, new = await self.refreshed(a, b)
                match end:
                    case "fail":
                        await b.fail(new)
                    case "unkept":
                        await b.seal(new, retention_ms=0)
                    case "abandon":
                        assert await b.abandon(new) == Dropped()
                    case _:
                        await self.advance(1_001)
                reply = await c.claim()
                assert isinstance(reply, Answered)
                assert reply.number == old.number
                assert await c.result(old.number) == OLDER

    async def refreshed(self, a: Party, b: Party) -> tuple[Fence, Fence]:
        """An answer by ``a``, and over it a refresh by ``b`` that runs."""
        old = await a.run(fresh_ms=-1, max_attempts=99)
        await a.seal(old, OLDER)
        return old, await b.run(fresh_ms=-1)

    async def test_purge_forgets_the_kept_answer_only(self) -> None:
        async with self.parties(2) as (a, b):
            assert await b.coordinator.purge(b.key) is False
            _, new = await self.refreshed(a, b)
            assert await b.coordinator.purge(b.key) is True
            assert await b.coordinator.purge(b.key) is False
            joined = await a.claim()
            assert isinstance(joined, Joined)
            assert joined.number == new.number
            await b.seal(new, retention_ms=0)
            assert await b.coordinator.purge(b.key) is False
            assert isinstance(await a.claim(follow=new.number), Answered)

    async def test_purge_leaves_nothing_of_a_complete_flight(self) -> None:
        async with self.parties(2) as (a, b):
            fence = await a.run()
            await a.seal(fence)
            assert await b.coordinator.purge(b.key) is True
            assert await a.result(fence.number) is None
            assert await a.look() == Absent()

    async def test_a_flight_that_nobody_watches_can_be_dropped(self) -> None:
        async with self.parties(2) as (a, b):
            for starts in (False, True):
                fence = await a.own(direct=starts)
                assert await a.abandon(fence) == Dropped()
                assert await a.abandon(fence) == Dropped()
                assert await a.seal(fence) == GONE
                assert await b.look() == Absent()
                assert await b.log(fence.number) == []

    async def test_a_watched_flight_is_kept_unless_by_force(self) -> None:
        async with self.parties(3) as (a, b, c):
            fence = await a.run()
            await b.claim()
            await c.claim(watch_ms=300)
            assert await a.abandon(fence) == Kept(2)
            assert await a.abandon(fence) == Kept(2)
            await self.advance(301)
            assert await a.abandon(fence) == Kept(1)
            assert await a.append(fence, 1) == Done(watchers=1)
            await b.leave(fence.number + 1)
            assert await a.abandon(fence) == Kept(1)
            assert await a.abandon(fence, force=True) == Dropped()
            assert await b.look() == Absent()

    async def test_nobody_joins_a_flight_that_is_being_dropped(self) -> None:
        async with self.parties(2) as (a, b):
            seen = set()
            for first in (a.name, b.name) * 20:
                fence = await a.run()
                tasks = Tasks("race")
                works = {"a": a.abandon(fence), "b": b.claim()}
                running = {name: tasks.spawn(works[name], name) for name in sorted(works, reverse=first == "b")}
                assert await tasks.wait_idle(PATIENCE_S)
                outcome = (type(running["a"].result()), reply := running["b"].result())
                seen.add((outcome[0], type(reply)))
                last = reply.fence if isinstance(reply, Owned) else fence
                assert await a.abandon(last, force=True) == Dropped()
            assert seen <= {(Kept, Joined), (Dropped, Owned)}
