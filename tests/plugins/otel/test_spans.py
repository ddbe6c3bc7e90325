"""Events as spans: names, times, attributes, parents and links, kept by the SDK's in-memory exporter."""

import threading
import time
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, SpanKind, StatusCode

from harness.stalls import lasted
from soloflight.core.errors import Code
from soloflight.core.frames import Usage
from soloflight.core.trace import Trace
from soloflight.ports import CallEnded, FlightEnded, RequestEnded, Role
from soloflight_otel import identity, tracer
from soloflight_otel.observer import OtelObserver
from soloflight_otel.tracer import Tracer

FLIGHT = "c0ffee" * 3 + "c0"
CLIENT_TRACE, CLIENT_SPAN = 0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7
CLIENT = Trace(f"00-{CLIENT_TRACE:032x}-{CLIENT_SPAN:016x}-01", "vendor=1")
OTHER = Trace(f"00-{CLIENT_TRACE + 1:032x}-{CLIENT_SPAN:016x}-01")
NS = 1_000_000_000


def ended(role: Role, status: int = 200, **more: Any) -> RequestEnded:
    base: dict[str, Any] = {"method": "POST", "path": "/v1/chat/completions", "duration_s": 2.0, "overhead_s": 0.5}
    if role in (Role.OWNER, Role.FOLLOWER, Role.REPLAY):
        base |= {"flight": FLIGHT, "attempt": 1}
    return RequestEnded("node-1", "evaluation", role, status, **base | more)


def called(outcome: str = "complete", status: int = 200, **more: Any) -> CallEnded:
    return CallEnded("evaluation", FLIGHT, outcome, 1.5, status, **{"attempt": 1, **more})


def told(
    observer: OtelObserver, exporter: InMemorySpanExporter, *events: RequestEnded | CallEnded
) -> list[ReadableSpan]:
    """The spans that these events became, in order."""
    exporter.clear()
    for event in events:
        observer.on_event(event)
    return list(exporter.get_finished_spans())


def at(span: ReadableSpan) -> SpanContext:
    assert span.context is not None
    return span.context


def ids(context: Any) -> tuple[int, int]:
    return context.trace_id, context.span_id


def links(span: ReadableSpan) -> list[tuple[int, int]]:
    return [ids(link.context) for link in span.links]


# ── what a span tells ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_request_is_a_server_span_with_its_times(observer: OtelObserver, exporter: InMemorySpanExporter) -> None:
    before = time.time_ns()
    event = ended(Role.OWNER, usage=Usage(7, 9), model="gpt-4o", upstream_id="req_1", sent=11, first_byte_s=0.25)
    [span] = told(observer, exporter, event)
    assert (span.name, span.kind, span.status.status_code) == ("POST evaluation", SpanKind.SERVER, StatusCode.UNSET)
    assert span.start_time is not None
    assert span.end_time is not None
    assert before <= span.end_time <= time.time_ns()
    assert span.end_time - span.start_time == 2 * NS
    assert dict(span.attributes or {}) == {
        "http.request.method": "POST",
        "url.path": "/v1/chat/completions",
        "http.response.status_code": 200,
        "http.response.body.size": 11,
        "soloflight.stage": "evaluation",
        "soloflight.role": "owner",
        "soloflight.flight": FLIGHT,
        "soloflight.request_id": "node-1",
        "soloflight.upstream_request_id": "req_1",
        "soloflight.first_byte_s": 0.25,
        "soloflight.overhead_s": 0.5,
        "gen_ai.request.model": "gpt-4o",
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 9,
    }


def test_what_a_client_makes_is_bounded_and_never_a_name(
    observer: OtelObserver, exporter: InMemorySpanExporter
) -> None:
    [span] = told(observer, exporter, ended(Role.NONE, 400, method="BREW", path="/" + "x" * 9999, model="y" * 9999))
    attributes = dict(span.attributes or {})
    assert (span.name, attributes["http.request.method"]) == ("HTTP evaluation", "_OTHER")
    assert [len(str(attributes[name])) for name in ("url.path", "gen_ai.request.model")] == [256, 256]


@pytest.mark.parametrize(
    ("event", "status", "description"),
    [
        (ended(Role.NONE, 422, code=Code.IDEMPOTENCY_MISMATCH), StatusCode.UNSET, None),
        (ended(Role.OWNER, 504, code=Code.UPSTREAM_TIMEOUT), StatusCode.ERROR, "upstream_timeout"),
        (ended(Role.FOLLOWER, 200, code=Code.OWNER_LOST, cut=True), StatusCode.ERROR, Code.OWNER_LOST.code),
        (ended(Role.OWNER, 500), StatusCode.ERROR, None),
        (ended(Role.OWNER, 200, cut=True, reason="client_gone"), StatusCode.UNSET, None),
    ],
)
def test_which_requests_are_errors(
    event: RequestEnded,
    status: StatusCode,
    description: str | None,
    observer: OtelObserver,
    exporter: InMemorySpanExporter,
) -> None:
    [span] = told(observer, exporter, event)
    assert (span.status.status_code, span.status.description) == (status, description)
    assert (span.attributes or {}).get("soloflight.cut", False) == event.cut


@pytest.mark.parametrize(
    ("event", "status", "error_type"),
    [
        (called(), StatusCode.UNSET, None),
        (called("error", 429), StatusCode.ERROR, "429"),
        (called("fault", 0, code=Code.UPSTREAM_TIMEOUT), StatusCode.ERROR, "upstream_timeout"),
        (called("abandoned"), StatusCode.UNSET, None),
    ],
)
def test_a_call_is_a_client_span(
    event: CallEnded,
    status: StatusCode,
    error_type: str | None,
    observer: OtelObserver,
    exporter: InMemorySpanExporter,
) -> None:
    [span] = told(observer, exporter, event)
    attributes = dict(span.attributes or {})
    assert (span.name, span.kind, span.status.status_code) == ("upstream evaluation", SpanKind.CLIENT, status)
    assert attributes.get("error.type") == error_type
    assert (attributes["soloflight.flight"], attributes["soloflight.attempt"]) == (FLIGHT, 1)
    assert (span.end_time or 0) - (span.start_time or 0) == 1.5 * NS


# ── who is whose parent, and who links to whom ──────────────────────────────────────────────────────────────────────


def test_without_a_client_trace_the_call_is_below_its_owner_in_the_flights_own_trace(
    observer: OtelObserver, exporter: InMemorySpanExporter
) -> None:
    call, owner, follower, replay = told(
        observer, exporter, called(), ended(Role.OWNER), ended(Role.FOLLOWER, trace=OTHER), ended(Role.REPLAY)
    )
    assert (owner.parent, owner.links) == (None, ())
    assert at(owner).trace_id == identity.trace_id(FLIGHT)
    assert call.parent is not None
    assert ids(call.parent) == ids(at(owner))
    assert ids(at(call)) == (identity.trace_id(FLIGHT), identity.call_id(FLIGHT, 1))
    assert links(follower) == links(replay) == [ids(at(call))]
    assert follower.parent is not None
    assert ids(follower.parent) == (CLIENT_TRACE + 1, CLIENT_SPAN)
    assert replay.parent is None
    assert len({at(span).trace_id for span in (owner, follower, replay)}) == 3


def test_with_a_client_trace_everything_of_the_owner_is_in_it(
    observer: OtelObserver, exporter: InMemorySpanExporter
) -> None:
    call, flight, owner, follower, replay = told(
        observer,
        exporter,
        called(trace=CLIENT),
        ended(Role.OWNER, trace=CLIENT),
        ended(Role.FOLLOWER),
        ended(Role.REPLAY),
    )
    assert owner.parent is not None
    assert call.parent is not None
    assert ids(owner.parent) == (CLIENT_TRACE, CLIENT_SPAN)
    assert ids(call.parent) == ids(at(owner))
    assert at(owner).trace_id == at(call).trace_id == CLIENT_TRACE
    assert at(owner).trace_state.get("vendor") == at(call).trace_state.get("vendor") == "1"
    assert links(follower) == links(replay) == [ids(at(call))]
    assert (flight.name, flight.kind, flight.parent) == ("flight evaluation", SpanKind.INTERNAL, None)
    assert ids(at(flight)) == (identity.trace_id(FLIGHT), identity.call_id(FLIGHT, 1))
    assert links(flight) == [ids(at(call))]


@pytest.mark.parametrize("trace", [None, CLIENT], ids=["none", "client's"])
@pytest.mark.parametrize("role", [Role.FOLLOWER, Role.REPLAY])
def test_another_node_links_to_a_span_that_the_owners_node_writes(
    role: Role, trace: Trace | None, observer: OtelObserver, exporter: InMemorySpanExporter
) -> None:
    written = {ids(at(span)) for span in told(observer, exporter, called(trace=trace), ended(Role.OWNER, trace=trace))}
    elsewhere = OtelObserver(Tracer(SimpleSpanProcessor(exporter)))
    [span] = told(elsewhere, exporter, ended(role))
    [link] = links(span)
    assert link in written


def test_each_attempt_has_a_span_of_its_own_and_who_owned_it_elsewhere_too(
    observer: OtelObserver, exporter: InMemorySpanExporter
) -> None:
    spans = told(observer, exporter, called("abandoned"), ended(Role.OWNER))
    taker = OtelObserver(Tracer(SimpleSpanProcessor(exporter)))
    spans += told(taker, exporter, called(attempt=2), ended(Role.OWNER, attempt=2), ended(Role.FOLLOWER, attempt=2))
    assert len({ids(at(span)) for span in spans}) == 5
    assert links(spans[-1]) == [ids(at(spans[2]))]
    assert spans[2].parent is not None
    assert ids(spans[2].parent) == ids(at(spans[3]))


def test_without_a_coordinators_number_two_tries_are_two_spans(
    observer: OtelObserver, exporter: InMemorySpanExporter
) -> None:
    tries = told(observer, exporter, called("fault", 0, attempt=0), called("fault", 0, attempt=0), called(attempt=0))
    assert len({at(span).span_id for span in tries}) == 3
    [follower] = told(observer, exporter, ended(Role.FOLLOWER, attempt=0))
    assert links(follower) == [ids(at(tries[2]))]


@pytest.mark.parametrize(
    "parent",
    [
        "nonsense",
        f"00-{0:032x}-{1:016x}-01",
        f"00-{1:032x}-{0:016x}-01",
        f"ff-{1:032x}-{1:016x}-01",
        f"00-{1:032x}-{1:016x}-01-more",
        f"00-{1:031x}-{1:016x}-01",
    ],
)
def test_a_parent_that_the_standard_does_not_allow_counts_as_none(
    parent: str, observer: OtelObserver, exporter: InMemorySpanExporter
) -> None:
    call, owner = told(observer, exporter, called(trace=Trace(parent)), ended(Role.OWNER, trace=Trace(parent)))
    assert owner.parent is None
    assert at(call).trace_id == at(owner).trace_id == identity.trace_id(FLIGHT)


@pytest.mark.parametrize("trace", [None, CLIENT], ids=["none", "client's"])
def test_a_request_alone_has_its_call_below_it(
    trace: Trace | None, observer: OtelObserver, exporter: InMemorySpanExporter
) -> None:
    own, call = told(
        observer, exporter, ended(Role.BYPASS, method="GET", path="/v1/files", reason="route", trace=trace)
    )
    assert call.parent is not None
    assert ids(call.parent) == ids(at(own))
    assert (call.kind, own.links, call.end_time) == (SpanKind.CLIENT, (), own.end_time)
    assert (call.start_time or 0) - (own.start_time or 0) == NS // 2
    assert (own.attributes or {})["soloflight.reason"] == "route"
    assert own.parent is None if trace is None else own.parent is not None and ids(own.parent)[0] == CLIENT_TRACE


@pytest.mark.parametrize(
    ("event", "outcome"),
    [
        (ended(Role.BYPASS, 503, code=Code.SATURATED), None),
        (ended(Role.BYPASS, 409, code=Code.SESSION_BUSY), None),
        (ended(Role.BYPASS, 502, code=Code.UPSTREAM_UNREACHABLE), "fault"),
        (ended(Role.BYPASS, 200, cut=True), "abandoned"),
        (ended(Role.BYPASS, 404), "error"),
        (ended(Role.NONE, 401, code=Code.UNAUTHORIZED), None),
    ],
)
def test_only_a_call_that_was_made_is_a_span(
    event: RequestEnded, outcome: str | None, observer: OtelObserver, exporter: InMemorySpanExporter
) -> None:
    _, *calls = told(observer, exporter, event)
    assert [(call.attributes or {})["soloflight.outcome"] for call in calls] == ([outcome] if outcome else [])


def test_other_events_are_no_spans(observer: OtelObserver, exporter: InMemorySpanExporter) -> None:
    observer.on_event(FlightEnded("evaluation", FLIGHT, "complete", "kept", 200, 1, 9, 1.0))
    assert exporter.get_finished_spans() == ()


# ── sampling, and the end ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_client_that_does_not_sample_has_neither_its_request_nor_its_call_written(
    observer: OtelObserver, exporter: InMemorySpanExporter
) -> None:
    quiet = Trace(CLIENT.parent[:-2] + "00")
    spans = told(observer, exporter, called(trace=quiet), ended(Role.OWNER, trace=quiet))
    assert {at(span).trace_id for span in spans} <= {
        identity.trace_id(FLIGHT)
    }  # the flight's own trace is not its client's


def test_a_ratio_keeps_the_whole_of_a_flights_trace_or_nothing(
    exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    observer = OtelObserver(Tracer(SimpleSpanProcessor(exporter)))
    counts = []
    for number in range(200):
        flight = f"{number:020x}"
        call = CallEnded("s", flight, "complete", 1.0, 200, attempt=1)
        counts.append(len(told(observer, exporter, call, ended(Role.OWNER, flight=flight))))
    assert set(counts) == {0, 2}
    assert 60 < counts.count(2) < 140


class Stuck(SpanExporter):
    """A collector that does not answer."""

    def __init__(self) -> None:
        self.asked, self.go_on = threading.Event(), threading.Event()

    def export(self, spans: Any) -> SpanExportResult:
        self.asked.set()
        self.go_on.wait(30)
        return SpanExportResult.FAILURE


async def test_a_stuck_collector_neither_holds_a_request_nor_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracer, "FLUSH_S", 0.05)
    stuck = Stuck()
    observer = OtelObserver(Tracer(BatchSpanProcessor(stuck, max_queue_size=8, max_export_batch_size=4)))
    began = time.monotonic()
    for _ in range(100):
        observer.on_event(ended(Role.REPLAY))
    assert stuck.asked.wait(5)
    await observer.close()
    assert lasted(began) < 5
    stuck.go_on.set()


async def test_what_is_queued_is_sent_at_the_end(exporter: InMemorySpanExporter) -> None:
    observer = OtelObserver(Tracer(BatchSpanProcessor(exporter, schedule_delay_millis=60_000)))
    observer.on_event(ended(Role.REPLAY))
    assert exporter.get_finished_spans() == ()
    await observer.close()
    assert len(exporter.get_finished_spans()) == 1


def test_ids_are_what_they_were() -> None:
    """Nodes of different versions must find each other's spans."""
    assert identity.trace_id("f") == 0xBFBFA51809D7DE7F67CD1740C6D8AD4F
    assert identity.call_id("f", 1) == 0x07173A51D3486E75
