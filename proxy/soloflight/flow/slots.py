"""The bulkhead: at most ``max_upstream`` upstream calls of a stage at once in this process; others wait in turn."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

from soloflight.core.errors import Code, fail
from soloflight.core.stage import Stage


@dataclass(slots=True)
class _Bay:
    """One stage's slots: how many are taken, and who waits."""

    taken: int = 0
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)


class Slots:
    """All stages' slots; a stage never waits for another's."""

    def __init__(self) -> None:
        self._bays: dict[str, _Bay] = {}

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

    async def take(self, stage: Stage) -> None:
        """A slot, first come first served. Raises ``saturated`` after ``queue_wait``; a cancelled waiter leaves the queue."""
        bay = self._bays.setdefault(stage.name, _Bay())
        if not stage.max_upstream or (bay.taken < stage.max_upstream and not bay.waiting):
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
            else:
                bay.waiting.remove(turn)
            if isinstance(error, TimeoutError):
                raise fail(Code.SATURATED, "this stage has no free place for another upstream call", 1) from None
            raise

    def give(self, stage: Stage) -> None:
        """Give a slot back; the next in the queue has it at once."""
        bay = self._bays[stage.name]
        bay.taken -= 1
        while bay.waiting and (not stage.max_upstream or bay.taken < stage.max_upstream):
            turn = bay.waiting.popleft()
            if not turn.done():
                bay.taken += 1
                turn.set_result(None)
