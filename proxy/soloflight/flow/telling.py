"""What observers are told of a flight and of its upstream calls: events made of what is known when they have ended."""

from __future__ import annotations

import time

from soloflight.core.answer import Reason
from soloflight.core.errors import Fault
from soloflight.core.trace import trace_of
from soloflight.events import CallEnded, FlightEnded
from soloflight.flow.flights import Flight
from soloflight.flow.owner import Attempt


def _outcome(ended: Attempt | None) -> str:
    """The word for how an upstream call ended: complete | error (the upstream's own) | fault | abandoned."""
    if ended is None:
        return "abandoned"
    if ended.fault is not None:
        return "fault"
    refused = ended.recording is not None and ended.recording.head.status >= 400
    return "error" if refused or ended.verdict.kept is Reason.ERROR else "complete"


def call_ended(flight: Flight, ended: Attempt | None, took_s: float) -> CallEnded:
    """One upstream call is over; ``ended`` None: it was broken off. ``took_s``: how long it took."""
    head = flight.log.head
    code = ended.fault.code if ended is not None and ended.fault is not None else None
    return CallEnded(
        stage=flight.call.stage.name,
        flight=flight.id,
        outcome=_outcome(ended),
        duration_s=took_s,
        status=head.status if head else 0,
        code=code,
        attempt=flight.number,
        trace=trace_of(flight.call.request),
    )


def flight_ended(flight: Flight, ended: Attempt, now: float) -> FlightEnded:
    """A flight that this node owned has its answer, or a fault; ``now`` on the monotonic clock."""
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


def dropped(flight: Flight, fault: Fault) -> FlightEnded:
    """A flight that this node owned was ended before its answer."""
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
