"""L1: finished answers that this process may replay without asking the coordinator. Bounded per stage by bytes and by time."""

from __future__ import annotations

from collections.abc import Callable

from cachetools import TTLCache

from soloflight.core.stage import Stage
from soloflight.flow.memory import Memory
from soloflight.flow.shelf import Replay, Shelf

REFRESHED, REFRESHED_S = 4096, 60.0
"""So many refreshes of other nodes are remembered for so long: longer than an older answer can be on its way here."""


class Replays:
    """All stages' local replays; a stage never evicts another's."""

    def __init__(self, memory: Memory, clock: Callable[[], float]) -> None:
        self._memory = memory
        self._clock = clock
        self._stages: dict[str, Shelf] = {}
        self._charged: dict[str, int] = {}
        self._purged: dict[str, float] = {}
        self._refreshed: TTLCache[str, int] = TTLCache(REFRESHED, REFRESHED_S, clock)
        memory.on_pressure(self.reclaim)

    def __repr__(self) -> str:
        return f"Replays({', '.join(f'{name}: {size}' for name, size in self._charged.items())})"

    @property
    def size(self) -> int:
        """Bytes held by all stages."""
        return sum(self._charged.values())

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes held by each stage that keeps, or has kept, anything."""
        return dict(self._charged)

    def get(self, stage: Stage, key: str, fresh_s: float | None) -> Replay | None:
        """A replay for ``key`` that was sealed at most ``fresh_s`` ago (None: any age)."""
        shelf = self._stages.get(stage.name)
        found = shelf.get(key) if shelf is not None else None
        if found is None or (fresh_s is not None and self._clock() - found.sealed > fresh_s):
            return None
        return found

    def put(self, stage: Stage, key: str, replay: Replay) -> bool:
        """Keep ``replay``; False where it can not fit, or where the stage keeps nothing here."""
        if replay.local_until <= self._clock() or replay.recording.cost > stage.local_max_bytes:
            return False
        if replay.sealed < self._purged.get(stage.name, replay.sealed) or replay.number < self._refreshed.get(key, 0):
            return False
        shelf = self._stages.get(stage.name)
        if shelf is None or shelf.limit != stage.local_max_bytes:
            shelf = self._stages[stage.name] = Shelf(stage.local_max_bytes, self._clock)
        shelf.put(key, replay)
        self._settle(stage.name)
        return True

    def drop(self, key: str) -> bool:
        """Forget the answer under ``key``, whatever its stage; True if there was one."""
        dropped = False
        for name, shelf in self._stages.items():
            if shelf.pop(key) is not None:
                dropped = True
                self._settle(name)
        return dropped

    def refreshed(self, key: str, number: int) -> None:
        """Attempt ``number`` has made the answer under ``key`` anew: forget an older one, and take none any more."""
        self._refreshed[key] = number
        for name, shelf in self._stages.items():
            replay = shelf.get(key)
            if replay is not None and replay.number < number:
                shelf.pop(key)
                self._settle(name)

    def key_of(self, flight: str) -> str | None:
        """The key under which the answer of a flight is kept here."""
        for shelf in self._stages.values():
            for key, replay in shelf.items():
                if replay.flight == flight:
                    return key
        return None

    def purge(self, stage: str, age_s: float = 0.0) -> int:
        """Forget all answers of a stage, and take none any more that was sealed before (``age_s`` ago); returns how many."""
        self._purged[stage] = max(self._clock() - age_s, self._purged.get(stage, 0.0))
        return self.clear(stage)

    def accepted_s(self, stage: str, fresh_s: float | None) -> float | None:
        """How old a kept answer of ``stage`` may be for a request that takes one of ``fresh_s``: none from before a purge."""
        purged = self._purged.get(stage)
        if purged is None or (fresh_s is not None and fresh_s < 0):
            return fresh_s
        since_s = self._clock() - purged
        return since_s if fresh_s is None else min(fresh_s, since_s)

    def clear(self, stage: str | None = None) -> int:
        """Forget all answers of one stage, or of all; returns how many."""
        count = 0
        for name, shelf in self._stages.items():
            if stage in (None, name):
                count += len(shelf)
                shelf.clear()
                self._settle(name)
        return count

    def reclaim(self, wanted: int) -> int:
        """Give back about ``wanted`` bytes, least recently used first; returns how many were freed."""
        freed = 0
        for name, shelf in self._stages.items():
            before = self._charged.get(name, 0)
            shelf.expire()
            while shelf.size and freed + before - shelf.size < wanted:
                shelf.pop_oldest()
            self._settle(name)
            freed += before - shelf.size
        return freed

    def _settle(self, name: str) -> None:
        """Tell the memory budget what changed."""
        size = self._stages[name].size
        self._memory.charge(size - self._charged.get(name, 0))
        self._charged[name] = size
