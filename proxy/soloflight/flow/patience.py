"""Bounds on waiting that cost next to nothing: one timer for all of them, however many wait and however often progress is made."""

from __future__ import annotations

import asyncio
import math
from types import TracebackType

TICK_S = 0.02
"""How often a Patrol looks: a bound ends at most this late."""


class Patrol:
    """Looks at every Patience in turn, as long as there are any. One for an event loop, owned by who makes the bounds."""

    def __init__(self) -> None:
        self._watched: set[Patience] = set()
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"Patrol({len(self._watched)} bounds)"

    def watch(self, bound: Patience) -> None:
        """Look at ``bound`` from now on."""
        self._watched.add(bound)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TICK_S, self._look)

    def forget(self, bound: Patience) -> None:
        """``bound`` is over."""
        self._watched.discard(bound)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for bound in [bound for bound in self._watched if bound.due <= now]:
            self._watched.discard(bound)
            bound.expire()
        self._timer = loop.call_later(TICK_S, self._look) if self._watched else None


class Patience:
    """Raises TimeoutError in the block when ``limit_s`` pass without ``progress()``, or at ``deadline`` (loop time).

    As asyncio.timeout does it, but ``progress`` only stores the time.
    """

    __slots__ = ("_cancelling", "_expired", "_last", "_limit", "_patrol", "_task", "_time", "deadline")

    def __init__(self, patrol: Patrol, limit_s: float, deadline: float = math.inf) -> None:
        self._patrol = patrol
        self._time = asyncio.get_running_loop().time
        self._limit = limit_s
        self.deadline = deadline
        self._last = self._time()
        self._expired = False
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0

    def __repr__(self) -> str:
        return f"Patience(limit={self._limit}, idle={self.idle_s:.3f})"

    @property
    def due(self) -> float:
        """Loop time at which patience ends unless progress is made."""
        return min(self._last + self._limit, self.deadline)

    @property
    def idle_s(self) -> float:
        """Seconds since the last progress."""
        return max(0.0, self._time() - self._last)

    def progress(self, limit_s: float | None = None) -> None:
        """Something came; from now on ``limit_s`` (default: as before) is the longest silence."""
        self._last = self._time()
        if limit_s is not None:
            self._limit = limit_s

    def expire(self) -> None:
        """The bound is reached: end the block."""
        if self._task is not None:
            self._expired = True
            self._task.cancel()

    def __enter__(self) -> Patience:
        self._task = task = asyncio.current_task()
        self._cancelling = task.cancelling() if task is not None else 0
        self._patrol.watch(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._patrol.forget(self)
        task, self._task = self._task, None
        if not self._expired or task is None:
            return
        # A cancellation from outside at the same moment stays one (asyncio.Timeout counts in the same way).
        if task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error
