"""Tallies as prometheus_client's metric families: the names and labels that dashboards stand on (contract section 6)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from soloflight.ports import Gauges, Role
from soloflight_prometheus.tallies import BackendTally, Histogram, StageTally

BY = {Role.FOLLOWER: "join", Role.REPLAY: "replay"}
SAID = {1: "1xx", 2: "2xx", 3: "3xx", 4: "4xx", 5: "5xx"}
"""Status classes; an answer that never began has none, and counts as "none"."""


class Exposition(Collector):
    """Collects from the tallies of the stages (by name), of requests without one, and of the backend (by operation).

    ``now`` is what the process holds, set before each scrape.
    """

    def __init__(
        self, stages: Mapping[str, StageTally], unknown: StageTally, backend: Mapping[str, BackendTally]
    ) -> None:
        self._stages = stages
        self._unknown = unknown
        self._backend = backend
        self.now = Gauges()

    def __repr__(self) -> str:
        return f"Exposition({', '.join(self._stages)})"

    def collect(self) -> Iterator[Metric]:
        """Every family, also one that has no sample yet."""
        stages = [*self._stages.items(), ("", self._unknown)]
        yield from _requests(stages)
        yield from _upstream(stages)
        yield from _coordination(stages)
        yield from self._backend_families()
        yield from _gauges(self.now)

    def _backend_families(self) -> Iterator[Metric]:
        seconds = HistogramMetricFamily(
            "soloflight_backend_seconds", "Time that commands to the coordination backend took.", labels=["op"]
        )
        failed = CounterMetricFamily(
            "soloflight_backend_errors", "Commands that the coordination backend did not answer in time.", labels=["op"]
        )
        for op, tally in self._backend.items():
            _put(seconds, [op], tally.seconds)
            failed.add_metric([op], tally.failed)
        yield seconds
        yield failed


def _requests(stages: Sequence[tuple[str, StageTally]]) -> Iterator[Metric]:
    requests = CounterMetricFamily(
        "soloflight_requests",
        "Requests answered, by how (role), how that ended (outcome) and the class of their status.",
        labels=["stage", "role", "outcome", "status"],
    )
    first_byte = HistogramMetricFamily(
        "soloflight_time_to_first_byte_seconds",
        "From a request's arrival until the first byte of its answer was written.",
        labels=["stage", "role"],
    )
    overhead = HistogramMetricFamily(
        "soloflight_overhead_seconds",
        "What of the time to the first byte was not spent waiting for the upstream.",
        labels=["stage", "role"],
    )
    lag = HistogramMetricFamily(
        "soloflight_follower_lag_seconds",
        "From the moment an answer's last byte was in this process until a follower's was written.",
        labels=["stage"],
    )
    errors = CounterMetricFamily(
        "soloflight_errors",
        "Errors that the proxy itself answered with, or cut an answer with.",
        labels=["stage", "reason"],
    )
    for name, stage in stages:
        for role, tally in stage.roles.items():
            counts = list(tally.requests())
            if not name and not counts:
                continue
            for outcome, status, count in counts:
                requests.add_metric([name, role.value, outcome, SAID.get(status, "none")], count)
            _put(first_byte, [name, role.value], tally.first_byte)
            _put(overhead, [name, role.value], tally.overhead)
        if name:
            _put(lag, [name], stage.lag)
        for reason, count in stage.errors.items():
            errors.add_metric([name, reason], count)
    yield from (requests, first_byte, overhead, lag, errors)


def _upstream(stages: Sequence[tuple[str, StageTally]]) -> Iterator[Metric]:
    calls = CounterMetricFamily(
        "soloflight_upstream_calls",
        "Calls to an upstream that have ended, for shared flights (owner) and requests alone (bypass).",
        labels=["stage", "role", "outcome"],
    )
    avoided = CounterMetricFamily(
        "soloflight_upstream_calls_avoided",
        "Requests answered without a call of their own: joined a running flight, or replayed a finished one.",
        labels=["stage", "by"],
    )
    tokens = CounterMetricFamily(
        "soloflight_tokens_avoided",
        "Tokens of these answers, as far as they told their usage: prompt and completion.",
        labels=["stage", "by", "kind"],
    )
    for name, stage in stages:
        if not name:
            continue
        for (role, outcome), count in stage.calls.items():
            calls.add_metric([name, role.value, outcome], count)
        for role, by in BY.items():
            one = stage.avoided[role]
            avoided.add_metric([name, by], one.calls)
            tokens.add_metric([name, by, "prompt"], one.prompt)
            tokens.add_metric([name, by, "completion"], one.completion)
    yield from (calls, avoided, tokens)


def _coordination(stages: Sequence[tuple[str, StageTally]]) -> Iterator[Metric]:
    not_shared = _reasons("soloflight_not_shared", "Requests that made a call of their own, by why.")
    not_kept = _reasons("soloflight_not_kept", "Answers that are not replayed, by why.")
    takeovers = _reasons(
        "soloflight_takeovers", "Further attempts of a flight begun here: its owner lapsed, or a retry of our own."
    )
    fenced = _reasons(
        "soloflight_fenced_writes", "Writes of an owner that the coordinator refused (beat, append, seal)."
    )
    wait = HistogramMetricFamily(
        "soloflight_session_wait_seconds",
        "Time that requests waited for their session's lock.",
        labels=["stage", "outcome"],
    )
    for name, stage in stages:
        for family, counts in (
            (not_shared, stage.not_shared),
            (not_kept, stage.not_kept),
            (takeovers, stage.takeovers),
            (fenced, stage.fenced),
        ):
            for reason, count in counts.items():
                family.add_metric([name, reason], count)
        for outcome, histogram in stage.session_wait.items():
            _put(wait, [name, outcome], histogram)
    yield from (not_shared, not_kept, takeovers, fenced, wait)


def _gauges(now: Gauges) -> Iterator[Metric]:
    for name, told, values in (
        ("soloflight_flights_live", "Flights that run in this process, its own and those it follows.", now.flights),
        ("soloflight_followers", "Clients that listen to a flight which another request began.", now.followers),
        ("soloflight_local_bytes", "Bytes of answers kept in this process for replay (L1).", now.local_bytes),
    ):
        family = GaugeMetricFamily(name, told, labels=["stage"])
        for stage, value in values.items():
            family.add_metric([stage], value)
        yield family
    yield GaugeMetricFamily(
        "soloflight_backend_up", "Whether the coordination backend answers (1) or not (0).", value=float(now.backend_up)
    )


def _reasons(name: str, told: str) -> CounterMetricFamily:
    return CounterMetricFamily(name, told, labels=["stage", "reason"])


def _put(family: HistogramMetricFamily, labels: list[str], histogram: Histogram) -> None:
    family.add_metric(labels, list(histogram.cumulative()), histogram.total_s)
