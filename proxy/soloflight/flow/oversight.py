"""What an operator sees and does at one node: flights looked at and ended, kept answers forgotten, here and in the fleet.

The words that nodes tell each other for it (``ports.Fleet``): "purge KEY-OR-FLIGHT", "stage NAME", "abort FLIGHT"; and a
node's own "anew KEY NUMBER", where it has refreshed an answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from soloflight.flow import census
from soloflight.flow.drive import ANEW
from soloflight.flow.node import Node
from soloflight.flow.replays import Replays
from soloflight.flow.tasks import Tasks
from soloflight.ports import BackendError, Coordinator, Gauges

log = logging.getLogger("soloflight.oversight")

PURGE, STAGE, ABORT = "purge ", "stage ", "abort "
MARKS_AGAIN_S = 1.0


class Abort(Enum):
    """What came of the wish to end a flight."""

    DONE = "aborted"
    TOLD = "told"  # another node owns it, or nobody does: every node was told
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Purged:
    """What was forgotten: ``local`` answers of this process, ``kept`` by the coordinator; ``told``: every node was."""

    local: int
    kept: bool
    told: bool


class Oversight:
    """One node, as its operator has it. ``stages`` gives the names of the stages configured now."""

    def __init__(
        self, node: Node, coordinator: Coordinator, replays: Replays, stages: Callable[[], Iterable[str]]
    ) -> None:
        self._node = node
        self._coordinator = coordinator
        self._replays = replays
        self._stages = stages
        self._errands = Tasks("oversight")

    def __repr__(self) -> str:
        return f"Oversight({self._node!r})"

    async def open(self) -> None:
        """Learn what was purged before this node came. The coordinator must be open."""
        if not await self._read_marks():
            self._errands.spawn(self._learn_marks(), "marks")

    async def close(self) -> None:
        """End what is under way."""
        await self._errands.close()

    # ── looking ─────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def node(self) -> str:
        """This node's id."""
        return self._node.id

    def flights(self) -> list[census.Seen]:
        """Every flight that runs here, oldest first."""
        return census.flights(self._node)

    def flight(self, flight_id: str) -> census.Seen | None:
        """One flight that runs here."""
        return census.flight(self._node, flight_id)

    def gauges(self) -> Gauges:
        """What this process holds now."""
        names = list(self._stages())
        flights, followers = census.live(self._node, names)
        held = {**dict.fromkeys(names, 0), **self._replays.sizes}
        return Gauges(flights, followers, held, self._coordinator.up)

    # ── doing ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def abort(self, flight_id: str) -> Abort:
        """End a flight: at once if it is owned here, else its owner is told."""
        if await self._node.abort(flight_id):
            log.warning("flight %s: ended by an operator", flight_id)
            return Abort.DONE
        if self.flight(flight_id) is None and not self._coordinator.shared:
            return Abort.UNKNOWN
        return Abort.TOLD if await self._tell(ABORT + flight_id) else Abort.UNKNOWN

    async def purge_key(self, name: str) -> Purged:
        """Forget the answer under a flight key, or the one that a flight has made; local replays of every node, too."""
        key = self._replays.key_of(name) or name
        kept = await self._forget(key)
        return Purged(int(self._replays.drop(key)), kept, await self._tell(PURGE + name))

    async def purge_stage(self, stage: str) -> Purged:
        """Forget every answer of a stage that was sealed until now, on every node; running flights go on."""
        count = self._replays.purge(stage)
        try:
            await self._coordinator.mark(STAGE + stage)
            marked = True
        except BackendError:
            marked = False
        return Purged(count, marked, await self._tell(STAGE + stage))

    async def _forget(self, key: str) -> bool:
        try:
            return await self._coordinator.purge(key)
        except BackendError:
            return False

    async def _tell(self, word: str) -> bool:
        try:
            await self._coordinator.tell(word)
        except BackendError:
            log.warning("the fleet could not be told: %s", word)
            return False
        return True

    # ── hearing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def heard(self, word: str) -> None:
        """A node of the fleet, maybe this one, said ``word``; "" = words may have been missed."""
        if not word:
            self._replays.clear()
            self._errands.spawn(self._learn_marks(), "marks")
        elif word.startswith(STAGE):
            self._replays.purge(word.removeprefix(STAGE))
        elif word.startswith(PURGE):
            self._heard_purge(word.removeprefix(PURGE))
        elif word.startswith(ANEW):
            key, _, number = word.removeprefix(ANEW).partition(" ")
            if number.isdecimal():
                self._replays.refreshed(key, int(number))
        elif word.startswith(ABORT):
            self._errands.spawn(self._node.abort(word.removeprefix(ABORT)), "abort")

    def _heard_purge(self, name: str) -> None:
        """Where only this node knows which key a flight had, it also asks the coordinator to forget its answer."""
        key = self._replays.key_of(name)
        if key is not None:
            self._errands.spawn(self._forget(key), "purge")
        self._replays.drop(key or name)

    async def _learn_marks(self) -> None:
        """Ask for the marks until the coordinator answers; while it is away nothing of it is replayed either."""
        while not await self._read_marks():  # noqa: ASYNC110  # the backend offers no event for its return
            await asyncio.sleep(MARKS_AGAIN_S)

    async def _read_marks(self) -> bool:
        try:
            marks = await self._coordinator.marks()
        except BackendError:
            return False
        for name, age_ms in marks.items():
            if name.startswith(STAGE):
                self._replays.purge(name.removeprefix(STAGE), age_ms / 1000)
        return True
