"""The Prometheus observer: the contract's series with these labels and no others, whatever clients send."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from soloflight.core.answer import Reason
from soloflight.core.errors import Code
from soloflight.core.flight import Refusal
from soloflight.core.frames import Usage
from soloflight.ports import (
    BackendAsked,
    CallEnded,
    FlightEnded,
    Gauges,
    RequestEnded,
    Role,
    SessionWaited,
    TakenOver,
    WriteRefused,
)
from soloflight_prometheus import PrometheusObserver, soloflight_observer
from soloflight_prometheus import observer as observer_module

# Contract section 6, and what was added to it: each series with its labels.
SERIES = {
    "soloflight_requests_total": {"stage", "role", "outcome", "status"},
    "soloflight_upstream_calls_total": {"stage", "role", "outcome"},
    "soloflight_upstream_calls_avoided_total": {"stage", "by"},
    "soloflight_tokens_avoided_total": {"stage", "by", "kind"},
    "soloflight_flights_live": {"stage"},
    "soloflight_followers": {"stage"},
    "soloflight_overhead_seconds_count": {"stage", "role"},
    "soloflight_follower_lag_seconds_count": {"stage"},
    "soloflight_time_to_first_byte_seconds_count": {"stage", "role"},
    "soloflight_takeovers_total": {"stage", "reason"},
    "soloflight_fenced_writes_total": {"stage", "reason"},
    "soloflight_not_kept_total": {"stage", "reason"},
    "soloflight_backend_up": set(),
    "soloflight_backend_seconds_count": {"op"},
    "soloflight_session_wait_seconds_count": {"stage", "outcome"},
    "soloflight_local_bytes": {"stage"},
    "soloflight_errors_total": {"stage", "reason"},
    "soloflight_not_shared_total": {"stage", "reason"},
    "soloflight_backend_errors_total": {"op"},
}
OPERATING = Path(__file__).parents[2] / "docs/operating.md"
NOW = Gauges({"evaluation": 2}, {"evaluation": 5}, {"evaluation": 700}, backend_up=False)
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
def observer() -> PrometheusObserver:
    return PrometheusObserver(["default", "evaluation"])


def ended(role: Role, status: int = 200, **more: Any) -> RequestEnded:
    return RequestEnded("node-1", "evaluation", role, status, **more)


def samples(observer: PrometheusObserver, now: Gauges = NOW) -> Samples:
    families = text_string_to_metric_families(observer.exposition(now).decode())
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def value(found: Samples, name: str, **labels: str) -> float:
    """The sum of the samples of ``name`` that carry ``labels``."""
    return sum(
        number for (sample, given), number in found.items() if sample == name and labels.items() <= dict(given).items()
    )


EVERYTHING = (
    ended(Role.OWNER, first_byte_s=0.2, overhead_s=0.0004),
    ended(Role.FOLLOWER, lag_s=0.0007, usage=Usage(100, 20)),
    ended(Role.REPLAY, usage=Usage(100, 20)),
    ended(Role.REPLAY, usage=Usage(7, 3)),
    ended(Role.BYPASS, reason="no-store"),
    ended(Role.NONE, 503, code=Code.SATURATED),
    CallEnded("evaluation", "f", "complete", 1.5, 200),
    CallEnded("evaluation", "f", "error", 0.5, 429),
    FlightEnded("evaluation", "f", "complete", "kept", 200, 1, 10, 1.0),
    FlightEnded("evaluation", "f", "error", Reason.STATUS.value, 429, 1, 10, 1.0),
    TakenOver("evaluation", "f", 2, "lapsed"),
    WriteRefused("evaluation", "f", Refusal.STALLED.value),
    SessionWaited("evaluation", "granted", 3.0),
    BackendAsked("claim", 0.0003, True),
    BackendAsked("claim", 0.5, False),
)


def test_every_series_of_the_contract_with_exactly_its_labels(observer: PrometheusObserver) -> None:
    for event in EVERYTHING:
        observer.on_event(event)
    found: dict[str, set[str]] = {}
    for name, labels in samples(observer):
        if not name.endswith(("_bucket", "_sum")):
            found.setdefault(name, set()).update(label for label, _ in labels)
    assert found == SERIES


def test_what_each_event_counts(observer: PrometheusObserver) -> None:
    for event in EVERYTHING:
        observer.on_event(event)
    found = samples(observer)
    for name, labels, wanted in (
        ("soloflight_requests_total", {}, 6),
        ("soloflight_requests_total", {"role": "owner", "outcome": "complete", "status": "2xx"}, 1),
        ("soloflight_requests_total", {"role": "none", "outcome": "refused", "status": "5xx"}, 1),
        ("soloflight_upstream_calls_total", {"role": "owner", "outcome": "complete"}, 1),
        ("soloflight_upstream_calls_total", {"role": "owner", "outcome": "error"}, 1),
        ("soloflight_upstream_calls_total", {"role": "bypass", "outcome": "complete"}, 1),
        ("soloflight_upstream_calls_avoided_total", {"by": "join"}, 1),
        ("soloflight_upstream_calls_avoided_total", {"by": "replay"}, 2),
        ("soloflight_tokens_avoided_total", {"by": "join", "kind": "prompt"}, 100),
        ("soloflight_tokens_avoided_total", {"by": "replay", "kind": "prompt"}, 107),
        ("soloflight_tokens_avoided_total", {"by": "replay", "kind": "completion"}, 23),
        ("soloflight_flights_live", {"stage": "evaluation"}, 2),
        ("soloflight_followers", {"stage": "evaluation"}, 5),
        ("soloflight_local_bytes", {"stage": "evaluation"}, 700),
        ("soloflight_backend_up", {}, 0),
        ("soloflight_time_to_first_byte_seconds_sum", {"role": "owner"}, 0.2),
        ("soloflight_overhead_seconds_bucket", {"role": "owner", "le": "0.00025"}, 0),
        ("soloflight_overhead_seconds_bucket", {"role": "owner", "le": "0.0005"}, 1),
        ("soloflight_follower_lag_seconds_count", {"stage": "evaluation"}, 1),
        ("soloflight_takeovers_total", {"reason": "lapsed"}, 1),
        ("soloflight_fenced_writes_total", {"reason": "stalled"}, 1),
        ("soloflight_not_kept_total", {}, 1),
        ("soloflight_not_kept_total", {"reason": "status"}, 1),
        ("soloflight_backend_seconds_count", {"op": "claim"}, 2),
        ("soloflight_backend_errors_total", {"op": "claim"}, 1),
        ("soloflight_session_wait_seconds_sum", {"outcome": "granted"}, 3.0),
        ("soloflight_errors_total", {"reason": "saturated"}, 1),
        ("soloflight_not_shared_total", {"reason": "no-store"}, 1),
    ):
        assert value(found, name, **labels) == wanted, (name, labels)


@pytest.mark.parametrize(
    ("event", "outcome", "status", "avoided"),
    [
        (ended(Role.FOLLOWER), "complete", "2xx", 1),
        (ended(Role.FOLLOWER, 429), "complete", "4xx", 1),
        (ended(Role.FOLLOWER, 200, cut=True), "left", "2xx", 1),
        (ended(Role.FOLLOWER, 0, cut=True, reason="client_gone"), "left", "none", 1),
        (ended(Role.FOLLOWER, 504, code=Code.FOLLOWER_TIMEOUT), "refused", "5xx", 0),
        (ended(Role.FOLLOWER, 200, code=Code.OWNER_LOST, cut=True), "cut", "2xx", 0),
    ],
)
def test_how_requests_end(
    event: RequestEnded, outcome: str, status: str, avoided: int, observer: PrometheusObserver
) -> None:
    observer.on_event(event)
    found = samples(observer)
    assert value(found, "soloflight_requests_total", role="follower", outcome=outcome, status=status) == 1
    assert value(found, "soloflight_upstream_calls_avoided_total", by="join") == avoided
    assert value(found, "soloflight_time_to_first_byte_seconds_count") == (1 if event.status else 0)


@pytest.mark.parametrize(
    ("event", "outcome"),
    [
        (ended(Role.BYPASS, 200), "complete"),
        (ended(Role.BYPASS, 404), "error"),
        (ended(Role.BYPASS, 502, code=Code.UPSTREAM_UNREACHABLE), "fault"),
        (ended(Role.BYPASS, 200, cut=True), "abandoned"),
    ],
)
def test_a_request_alone_is_an_upstream_call(event: RequestEnded, outcome: str, observer: PrometheusObserver) -> None:
    observer.on_event(event)
    assert value(samples(observer), "soloflight_upstream_calls_total", role="bypass", outcome=outcome) == 1


def test_no_label_is_a_client_s_word(observer: PrometheusObserver) -> None:
    strange = 'CANARY"\\\n{}'
    for number in range(50):
        word = f"{strange}{number}"
        observer.on_event(
            ended(
                Role.BYPASS,
                200,
                flight=word,
                reason=word,
                path=word,
                model=word,
                peer=word,
                method=word,
                upstream_id=word,
            )
        )
    text = observer.exposition(NOW).decode()
    assert "CANARY" not in text
    assert value(samples(observer), "soloflight_not_shared_total", reason="other") == 50


def test_stages_are_bounded_and_a_request_without_one_is_counted(
    observer: PrometheusObserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 20
    monkeypatch.setattr(observer_module, "MOST_STAGES", most)
    for number in range(most + 50):
        observer.on_event(RequestEnded("r", f"reloaded-{number}", Role.OWNER, 200))
    observer.on_event(RequestEnded("r", "", Role.NONE, 400, code=Code.BAD_REQUEST))
    found = samples(observer)
    stages = {dict(labels)["stage"] for name, labels in found if name == "soloflight_requests_total"}
    assert len(stages) <= most
    assert value(found, "soloflight_requests_total", stage="", role="owner") == 50 + 2
    assert value(found, "soloflight_errors_total", stage="", reason="bad_request") == 1


def test_configured_stages_begin_with_zeros() -> None:
    observer = soloflight_observer(SimpleNamespace(stage=[SimpleNamespace(name="evaluation")]))
    found = samples(observer, Gauges())
    for stage in ("default", "evaluation"):
        for by in ("join", "replay"):
            key = ("soloflight_upstream_calls_avoided_total", frozenset({("stage", stage), ("by", by)}))
            assert found[key] == 0


def test_the_page_for_operators_lists_every_series_with_its_labels() -> None:
    rows = re.findall(r"^\| `(soloflight_\w+)` \|([^|]*)\|", OPERATING.read_text(), re.MULTILINE)
    written = {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in rows}
    assert written == {name.removesuffix("_count"): labels for name, labels in SERIES.items()}


def test_the_process_s_own_registry_stays_as_it_is(observer: PrometheusObserver) -> None:
    observer.on_event(ended(Role.REPLAY))
    assert "soloflight" not in " ".join(metric.name for metric in REGISTRY.collect())


def test_every_family_says_what_it_is(observer: PrometheusObserver) -> None:
    text = observer.exposition(NOW).decode()
    assert set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)) == set(
        re.findall(r"^# HELP (\S+) \S", text, re.MULTILINE)
    )
