"""A node's line to its coordinator, which a test can cut, hold, and look at."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from soloflight.core.flight import Notice, Operation, Reply
from soloflight.core.frames import Recording
from soloflight.ports import BackendError, Batch, Coordinator, Subscription

T = TypeVar("T")


class Wire:
    """``ports.Coordinator`` over another one.

    ``cut``: nothing goes through, in either direction, and every call raises BackendError.
    ``fails``: predicate on operations; those for which it holds are not executed, as if their reply never came.
    ``loses``: predicate on notices; those for which it holds do not arrive.
    ``held``: while set to an event, every operation waits for it.
    """

    def __init__(self, to: Coordinator) -> None:
        self._to = to
        self.cut = False
        self.fails: Callable[[Operation], bool] = lambda _: False
        self.loses: Callable[[Notice], bool] = lambda _: False
        self.held: asyncio.Event | None = None
        self.waiting: list[Operation] = []
        self.steps: list[tuple[Operation, Reply]] = []
        self.subscriptions = 0
        self.told: list[str] = []
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        return f"Wire(cut={self.cut}, steps={len(self.steps)})"

    def done(self, kind: type[T]) -> list[T]:
        """The operations of one kind that were executed."""
        return [op for op, _ in self.steps if isinstance(op, kind)]

    def replies(self, kind: type[T]) -> list[T]:
        """The replies of one kind."""
        return [reply for _, reply in self.steps if isinstance(reply, kind)]

    async def until(self, holds: Callable[[], object], within_s: float = 5.0) -> None:
        """Wait until ``holds()``, looked at before and after every operation."""
        async with asyncio.timeout(within_s):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    @property
    def shared(self) -> bool:
        return self._to.shared

    @property
    def up(self) -> bool:
        return not self.cut

    async def open(self, node: str, on_ring: Callable[[str], None], *more: Any) -> None:
        await self._to.open(node, lambda key: None if self.cut else on_ring(key), *more)

    async def close(self) -> None:
        await self._to.close()

    async def step(self, key: str, op: Operation) -> Reply:
        self.waiting.append(op)
        self._changed.set()
        try:
            if self.held is not None:
                await self.held.wait()
        finally:
            self.waiting.remove(op)
        if self.cut or self.fails(op):
            self._changed.set()
            raise BackendError("the wire is cut")
        reply = await self._to.step(key, op)
        self.steps.append((op, reply))
        self._changed.set()
        return reply

    async def session_step(self, key: str, op: Any) -> Any:
        return await self._to.session_step(key, op)

    async def result(self, key: str, number: int) -> Recording | None:
        if self.cut:
            raise BackendError("the wire is cut")
        return await self._to.result(key, number)

    async def log(self, key: str, number: int, after: int) -> list[Batch]:
        if self.cut:
            raise BackendError("the wire is cut")
        return await self._to.log(key, number, after)

    async def subscribe(self, key: str, listener: Callable[[Notice], None]) -> Subscription:
        if self.cut:
            raise BackendError("the wire is cut")
        self.subscriptions += 1
        return await self._to.subscribe(
            key, lambda notice: None if self.cut or self.loses(notice) else listener(notice)
        )

    def hear(self, on_word: Callable[[str], None]) -> None:
        self._to.hear(lambda word: None if self.cut else on_word(word))

    async def tell(self, word: str) -> None:
        if self.cut:
            raise BackendError("the wire is cut")
        self.told.append(word)
        await self._to.tell(word)

    async def mark(self, name: str) -> None:
        await self._to.mark(name)

    async def marks(self) -> Mapping[str, int]:
        return await self._to.marks()

    async def scope_key(self) -> bytes:
        return await self._to.scope_key()

    async def purge(self, key: str) -> bool:
        return await self._to.purge(key)
