"""Events into spans: who is whose parent, and who links to whom. docs/tracing.md draws it.

Rule 1: a request's span is below what its client brought; without that, an owner's begins the flight's own trace.
Rule 2: a flight's call is below its owner's span. What a flight's call is called follows from the flight alone (``identity``).
Rule 3: others link to that name. Where the owner's client brought a trace of its own, in which no other node could find the call,
        a span of that name stands in the flight's trace and links to the call.
"""

from __future__ import annotations

import secrets
import time

from cachetools import LRUCache
from opentelemetry.trace import SpanContext, SpanKind

from soloflight.ports import CallEnded, Event, RequestEnded, Role
from soloflight_otel import identity
from soloflight_otel.attributes import (
    alone_attributes,
    alone_called,
    call_attributes,
    call_name,
    call_status,
    request_attributes,
    request_name,
    request_status,
)
from soloflight_otel.tracer import Tracer

REMEMBERED = 4096
"""So many calls below a client's own trace are linked to directly by this process's later requests."""
NS = 1_000_000_000


class OtelObserver:
    """An observer that writes a span for each request and each upstream call."""

    wants_trace = True

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._process = secrets.token_hex(8)
        self._calls: LRUCache[tuple[str, int], SpanContext] = LRUCache(REMEMBERED)

    def __repr__(self) -> str:
        return f"OtelObserver({self._tracer!r})"

    def on_event(self, event: Event) -> None:
        """Write the spans of one event."""
        if isinstance(event, RequestEnded):
            self._request(event)
        elif isinstance(event, CallEnded):
            self._call(event)

    async def close(self) -> None:
        """Send what is left, within a bound."""
        await self._tracer.close()

    def _request(self, event: RequestEnded) -> None:
        times_ns = _times(event.duration_s)
        flight, owner = event.flight, event.role is Role.OWNER
        own = self._tracer.write(
            request_name(event),
            SpanKind.SERVER,
            times_ns,
            request_attributes(event),
            request_status(event),
            parent=self._tracer.remote(event.trace),
            trace_id=identity.trace_id(flight) if owner and flight else 0,
            span_id=identity.owner_id(flight, self._process) if owner and flight else 0,
            links=(self._found(event),) if flight and event.role in (Role.FOLLOWER, Role.REPLAY) else (),
        )
        if alone_called(event):
            self._alone(event, own, times_ns)

    def _alone(self, event: RequestEnded, parent: SpanContext, times_ns: tuple[int, int]) -> None:
        """The call of a request that went alone: all of its time but what the proxy took before."""
        began_ns = min(times_ns[1], times_ns[0] + int(event.overhead_s * NS))
        attributes = alone_attributes(event)
        status = call_status(attributes)
        name, times_ns = call_name(event.stage), (began_ns, times_ns[1])
        self._tracer.write(name, SpanKind.CLIENT, times_ns, attributes, status, parent=parent)

    def _call(self, event: CallEnded) -> None:
        """One call of a flight; it ends before its owner's request does, whose span it names already."""
        flight, times_ns = event.flight, _times(event.duration_s)
        remote = self._tracer.remote(event.trace)
        trace_id, span_id = identity.trace_id(flight), identity.call_id(flight, event.attempt)
        if event.attempt == 0 and event.outcome == "fault":
            span_id = 0  # without a coordinator's number the next try would have this one's name
        parent = self._tracer.foreseen(remote, trace_id, identity.owner_id(flight, self._process))
        attributes = call_attributes(event)
        name, status = call_name(event.stage), call_status(attributes)
        call = self._tracer.write(name, SpanKind.CLIENT, times_ns, attributes, status, parent=parent, span_id=span_id)
        if remote is not None:
            self._calls[flight, event.attempt] = call
            name = f"flight {event.stage}"
            self._tracer.write(
                name, SpanKind.INTERNAL, times_ns, attributes, trace_id=trace_id, span_id=span_id, links=(call,)
            )

    def _found(self, event: RequestEnded) -> SpanContext:
        """The upstream call whose answer this request got: as it is remembered here, or as it is named everywhere."""
        known = self._calls.get((event.flight, event.attempt))
        if known is not None:
            return known
        flight = event.flight
        return self._tracer.foreseen(None, identity.trace_id(flight), identity.call_id(flight, event.attempt))


def _times(duration_s: float) -> tuple[int, int]:
    """Begin and end of what has just ended, ns since 1970."""
    now_ns = time.time_ns()
    return now_ns - int(duration_s * NS), now_ns
