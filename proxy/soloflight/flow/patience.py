"""Bounds on waiting that are cheap to move: one timer, re-armed lazily, however often progress is made."""

from __future__ import annotations

import asyncio
from types import TracebackType


class Patience:
    """Raises TimeoutError in the block when ``limit_s`` pass without ``progress()``, or at ``deadline`` (loop time).

    ``progress`` only stores the time; the timer looks at it when it fires.
    """

    def __init__(self, limit_s: float, deadline: float, shortest_s: float | None = None) -> None:
        """``shortest_s``: the shortest limit that ``progress`` will set later, so that the timer never has to be moved nearer."""
        self._loop = asyncio.get_running_loop()
        self._limit = limit_s
        self._first_look_s = limit_s if shortest_s is None else min(limit_s, shortest_s)
        self._deadline = deadline
        self._last = self._loop.time()
        self._bound = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"Patience(limit={self._limit}, idle={self._loop.time() - self._last:.3f})"

    @property
    def due(self) -> float:
        """Loop time at which patience ends unless progress is made."""
        return min(self._last + self._limit, self._deadline)

    @property
    def idle_s(self) -> float:
        """Seconds since the last progress."""
        return max(0.0, self._loop.time() - self._last)

    def progress(self, limit_s: float | None = None) -> None:
        """Something came; from now on ``limit_s`` (default: as before) is the longest silence."""
        self._last = self._loop.time()
        if limit_s is not None:
            self._limit = limit_s

    def _look(self) -> None:
        due = self.due
        if self._loop.time() >= due:
            self._bound.reschedule(self._loop.time())
        else:
            self._timer = self._loop.call_at(due, self._look)

    async def __aenter__(self) -> Patience:
        await self._bound.__aenter__()
        self._timer = self._loop.call_at(min(self._last + self._first_look_s, self._deadline), self._look)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._bound.__aexit__(kind, error, trace)
