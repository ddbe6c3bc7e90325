"""The law of session locks, as tests: what ``ports.SessionLocks`` promises, whatever stands behind it.

A subclass gives ``make_nodes`` and ``advance``, as for ``soloflight.testing.conformance.CoordinatorConformance``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from secrets import token_hex
from typing import Any

from soloflight.core.flight import Done, Fence, Refusal, Refused
from soloflight.core.session import (
    REMEMBERED_MS,
    Acquire,
    Busy,
    Granted,
    Held,
    Hold,
    Queued,
    Release,
    SessionNotice,
    SessionNoticeKind,
    SessionReply,
    Withdraw,
)
from soloflight.ports import Coordinator
from soloflight.testing.laws import Laws
from soloflight.testing.party import Inbox

__all__ = ["SessionLockConformance"]

FENCED = Refused(Refusal.FENCED)
LEASE_MS = 1_000
TICKET_MS = 600

Told = tuple[str, SessionNotice]


class Visitor:
    """One open node at one session key. Each method executes one operation and returns the reply."""

    def __init__(self, name: str, coordinator: Coordinator, key: str) -> None:
        self.name = name
        self.coordinator = coordinator
        self.key = key
        self.told: Inbox[Told] = Inbox()
        self.nonce = token_hex(16)

    def __repr__(self) -> str:
        return f"Visitor({self.name!r}, {self.key!r})"

    def take(self, key: str, notice: SessionNotice) -> None:
        """The node's ``on_session``."""
        self.told((key, notice))

    async def ask(self, **more: Any) -> SessionReply:
        """Acquire: lease 1 s, ticket 0.6 s, at most 10 in the queue."""
        asked: dict[str, Any] = {
            "nonce": self.nonce,
            "node": self.name,
            "flight": f"{self.name}'s flight",
            "lease_ms": LEASE_MS,
            "ticket_ms": TICKET_MS,
            "max_queue": 10,
        }
        return await self.coordinator.session_step(self.key, Acquire(**{**asked, **more}))

    async def own(self, **more: Any) -> Fence:
        """Acquire, expecting the lock."""
        reply = await self.ask(**more)
        assert isinstance(reply, Granted), reply
        return reply.fence

    async def queue(self, **more: Any) -> int:
        """Acquire, expecting to wait; the rank."""
        reply = await self.ask(**more)
        assert isinstance(reply, Queued), reply
        return reply.rank

    async def hold(self, fence: Fence, *, keep: bool = False) -> SessionReply:
        return await self.coordinator.session_step(self.key, Hold(fence, LEASE_MS, keep))

    async def release(self, fence: Fence) -> SessionReply:
        return await self.coordinator.session_step(self.key, Release(fence))

    async def withdraw(self, nonce: str = "") -> SessionReply:
        return await self.coordinator.session_step(self.key, Withdraw(nonce or self.nonce))

    async def hears(self, told: Told) -> None:
        """Wait until this has come, among others."""
        await self.told.until(lambda items: told in items)

    def turn(self, nonce: str = "") -> Told:
        return self.key, SessionNotice(SessionNoticeKind.TURN, nonce or self.nonce)

    def contest(self, waiting: int) -> Told:
        return self.key, SessionNotice(SessionNoticeKind.CONTEST, self.nonce, waiting)

    def kept(self) -> Told:
        return self.key, SessionNotice(SessionNoticeKind.KEPT, self.nonce)


class SessionLockConformance(Laws):
    """All laws of session locks. A subclass named ``Test…`` gives ``make_nodes`` and ``advance``."""

    @asynccontextmanager
    async def visitors(self, count: int, key: str = "") -> AsyncIterator[Sequence[Visitor]]:
        """``count`` open nodes, named a, b, c, …, at one session key; a fresh one unless it is given."""
        nodes = await self.make_nodes(count)
        key = key or token_hex(20)
        async with AsyncExitStack() as opened:
            visitors = [Visitor(chr(ord("a") + at), node, key) for at, node in enumerate(nodes)]
            for visitor in visitors:
                await visitor.coordinator.open(visitor.name, lambda key: None, visitor.take)
                opened.push_async_callback(visitor.coordinator.close)
            yield visitors

    # ── one holder ──────────────────────────────────────────────────────────────────────────────────────────

    async def test_one_holds_and_the_others_wait_by_arrival(self) -> None:
        async with self.visitors(4) as (a, *others):
            fence = await a.own()
            assert [await other.queue() for other in others] == [0, 1, 2]
            assert [await other.queue() for other in reversed(others)] == [2, 1, 0]
            served, before = [], a
            for other in others:
                assert await before.release(fence) == Done()
                fence, before = await other.own(), other
                served.append(fence.number)
            assert served == sorted(set(served))
            assert await before.hold(fence) == Held(0)

    async def test_the_first_at_a_free_lock_is_told_and_nobody_else(self) -> None:
        async with self.visitors(3) as (a, b, c):
            fence = await a.own()
            await b.queue()
            await c.queue()
            await a.release(fence)
            await b.told.holds(b.turn())
            second = await b.own()
            await b.release(second)
            await c.told.holds(c.turn())
            assert b.told.items == [b.turn()]

    async def test_what_is_executed_twice_is_done_once(self) -> None:
        async with self.visitors(3) as (a, b, c):
            fence = await a.own()
            assert await a.own() == fence
            assert [await b.queue(), await b.queue()] == [0, 0]
            assert await c.queue() == 1
            assert [await a.release(fence), await a.release(fence)] == [Done(), Done(duplicate=True)]
            assert [await c.withdraw(), await c.withdraw()] == [Done(), Done(duplicate=True)]
            second = await b.own()
            assert await a.release(fence) == Done(duplicate=True)
            assert await b.hold(second) == Held(0)

    async def test_a_lock_is_found_again_when_the_reply_was_lost(self) -> None:
        async with self.visitors(2) as (a, b):
            fence = await a.own()
            await b.queue()
            assert await a.ask() == Granted(fence, 1)

    async def test_a_fence_is_compared_in_both_parts(self) -> None:
        async with self.visitors(2) as (a, b):
            fence = await a.own()
            await b.queue()
            for wrong in (Fence(fence.number + 1, fence.nonce), Fence(fence.number, b.nonce)):
                assert await b.hold(wrong) == FENCED
                assert await b.release(wrong) == Done(duplicate=True)
            assert await a.hold(fence) == Held(1)

    async def test_a_lock_that_nobody_knows(self) -> None:
        async with self.visitors(1) as (a,):
            assert await a.hold(Fence(1, a.nonce)) == FENCED
            assert await a.release(Fence(1, a.nonce)) == Done(duplicate=True)
            assert await a.withdraw() == Done(duplicate=True)

    async def test_contenders_never_overlap(self) -> None:
        async with self.visitors(3) as nodes:
            waiting = [(node, token_hex(16)) for _ in range(5) for node in nodes]
            fences = [await self._come(node, nonce) for node, nonce in waiting]
            assert [fence is None for fence in fences] == [False] + [True] * (len(waiting) - 1)
            for at, (node, nonce) in enumerate(waiting):
                if at:
                    await node.hears(node.turn(nonce))
                    assert not [1 for other, late in waiting[at + 1 :] if await self._come(other, late)]
                fence = await self._come(node, nonce)
                assert fence is not None
                assert not [1 for other, late in waiting[at + 1 :] if await self._come(other, late)]
                assert await node.release(fence) == Done()

    async def _come(self, node: Visitor, nonce: str) -> Fence | None:
        reply = await node.ask(nonce=nonce, max_queue=100)
        return reply.fence if isinstance(reply, Granted) else None

    # ── leases and tickets ──────────────────────────────────────────────────────────────────────────────────

    async def test_a_dead_holder_frees_the_lock_within_its_lease(self) -> None:
        async with self.visitors(2) as (a, b):
            dead = await a.own()
            await self.advance(LEASE_MS)
            assert await b.ask() == Queued(0, 1)
            await self.advance(1)
            fence = await b.own()
            assert fence.number > dead.number
            assert await a.hold(dead) == FENCED
            assert await a.release(dead) == Done(duplicate=True)
            assert await b.hold(fence) == Held(0)

    async def test_a_renewed_lease_lasts(self) -> None:
        async with self.visitors(2) as (a, b):
            fence = await a.own()
            for _ in range(3):
                await self.advance(LEASE_MS)
                assert await a.hold(fence) == Held(0)
            assert await b.ask() == Queued(0, TICKET_MS // 3)

    async def test_a_late_holder_goes_on_only_if_nobody_waits(self) -> None:
        async with self.visitors(2) as (a, b):
            fence = await a.own()
            await self.advance(LEASE_MS + 1)
            assert await a.hold(fence) == Held(0)
            await b.queue(ticket_ms=5_000)
            await self.advance(LEASE_MS + 1)
            assert await a.hold(fence) == FENCED
            await b.told.holds(b.turn())
            await b.own()

    async def test_dead_waiters_do_not_block_the_queue(self) -> None:
        async with self.visitors(4) as (a, dead, dead_too, b):
            fence = await a.own()
            await dead.queue()
            await dead_too.queue()
            assert await b.queue(ticket_ms=5_000) == 2
            await self.advance(TICKET_MS + 1)
            await a.release(fence)
            await b.told.holds(b.turn())
            await b.own()

    async def test_a_first_that_dies_at_its_turn_is_passed_over(self) -> None:
        async with self.visitors(3) as (a, dead, b):
            fence = await a.own()
            await dead.queue()
            await b.queue(ticket_ms=5_000)
            await a.release(fence)
            assert await b.ask(ticket_ms=5_000) == Queued(1, TICKET_MS + 1)
            await self.advance(TICKET_MS + 1)
            await b.own()

    async def test_waiters_that_leave_do_not_block_the_queue(self) -> None:
        async with self.visitors(4) as (a, b, c, d):
            fence = await a.own()
            for node in (b, c, d):
                await node.queue()
            await c.withdraw()
            await a.release(fence)
            await b.withdraw()
            await d.told.holds(d.turn())
            await d.own()

    async def test_a_grant_is_taken_back_by_its_nonce(self) -> None:
        async with self.visitors(2) as (a, b):
            await a.own()
            await b.queue()
            assert await a.withdraw() == Done()
            await b.told.holds(b.turn())
            await b.own()

    async def test_a_clock_that_steps_back_leaves_what_was_left(self) -> None:
        async with self.visitors(2) as (a, b):
            fence = await a.own()
            await b.queue()
            await self.advance(-500_000)
            assert await a.hold(fence) == Held(1)
            await self.advance(TICKET_MS + 1)
            assert await a.hold(fence) == Held(0)
            await self.advance(LEASE_MS + 1)
            assert (await b.own()).number > fence.number

    async def test_what_is_long_over_counts_as_nothing(self) -> None:
        async with self.visitors(2) as (a, b):
            fence = await a.own()
            await self.advance(LEASE_MS + REMEMBERED_MS + 1)
            assert await a.hold(fence) == FENCED
            assert await a.release(fence) == Done(duplicate=True)
            assert (await b.own(max_queue=0)).number > fence.number

    # ── those who do not wait ───────────────────────────────────────────────────────────────────────────────

    async def test_who_does_not_wait_is_busy_and_takes_no_place(self) -> None:
        async with self.visitors(3) as (a, b, c):
            fence = await a.own()
            assert await b.ask(max_queue=0) == Busy(LEASE_MS + 1, 0)
            assert await c.queue() == 0
            await a.release(fence)
            assert await b.ask(max_queue=0) == Busy(TICKET_MS + 1, 1)
            await c.release(await c.own())
            await b.own(max_queue=0)

    async def test_the_queue_has_a_bound(self) -> None:
        async with self.visitors(3) as (a, b, c):
            await a.own()
            assert await b.queue(max_queue=1) == 0
            assert await c.ask(max_queue=1) == Busy(LEASE_MS + 1, 1)
            assert await b.queue(max_queue=1) == 0

    # ── contests ────────────────────────────────────────────────────────────────────────────────────────────

    async def test_the_holder_hears_of_newcomers_and_the_first_of_its_answer(self) -> None:
        async with self.visitors(4) as (a, b, c, d):
            fence = await a.own()
            await b.queue()
            await c.queue()
            await c.queue()
            await d.ask(max_queue=0)
            await b.queue()
            await a.told.holds(a.contest(1), a.contest(2), a.contest(2), a.contest(2))
            assert await a.hold(fence, keep=True) == Held(2)
            await b.told.holds(b.kept())
            assert c.told.items == d.told.items == []

    # ── keys and nodes ──────────────────────────────────────────────────────────────────────────────────────

    async def test_sessions_do_not_touch_each_other(self) -> None:
        async with self.visitors(2) as (a, b):
            fence = await a.own()
            b.key = "other-" + a.key
            other = await b.own()
            assert await b.release(fence) == Done(duplicate=True)
            assert await b.hold(other) == Held(0)
            assert await a.hold(fence) == Held(0)
            assert a.told.items == b.told.items == []

    async def test_a_closed_node_is_not_told_anything(self) -> None:
        async with self.visitors(3) as (a, b, c):
            fence = await a.own()
            await b.queue()
            await c.queue()
            await b.coordinator.close()
            await a.release(fence)
            await self.advance(TICKET_MS + 1)
            await c.own()
            assert b.told.items == []

    async def test_a_listener_that_raises_harms_nobody(self) -> None:
        nodes = await self.make_nodes(2)
        a, b = (Visitor(name, node, "raises-" + token_hex(8)) for name, node in zip("ab", nodes, strict=True))
        b.key = a.key

        def broken(key: str, notice: SessionNotice) -> None:
            raise RuntimeError(notice.kind.name)

        await a.coordinator.open(a.name, lambda key: None, broken)
        await b.coordinator.open(b.name, lambda key: None, b.take)
        try:
            fence = await a.own()
            await b.queue()
            assert await a.release(fence) == Done()
            await b.told.holds(b.turn())
        finally:
            await a.coordinator.close()
            await b.coordinator.close()
