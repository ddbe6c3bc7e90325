"""The owner of a flight: one upstream call → frames → log → coordinator. It serves no client and outlives all of them.

Reads as the life of one attempt. Bytes go to the log as they came; a side copy goes to the judge, which alone decides whether
the answer is complete and may be kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial

from soloflight.core.answer import Judge, Reason, Usage, Verdict
from soloflight.core.errors import Code, Fault, SoloflightError
from soloflight.core.frames import Body, End, Frame, Recording
from soloflight.core.identity import Identity
from soloflight.core.log import Log
from soloflight.flow.flights import Call, Flight
from soloflight.flow.lease import Lease
from soloflight.flow.memory import Memory
from soloflight.flow.patience import Patience
from soloflight.flow.publish import Publisher
from soloflight.flow.tasks import Tasks
from soloflight.flow.upstream import Exchange, UpstreamError

# After the API's own last word an upstream may leave its socket open, or send a trailer: this long it is waited for.
TERMINAL_GRACE_S = 0.5
DRAIN_LIMIT = 64 * 1024
# Beyond max_recording the upstream is read at most this far ahead of the fastest listener.
WINDOW_LEAD = 1 << 20
# After this many bytes the loop turns once, whatever is there to be read.
TURN = 512 * 1024
BACKOFF_S = (0.05, 0.2, 0.5)


class Ending(Enum):
    """How one attempt of the owner ended."""

    SEALED = "sealed"
    RETRY = "retry"


@dataclass(slots=True)
class Attempt:
    """What is known of one attempt when it has ended."""

    ending: Ending
    verdict: Verdict
    recording: Recording | None = None
    accepted: bool = False
    fault: Fault | None = None
    tail: tuple[Frame, ...] = ()


class Owner:
    """Runs one attempt of ``flight`` under ``lease``. ``before_end`` gives back what must be free when the end is told."""

    def __init__(
        self, flight: Flight, lease: Lease, publisher: Publisher, memory: Memory, drains: Tasks, attempt: int
    ) -> None:
        self._flight = flight
        self._publisher = publisher
        self._call = flight.call
        self._lease = lease
        self._memory = memory
        self._drains = drains
        self._attempt = attempt
        self._starved = False
        self.before_end: Callable[[], Awaitable[None]] = _nothing
        self.patience: Patience | None = None

    def __repr__(self) -> str:
        return f"Owner({self._flight!r}, attempt={self._attempt})"

    def take_call(self, call: Call) -> None:
        """The call to make: a newcomer's, where the flight's first one had to wait for its session."""
        self._call = call

    async def run(self) -> Attempt:
        """Call the upstream and record its answer up to (not including) the frames that end the log.

        The returned attempt carries these as ``tail``: they are appended only after the seal, so that whoever has seen the
        end finds the answer, and a given-back lock, everywhere.
        """
        loop = asyncio.get_running_loop()
        stage = self._call.stage
        try:
            bounds = (stage.first_byte_timeout, loop.time() + stage.flight_deadline)
            with self._call.upstream.patience(*bounds) as patience:
                self.patience = patience
                exchange = await self._call.upstream.send(self._call.out, self._call.body)
                try:
                    return await self._record(exchange, patience)
                except BaseException:
                    exchange.abort()
                    raise
        except UpstreamError as error:
            return await self._failed(error.fault, retry=error.unprocessed and self._untold)
        except TimeoutError:
            return await self._failed(
                Fault(Code.UPSTREAM_TIMEOUT, "the upstream sent nothing for too long"), retry=False
            )

    @property
    def _untold(self) -> bool:
        """Nothing of this attempt is in the log yet."""
        return self._flight.log.head is None

    async def _record(self, exchange: Exchange, patience: Patience) -> Attempt:
        """Read the whole answer into the log, then seal it."""
        call, log = self._call, self._flight.log
        identity = Identity(exchange.head)
        judge = call.rules.judge(call.path, call.facts, identity.head, keep_incomplete=call.stage.keep_incomplete)
        patience.progress(call.stage.progress_timeout)
        held: list[Body] = []
        try:
            transport_whole = await self._read(exchange, patience, identity, judge, held)
        except UpstreamError:
            if not judge.complete:
                raise
            transport_whole = False
        if log.head is None:
            self._flight.begin(identity.head)
        verdict = judge.end(transport_whole=transport_whole)
        if not exchange.head.delimited and verdict.whole is False and not identity.unreadable:
            raise UpstreamError(Code.UPSTREAM_TRUNCATED, "the upstream's stream ended before its last event")
        self._let_go(exchange)
        if identity.unreadable:
            verdict = replace(verdict, kept=Reason.CODING)
        return await self._seal(verdict, held)

    async def _read(
        self, exchange: Exchange, patience: Patience, identity: Identity, judge: Judge, held: list[Body]
    ) -> bool:
        """Read up to the answer's end; the last frame is left in ``held``. True if length or chunks proved the end."""
        log = self._flight.log
        grace_until: float | None = None
        turn_at = TURN
        while not exchange.ended():
            if judge.complete:
                grace_until = grace_until or asyncio.get_running_loop().time() + TERMINAL_GRACE_S
                data = await _read_trailer(exchange, grace_until)
                if data is None:
                    return False
            else:
                data = await exchange.read()
            patience.progress()
            self._lease.progress += len(data)
            for piece in _pieces(identity, data):
                _flush(log, held)
                belongs = judge.feed(piece)
                if log.head is None:
                    self._flight.begin(identity.head)
                if belongs:
                    held.append(Body(piece if belongs == len(piece) else piece[:belongs]))
                if judge.ended:
                    return exchange.ended()
                await self._keep_pace(patience)
                if log.size >= turn_at:  # one read can decode to very much
                    turn_at = log.size + TURN
                    await asyncio.sleep(0)
            if not exchange.ended():
                _flush(log, held)
        for piece in _rest(identity):
            _flush(log, held)
            judge.feed(piece)
            held.append(Body(piece))
        return exchange.head.delimited

    async def _keep_pace(self, patience: Patience) -> None:
        """Hold memory: become a window under pressure, and then wait for the fastest listener."""
        log = self._flight.log
        if not log.windowed and self._memory.used > self._memory.limit and self._memory.full():
            log.stop_recording()
            self._starved = True
        if log.windowed and not self._publisher.live:  # nobody elsewhere can have its beginning any more
            await self._lease.let_go()
        nearly = self._call.stage.max_recording - WINDOW_LEAD  # what the window drops first must have been read by then
        while (log.windowed or log.size > nearly) and log.listeners and log.unread() > WINDOW_LEAD:
            room = asyncio.get_running_loop().create_future()
            log.wait_for_room(partial(_set, room))
            await room
            patience.progress()  # the silence was ours

    def _let_go(self, exchange: Exchange) -> None:
        """Keep the connection if its answer is through; else give it a moment to end by itself, apart from everybody."""
        if exchange.ended():
            exchange.release()
        else:
            self._drains.spawn(_drain(exchange), "drain")

    async def _seal(self, verdict: Verdict, held: list[Body]) -> Attempt:
        """The terminal write, before the last frames reach anybody."""
        log = self._flight.log
        recording = log.recording()
        await self.before_end()
        if recording is None:
            verdict = replace(verdict, kept=verdict.kept or (Reason.MEMORY if self._starved else Reason.TOO_LARGE))
        else:
            data = tuple(body.data for body in held)
            size = recording.size + sum(map(len, data))
            # Cookies are the owner's client's alone: they are neither kept nor stored anywhere.
            head = recording.head.without(b"set-cookie")
            recording = replace(recording, head=head, body=recording.body + data, size=size, usage=verdict.usage)
            if recording.size > self._call.stage.max_recording:
                verdict = replace(verdict, kept=verdict.kept or Reason.TOO_LARGE)
        if verdict.kept is None and not self._call.retention_s:
            verdict = replace(verdict, kept=Reason.NO_RETENTION)
        retention_s = self._call.retention_s if verdict.kept is None else 0.0
        await self._publisher.flush([*held, End()])
        accepted = recording is not None and await self._lease.seal(recording, retention_s)
        if (
            recording is None
        ):  # there is nothing to seal: its followers have the end from the published log, or from nowhere
            await self._lease.abandon(force=True)
        return Attempt(Ending.SEALED, verdict, recording, accepted, tail=(*held, End()))

    async def _failed(self, fault: Fault, *, retry: bool) -> Attempt:
        """The attempt gave no (whole) answer. ``retry`` where it is proven that the upstream did not process it."""
        again = retry and self._attempt < self._call.stage.max_attempts and not self._flight.log.ended
        if not again:
            await self.before_end()
        retrying = await self._lease.fail(fault, retry=again, backoff_s=backoff_s(self._attempt))
        if again and (retrying or not self._lease.held):
            return Attempt(Ending.RETRY, Verdict(Reason.TRUNCATED, usage=Usage()), fault=fault)
        reason = Reason.TRUNCATED
        return Attempt(Ending.SEALED, Verdict(reason, usage=Usage()), fault=fault, tail=(End(fault),))


def backoff_s(attempt: int) -> float:
    """How long to wait behind attempt number ``attempt`` (from 1) that failed unprocessed."""
    return BACKOFF_S[min(attempt, len(BACKOFF_S)) - 1]


async def _nothing() -> None:
    """There is nothing to be given back."""


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _flush(log: Log, held: list[Body]) -> None:
    """The held frame was not the last one: hand it out."""
    if held:
        log.append(*held)
        held.clear()


def _pieces(identity: Identity, data: bytes) -> Iterator[bytes]:
    try:
        yield from identity.feed(data)
    except SoloflightError as error:
        raise UpstreamError(error.fault.code, error.fault.message) from None


def _rest(identity: Identity) -> Iterator[bytes]:
    try:
        yield from identity.finish()
    except SoloflightError as error:
        raise UpstreamError(error.fault.code, error.fault.message) from None


async def _read_trailer(exchange: Exchange, until: float) -> bytes | None:
    """What follows the API's terminal event, or None when the grace is over."""
    try:
        async with asyncio.timeout_at(until):
            return await exchange.read()
    except TimeoutError:
        return None


async def _drain(exchange: Exchange) -> None:
    """Read what is behind the API's last word, a little and not for long, so that the connection can be kept."""
    read = 0
    try:
        async with asyncio.timeout(TERMINAL_GRACE_S):
            while not exchange.ended() and read < DRAIN_LIMIT:
                read += len(await exchange.read())
    except (TimeoutError, UpstreamError):
        pass
    except BaseException:
        exchange.abort()
        raise
    exchange.release()
