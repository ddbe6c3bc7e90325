"""The bulkhead of a stage: at most ``max_upstream`` upstream calls at once in this process, a short queue behind them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from soloflight.core.errors import Code, fail
from soloflight.core.stage import Stage


@dataclass(slots=True)
class _Bay:
    """One stage's slots: how many are taken, and who waits."""

    taken: int = 0
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)

    def let_in(self, limit: int) -> None:
        """Give what is free to those who wait longest."""
        while self.waiting and (not limit or self.taken < limit):
            turn = self.waiting.popleft()
            if not turn.done():
                self.taken += 1
                turn.set_result(None)


class Slots:
    """All stages' slots; a stage never waits for another's."""

    def __init__(self) -> None:
        self._bays: dict[str, _Bay] = {}
        self._limits: Mapping[str, int] = {}

    def __repr__(self) -> str:
        return f"Slots({', '.join(f'{name}: {bay.taken}+{len(bay.waiting)}' for name, bay in self._bays.items())})"

    def taken(self, stage: str) -> int:
        """Calls of ``stage`` under way."""
        bay = self._bays.get(stage)
        return bay.taken if bay is not None else 0

    def waiting(self, stage: str) -> int:
        """Calls of ``stage`` that wait for a slot."""
        bay = self._bays.get(stage)
        return len(bay.waiting) if bay is not None else 0

    def rule(self, stages: Iterable[Stage]) -> None:
        """Their limits hold from now on, also for calls that were admitted under others and wait here."""
        self._limits = {stage.name: stage.max_upstream for stage in stages}
        for name, limit in self._limits.items():
            if name in self._bays:
                self._bays[name].let_in(limit)

    async def take(self, stage: Stage) -> None:
        """A slot, first come first served. Raises ``saturated`` after ``queue_wait``; a cancelled waiter leaves the queue."""
        bay, limit = self._bays.setdefault(stage.name, _Bay()), self._limit(stage)
        if not limit or (bay.taken < limit and not bay.waiting):
            bay.taken += 1
            return
        turn = asyncio.get_running_loop().create_future()
        bay.waiting.append(turn)
        try:
            async with asyncio.timeout(stage.queue_wait):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self.give(stage)  # the slot came at the same moment
            with suppress(ValueError):  # a slot that was given at the same moment has passed it over
                bay.waiting.remove(turn)
            if isinstance(error, TimeoutError):
                raise fail(Code.SATURATED, "this stage has no free place for another upstream call", 1) from None
            raise

    def give(self, stage: Stage) -> None:
        """Give a slot back; the next in the queue has it at once."""
        bay = self._bays[stage.name]
        bay.taken -= 1
        bay.let_in(self._limit(stage))

    def _limit(self, stage: Stage) -> int:
        return self._limits.get(stage.name, stage.max_upstream)
