"""OpenTelemetry's provider, told everything of a span after the fact: its ids, its times, its parent. The only user of the SDK.

Rule 1: nothing here is global: no provider is set for the process, none is read from it.
Rule 2: a span is made on the loop and handed to the SDK's bounded queue; sending it is a thread's work. A full queue drops.
Rule 3: one loop, one thread uses a Tracer: the ids that were asked for can not reach another's span.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Sequence
from contextlib import suppress

from opentelemetry import trace as api
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, SpanKind, Status, TraceFlags, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from soloflight import __version__
from soloflight.core.trace import Trace
from soloflight_otel.attributes import Attributes

FLUSH_S = 3.0
"""What was not sent by then, when the process ends, is given up."""


class Ids(IdGenerator):
    """Hands out the ids that were asked for, else chance."""

    def __init__(self) -> None:
        self.trace = self.span = 0

    def __repr__(self) -> str:
        return f"Ids({self.trace:032x}, {self.span:016x})"

    def generate_span_id(self) -> int:
        """64 bits."""
        return self.span or random_id(64)

    def generate_trace_id(self) -> int:
        """128 bits."""
        return self.trace or random_id(128)


class Tracer:
    """Writes spans that are over. ``processor`` is told each; it belongs to this tracer from now on."""

    def __init__(self, processor: SpanProcessor) -> None:
        self._ids = Ids()
        self._provider = TracerProvider(resource=_resource(), shutdown_on_exit=False, id_generator=self._ids)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("soloflight", __version__)
        self._propagator = TraceContextTextMapPropagator()

    def __repr__(self) -> str:
        return f"Tracer({self._provider.sampler.get_description()})"

    def remote(self, trace: Trace | None) -> SpanContext | None:
        """The context that a client brought, if the library's propagator holds it for valid."""
        if trace is None:
            return None
        carrier = {"traceparent": trace.parent} | ({"tracestate": trace.state} if trace.state else {})
        found = api.get_current_span(self._propagator.extract(carrier, Context())).get_span_context()
        return found if found.is_valid else None

    def foreseen(self, remote: SpanContext | None, trace_id: int, span_id: int) -> SpanContext:
        """The context of a span that will be written later, below ``remote``: the sampler is asked now as it will be then."""
        trace_id = remote.trace_id if remote is not None else trace_id
        verdict = self._provider.sampler.should_sample(_within(remote), trace_id, "", SpanKind.SERVER, {}, ())
        sampled = verdict.decision is Decision.RECORD_AND_SAMPLE
        flags = TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
        return SpanContext(trace_id, span_id, is_remote=False, trace_flags=flags, trace_state=verdict.trace_state)

    def write(
        self,
        name: str,
        kind: SpanKind,
        times_ns: tuple[int, int],
        attributes: Attributes,
        status: Status | None = None,
        *,
        parent: SpanContext | None = None,
        trace_id: int = 0,
        span_id: int = 0,
        links: Sequence[SpanContext] = (),
    ) -> SpanContext:
        """One span that began and ended at ``times_ns`` (Unix). An id of 0 is left to chance; a parent brings its trace."""
        ids = self._ids
        ids.trace, ids.span = trace_id, span_id
        span = self._tracer.start_span(
            name, _within(parent), kind, attributes, [Link(context) for context in links], times_ns[0]
        )
        if status is not None:
            span.set_status(status)
        span.end(times_ns[1])
        return span.get_span_context()

    async def close(self) -> None:
        """Send what is queued, for at most FLUSH_S. A thread that is stuck by then is a daemon, and ends with the process."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def shut_down() -> None:
            self._provider.shutdown()
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(done.set)

        threading.Thread(target=shut_down, name="otel-flush", daemon=True).start()
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                await done.wait()


def over_http(endpoint: str) -> Tracer:
    """A tracer that sends batches over OTLP/HTTP; bounds and delays are the OTEL_BSP_* variables', 2,048 spans and 5 s by default.

    ``endpoint`` "": the environment names the collector. Raises what the SDK raises at variables that it can not read.
    """
    url = f"{endpoint.rstrip('/')}/v1/traces" if endpoint else None
    return Tracer(BatchSpanProcessor(OTLPSpanExporter(endpoint=url)))


def random_id(bits: int) -> int:
    """Not zero. It names a span and guards nothing, so that plain chance will do."""
    return random.getrandbits(bits) or 1


def _within(parent: SpanContext | None) -> Context:
    """A context with ``parent``, and with nothing of what is around."""
    return Context() if parent is None else set_span_in_context(NonRecordingSpan(parent), Context())


def _resource() -> Resource:
    """The SDK's own, named soloflight unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES name it."""
    named = SERVICE_NAME in OTELResourceDetector().detect().attributes
    return Resource.create({"service.version": __version__} | ({} if named else {SERVICE_NAME: "soloflight"}))
