"""One process's side of the single-flight: finds the answer, joins the flight, or launches a new one; and who leaves.

Driving a flight to its end is in ``drive``.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from soloflight.core.control import NONE_FRESH
from soloflight.core.errors import Code, Fault, fail
from soloflight.events import Event, Role
from soloflight.flow.drive import Driver
from soloflight.flow.flights import Call, Flight, GoAlone, Registry
from soloflight.flow.gate import Gate
from soloflight.flow.listen import Listener
from soloflight.flow.memory import Memory
from soloflight.flow.replays import Replays
from soloflight.flow.session import SessionSeats
from soloflight.flow.shelf import Replay
from soloflight.flow.slots import Slots
from soloflight.flow.tasks import Tasks
from soloflight.flow.telling import dropped
from soloflight.ports import Coordinator

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
        self.flights = Registry(around.memory)
        self._seats = SessionSeats(around.coordinator, self.id, reject_without_backend=around.reject_without_backend)
        self.gate = Gate(self._seats, Slots(), around.emit)
        self._driver = Driver(around, self.id, self.flights, self.gate, self._beats, self._watched, self._give_way)

    def __repr__(self) -> str:
        return f"Node({self.id}, {self.flights!r})"

    async def open(self) -> None:
        """Join the coordinator."""
        await self._around.coordinator.open(self.id, self._rung, self._seats.told)

    async def stop(self, timeout_s: float = 5.0) -> None:
        """Cut what still runs (``draining``) and give its seats back: others take over at once."""
        await self._tasks.close(timeout_s)
        await self._beats.wait_idle(GIVE_BACK_S)

    async def close(self, timeout_s: float = 5.0) -> None:
        """Stop, and leave the coordinator."""
        await self.stop(timeout_s)
        await self._beats.close()
        await self._driver.close()
        await self._seats.close(GIVE_BACK_S)
        await self._around.coordinator.close()

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no flight runs here, at most ``timeout_s``; True if so."""
        return await self._tasks.wait_idle(timeout_s)

    async def listen(self, call: Call) -> Listener:
        """A listener for ``call``: a seat at a running flight, a replay from here, or the first seat of a new flight.

        Raises GoAlone, and ``idempotency_mismatch``.
        """
        looked = False
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
            elif not looked and _stricter(flight.call.fresh_s, call.fresh_s):
                looked = True  # a refresh runs here: the old answer stays until it is over
                if (found := await self._driver.kept(call)) is not None:
                    return self._replayed(found)
            else:
                return self._join(flight, call)

    def seat(self, call: Call) -> Listener | None:
        """A seat at a flight that runs here and accepts no older answer than ``call`` does, where that needs no waiting.

        None: ``listen`` decides.
        """
        flight = self.flights.get(call.key) if call.share else None
        if (
            flight is None
            or not flight.joinable
            or flight.closing is not None
            or flight.approach is not None
            or flight.call.payload != call.payload
            or flight.call.fresh_s != call.fresh_s
        ):
            return None
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
            number=found.number,
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
        if call.may_own and flight.approach is not None:
            flight.approach.want(call)
        return Listener(role=Role.FOLLOWER, flight=flight, call=call, on_close=self._left)

    def _launch(self, call: Call) -> Listener:
        flight = self.flights.make(call, time.monotonic())
        if flight is None:
            raise GoAlone("memory")
        listener = Listener(flight=flight, call=call, on_close=self._left)
        flight.task = self._tasks.spawn(self._driver.drive(flight), f"flight {flight.id}")
        return listener

    # ── the last listener leaves ────────────────────────────────────────────────────────────────────────────────────

    def _left(self, flight: Flight) -> None:
        """A listener closed. Nobody left: the stage's policy decides how long the work goes on for nobody."""
        if flight.log.listeners or flight not in self.flights.all:
            return
        loop, delay_s = asyncio.get_running_loop(), self._patience_s(flight)
        at = loop.time() + delay_s
        if flight.closing is None and (flight.abandon_timer is None or at < flight.abandon_at):
            if flight.abandon_timer is not None:
                flight.abandon_timer.cancel()
            flight.abandon_at, flight.abandon_timer = at, loop.call_later(delay_s, self._abandon, flight)

    def _patience_s(self, flight: Flight) -> float:
        stage = flight.call.stage
        if (
            flight.role is Role.FOLLOWER
            or flight.log.windowed
            or (flight.approach is not None and flight.approach.open)
        ):
            return 0.0  # nothing is lost, or nothing can be kept
        if stage.on_abandon == "cancel":
            return stage.abandon_grace
        return stage.max_abandoned_stream if flight.delivered else stage.max_abandoned

    async def _give_way(self, flight: Flight) -> bool:
        """Somebody asks for the session's lock: work that nobody listens to any more ends for it. True: it does."""
        if flight.log.listeners or flight not in self.flights.all:
            return False
        if flight.abandon_timer is not None:
            flight.abandon_timer.cancel()
        if flight.closing is None:
            self._abandon(flight)
        if flight.closing is not None:
            await asyncio.wait([flight.closing])
        return flight.dropped

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
            self._around.emit(dropped(flight, fault))
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


def _stricter(wanted_s: float | None, given_s: float | None) -> bool:
    """Whether ``wanted_s`` accepts fewer finished answers than ``given_s``."""
    return wanted_s is not None and (given_s is None or wanted_s < given_s)


async def _settled(flight: Flight) -> None:
    """Wait until the coordinator has said what the flight is; bounded by its command timeout."""
    if flight.decided is not None:
        await asyncio.wait([flight.decided])
