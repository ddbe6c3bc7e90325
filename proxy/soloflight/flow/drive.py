"""Driving a flight from its claim to its end, whatever this node turns out to be: owner, follower, or a reader of the answer."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from soloflight.core.errors import Code, Fault, SoloflightError
from soloflight.core.flight import (
    Abandon,
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
from soloflight.events import Role, TakenOver, WriteRefused
from soloflight.flow.approach import Approach
from soloflight.flow.flights import Call, Flight, Registry, Sight, lost
from soloflight.flow.follower import Follower, sit_out
from soloflight.flow.gate import Gate
from soloflight.flow.lease import Lease, Seat, bound_ms, ms
from soloflight.flow.owner import Attempt, Ending, Owner, backoff_s
from soloflight.flow.publish import Publisher
from soloflight.flow.shelf import Replay
from soloflight.flow.tasks import Tasks
from soloflight.flow.telling import call_ended, flight_ended
from soloflight.ports import BackendError

if TYPE_CHECKING:
    from soloflight.flow.node import Surroundings

log = logging.getLogger("soloflight.flow")

# A following node counts as a watcher for this many leases after each look; it looks at least once a lease.
WATCH_LEASES = 3
# How long a node that waits at the gate leaves an abandoned flight to another one, which is through.
STAND_BACK_S = 0.1
ANEW = "anew "
"""What the fleet is told of a refreshed answer: this, its key, and the number of the attempt that made it."""


class Driver:
    """Drives this node's flights. ``watched`` hears how many other nodes follow; ``give_way`` ends work that nobody listens to."""

    def __init__(
        self,
        around: Surroundings,
        node: str,
        flights: Registry,
        gate: Gate,
        beats: Tasks,
        watched: Callable[[Flight, int], None],
        give_way: Callable[[Flight], Awaitable[bool]],
    ) -> None:
        self.id = node
        self.flights = flights
        self._around = around
        self._gate = gate
        self._beats = beats
        self._watched = watched
        self._give_way = give_way
        self._drains = Tasks("drains")

    def __repr__(self) -> str:
        return f"Driver({self.id}, {self.flights!r})"

    async def close(self) -> None:
        """End what is left behind the flights."""
        await self._drains.close()

    async def drive(self, flight: Flight) -> None:
        """From the claim to the End, whatever this node turns out to be."""
        fault: Fault | None = Fault(Code.INTERNAL, "the proxy failed to make this answer")
        try:
            await self._claim(flight)
            fault = None
        except asyncio.CancelledError:
            fault = Fault(Code.DRAINING, "the proxy stopped before this answer was whole", 1)
            raise
        finally:
            try:
                await self._give_back(flight)
            finally:
                if flight.log.ended is None:
                    flight.finish(fault or Fault(Code.INTERNAL, "the flight ended without a result"))
                self.flights.remove(flight)

    async def kept(self, call: Call) -> Replay | None:
        """The answer that the coordinator keeps for ``call``, by a look only; None also where the backend is away."""
        coordinator = self._around.coordinator
        look = self._claim_op(call, claim=False, fresh_ms=self._fresh_ms(call), watch=False)
        try:
            found = await coordinator.step(call.key, look)
            if not isinstance(found, Answered):
                return None
            recording = await coordinator.result(call.key, found.number)
        except BackendError:
            return None
        if recording is None or recording.size != found.size:
            return None
        return self._keep_local(call, recording, found)

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
                await sit_out(self._around.coordinator, flight, reply.wait_ms / 1000)
            elif isinstance(reply, Joined):
                if not flight.call.share:
                    flight.send_away("busy")
                    return
                await self._follow(flight, reply)
                if flight.log.ended is not None:
                    return
                if flight.approach is not None and flight.approach.open:
                    await sit_out(self._around.coordinator, flight, STAND_BACK_S)
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
        approach = flight.approach
        through = approach is not None and not approach.open
        claim = self._claim_op(
            flight.call,
            flight=flight.id,
            claim=flight.call.may_own,
            fresh_ms=fresh_ms,
            follow=flight.number,
            watch=through or not self._gate.guards(flight.call.stage),
            direct=through,
        )
        try:
            return await self._around.coordinator.step(flight.call.key, claim)
        except asyncio.CancelledError:
            if claim.claim:
                self._beats.spawn(self._take_back(flight.call.key, claim), "take back")
            raise
        except BackendError:
            if self._around.reject_without_backend:
                return Faulted(0, flight.id, Fault(Code.BACKEND_UNAVAILABLE, "the coordination backend is away", 1), 0)
            return None

    async def _take_back(self, key: str, claim: Claim) -> None:
        """Everybody left while the claim was on its way: a seat that it was given is free at once, not when its lease lapses.

        The same claim again tells of it, as a look that claims nothing by itself.
        """
        coordinator = self._around.coordinator
        try:
            reply = await coordinator.step(key, replace(claim, claim=False, watch_ms=0))
            if isinstance(reply, Owned):
                await coordinator.step(key, Abandon(reply.fence, self.id, force=True))
        except BackendError:
            log.debug("a seat that nobody waits for could not be given back")

    def _fresh_ms(self, call: Call) -> int | None:
        """How old an answer ``call`` takes from the coordinator; rounded down, so that a purge lets nothing from before it pass."""
        fresh_s = self._around.replays.accepted_s(call.stage.name, call.fresh_s)
        return None if fresh_s is None else -1 if fresh_s < 0 else int(fresh_s * 1000)

    def _claim_op(
        self,
        call: Call,
        *,
        claim: bool,
        fresh_ms: int | None,
        flight: str = "",
        follow: int = 0,
        watch: bool = True,
        direct: bool = False,
    ) -> Claim:
        """``claim`` False: a look only; ``watch``: a follower's, of which the owner hears; ``follow``: the attempt followed.

        ``direct``: this node is through its gate already.
        """
        stage = call.stage
        return Claim(
            nonce=secrets.token_hex(16),
            node=self.id,
            flight=flight,
            pending_ms=ms(stage.pending_lease),
            running_ms=ms(stage.running_lease),
            first_byte_ms=bound_ms(stage.first_byte_timeout, stage),
            deadline_ms=bound_ms(stage.flight_deadline, stage),
            max_attempts=stage.max_attempts,
            poison_ms=ms(stage.poison_ttl),
            watch_ms=ms(WATCH_LEASES * stage.running_lease) if watch and call.share else 0,
            claim=claim,
            direct=direct or not self._gate.stands(stage, call.session),
            follow=follow,
            fresh_ms=fresh_ms,
            payload=call.payload,
        )

    async def _follow(self, flight: Flight, joined: Joined) -> None:
        """Follow the owner elsewhere; back here without an End, the flight must be claimed."""
        fresh_ms = self._fresh_ms(flight.call)
        if joined.state is State.PENDING and self._gate.guards(flight.call.stage):
            self._approach(flight)
        else:
            await self._give_back(flight)

        def look(number: int) -> Claim:
            """At its owner's gate a follower is heard of only once it is through its own: then the owner stands back."""
            watch = flight.approach is None or not flight.approach.open
            return self._claim_op(flight.call, claim=False, fresh_ms=fresh_ms, follow=number, watch=watch)

        follower = Follower(
            self._around.coordinator, self.flights, flight, look, on_started=partial(self._give_back, flight)
        )
        if flight.approach is not None:
            flight.approach.on_through = follower.look_again
        flight.abandon = partial(self._leave, flight)
        try:
            await follower.run(joined)
        finally:
            flight.abandon = flight.sight = None
            if flight.approach is not None:
                flight.approach.on_through = None

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
        owner = Owner(flight, lease, publisher, self._around.memory, self._drains, attempt)
        lease.begin()
        flight.abandon, flight.fail = lease.abandon, partial(lease.fail, retry=False, backoff_s=0.0)
        flight.sight = partial(_owner_sight, lease, owner, self.id, attempt)
        try:
            if not await self._pass(flight):
                await sit_out(self._around.coordinator, flight, STAND_BACK_S, meanwhile=lease.let_go)
                return Ending.RETRY
            flight.on_ring = publisher.ring
            if flight.watchers:
                publisher.ring()
            if not lease.running and not await lease.start():
                return Ending.RETRY
            owner.take_call(flight.call)
            owner.before_end = partial(self._give_back, flight)
            ended = await self._call_upstream(flight, owner)
        except SoloflightError as refused:
            flight.turned_away = True
            await self._give_back(flight)
            await lease.fail(refused.fault, retry=False, backoff_s=0.0)
            self.flights.unregister(flight)
            flight.finish(refused.fault)
            return Ending.SEALED
        except asyncio.CancelledError:
            if not flight.dropped:  # the process stops: others need not wait for the lease to lapse
                self._beats.spawn(lease.abandon(force=True), "give back")
            raise
        finally:
            lease.end()
            flight.abandon = flight.on_ring = flight.fail = flight.sight = None
            await publisher.close()
        if ended.ending is Ending.SEALED:
            await self._give_back(flight)
            if ended.accepted and ended.verdict.kept is None and flight.call.fresh_s is not None:
                await self._tell_anew(flight)
            self._publish(flight, ended)
        elif owned is None:  # without a coordinator nobody else spaces the attempts
            await asyncio.sleep(backoff_s(attempt))
        return ended.ending

    async def _pass(self, flight: Flight) -> bool:
        """Through the gate, with the call of whoever may go first. False: another node is through before, and asks for it.

        Raises SoloflightError where everybody was refused.
        """
        if flight.approach is None and not self._gate.stands(flight.call.stage, flight.call.session):
            return True
        approach = self._approach(flight)
        flight.on_ring = approach.ring
        if not flight.calls:  # its client left before the claim: nobody waits at a gate for nobody
            self._watched(flight, flight.watchers)
        try:
            through = await approach.enter(flight.calls or [flight.call])
        finally:
            flight.on_ring = None
        if approach.call is not None:
            flight.call = approach.call
        return through

    def _approach(self, flight: Flight) -> Approach:
        """The flight's way to the gate, for all who listen here."""
        approach = flight.approach
        if approach is None:
            give_way = partial(self._give_way, flight)
            approach = Approach(self._gate, flight.call.stage, flight.id, self._beats, give_way, flight.refuse)
            flight.approach = approach
        for call in flight.calls:
            approach.want(call)
        return approach

    async def _give_back(self, flight: Flight) -> None:
        """Whatever the flight has at the gate, or waits for there."""
        approach, flight.approach = flight.approach, None
        if approach is not None:
            await approach.leave()

    async def _call_upstream(self, flight: Flight, owner: Owner) -> Attempt:
        """One upstream call, told of when it has ended, whatever ended it."""
        began = time.monotonic()
        flight.sent_at = flight.sent_at or began
        ended: Attempt | None = None
        try:
            ended = await owner.run()
            return ended
        finally:
            self._around.emit(call_ended(flight, ended, time.monotonic() - began))

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
        self._around.emit(flight_ended(flight, ended, now))

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
        followed = found.number == flight.number  # it was under way when this node waited for it
        flight.decide(Role.REPLAY if found.kept and not followed else Role.FOLLOWER, found.flight, found.number)
        if found.kept:
            self._keep_local(flight.call, recording, found)
        self.flights.unregister(flight)
        flight.end(recording.head, *map(Body, recording.body), End(), usage=recording.usage)
        return True

    def _keep_local(self, call: Call, recording: Recording, found: Answered) -> Replay:
        """Keep here what the coordinator keeps."""
        now, ttl_s = time.monotonic(), found.ttl_ms / 1000
        until = now + min(call.stage.local_retention, ttl_s)
        sealed = now - found.age_ms / 1000
        replay = Replay(recording, found.flight, found.number, sealed, now + ttl_s, until, call.payload)
        self._around.replays.put(call.stage, call.key, replay)
        return replay

    async def _tell_anew(self, flight: Flight) -> None:
        """Before a refresh ends for its clients, the fleet hears of it: no node replays the older answer any more."""
        try:
            await self._around.coordinator.tell(f"{ANEW}{flight.call.key} {flight.number}")
        except BackendError:
            log.debug("flight %s: could not tell of the new answer", flight.id)

    def _fenced(self, flight: Flight, refusal: str) -> None:
        log.warning("flight %s: an owner's write was refused (%s)", flight.id, refusal)
        self._around.emit(WriteRefused(flight.call.stage.name, flight.id, refusal))


def _refusal(reply: Reply) -> Fault:
    """The fault for a claim's reply that ends the flight."""
    if isinstance(reply, Faulted):
        return reply.fault
    if isinstance(reply, Mismatch):
        return Fault(Code.IDEMPOTENCY_MISMATCH, "this Idempotency-Key was used with another request")
    return Fault(Code.INTERNAL, "the coordinator gave an answer that does not fit")


def _owner_sight(lease: Lease, owner: Owner, node: str, attempt: int) -> Sight:
    state = State.RUNNING if lease.running else State.PENDING
    left_s = lease.left_s if lease.held else None
    return Sight(state.name.lower(), node, attempt, left_s, owner.patience.idle_s if owner.patience else None)
