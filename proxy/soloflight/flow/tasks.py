"""The only place that creates asyncio tasks: every task has an owner, a name, and somebody who reads its exception."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
log = logging.getLogger("soloflight.tasks")


class Tasks:
    """A set of running tasks with one owner. Close it and none is left."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._running: set[asyncio.Task[Any]] = set()

    def __repr__(self) -> str:
        return f"Tasks({self.name!r}, running={len(self._running)})"

    def __len__(self) -> int:
        return len(self._running)

    def spawn(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Run ``work`` as a task of this owner."""
        task = asyncio.create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            log.error("task %s failed: %s", task.get_name(), type(fault).__name__, exc_info=fault)

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no task is left, at most ``timeout_s``; True if so."""
        if self._running:
            await asyncio.wait(list(self._running), timeout=timeout_s)
        return not self._running

    async def close(self, timeout_s: float = 5.0) -> None:
        """Cancel what runs and wait for it, at most ``timeout_s``."""
        for task in list(self._running):
            task.cancel()
        await self.wait_idle(timeout_s)
