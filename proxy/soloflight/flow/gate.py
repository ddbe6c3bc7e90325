"""What stands between a claim and the upstream: the session's lock, then a slot of the stage. In this order, and the flight first.

Only an owner passes it, in PENDING, so that nothing was sent while it waits; followers and replays never do. What it refuses is
the owner's alone (contract section 4). Both are given back before the last byte of the answer is delivered.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from types import TracebackType

from soloflight.core.errors import Code, SoloflightError
from soloflight.core.stage import Stage
from soloflight.events import Event, SessionWaited
from soloflight.flow.session import SessionSeat, SessionSeats
from soloflight.flow.slots import Slots


async def stays(*_: object) -> bool:
    """The answer to who asks for the lock of work that somebody waits for."""
    return False


class Gate:
    """This process's gate. ``session`` "" = no lock is wanted."""

    def __init__(self, seats: SessionSeats, slots: Slots, emit: Callable[[Event], None]) -> None:
        self._seats = seats
        self._emit = emit
        self.slots = slots

    def __repr__(self) -> str:
        return f"Gate({self._seats!r}, {self.slots!r})"

    def stands(self, stage: Stage, session: str) -> bool:
        """Whether there is anything to wait for."""
        return bool(session) or stage.max_upstream > 0

    def guards(self, stage: Stage) -> bool:
        """Whether a call of ``stage`` may have to wait, here or on another node."""
        return stage.session != "off" or stage.max_upstream > 0

    def passage(
        self, stage: Stage, session: str, flight: str, on_contest: Callable[[], Awaitable[bool]] = stays
    ) -> Passage:
        """One call's way through. ``on_contest`` as in flow.session."""
        seat = self._seats.seat(session, stage, flight, on_contest) if session else None
        return Passage(self, stage, seat)

    def waited(self, stage: Stage, outcome: str, wait_s: float) -> None:
        """Tell of a wait for a session's lock."""
        self._emit(SessionWaited(stage.name, outcome, wait_s))


class Passage:
    """Lock and slot of one upstream call; ``async with`` takes them, and gives them back if ``leave`` has not done so before."""

    def __init__(self, gate: Gate, stage: Stage, seat: SessionSeat | None) -> None:
        self._gate = gate
        self._stage = stage
        self._seat = seat
        self._slotted = False

    def __repr__(self) -> str:
        return f"Passage({self._stage.name}, {self._seat!r}, slotted={self._slotted})"

    async def enter(self) -> None:
        """Wait for the lock, then for the slot. Raises ``session_busy``, ``saturated`` or ``backend_unavailable``."""
        await self.sit()
        try:
            await self.stand()
        except BaseException:
            await self.leave()
            raise

    async def sit(self) -> None:
        """Wait for the lock. Raises ``session_busy`` or ``backend_unavailable``."""
        if self._seat is not None:
            await self._sit(self._seat)

    async def stand(self) -> None:
        """Wait for the slot. Raises ``saturated``."""
        await self._gate.slots.take(self._stage)
        self._slotted = True

    async def leave(self) -> None:
        """Give both back; idempotent. When it returns, the session's next job can run."""
        if self._slotted:
            self._slotted = False
            self._gate.slots.give(self._stage)
        seat, self._seat = self._seat, None
        if seat is not None:
            await seat.release()

    async def _sit(self, seat: SessionSeat) -> None:
        outcome, began = "left", time.monotonic()
        try:
            await seat.take()
            outcome = "granted"
        except SoloflightError as error:
            outcome = "busy" if error.fault.code is Code.SESSION_BUSY else "late"
            raise
        finally:
            self._gate.waited(self._stage, outcome, time.monotonic() - began)

    async def __aenter__(self) -> Passage:
        await self.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.leave()
