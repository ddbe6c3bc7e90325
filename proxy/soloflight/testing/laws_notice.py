"""Laws of notices and rings, and of what a coordinator is beside its flights."""

from __future__ import annotations

from soloflight.core.flight import Joined, Notice, NoticeKind
from soloflight.core.frames import Body
from soloflight.testing.laws import Laws
from soloflight.testing.party import ANSWER, HEAD, Party, kinds


class NoticeLaws(Laws):
    """Who is told what."""

    async def test_a_subscriber_sees_a_flight_from_start_to_seal(self) -> None:
        async with self.parties(2) as (a, b):
            fence = await a.own()
            here, _ = await a.listen()
            there, _ = await b.listen()
            frames = (HEAD, Body(b"\x00\xff"))
            await a.start(fence)
            await a.append(fence, 1, *frames)
            await a.seal(fence)
            told = (
                Notice(NoticeKind.STARTED, fence.number),
                Notice(NoticeKind.APPENDED, fence.number, 1, frames),
                Notice(NoticeKind.SEALED, fence.number, ANSWER.size),
            )
            await here.holds(*told)
            await there.holds(*told)

    async def test_what_is_executed_twice_is_told_once(self) -> None:
        async with self.parties(2) as (a, b):
            there, _ = await b.listen()
            fence = await a.own()
            for _ in range(2):
                await a.start(fence)
            for _ in range(2):
                await a.append(fence, 1)
            for _ in range(2):
                await a.seal(fence)
            last = await a.run(fresh_ms=-1)
            for _ in range(2):
                await a.fail(last)
            await there.until(lambda notices: NoticeKind.FAILED in kinds(notices))
            assert kinds(there.items) == [
                NoticeKind.STARTED,
                NoticeKind.APPENDED,
                NoticeKind.SEALED,
                NoticeKind.FAILED,
            ]

    async def test_a_subscriber_sees_retry_takeover_and_drop(self) -> None:
        async with self.parties(2) as (a, b):
            there, _ = await b.listen()
            first = await a.run()
            await a.fail(first, retry=True)
            second = await a.run()
            await self.advance(1_001)
            third = await a.run()
            await a.abandon(third)
            await there.holds(
                Notice(NoticeKind.RETRY, first.number),
                Notice(NoticeKind.TAKEN, second.number),
                Notice(NoticeKind.TAKEN, third.number),
                Notice(NoticeKind.ABANDONED, third.number),
            )

    async def test_a_subscriber_sees_the_last_lapse(self) -> None:
        async with self.parties(2) as (a, b):
            there, _ = await b.listen()
            fence = await a.run()
            await self.advance(1_001)
            await a.claim(max_attempts=1)
            await there.holds(Notice(NoticeKind.FAILED, fence.number))

    async def test_a_subscriber_hears_of_its_own_key_only(self) -> None:
        async with self.parties(2) as (a, b):
            there, _ = await b.listen()
            elsewhere = Party(a.name, a.coordinator, "other-" + a.key)
            await elsewhere.append(await elsewhere.run(), 1)
            fence = await a.run()
            await a.append(fence, 1)
            await there.until(bool)
            assert [notice.number for notice in there.items] == [fence.number]

    async def test_a_closed_subscription_hears_nothing(self) -> None:
        async with self.parties(2) as (a, b):
            closed, subscription = await b.listen()
            still, _ = await b.listen()
            await subscription.close()
            await subscription.close()
            fence = await a.run()
            await a.append(fence, 1)
            await still.until(bool)
            assert closed.items == []

    async def test_a_listener_that_raises_harms_nobody(self) -> None:
        async with self.parties(2) as (a, b):

            def broken(notice: Notice) -> None:
                raise RuntimeError(notice.kind.name)

            await b.coordinator.subscribe(b.key, broken)
            there, _ = await b.listen()
            here, _ = await a.listen()
            fence = await a.run()
            for index in (1, 2):
                await a.append(fence, index)
            for inbox in (here, there):
                await inbox.until(lambda notices: len(notices) == 2)

    async def test_a_join_from_another_node_rings_the_owner_s(self) -> None:
        async with self.parties(3) as (a, b, c):
            await a.run()
            await a.claim()
            assert isinstance(await b.look(), Joined)
            await c.claim()
            await a.rings.holds(a.key)
            assert b.rings.items == c.rings.items == []

    async def test_a_closed_node_is_not_told_anything(self) -> None:
        async with self.parties(3) as (a, b, c):
            lost, _ = await b.listen()
            there, _ = await c.listen()
            await b.coordinator.close()
            fence = await a.run()
            await a.append(fence, 1)
            await there.until(bool)
            assert lost.items == []

    async def test_all_nodes_have_one_scope_key(self) -> None:
        async with self.parties(2) as (a, b):
            key = await a.coordinator.scope_key()
            assert len(key) >= 32
            assert await a.coordinator.scope_key() == await b.coordinator.scope_key() == key

    async def test_an_open_node_is_up(self) -> None:
        async with self.parties(1) as (a,):
            await a.claim()
            assert a.coordinator.up is True
