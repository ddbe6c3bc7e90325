"""A follower of a flight owned by another node: brings its frames into this node's log, exactly once and in order.

One subscription and one pump per process and flight, however many clients listen here. Notices are hints: whatever does not fit
is settled by one look at the record; the frames that a notice did not bring are read from the stored log or result.

Rule: the last batch of a log, the one with an End, is held until the coordinator says that the attempt is over. Until then the
answer may still become another attempt's; and nobody has an answer's end before its seal, and its session's lock, are out.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from enum import Enum

from soloflight.core.errors import ADMISSION, Code, Fault
from soloflight.core.flight import (
    Absent,
    Answered,
    Claim,
    Faulted,
    Joined,
    Notice,
    NoticeKind,
    Reply,
    Stale,
    State,
    Wait,
)
from soloflight.core.frames import Body, End, Frame, Recording
from soloflight.flow.flights import Flight, Registry, Sight
from soloflight.ports import BackendError, Batch, Coordinator, Role

RETRY_S = 0.25
PENDING_NOTICES = 4096


class Parting(Enum):
    """How following one attempt ended."""

    ENDED = "ended"  # the log has its End
    RECLAIM = "reclaim"  # the attempt is lost, or gone: claim again


class Follower:
    """Follows attempt after attempt of one flight until it ends or must be claimed.

    ``look(number)`` builds the look-only claim for the attempt being followed. ``on_started``: its owner is through the gate.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        registry: Registry,
        flight: Flight,
        look: Callable[[int], Claim],
        on_started: Callable[[], Awaitable[None]],
    ) -> None:
        self._coordinator = coordinator
        self._registry = registry
        self._flight = flight
        self._look_op = look
        self._on_started = on_started
        self._batches = 0
        self._last: tuple[Frame, ...] = ()
        self._notices: deque[Notice] = deque(maxlen=PENDING_NOTICES)
        self._missed = False
        self._woken = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._sign_at = self._joined_at = self._loop.time()
        self._joined: Joined | None = None

    def __repr__(self) -> str:
        return f"Follower({self._flight!r}, batches={self._batches})"

    def sight(self) -> Sight:
        """The flight as the last look and the last batch told of it."""
        now, joined = self._loop.time(), self._joined
        if joined is None:
            return Sight("joining", "")
        left_s = max(0.0, self._joined_at + joined.due_ms / 1000 - now)
        return Sight(joined.state.name.lower(), joined.owner, None, left_s, max(0.0, now - self._sign_at))

    async def run(self, joined: Joined) -> Parting:
        """Follow from ``joined`` on."""
        flight = self._flight
        flight.decide(Role.FOLLOWER, joined.flight, joined.number)
        flight.sent_at = flight.sent_at or time.monotonic()
        flight.sight = self.sight
        try:
            subscription = await self._coordinator.subscribe(flight.call.key, self._notice)
        except BackendError:
            return await self._backend_away()
        try:
            return await self._follow()
        finally:
            await subscription.close()

    async def _follow(self) -> Parting:
        """Look, then wait for notices, until one of the two tells the end."""
        while True:
            try:
                reply = await self._coordinator.step(self._flight.call.key, self._look_op(self._flight.number))
                parting = await self._settle(reply)
            except BackendError:
                if self._loop.time() - self._sign_at > self._flight.call.stage.running_lease:
                    return await self._backend_away()
                await asyncio.sleep(RETRY_S)
                continue
            if parting is not None:
                return parting
            assert isinstance(reply, Joined)
            if await self._listen(reply.due_ms / 1000):
                return Parting.ENDED

    async def _settle(self, reply: Reply) -> Parting | None:
        """Act on what the record says; None: the attempt is alive, go on listening."""
        self._sign_at = self._loop.time()
        if isinstance(reply, Joined):
            self._joined, self._joined_at = reply, self._sign_at
            self._turn_to(reply.number)
            await self._started(reply)
            if reply.frames > self._batches:
                await self._repair()
            return None
        await self._started(reply)
        if isinstance(reply, Answered):
            self._turn_to(reply.number)
            recording = await self._coordinator.result(self._flight.call.key, reply.number)
            if recording is None or recording.size != reply.size:
                return Parting.RECLAIM
            self._complete(recording)
            return Parting.ENDED
        if isinstance(reply, Faulted) and reply.fault.code in ADMISSION:
            self._flight.number = 0  # its owner's own trouble: this node asks anew, as if it had not followed
            return Parting.RECLAIM
        if isinstance(reply, Faulted):
            self._end(reply.fault)
            return Parting.ENDED
        if isinstance(reply, Absent) and self._last:
            self._end_as_published()  # too large to be sealed; or its record was lost behind its last batch
            return Parting.ENDED
        return Parting.RECLAIM

    async def _started(self, reply: Reply) -> None:
        """Its owner is through the gate: this node waits there no longer, and is heard of from now on."""
        waits = isinstance(reply, Joined) and reply.state is State.PENDING
        turned_away = isinstance(reply, Faulted) and reply.fault.code in ADMISSION
        if self._flight.approach is not None and not (waits or turned_away or isinstance(reply, (Absent, Stale, Wait))):
            await self._on_started()
            self._missed = True

    def look_again(self) -> None:
        """Do not wait for a notice."""
        self._missed = True
        self._woken.set()

    async def _listen(self, due_s: float) -> bool:
        """Take notices until one of them needs a look, or the attempt is due; True: the log has its End.

        The jitter spreads the looks of many nodes over a tenth of the lease (reference: coordination, invariant L1).
        """
        until = self._loop.time() + min(due_s * (1 + random.random() / 10), self._flight.call.stage.follower_wait)  # noqa: S311  # spread, not secrecy
        while True:
            while self._notices:
                notice = self._notices.popleft()
                if not self._take(notice):
                    return self._flight.log.ended is not None
            if self._missed:
                self._missed = False
                return False
            self._woken.clear()
            try:
                async with asyncio.timeout_at(until):
                    await self._woken.wait()
            except TimeoutError:
                return False

    def _notice(self, notice: Notice) -> None:
        if len(self._notices) == PENDING_NOTICES:
            self._missed = True
        self._notices.append(notice)
        self._woken.set()

    def _take(self, notice: Notice) -> bool:
        """Apply a notice if it fits; False: look (or, if the log has ended, be done)."""
        if notice.number != self._flight.number:
            return notice.number != 0 and notice.number < self._flight.number
        if notice.kind is NoticeKind.APPENDED:
            return self._apply(Batch(notice.index, notice.frames))
        if notice.kind is NoticeKind.SEALED and notice.index == self._flight.log.size + _size(self._last):
            if self._last or self._flight.log.head is not None:
                self._end_as_published()
            return False
        if notice.kind is NoticeKind.ABANDONED and self._last:
            self._end_as_published()
            return False
        if notice.kind is NoticeKind.STARTED:
            return self._flight.approach is None
        return notice.kind is NoticeKind.RING

    def _apply(self, batch: Batch) -> bool:
        """Append a batch in order; a duplicate is dropped; False: there is a gap."""
        if batch.index <= self._batches:
            return True
        if batch.index != self._batches + 1:
            return False
        self._batches = batch.index
        self._sign_at = self._loop.time()
        if isinstance(batch.frames[-1], End):
            self._last = batch.frames
        else:
            self._flight.first_at = self._flight.first_at or time.monotonic()
            self._flight.log.append(*batch.frames)
        return True

    async def _repair(self) -> None:
        """Read what notices did not bring from the stored log."""
        for batch in await self._coordinator.log(self._flight.call.key, self._flight.number, self._batches):
            if not self._apply(batch):
                break

    def _turn_to(self, number: int) -> None:
        """Another attempt makes the answer now: frames of two attempts never stand in one log."""
        flight = self._flight
        if number != flight.number:
            flight.number = number
            self._batches, self._last = 0, ()
            if flight.log.frames:
                flight.restart(self._registry.new_log(flight.call.stage))

    def _complete(self, recording: Recording) -> None:
        """Add what is missing of the sealed result, by byte offset, and the End."""
        log = self._flight.log
        missing: list[Frame] = [] if log.head is not None else [recording.head]
        skip = log.size
        for data in recording.body:
            if skip < len(data):
                missing.append(Body(data[skip:] if skip else data))
            skip = max(0, skip - len(data))
        self._registry.unregister(self._flight)
        self._flight.first_at = self._flight.first_at or time.monotonic()
        self._flight.end(*missing, End(), usage=recording.usage)

    async def _backend_away(self) -> Parting:
        """The backend does not answer: this node may claim again, which tells whether it works alone from here on."""
        if self._last:
            self._end_as_published()
            return Parting.ENDED
        if self._loop.time() - self._sign_at >= self._flight.call.stage.follower_wait:
            self._end(Fault(Code.FOLLOWER_TIMEOUT, "no sign of the call that makes this answer", 1))
            return Parting.ENDED
        return Parting.RECLAIM

    def _end_as_published(self) -> None:
        """The published log has all of the answer."""
        flight, last = self._flight, self._last or (End(),)
        self._registry.unregister(flight)
        flight.first_at = flight.first_at or time.monotonic()
        flight.end(*last, usage=None)

    def _end(self, fault: Fault) -> None:
        """Nobody finds a flight whose log has ended, however long it takes to part with the coordinator."""
        self._registry.unregister(self._flight)
        self._flight.finish(fault)


def _size(frames: tuple[Frame, ...]) -> int:
    """Body bytes of some frames."""
    return sum(len(frame.data) for frame in frames if isinstance(frame, Body))


async def sit_out(
    coordinator: Coordinator, flight: Flight, wait_s: float, *, meanwhile: Callable[[], Awaitable[None]] | None = None
) -> None:
    """Wait at most so long for another node to take the flight: then this one follows that attempt, whose end it is told, too.

    Without that it would come as a newcomer behind that attempt's end, and begin a new flight. ``meanwhile`` is done once the
    other node's attempt can not be missed any more.
    """
    taken = asyncio.get_running_loop().create_future()

    def listen(notice: Notice) -> None:
        if notice.number > flight.number:
            flight.number = notice.number
            if not taken.done():
                taken.set_result(None)

    try:
        subscription = await coordinator.subscribe(flight.call.key, listen)
    except BackendError:
        subscription = None
    try:
        if meanwhile is not None:
            await meanwhile()
        await asyncio.wait([taken], timeout=wait_s)
    finally:
        if subscription is not None:
            await subscription.close()
