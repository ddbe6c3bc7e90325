"""Laws of an owner's tenure: start, renew and append; the fence; the log that followers read."""

from __future__ import annotations

from soloflight.core.flight import Done, Fence, Gap, Joined, Owned, Refusal, Refused, Stale
from soloflight.core.frames import Body, End
from soloflight.testing.laws import FENCED, GONE, Laws
from soloflight.testing.party import FAULT, HEAD, Party

EXPIRED = Refused(Refusal.EXPIRED)
STALLED = Refused(Refusal.STALLED)


class TenureLaws(Laws):
    """What an owner may do, and what it may not do any more."""

    async def test_without_a_record_an_owner_is_told_that_it_is_gone(self) -> None:
        async with self.parties(1) as (a,):
            fence = Fence(1, "nobody")
            assert await a.start(fence) == GONE
            assert await a.renew(fence) == GONE
            assert await a.append(fence, 1) == GONE
            assert await a.seal(fence) == GONE
            assert await a.fail(fence) == GONE

    async def test_start_is_executed_once(self) -> None:
        async with self.parties(1) as (a,):
            fence = await a.own()
            assert await a.append(fence, 1) == FENCED
            assert await a.seal(fence) == FENCED
            assert await a.start(fence) == Done()
            assert await a.start(fence) == Done(duplicate=True)

    async def test_a_renewed_lease_does_not_lapse(self) -> None:
        async with self.parties(2) as (a, b):
            fence = await a.own()
            for _ in range(3):
                await self.advance(900)
                assert await a.renew(fence) == Done()
            assert isinstance(await b.look(), Joined)
            await self.advance(1_001)
            assert isinstance(await b.look(), Stale)
            assert await a.renew(fence) == Done()
            assert isinstance(await b.look(), Joined)

    async def test_to_beat_is_not_to_work(self) -> None:
        async with self.parties(2) as (a, b):
            fence = await a.run(first_byte_ms=500)
            await self.advance(500)
            assert await a.renew(fence, progress=0, progress_ms=500) == Done()
            await self.advance(1)
            assert await a.renew(fence, progress=0, progress_ms=500) == STALLED
            assert isinstance(await b.look(), Stale)
            assert await a.renew(fence, progress=1, progress_ms=400) == Done()
            await self.advance(401)
            assert await a.renew(fence, progress=1, progress_ms=400) == STALLED
            assert await a.append(fence, 1, progress=1) == STALLED
            assert await a.append(fence, 1, progress=2) == Done()

    async def test_no_lease_outlives_the_deadline(self) -> None:
        async with self.parties(2) as (a, b):
            fence = await a.run(deadline_ms=700)
            await self.advance(700)
            assert await a.renew(fence, progress=1) == Done()
            await self.advance(1)
            assert await a.renew(fence, progress=2) == EXPIRED
            assert await a.append(fence, 1) == EXPIRED
            assert isinstance(await b.look(), Stale)
            pending = await b.own(deadline_ms=700)
            await self.advance(701)
            assert await b.start(pending) == EXPIRED

    async def test_a_log_is_contiguous_and_read_from_anywhere(self) -> None:
        async with self.parties(2) as (a, b):
            fence = await a.run()
            batches = [
                (1, (HEAD, Body(b"\x00\xff\r\n"))),
                (2, (Body(b"x" * 70_000),)),
                (3, (Body(b"last"), End(FAULT))),
                (4, (End(),)),
            ]
            assert await b.log(fence.number) == []
            for index, frames in batches:
                assert await a.append(fence, index, *frames) == Done()
            assert await b.log(fence.number) == batches
            assert await b.log(fence.number, after=2) == batches[2:]
            assert await b.log(fence.number, after=4) == []
            assert await b.log(fence.number + 1) == []
            joined = await b.look()
            assert isinstance(joined, Joined)
            assert joined.frames == 4

    async def test_a_batch_sent_twice_is_stored_once_and_none_is_skipped(self) -> None:
        async with self.parties(1) as (a,):
            fence = await a.run()
            assert await a.append(fence, 2) == Gap(0)
            assert await a.append(fence, 1) == Done()
            assert await a.append(fence, 1) == Done(duplicate=True)
            assert await a.append(fence, 3) == Gap(1)
            assert await a.append(fence, 2) == Done()
            assert await a.append(fence, 1) == Done(duplicate=True)
            assert [index for index, _ in await a.log(fence.number)] == [1, 2]

    async def test_watchers_are_counted_while_they_watch(self) -> None:
        async with self.parties(3) as (a, b, c):
            fence = await a.run()
            assert await a.renew(fence) == Done(watchers=0)
            await b.claim()
            await b.claim()
            await c.claim(watch_ms=300)
            assert await a.renew(fence) == Done(watchers=2)
            assert await a.append(fence, 1) == Done(watchers=2)
            await self.advance(301)
            assert await a.renew(fence) == Done(watchers=1)
            assert await b.leave(fence.number) == Done()
            assert await b.leave(fence.number) == Done(duplicate=True)
            assert await a.renew(fence) == Done(watchers=0)

    async def test_after_a_takeover_the_old_owner_writes_nothing(self) -> None:
        async with self.parties(3) as (a, b, c):
            old = await a.run()
            await a.append(old, 1)
            await self.advance(1_001)
            new = await b.run()
            await b.append(new, 1)
            await self.every_write_is_fenced(a, old)
            assert await b.append(new, 2) == Done()
            assert await c.log(new.number) == [(index, (Body(f"{new.nonce}/{index}".encode()),)) for index in (1, 2)]
            assert await b.seal(new) == Done()

    async def test_both_parts_of_the_fence_are_compared(self) -> None:
        async with self.parties(1) as (a,):
            fence = await a.run()
            await self.every_write_is_fenced(a, Fence(fence.number, "another"))
            await self.every_write_is_fenced(a, Fence(fence.number + 1, fence.nonce))
            assert await a.append(fence, 1) == Done()

    async def every_write_is_fenced(self, party: Party, fence: Fence) -> None:
        assert await party.start(fence) == FENCED
        assert await party.renew(fence, progress=99) == FENCED
        assert await party.append(fence, 2) == FENCED
        assert await party.seal(fence) == FENCED
        assert await party.fail(fence) == FENCED
        assert await party.fail(fence, retry=True) == FENCED
        assert await party.abandon(fence, force=True) == FENCED

    async def test_an_attempt_that_ended_writes_nothing(self) -> None:
        async with self.parties(1) as (a,):
            for end in ("seal", "fail", "retry"):
                fence = await a.run(fresh_ms=-1)
                match end:
                    case "seal":
                        await a.seal(fence)
                    case "fail":
                        await a.fail(fence)
                    case _:
                        await a.fail(fence, retry=True)
                assert await a.start(fence) == FENCED
                assert await a.renew(fence, progress=9) == FENCED
                assert await a.append(fence, 1) == FENCED

    async def test_a_lapse_that_nobody_took_costs_nothing(self) -> None:
        async with self.parties(2) as (a, b):
            fence = await a.own()
            await self.advance(5_000)
            assert await a.start(fence) == Done()
            await self.advance(5_000)
            assert await a.append(fence, 1) == Done()
            await self.advance(60_000)
            assert await a.seal(fence) == Done()
            assert not isinstance(await b.claim(), Owned)
