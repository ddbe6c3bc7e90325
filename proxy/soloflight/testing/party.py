"""The words of the conformance suite: a node at one key, what it was told, and values that are hard to carry.

Rule 1: nothing sleeps. A notice is waited for by ``Inbox.until``, which is bounded; time is moved by the suite.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from secrets import token_hex
from typing import Any, Generic, TypeVar

from soloflight.core.errors import Code, Fault
from soloflight.core.flight import (
    Abandon,
    Append,
    Claim,
    Fail,
    Fence,
    Leave,
    Notice,
    NoticeKind,
    Owned,
    Renew,
    Reply,
    Seal,
    Start,
)
from soloflight.core.frames import Body, Frame, Head, Recording, Usage
from soloflight.ports import Coordinator, Subscription

T = TypeVar("T")

PATIENCE_S = 5.0

HEAD = Head(
    status=200,
    reason=b"OK \xff",
    fields=((b"Content-Type", b"text/event-stream"), (b"x-twice", b"1"), (b"X-Twice", b" \xe9"), (b"x-empty", b"")),
    length=None,
    delimited=True,
)
FAULT = Fault(Code.UPSTREAM_TRUNCATED, "cut – «here»", retry_after_s=7)


def recording(*body: bytes) -> Recording:
    """A whole answer with these body frames."""
    return Recording(HEAD, body, sum(map(len, body)))


ANSWER = replace(
    recording(b"data: \xf0\x9f\x9b\xa9\r\n\r\n", b"\x00\xff", b"data: [DONE]\n\n"), usage=Usage(1 << 40, 7)
)
EMPTY = replace(recording(), head=Head(204, b"", (), length=0, delimited=False))


class Inbox(Generic[T]):
    """A callback that keeps what it is called with."""

    def __init__(self) -> None:
        self.items: list[T] = []
        self._more = asyncio.Event()

    def __repr__(self) -> str:
        return f"Inbox({self.items})"

    def __call__(self, item: T) -> None:
        self.items.append(item)
        self._more.set()

    async def until(self, wanted: Callable[[list[T]], bool]) -> None:
        """Wait until the items are as wanted; fails with TimeoutError after ``PATIENCE_S``."""
        async with asyncio.timeout(PATIENCE_S):
            while not wanted(self.items):
                self._more.clear()
                await self._more.wait()

    async def holds(self, *items: T) -> None:
        """Wait until exactly these have come, in this order."""
        try:
            await self.until(lambda found: len(found) >= len(items))
        except TimeoutError:
            raise AssertionError(f"expected {items}, got {self.items}") from None
        assert tuple(self.items) == items


class Party:
    """One open node at one key. Each method executes one operation and returns the reply."""

    def __init__(self, name: str, coordinator: Coordinator, key: str) -> None:
        self.name = name
        self.coordinator = coordinator
        self.key = key
        self.rings: Inbox[str] = Inbox()
        self.words: Inbox[str] = Inbox()

    def __repr__(self) -> str:
        return f"Party({self.name!r}, {self.key!r})"

    def asked(self, nonce: str = "", **more: Any) -> Claim:
        """A claim with a fresh nonce: leases 1 s, deadline 60 s, 3 attempts, poison 5 s, watch 3 s."""
        nonce = nonce or token_hex(16)
        claim = Claim(
            nonce=nonce,
            node=self.name,
            flight=f"flight-{nonce}",
            pending_ms=1_000,
            running_ms=1_000,
            first_byte_ms=0,
            deadline_ms=60_000,
            max_attempts=3,
            poison_ms=5_000,
            watch_ms=3_000,
        )
        return replace(claim, **more)

    async def claim(self, nonce: str = "", **more: Any) -> Reply:
        return await self.coordinator.step(self.key, self.asked(nonce, **more))

    async def look(self, **more: Any) -> Reply:
        """A claim that never owns and never watches."""
        return await self.claim(claim=False, **{"watch_ms": 0, **more})

    async def own(self, nonce: str = "", **more: Any) -> Fence:
        """Claim, expecting to become the owner in PENDING."""
        reply = await self.claim(nonce, **more)
        assert isinstance(reply, Owned), reply
        return reply.fence

    async def run(self, nonce: str = "", **more: Any) -> Fence:
        """Claim, expecting to become the owner in RUNNING."""
        return await self.own(nonce, direct=True, **more)

    async def start(self, fence: Fence, lease_ms: int = 1_000, first_byte_ms: int = 0) -> Reply:
        return await self.coordinator.step(self.key, Start(fence, lease_ms, first_byte_ms))

    async def renew(self, fence: Fence, progress: int = 0, progress_ms: int = 0, lease_ms: int = 1_000) -> Reply:
        return await self.coordinator.step(self.key, Renew(fence, lease_ms, progress, progress_ms))

    async def append(self, fence: Fence, index: int, *frames: Frame, progress: int = 0) -> Reply:
        """Append batch ``index``: these frames, or one that names fence and index."""
        frames = frames or (Body(f"{fence.nonce}/{index}".encode()),)
        op = Append(fence, index, frames, 1_000, progress or index, 0)
        return await self.coordinator.step(self.key, op)

    async def seal(
        self,
        fence: Fence,
        result: Recording = ANSWER,
        retention_ms: int = 10_000,
        grace_ms: int = 2_000,
    ) -> Reply:
        return await self.coordinator.step(self.key, Seal(fence, result, retention_ms, grace_ms))

    async def fail(self, fence: Fence, *, retry: bool = False, backoff_ms: int = 0, grace_ms: int = 2_000) -> Reply:
        op = Fail(fence, FAULT, retry, backoff_ms, max_attempts=3, grace_ms=grace_ms)
        return await self.coordinator.step(self.key, op)

    async def abandon(self, fence: Fence, *, force: bool = False) -> Reply:
        return await self.coordinator.step(self.key, Abandon(fence, self.name, force))

    async def leave(self, number: int) -> Reply:
        return await self.coordinator.step(self.key, Leave(self.name, number))

    async def result(self, number: int) -> Recording | None:
        return await self.coordinator.result(self.key, number)

    async def log(self, number: int, after: int = 0) -> list[tuple[int, tuple[Frame, ...]]]:
        """The published batches as ``(index, frames)``."""
        batches = await self.coordinator.log(self.key, number, after)
        return [(batch.index, batch.frames) for batch in batches]

    async def listen(self) -> tuple[Inbox[Notice], Subscription]:
        """Subscribe to the key."""
        inbox: Inbox[Notice] = Inbox()
        return inbox, await self.coordinator.subscribe(self.key, inbox)


def kinds(notices: list[Notice]) -> list[NoticeKind]:
    """The kinds of these notices, in order."""
    return [notice.kind for notice in notices]
