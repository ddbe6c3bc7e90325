"""One stage's local replays: found until their time is over; beyond ``limit`` bytes the least recently used goes first.

Its own rather than cachetools' TLRUCache, because each replay looks here: that took 6 of a replay's 19 µs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from soloflight.core.frames import Recording

SPARE = 64
"""So many marks may be of answers that have gone, beside one for each that has not."""


@dataclass(slots=True)
class Replay:
    """One kept answer. Times are seconds on the process's monotonic clock; ``form`` is the door's own prepared form of it."""

    recording: Recording
    flight: str
    number: int
    sealed: float
    expires: float
    local_until: float
    payload: str = ""
    form: object = None


class Shelf:
    """Answers by key. ``limit`` and ``size`` in bytes; ``clock`` gives the time of ``local_until``."""

    def __init__(self, limit: int, clock: Callable[[], float]) -> None:
        self.limit = limit
        self.size = 0
        self._clock = clock
        self._kept: OrderedDict[str, Replay] = OrderedDict()  # the least recently used first
        self._due: list[tuple[float, str]] = []  # a heap of marks: when to look at a key again

    def __repr__(self) -> str:
        return f"Shelf({len(self)} answers, {self.size}/{self.limit} bytes)"

    def __len__(self) -> int:
        self.expire()
        return len(self._kept)

    def get(self, key: str) -> Replay | None:
        """The answer under ``key``, which is now the most recently used one."""
        replay = self._kept.get(key)
        if replay is None:
            return None
        if replay.local_until <= self._clock():
            self.pop(key)
            return None
        self._kept.move_to_end(key)
        return replay

    def items(self) -> list[tuple[str, Replay]]:
        """All that is kept."""
        self.expire()
        return list(self._kept.items())

    def put(self, key: str, replay: Replay) -> None:
        """Keep ``replay``, which fits; what was used least recently makes room."""
        self.expire()
        self.pop(key)
        self._kept[key] = replay
        self.size += replay.recording.cost
        while self.size > self.limit:
            self.pop_oldest()
        heappush(self._due, (replay.local_until, key))
        if len(self._due) > 2 * len(self._kept) + SPARE:
            self._due = [(kept.local_until, key) for key, kept in self._kept.items()]
            heapify(self._due)

    def pop(self, key: str) -> Replay | None:
        """Forget the answer under ``key``."""
        replay = self._kept.pop(key, None)
        if replay is not None:
            self.size -= replay.recording.cost
        return replay

    def pop_oldest(self) -> None:
        """Forget the least recently used answer."""
        _, replay = self._kept.popitem(last=False)
        self.size -= replay.recording.cost

    def clear(self) -> None:
        """Forget all."""
        self._kept.clear()
        self._due.clear()
        self.size = 0

    def expire(self) -> None:
        """Forget what has had its time."""
        now = self._clock()
        while self._due and self._due[0][0] <= now:
            _, key = heappop(self._due)
            replay = self._kept.get(key)
            if replay is not None and replay.local_until <= now:
                self.pop(key)
