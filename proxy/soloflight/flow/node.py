"""One process's side of the single-flight: finds the answer, joins the flight, or drives a new one to its end."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from soloflight.core.answer import Reason
from soloflight.core.control import NONE_FRESH
from soloflight.core.errors import Code, Fault, fail
from soloflight.core.flight import (
    Absent,
    Answered,
    Claim,
    Faulted,
    Joined,
    Leave,
    Mismatch,
    Owned,
    Reply,
    Stale,
    State,
    Wait,
)
from soloflight.core.frames import Body, End, Recording
from soloflight.flow.flights import Call, Flight, GoAlone, Registry, Sight, lost
from soloflight.flow.follower import Follower, sit_out
from soloflight.flow.lease import Lease, Seat, bound_ms, ms
from soloflight.flow.listen import Listener
from soloflight.flow.memory import Memory
from soloflight.flow.owner import Attempt, Ending, Owner, backoff_s
from soloflight.flow.publish import Publisher
from soloflight.flow.replays import Replay, Replays
from soloflight.flow.tasks import Tasks
from soloflight.ports import BackendError, CallEnded, Coordinator, Event, FlightEnded, Role, TakenOver, WriteRefused

log = logging.getLogger("soloflight.flow")

# A following node counts as a watcher for this many leases after each look; it looks at least once a lease.
WATCH_LEASES = 3
GIVE_BACK_S = 1.0


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a node stands on."""

    coordinator: Coordinator
    memory: Memory
    replays: Replays
    emit: Callable[[Event], None]
    reject_without_backend: bool = False


class Node:
    """This process among its peers. ``id`` names it at the coordinator."""

    def __init__(self, around: Surroundings) -> None:
        self.id = secrets.token_hex(8)
        self._around = around
        self._tasks = Tasks("flights")
        self._beats = Tasks("beats")
        self._drains = Tasks("drains")
        self.flights = Registry(around.memory)

    def __repr__(self) -> str:
        return f"Node({self.id}, {self.flights!r})"

    async def open(self) -> None:
        """Join the coordinator."""
        await self._around.coordinator.open(self.id, self._rung)

    async def close(self, timeout_s: float = 5.0) -> None:
        """Cut what still runs, give seats back, leave the coordinator."""
        await self._tasks.close(timeout_s)
        await self._beats.wait_idle(GIVE_BACK_S)
        await self._beats.close()
        await self._drains.close()
        await self._around.coordinator.close()

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no flight runs here, at most ``timeout_s``; True if so."""
        return await self._tasks.wait_idle(timeout_s)

    async def listen(self, call: Call) -> Listener:
        """A listener for ``call``: a seat at a running flight, a replay from here, or the first seat of a new flight.

        Raises GoAlone, and ``idempotency_mismatch``.
        """
        while True:
            if (found := self.replay(call)) is not None:
                return self._replayed(found)
            flight = self.flights.get(call.key) if call.share else None
            if flight is None:
                return self._launch(call)
            if flight.closing is not None:
                await asyncio.wait([flight.closing])  # not the future itself: who gives up must not cancel it for all
            elif not flight.joinable:
                raise GoAlone("too_large")
            elif flight.role is None and _stricter(call.fresh_s, flight.call.fresh_s):
                await _settled(flight)
            else:
                return self._join(flight, call)

    def replay(self, call: Call) -> Replay | None:
        """The answer from this process's own memory. Raises ``idempotency_mismatch``."""
        if call.fresh_s == NONE_FRESH:
            return None
        found = self._around.replays.get(call.stage, call.key, call.fresh_s)
        if found is not None:
            _same_payload(found.payload, call)
        return found

    def _replayed(self, found: Replay) -> Listener:
        now = time.monotonic()
        return Listener(
            role=Role.REPLAY,
            recording=found.recording,
            flight_id=found.flight,
            age_s=now - found.sealed,
            ttl_s=max(0.0, found.expires - now),
        )

    def _join(self, flight: Flight, call: Call) -> Listener:
        _same_payload(flight.call.payload, call)
        if flight.abandon_timer is not None:
            flight.abandon_timer.cancel()
            flight.abandon_timer = None
        if call.may_own and not flight.call.may_own:
            flight.call = call
        return Listener(role=Role.FOLLOWER, flight=flight, on_close=self._left)

    def _launch(self, call: Call) -> Listener:
        flight = self.flights.make(call, time.monotonic())
        if flight is None:
            raise GoAlone("memory")
        listener = Listener(flight=flight, on_close=self._left)
        flight.task = self._tasks.spawn(self._drive(flight), f"flight {flight.id}")
        return listener

    # ── the last listener leaves ────────────────────────────────────────────────────────────────────────────────────

    def _left(self, flight: Flight) -> None:
        """A listener closed. Nobody left: the stage's policy decides how long the work goes on for nobody."""
        if flight.log.listeners or flight not in self.flights.all:
            return
        if flight.abandon_timer is None and flight.closing is None:
            delay_s = self._patience_s(flight)
            flight.abandon_timer = asyncio.get_running_loop().call_later(delay_s, self._abandon, flight)

    def _patience_s(self, flight: Flight) -> float:
        stage = flight.call.stage
        if flight.role is Role.FOLLOWER or flight.log.windowed:
            return 0.0
        if stage.on_abandon == "cancel":
            return stage.abandon_grace
        return stage.max_abandoned_stream if flight.delivered else stage.max_abandoned

    def _abandon(self, flight: Flight) -> None:
        flight.abandon_timer = None
        if flight.log.listeners or flight not in self.flights.all:
            return
        flight.closing = asyncio.get_running_loop().create_future()
        self._beats.spawn(self._close_flight(flight), "abandon")

    async def _close_flight(self, flight: Flight) -> None:
        """Ask whether anybody else listens; nobody can join here before the answer is known."""
        closing = flight.closing
        assert closing is not None
        try:
            flight.dropped = flight.abandon is None or await flight.abandon()
            if flight.dropped:
                self._drop(flight, Fault(Code.ABANDONED, "everybody had left"))
        finally:
            flight.closing = None
            if not closing.done():
                closing.set_result(None)

    def _drop(self, flight: Flight, fault: Fault) -> None:
        """End a flight before its answer has: who still listens is cut, the upstream call is ended."""
        if flight.role is Role.OWNER:
            self._around.emit(_dropped(flight, fault))
        flight.finish(fault)
        self.flights.unregister(flight)
        if flight.task is not None:
            flight.task.cancel()

    async def abort(self, flight_id: str) -> bool:
        """End a flight that this node owns, for an operator; its key is free at once. False: it is not owned here."""
        flight = next((flight for flight in self.flights.all if flight.id == flight_id), None)
        if flight is None or flight.role not in (Role.OWNER, None) or flight.log.ended is not None:
            return False
        fault = Fault(Code.ABORTED, "an operator ended this call")
        give_up, flight.dropped = flight.fail, True
        self._drop(flight, fault)
        if give_up is not None:
            await give_up(fault)
        return True

    # ── driving a flight ────────────────────────────────────────────────────────────────────────────────────────────

    async def _drive(self, flight: Flight) -> None:
        """From the claim to the End, whatever this node turns out to be."""
        fault: Fault | None = Fault(Code.INTERNAL, "the proxy failed to make this answer")
        try:
            await self._claim(flight)
            fault = None
        except asyncio.CancelledError:
            fault = Fault(Code.ABANDONED, "the flight was stopped")
            raise
        finally:
            if flight.log.ended is None:
                flight.finish(fault or Fault(Code.INTERNAL, "the flight ended without a result"))
            self.flights.remove(flight)

    async def _claim(self, flight: Flight) -> None:
        """Ask the coordinator until the flight has an end. Every turn of the loop follows a new fact, and attempts are capped."""
        fresh_ms = self._fresh_ms(flight.call)
        while True:
            reply = await self._ask(flight, fresh_ms)
            if reply is None or isinstance(reply, Owned):
                if await self._own(flight, reply) is Ending.SEALED:
                    return
            elif isinstance(reply, Answered):
                if await self._recall(flight, reply):
                    return
                fresh_ms = -1  # the stored result is gone or unreadable: a counted miss
            elif isinstance(reply, Wait):
                await sit_out(self._around.coordinator, flight, reply)
            elif isinstance(reply, Joined):
                if not flight.call.share:
                    flight.send_away("busy")
                    return
                await self._follow(flight, reply)
                if flight.log.ended is not None:
                    return
                if not flight.awaited:  # all have sent bytes of the lost attempt: a new one would be for nobody
                    self.flights.unregister(flight)
                    flight.finish(lost())
                    return
            elif isinstance(reply, (Absent, Stale)):
                if not flight.call.may_own:
                    flight.finish(Fault(Code.NOT_CACHED, "no answer is kept, and only-if-cached was asked for"))
                    return
            else:
                flight.finish(_refusal(reply))
                return

    async def _ask(self, flight: Flight, fresh_ms: int | None) -> Reply | None:
        """Claim; None where the backend is away and the work goes on in this process alone."""
        claim = self._claim_op(flight, claim=flight.call.may_own, fresh_ms=fresh_ms)
        try:
            return await self._around.coordinator.step(flight.call.key, claim)
        except BackendError:
            if self._around.reject_without_backend:
                return Faulted(0, flight.id, Fault(Code.BACKEND_UNAVAILABLE, "the coordination backend is away", 1), 0)
            return None

    def _fresh_ms(self, call: Call) -> int | None:
        """How old an answer ``call`` takes from the coordinator; rounded down, so that a purge lets nothing from before it pass."""
        fresh_s = self._around.replays.accepted_s(call.stage.name, call.fresh_s)
        return None if fresh_s is None else -1 if fresh_s < 0 else int(fresh_s * 1000)

    def _claim_op(self, flight: Flight, *, claim: bool, fresh_ms: int | None, follow: int | None = None) -> Claim:
        call, stage = flight.call, flight.call.stage
        return Claim(
            nonce=secrets.token_hex(16),
            node=self.id,
            flight=flight.id,
            pending_ms=ms(stage.pending_lease),
            running_ms=ms(stage.running_lease),
            first_byte_ms=bound_ms(stage.first_byte_timeout, stage),
            deadline_ms=bound_ms(stage.flight_deadline, stage),
            max_attempts=stage.max_attempts,
            poison_ms=ms(stage.poison_ttl),
            watch_ms=ms(WATCH_LEASES * stage.running_lease) if call.share else 0,
            claim=claim,
            direct=True,
            follow=flight.number if follow is None else follow,
            fresh_ms=fresh_ms,
            payload=call.payload,
        )

    async def _follow(self, flight: Flight, joined: Joined) -> None:
        """Follow the owner elsewhere; back here without an End, the flight must be claimed."""
        coordinator = self._around.coordinator
        fresh_ms = self._fresh_ms(flight.call)
        follower = Follower(
            coordinator,
            self.flights,
            flight,
            lambda number: self._claim_op(flight, claim=False, fresh_ms=fresh_ms, follow=number),
        )
        flight.abandon = partial(self._leave, flight)
        try:
            await follower.run(joined)
        finally:
            flight.abandon = flight.sight = None

    async def _leave(self, flight: Flight) -> bool:
        """No listener here any more: stop watching. The flight itself goes on where it is owned."""
        try:
            await self._around.coordinator.step(flight.call.key, Leave(self.id, flight.number))
        except BackendError:
            log.debug("flight %s: could not say that nobody follows here", flight.id)
        return True

    async def _own(self, flight: Flight, owned: Owned | None) -> Ending:
        """Run one attempt as owner; ``owned`` None: without a seat, in this process alone."""
        flight.attempts += 1
        if flight.log.frames:
            flight.restart(self.flights.new_log(flight.call.stage))
        attempt = owned.attempt if owned is not None else flight.attempts
        flight.decide(Role.OWNER, owned.flight if owned else flight.id, owned.fence.number if owned else 0)
        if attempt > 1:
            reason = "retry" if flight.attempts > 1 else "lapsed"
            self._around.emit(TakenOver(flight.call.stage.name, flight.id, attempt, reason))
        lease = Lease(
            self._around.coordinator,
            Seat(flight.call.key, flight.call.stage, self.id),
            owned.fence if owned else None,
            self._beats,
            partial(self._watched, flight),
            partial(self._fenced, flight),
        )
        lease.running = owned is None or owned.state is State.RUNNING
        publisher = Publisher(flight.log, lease, self._beats)
        lease.begin()
        flight.abandon, flight.on_ring = lease.abandon, publisher.ring
        flight.fail = partial(lease.fail, retry=False, backoff_s=0.0)
        try:
            if not lease.running and not await lease.start():
                return Ending.RETRY
            owner = Owner(flight, lease, publisher, self._around.memory, self._drains, attempt)
            flight.sight = partial(_owner_sight, lease, owner, self.id, attempt)
            ended = await self._call_upstream(flight, owner)
        except asyncio.CancelledError:
            if not flight.dropped:  # the process stops: others need not wait for the lease to lapse
                self._beats.spawn(lease.abandon(force=True), "give back")
            raise
        finally:
            lease.end()
            flight.abandon = flight.on_ring = flight.fail = flight.sight = None
            await publisher.close()
        if ended.ending is Ending.SEALED:
            self._publish(flight, ended)
        elif owned is None:  # without a coordinator nobody else spaces the attempts
            await asyncio.sleep(backoff_s(attempt))
        return ended.ending

    async def _call_upstream(self, flight: Flight, owner: Owner) -> Attempt:
        """One upstream call, told of when it has ended, whatever ended it."""
        began = time.monotonic()
        flight.sent_at = flight.sent_at or began
        ended: Attempt | None = None
        try:
            ended = await owner.run()
            return ended
        finally:
            self._around.emit(_call_ended(flight, ended, time.monotonic() - began))

    def _publish(self, flight: Flight, ended: Attempt) -> None:
        """Keep the answer, take the flight off the map and end its log, in one step of the loop."""
        call, now = flight.call, time.monotonic()
        if ended.recording is not None and ended.verdict.kept is None:
            local_s = min(call.stage.local_retention, call.retention_s)
            replay = Replay(
                ended.recording, flight.id, flight.number, now, now + call.retention_s, now + local_s, call.payload
            )
            self._around.replays.put(call.stage, call.key, replay)
        self.flights.unregister(flight)
        flight.end(*ended.tail, usage=ended.verdict.usage)
        self._around.emit(_ended(flight, ended, now))

    async def _recall(self, flight: Flight, found: Answered) -> bool:
        """Replay a sealed result from the coordinator; False if it can not be read."""
        try:
            recording = await self._around.coordinator.result(flight.call.key, found.number)
        except BackendError:
            recording = None
        if recording is None or recording.size != found.size:
            return False
        if flight.log.frames:
            flight.restart(self.flights.new_log(flight.call.stage))
        flight.age_s, flight.ttl_s = found.age_ms / 1000, found.ttl_ms / 1000
        flight.decide(Role.REPLAY if found.kept else Role.FOLLOWER, found.flight, found.number)
        if found.kept:
            self._keep_local(flight, recording, found)
        self.flights.unregister(flight)
        flight.end(recording.head, *map(Body, recording.body), End(), usage=recording.usage)
        return True

    def _keep_local(self, flight: Flight, recording: Recording, found: Answered) -> None:
        call, now = flight.call, time.monotonic()
        ttl_s = found.ttl_ms / 1000
        until = now + min(call.stage.local_retention, ttl_s)
        sealed = now - found.age_ms / 1000
        self._around.replays.put(
            call.stage,
            call.key,
            Replay(recording, found.flight, found.number, sealed, now + ttl_s, until, call.payload),
        )

    def _fenced(self, flight: Flight, refusal: str) -> None:
        log.warning("flight %s: an owner's write was refused (%s)", flight.id, refusal)
        self._around.emit(WriteRefused(flight.call.stage.name, flight.id, refusal))

    def _watched(self, flight: Flight, watchers: int) -> None:
        """A renewal told how many other nodes listen: publish for them, if the ring was lost; or for nobody, if all have left."""
        flight.watchers = watchers
        if not watchers:
            self._left(flight)
        elif flight.on_ring is not None:
            flight.on_ring()

    def _rung(self, key: str) -> None:
        flight = self.flights.get(key)
        if flight is not None and flight.on_ring is not None:
            flight.on_ring()


def _same_payload(payload: str, call: Call) -> None:
    if payload != call.payload:
        raise fail(Code.IDEMPOTENCY_MISMATCH, "this Idempotency-Key was used with another request")


def _refusal(reply: Reply) -> Fault:
    """The fault for a claim's reply that ends the flight."""
    if isinstance(reply, Faulted):
        return reply.fault
    if isinstance(reply, Mismatch):
        return Fault(Code.IDEMPOTENCY_MISMATCH, "this Idempotency-Key was used with another request")
    return Fault(Code.INTERNAL, "the coordinator gave an answer that does not fit")


def _stricter(wanted_s: float | None, given_s: float | None) -> bool:
    """Whether ``wanted_s`` accepts fewer finished answers than ``given_s``."""
    return wanted_s is not None and (given_s is None or wanted_s < given_s)


async def _settled(flight: Flight) -> None:
    """Wait until the coordinator has said what the flight is; bounded by its command timeout."""
    if flight.decided is not None:
        await asyncio.wait([flight.decided])


def _owner_sight(lease: Lease, owner: Owner, node: str, attempt: int) -> Sight:
    state = State.RUNNING if lease.running else State.PENDING
    left_s = lease.left_s if lease.held else None
    return Sight(state.name.lower(), node, attempt, left_s, owner.patience.idle_s if owner.patience else None)


def _outcome(ended: Attempt | None) -> str:
    """The word for how an upstream call ended: complete | error (the upstream's own) | fault | abandoned."""
    if ended is None:
        return "abandoned"
    if ended.fault is not None:
        return "fault"
    refused = ended.recording is not None and ended.recording.head.status >= 400
    return "error" if refused or ended.verdict.kept is Reason.ERROR else "complete"


def _call_ended(flight: Flight, ended: Attempt | None, took_s: float) -> CallEnded:
    head = flight.log.head
    code = ended.fault.code if ended is not None and ended.fault is not None else None
    return CallEnded(flight.call.stage.name, flight.id, _outcome(ended), took_s, head.status if head else 0, code)


def _dropped(flight: Flight, fault: Fault) -> FlightEnded:
    return FlightEnded(
        stage=flight.call.stage.name,
        flight=flight.id,
        outcome="abandoned",
        kept=Reason.ABANDONED.value,
        status=flight.log.head.status if flight.log.head is not None else 0,
        attempts=flight.attempts,
        size=flight.log.size,
        duration_s=time.monotonic() - flight.born,
        code=fault.code,
    )


def _ended(flight: Flight, ended: Attempt, now: float) -> FlightEnded:
    recording, verdict = ended.recording, ended.verdict
    return FlightEnded(
        stage=flight.call.stage.name,
        flight=flight.id,
        outcome=_outcome(ended),
        kept=verdict.kept.value if verdict.kept else "kept",
        status=recording.head.status if recording is not None else 0,
        attempts=flight.attempts,
        size=flight.log.size,
        duration_s=now - flight.born,
        usage=verdict.usage,
        code=ended.fault.code if ended.fault else None,
    )
