"""Laws of the claim: one owner, followers who join, takeovers, retries, poison, payloads."""

from __future__ import annotations

from soloflight.core.errors import Code
from soloflight.core.flight import (
    Absent,
    Answered,
    Faulted,
    Fence,
    Joined,
    Mismatch,
    Owned,
    Retrying,
    Stale,
    State,
    Wait,
)
from soloflight.flow.tasks import Tasks
from soloflight.testing.laws import FENCED, Laws
from soloflight.testing.party import PATIENCE_S, Party


class ClaimLaws(Laws):
    """Who owns, who joins, who waits."""

    async def test_the_first_owns_and_the_second_joins(self) -> None:
        async with self.parties(2) as (a, b):
            reply = await a.claim("nonce-a")
            assert isinstance(reply, Owned)
            assert (reply.flight, reply.attempt, reply.state) == ("flight-nonce-a", 1, State.PENDING)
            assert reply.fence.nonce == "nonce-a"
            assert await b.claim() == Joined(
                reply.fence.number, "flight-nonce-a", "a", State.PENDING, frames=0, due_ms=1_001
            )

    async def test_a_direct_claim_is_running(self) -> None:
        async with self.parties(2) as (a, b):
            reply = await a.claim(direct=True)
            assert isinstance(reply, Owned)
            assert reply.state is State.RUNNING
            joined = await b.claim()
            assert isinstance(joined, Joined)
            assert joined.state is State.RUNNING

    async def test_of_many_claims_at_once_one_owns(self) -> None:
        async with self.parties(4) as parties:
            tasks = Tasks("claims")
            running = [tasks.spawn(party.claim(), party.name) for party in parties for _ in range(10)]
            assert await tasks.wait_idle(PATIENCE_S)
            replies = [task.result() for task in running]
            (owned,) = [reply for reply in replies if isinstance(reply, Owned)]
            others = [reply for reply in replies if not isinstance(reply, Owned)]
            assert {type(reply) for reply in others} == {Joined}
            assert {reply.number for reply in others if isinstance(reply, Joined)} == {owned.fence.number}

    async def test_a_claim_sent_twice_owns_once(self) -> None:
        async with self.parties(1) as (a,):
            for direct in (False, True):
                asked = a.asked(direct=direct)
                first = await a.coordinator.step(a.key, asked)
                assert isinstance(first, Owned)
                assert await a.coordinator.step(a.key, asked) == first
                await a.abandon(first.fence)

    async def test_a_look_never_owns(self) -> None:
        async with self.parties(2) as (a, b):
            assert await b.look() == Absent()
            fence = await a.own()
            assert isinstance(await b.look(), Joined)
            await self.advance(1_001)
            assert await b.look() == Stale(fence.number)

    async def test_what_is_due_is_told_to_the_millisecond(self) -> None:
        async with self.parties(2) as (a, b):
            bounds = [(300, 500, 700), (700, 300, 500), (700, 500, 300), (500, 0, 700)]
            for running_ms, first_byte_ms, deadline_ms in bounds:
                nearest = min(bound for bound in (running_ms, first_byte_ms, deadline_ms) if bound)
                fence = await a.run(running_ms=running_ms, first_byte_ms=first_byte_ms, deadline_ms=deadline_ms)
                joined = await b.look()
                assert isinstance(joined, Joined)
                assert joined.due_ms == nearest + 1
                await self.advance(nearest)
                assert isinstance(await b.look(), Joined)
                await self.advance(1)
                assert await b.look() == Stale(fence.number)
                await a.abandon(fence)

    async def test_a_lapsed_attempt_is_taken_over_once(self) -> None:
        async with self.parties(3) as (a, b, c):
            first = await a.run("first")
            await self.advance(1_001)
            reply = await b.claim()
            assert isinstance(reply, Owned)
            assert (reply.flight, reply.attempt) == ("flight-first", 2)
            assert reply.fence.number > first.number
            assert isinstance(await c.claim(), Joined)

    async def test_a_retry_is_waited_for_and_then_taken(self) -> None:
        async with self.parties(2) as (a, b):
            fence = await a.run()
            assert await a.fail(fence, retry=True, backoff_ms=500) == Retrying()
            assert await b.claim() == Wait(fence.number, 500)
            await self.advance(499)
            assert await b.claim() == Wait(fence.number, 1)
            await self.advance(1)
            assert await b.look() == Stale(fence.number)
            reply = await b.claim()
            assert isinstance(reply, Owned)
            assert reply.attempt == 2

    async def test_lost_owners_poison_the_key(self) -> None:
        async with self.parties(2) as (a, b):
            fence = await self.lose_every_attempt(a)
            reply = await b.claim()
            assert isinstance(reply, Faulted)
            assert reply.fault.code is Code.ATTEMPTS_EXHAUSTED
            assert (reply.number, reply.ttl_ms, reply.fault.retry_after_s) == (fence.number, 5_000, 5)
            await self.advance(2_000)
            for asked in ({}, {"follow": fence.number}, {"claim": False}):
                reply = await a.claim(**asked)
                assert isinstance(reply, Faulted)
                assert reply.ttl_ms == 3_000
            assert await a.seal(fence) == FENCED
            await self.advance(3_001)
            owned = await b.claim()
            assert isinstance(owned, Owned)
            assert owned.attempt == 1

    async def test_poison_0_is_told_to_followers_and_not_remembered(self) -> None:
        async with self.parties(2) as (a, b):
            fence = await self.lose_every_attempt(a)
            assert isinstance(await b.claim(poison_ms=0), Faulted)
            assert isinstance(await b.claim(follow=fence.number), Faulted)
            assert isinstance(await b.claim(), Owned)

    async def lose_every_attempt(self, party: Party) -> Fence:
        """Three attempts, each lapsed; returns the last fence."""
        fence = await party.run()
        for _ in range(2):
            await self.advance(1_001)
            fence = await party.run()
        await self.advance(1_001)
        return fence

    async def test_another_payload_is_a_mismatch(self) -> None:
        async with self.parties(2) as (a, b):
            fence = await a.run(payload="x")
            assert await b.claim(payload="y") == Mismatch()
            assert isinstance(await b.claim(payload="x"), Joined)
            assert isinstance(await b.claim(payload=""), Joined)
            await a.seal(fence)
            assert await b.claim(payload="y") == Mismatch()
            assert isinstance(await b.claim(payload="x"), Answered)
            await self.advance(10_001)
            assert isinstance(await b.claim(payload="y"), Owned)

    async def test_a_failed_try_may_be_run_with_another_payload(self) -> None:
        async with self.parties(2) as (a, b):
            await a.fail(await a.run(payload="x"))
            assert isinstance(await b.claim(payload="y"), Owned)

    async def test_numbers_rise_with_every_attempt(self) -> None:
        async with self.parties(1) as (a,):
            numbers = []
            for _ in range(5):
                fence = await a.run()
                await a.fail(fence, retry=True)
                numbers.append(fence.number)
                fence = await a.run(max_attempts=9)
                await a.seal(fence, retention_ms=0)
                numbers.append(fence.number)
            assert numbers == sorted(set(numbers))

    async def test_a_clock_that_steps_back_does_not_freeze_a_lapse(self) -> None:
        async with self.parties(2) as (a, b):
            fence = await a.run()
            await self.advance(-30_000)
            joined = await b.look()
            assert isinstance(joined, Joined)
            assert joined.due_ms <= 1_001
            await self.advance(1_001)
            assert await b.look() == Stale(fence.number)
            reply = await b.claim()
            assert isinstance(reply, Owned)
            assert reply.fence.number > fence.number
