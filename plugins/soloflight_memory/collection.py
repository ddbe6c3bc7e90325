"""Which records may be dropped, and when: a heap, emptied a few entries at a time whenever a flight changes.

Rule 1: no timer and no sweep. Each change of a flight pays for at most ``BATCH`` looks at the heap: what has
expired goes at the pace at which new work comes, and no single call ever pays for a flood.
Rule 2: one entry per key is the true one; older ones are passed over, or thrown out if they are too many.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

BATCH = 8
SLACK = 64


class Collection:
    """Keys by the time (ms) after which each may be dropped."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, str]] = []
        self._times: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"Collection(keys={len(self._times)}, entries={len(self._heap)})"

    def put(self, key: str, time: int) -> None:
        """Note that ``key`` may be dropped after ``time``, instead of what was noted before."""
        if self._times.get(key) == time:
            return
        self._times[key] = time
        heappush(self._heap, (time, key))
        if len(self._heap) > 2 * len(self._times) + SLACK:
            self._heap = [(time, key) for key, time in self._times.items()]
            heapify(self._heap)

    def forget(self, key: str) -> None:
        """``key`` has no record any more."""
        self._times.pop(key, None)

    def take(self, now: int) -> list[str]:
        """Keys that may be dropped now, and are forgotten here; found among at most ``BATCH`` entries."""
        taken: list[str] = []
        for _ in range(BATCH):
            if not self._heap or self._heap[0][0] >= now:
                break
            time, key = heappop(self._heap)
            if self._times.get(key) == time:
                del self._times[key]
                taken.append(key)
        return taken
