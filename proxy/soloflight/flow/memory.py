"""One byte budget for everything a process keeps: logs of running flights and local replays (contract ``server.max_memory``)."""

from __future__ import annotations

from collections.abc import Callable


class Memory:
    """Counts retained bytes. Over ``limit`` it first asks its reclaimers (local replays) to give some back."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._reclaimers: list[Callable[[int], int]] = []

    def __repr__(self) -> str:
        return f"Memory(used={self.used}, limit={self.limit})"

    def charge(self, delta: int) -> None:
        """Account for ``delta`` more (or, negative, fewer) bytes."""
        self.used += delta

    def on_pressure(self, reclaim: Callable[[int], int]) -> None:
        """Register ``reclaim(bytes) -> bytes freed``."""
        self._reclaimers.append(reclaim)

    def full(self) -> bool:
        """Whether nothing more may be recorded, after reclaiming what can be."""
        for reclaim in self._reclaimers:
            if self.used <= self.limit:
                return False
            reclaim(self.used - self.limit)
        return self.used > self.limit
