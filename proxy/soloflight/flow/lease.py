"""An owner's seat at the coordinator: starts, renews by heartbeat, publishes to followers elsewhere, seals, lets go.

Rule: whatever happens at the coordinator, the owner's own listeners keep their stream. A refused write only means that this
attempt speaks for the key no longer (it is *detached*): it is counted, and nothing more is written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from soloflight.core.errors import Fault
from soloflight.core.flight import (
    Abandon,
    Append,
    Done,
    Dropped,
    Fail,
    Fence,
    Gap,
    Operation,
    Refused,
    Renew,
    Reply,
    Retrying,
    Seal,
    Start,
)
from soloflight.core.frames import Frame, Recording
from soloflight.core.stage import Stage
from soloflight.flow.tasks import Tasks
from soloflight.ports import BackendError, Coordinator

log = logging.getLogger("soloflight.lease")

GRACE_MS = 10_000
"""How long an outcome that is not kept can be read by those who already followed it."""


@dataclass(frozen=True, slots=True)
class Seat:
    """What a lease is held for: the key, its stage's times, and the node that holds it."""

    key: str
    stage: Stage
    node: str


class Lease:
    """One attempt's right to write. ``progress`` is set by the owner to the number of upstream bytes seen."""

    def __init__(
        self,
        coordinator: Coordinator,
        seat: Seat,
        fence: Fence | None,
        tasks: Tasks,
        on_watchers: Callable[[int], None],
        on_fenced: Callable[[str], None],
    ) -> None:
        self._coordinator = coordinator
        self._seat = seat
        self._fence = fence
        self._tasks = tasks
        self._on_watchers = on_watchers
        self._on_fenced = on_fenced
        self._timer: asyncio.TimerHandle | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._renewed_at = self._loop.time()
        self.progress = 0
        self.running = False

    def __repr__(self) -> str:
        return f"Lease({self._seat.key[:12]}, fence={self._fence and self._fence.number}, progress={self.progress})"

    @property
    def held(self) -> bool:
        """Whether this attempt still speaks for the key, as far as it knows."""
        return self._fence is not None

    @property
    def left_s(self) -> float:
        """Seconds until the lease lapses unless it is renewed, as far as this node knows."""
        stage = self._seat.stage
        lease_s = stage.running_lease if self.running else stage.pending_lease
        return max(0.0, self._renewed_at + lease_s - self._loop.time())

    def begin(self) -> None:
        """Start beating."""
        if self._fence is not None:
            self._timer = self._loop.call_later(self._seat.stage.heartbeat, self._beat)

    def end(self) -> None:
        """Stop beating; the record is left as it is."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._renewing is not None:
            self._renewing.cancel()
            self._renewing = None

    async def start(self) -> bool:
        """PENDING → RUNNING. False if the seat was lost meanwhile: the upstream must not be called."""
        stage = self._seat.stage
        if self._fence is None:
            return True
        fence = self._fence
        reply = await self._step(Start(fence, ms(stage.running_lease), bound_ms(stage.first_byte_timeout, stage)))
        self.running = True
        return reply is None or not isinstance(reply, Refused)

    async def append(self, index: int, frames: tuple[Frame, ...]) -> Reply | None:
        """Publish one batch for followers on other nodes; None if detached or the backend is away."""
        stage = self._seat.stage
        if self._fence is None:
            return None
        silence_ms = bound_ms(stage.progress_timeout, stage)
        op = Append(self._fence, index, frames, ms(stage.running_lease), self.progress, silence_ms)
        reply = await self._step(op)
        if isinstance(reply, Done):
            self._on_watchers(reply.watchers)
        return reply

    async def seal(self, result: Recording, retention_s: float) -> bool:
        """The terminal write; True if the key's history accepted this result."""
        if self._fence is None:
            return False
        self.end()
        reply = await self._step(Seal(self._fence, result, ms(retention_s), GRACE_MS))
        return isinstance(reply, Done)

    async def fail(self, fault: Fault, *, retry: bool, backoff_s: float) -> bool:
        """The terminal write with a fault; True if another attempt may be claimed (``retry`` only)."""
        if self._fence is None:
            return False
        self.end()
        reply = await self._step(
            Fail(self._fence, fault, retry, ms(backoff_s), self._seat.stage.max_attempts, GRACE_MS)
        )
        return isinstance(reply, Retrying)

    async def abandon(self, *, force: bool = False) -> bool:
        """Nobody listens here; True if the flight is dropped, False if other nodes still watch it."""
        if self._fence is None:
            return True
        reply = await self._step(Abandon(self._fence, self._seat.node, force))
        return reply is None or isinstance(reply, (Dropped, Refused))

    async def let_go(self) -> None:
        """Give the seat back, and go on without one: what is made here is for nobody elsewhere."""
        if self._fence is not None:
            self.end()
            await self.abandon(force=True)
            self._fence = None

    def _beat(self) -> None:
        self._timer = self._loop.call_later(self._seat.stage.heartbeat, self._beat)
        if self._renewing is None or self._renewing.done():
            self._renewing = self._tasks.spawn(self._renew(), "renew")

    async def _renew(self) -> None:
        stage = self._seat.stage
        if self._fence is None:
            return
        lease_s = stage.running_lease if self.running else stage.pending_lease
        silence_ms = bound_ms(stage.progress_timeout, stage)
        reply = await self._step(Renew(self._fence, ms(lease_s), self.progress, silence_ms))
        if isinstance(reply, Done):
            self._on_watchers(reply.watchers)

    async def _step(self, op: Operation) -> Reply | None:
        """One operation; None where the backend did not answer. A refusal detaches."""
        try:
            reply = await self._coordinator.step(self._seat.key, op)
        except BackendError:
            return None
        if isinstance(reply, Refused):
            self._fence = None
            self.end()
            self._on_fenced(reply.refusal.value)
        elif isinstance(reply, Done):
            self._renewed_at = self._loop.time()
        elif isinstance(reply, Gap):
            log.warning("flight %s: the published log has a gap behind %d", self._seat.key[:12], reply.frames)
        return reply


def ms(seconds: float) -> int:
    """Whole milliseconds, never zero for a positive time."""
    return max(1, round(seconds * 1000)) if seconds > 0 else 0


def bound_ms(limit_s: float, stage: Stage) -> int:
    """The coordinator's bound where an owner's own is ``limit_s``: one lease more.

    An owner that sees the bound pass ends the flight for all (504, contract section 5). Were both bounds the same, a follower
    could find the attempt lapsed just before that, and call the upstream again. This one unseats owners that are stuck.
    """
    return ms(limit_s + stage.running_lease) if limit_s > 0 else 0
