"""Seats at session locks: at most one heavy job per session. A seat is taken, renewed while the job runs, and given back once.

A seat needs two locks, in this order: the coordinator's, for the fleet, and this process's own. While the backend is away
(``on_backend_error = "local"``) the second alone decides: then there is one heavy job per session and process, also against
those that were seated before. Each beat tries to come back to the first, as it does when the first was lost to a backend
without memory or to a pause longer than the lease: the job goes on, as an owner's does whose lease was lost.
With ``"reject"`` who has no seat yet gets ``backend_unavailable``.

Rule 1: whoever asked for a lock takes it back or gives it back, on every path; what is not delivered lapses by itself.
Rule 2: notices only say when to look. Who waits looks again by itself, several times in the life of its ticket.
Rule 3: a seat is taken by the owner of a flight only, and holding one never waits for a flight.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from math import ceil
from types import TracebackType

from soloflight.core.errors import Code, SoloflightError, fail
from soloflight.core.flight import Fence, Refused
from soloflight.core.session import (
    Acquire,
    Busy,
    Granted,
    Held,
    Hold,
    Queued,
    Release,
    SessionNotice,
    SessionNoticeKind,
    SessionOperation,
    SessionReply,
    Withdraw,
)
from soloflight.core.stage import Stage
from soloflight.flow.lease import ms
from soloflight.flow.own_locks import OwnLocks
from soloflight.flow.tasks import Tasks
from soloflight.ports import BackendError, SessionLocks

log = logging.getLogger("soloflight.session")

MAX_QUEUE = 100
"""How many may wait for one session; whoever comes then is busy at once."""

GIVE_WAY_S = 1.0
"""``session = "reject"``: how long a newcomer waits for a holder that works for nobody, or is dead, to give way."""

LOOK_AGAIN_S = 0.25
"""How long to wait with a ticket in hand before asking again a backend that did not answer."""

OWN_MS = 86_400_000
"""Leases and tickets at this process's own locks: who has one does not die alone."""


class SessionSeats:
    """This node's seats, taken and wished for. ``told`` is the ``on_session`` to open the coordinator with."""

    def __init__(self, coordinator: SessionLocks, node: str, *, reject_without_backend: bool = False) -> None:
        self.coordinator = coordinator
        self.own = OwnLocks(self.told)
        self.node = node
        self.reject_without_backend = reject_without_backend
        self.tasks = Tasks("sessions")
        self._seats: dict[str, SessionSeat] = {}

    def __repr__(self) -> str:
        return f"SessionSeats({len(self._seats)}, node={self.node!r})"

    def __len__(self) -> int:
        return len(self._seats)

    def seat(self, key: str, stage: Stage, flight: str, on_contest: Callable[[], Awaitable[bool]]) -> SessionSeat:
        """A seat at the lock of ``key`` (``core.session.session_key``), not taken yet.

        ``flight`` names what it is for. ``on_contest`` is called when somebody else asks for the lock meanwhile: True
        where nobody listens and the job is being stopped (its ``release`` follows), False where it goes on.
        """
        return SessionSeat(self, key, stage, flight, on_contest)

    def add(self, seat: SessionSeat) -> None:
        """Deliver notices to ``seat`` from now on."""
        self._seats[seat.nonce] = seat

    def remove(self, seat: SessionSeat) -> None:
        """Deliver nothing to ``seat`` any more; idempotent."""
        self._seats.pop(seat.nonce, None)

    def told(self, key: str, notice: SessionNotice) -> None:
        """A notice came for a nonce of this node."""
        seat = self._seats.get(notice.nonce)
        if seat is not None and seat.key == key:
            seat.told(notice)

    async def close(self, timeout_s: float = 5.0) -> None:
        """Let what is being given back be given back, at most ``timeout_s``. Jobs are ended by their owners, before."""
        await self.tasks.wait_idle(timeout_s)
        await self.tasks.close()


@dataclass(eq=False, slots=True)
class Place:
    """What a seat has at one of its locks: the question that it asks there, and the fence while it holds."""

    locks: SessionLocks
    ask: Acquire
    asked: bool = False
    fence: Fence | None = None


class SessionSeat:
    """One job's seat. ``waiting``: how many wait for it, as was last told. ``waited_s``: how long it took to be seated."""

    def __init__(
        self, seats: SessionSeats, key: str, stage: Stage, flight: str, on_contest: Callable[[], Awaitable[bool]]
    ) -> None:
        self.key = key
        self.nonce = secrets.token_hex(16)
        self.waiting = 0
        self.waited_s = 0.0
        self._seats = seats
        self._stage = stage
        self._on_contest = on_contest
        self._loop = asyncio.get_running_loop()
        self._places = self._make_places(flight)
        self._seated = False
        self._news = asyncio.Event()
        self._kept = False
        self._contested = False
        self._answering: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._commands = asyncio.Lock()  # one round of commands at a time, so that none overtakes the last
        self._ending: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        fences = [place.fence and place.fence.number for place in self._places]
        return f"SessionSeat({self.key[:12]}, seated={self._seated}, fences={fences}, waiting={self.waiting})"

    def _make_places(self, flight: str) -> tuple[Place, Place]:
        """A newcomer that does not queue still takes the first place in an empty queue, for as long as giving way takes."""
        seats, stage, queues = self._seats, self._stage, self._stage.session == "queue"
        fleet = Acquire(
            nonce=self.nonce,
            node=seats.node,
            flight=flight,
            lease_ms=ms(stage.running_lease),
            ticket_ms=ms(stage.pending_lease if queues else min(stage.pending_lease, GIVE_WAY_S)),
            max_queue=MAX_QUEUE if queues else 1,
        )
        return Place(seats.coordinator, fleet), Place(seats.own, replace(fleet, lease_ms=OWN_MS, ticket_ms=OWN_MS))

    @property
    def seated(self) -> bool:
        """Whether the job may run."""
        return self._seated and self._ending is None

    async def __aenter__(self) -> SessionSeat:
        await self.take()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.release()

    # ── taking ──────────────────────────────────────────────────────────────────────────────────────────────

    async def take(self) -> None:
        """Be seated when this returns. To be called once.

        Raises ``session_busy`` where the seat is not to be had in the stage's way, and ``backend_unavailable``. Then, and
        when it is cancelled, the question is taken back behind it.
        """
        assert self._ending is None
        began = self._loop.time()
        wait_s = self._stage.session_wait if self._stage.session == "queue" else GIVE_WAY_S
        self._seats.add(self)
        try:
            await self._take(began + wait_s)
        except BaseException:
            self._let_go()
            raise
        self._seated = True
        self.waited_s = self._loop.time() - began

    async def _take(self, deadline: float) -> None:
        fleet, own = self._places
        try:
            await self._queue(fleet, deadline)
        except BackendError:
            if self._seats.reject_without_backend:
                raise fail(Code.BACKEND_UNAVAILABLE, "the coordination backend is away", 1) from None
        await self._queue(own, deadline)

    async def _queue(self, place: Place, deadline: float) -> None:
        """Ask until the lock is granted. A silent backend is asked again as long as the ticket there holds."""
        place.asked = True
        ticket_until = 0.0
        while True:
            self._news.clear()
            asked_at = self._loop.time()
            wait_s = LOOK_AGAIN_S
            try:
                reply = await place.locks.session_step(self.key, place.ask)
            except BackendError:
                if asked_at >= ticket_until:
                    raise
            else:
                if isinstance(reply, Granted):
                    self._granted(place, reply)
                    return
                if isinstance(reply, Busy):
                    raise _busy(reply.retry_ms / 1000)
                assert isinstance(reply, Queued)
                ticket_until = asked_at + place.ask.ticket_ms / 1000
                wait_s = reply.recheck_ms / 1000
            await self._wait(wait_s, deadline)

    def _granted(self, place: Place, reply: Granted) -> None:
        place.fence = reply.fence
        self.waiting = max(self.waiting, reply.waiting)
        if self._timer is None:
            self._timer = self._loop.call_later(self._stage.heartbeat, self._beat)

    async def _wait(self, wait_s: float, deadline: float) -> None:
        """Wait for news, at most ``wait_s``. Raises ``session_busy`` at the deadline, or where the holder does not give way."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(min(self._loop.time() + wait_s, deadline)):
                await self._news.wait()
        if self._kept or (self._loop.time() >= deadline and not self._news.is_set()):
            raise _busy(self._stage.running_lease)

    def told(self, notice: SessionNotice) -> None:
        """A notice for this seat came."""
        if notice.kind is SessionNoticeKind.TURN:
            self._news.set()
        elif notice.kind is SessionNoticeKind.KEPT:
            if self._stage.session != "queue":  # who queues waits on, and must not ask at once: to ask is to contest
                self._kept = True
                self._news.set()
        elif self._ending is None:
            self.waiting = notice.waiting
            self._contested = True
            if self._answering is None or self._answering.done():
                self._answering = self._seats.tasks.spawn(self._answer(), "session contest")

    # ── holding ─────────────────────────────────────────────────────────────────────────────────────────────

    async def wanted(self) -> bool:
        """Whether somebody waits for the lock, as the coordinator knows it now."""
        await self._renew()
        return self.waiting > 0

    async def _answer(self) -> None:
        """Stop for a newcomer, or tell it that the job goes on."""
        while self._contested:
            self._contested = False
            if not await self._on_contest():
                await self._renew(keep=True)

    def _beat(self) -> None:
        self._timer = self._loop.call_later(self._stage.heartbeat, self._beat)
        if not self._commands.locked():
            self._seats.tasks.spawn(self._renew(), "session renew")

    async def _renew(self, *, keep: bool = False) -> None:
        async with self._commands:
            if self._ending is not None:
                return
            counts = [await self._renewed(place, keep=keep) for place in self._places]
            self.waiting = max(counts)

    async def _renewed(self, place: Place, *, keep: bool) -> int:
        """Renew one lock, or come back to one that was asked for and is not held; how many wait there."""
        reply: SessionReply | None = None
        if place.fence is not None:
            reply = await self._step(place, Hold(place.fence, place.ask.lease_ms, keep))
            if isinstance(reply, Refused):
                place.fence = None
                log.warning("session %s: the lock was lost while its job runs", self.key[:12])
        if place.fence is None and place.asked:
            reply = await self._step(place, replace(place.ask, max_queue=0))
            if isinstance(reply, Granted):
                place.fence = reply.fence
        return reply.waiting if isinstance(reply, (Granted, Held)) else 0

    # ── giving back ─────────────────────────────────────────────────────────────────────────────────────────

    async def release(self) -> None:
        """Give the seat back, or take back the question; idempotent. When this returns, the next one can be seated.

        Bounded by the coordinator's own timeout. It is carried out even if whoever waits for it is cancelled.
        """
        await asyncio.wait((self._let_go(),))

    def _let_go(self) -> asyncio.Task[None]:
        if self._ending is None:
            self.waiting = 0
            if self._timer is not None:
                self._timer.cancel()
            self._ending = self._seats.tasks.spawn(self._give_back(), "session release")
        return self._ending

    async def _give_back(self) -> None:
        async with self._commands:
            for place in reversed(self._places):
                if place.asked:
                    fence, place.fence = place.fence, None
                    await self._step(place, Withdraw(self.nonce) if fence is None else Release(fence))
        self._seats.remove(self)

    async def _step(self, place: Place, op: SessionOperation) -> SessionReply | None:
        """One operation; None where the backend did not answer."""
        try:
            return await place.locks.session_step(self.key, op)
        except BackendError:
            return None


def _busy(retry_s: float) -> SoloflightError:
    message = "this session has another request in work; it can not run beside it"
    return fail(Code.SESSION_BUSY, message, ceil(retry_s))
