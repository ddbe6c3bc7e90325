"""Events into tallies. The way of a replay's event is the hot one: it looks three things up and adds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from soloflight.ports import (
    BackendAsked,
    CallEnded,
    Event,
    FlightEnded,
    Gauges,
    RequestEnded,
    Role,
    SessionWaited,
    TakenOver,
    WriteRefused,
)
from soloflight_prometheus.exposition import Exposition
from soloflight_prometheus.tallies import SLOW_S, BackendTally, Histogram, StageTally

MOST_STAGES = 1_000
"""Stages are configured, never made by clients; a configuration that is read again and again may still add some."""
REASONS = frozenset(
    {
        "body", "busy", "coding", "conditional", "draining", "memory", "method", "no-store", "route", "share",
        "too_large", "upgrade",
    }
)  # fmt: skip
"""Why a request went alone. One that is not among them counts as "other"."""


class PrometheusObserver:
    """An observer that also exposes what it has counted; its registry is its own, the process's global one stays empty."""

    def __init__(self, stages: Iterable[str]) -> None:
        self._unknown = StageTally()
        self._stages = {name: StageTally() for name in stages}
        self._backend: dict[str, BackendTally] = {}
        self._takers: dict[type[Event], Callable[[Any], None]] = {
            CallEnded: self._call,
            FlightEnded: self._flight,
            TakenOver: self._taken_over,
            WriteRefused: self._refused,
            SessionWaited: self._waited,
            BackendAsked: self._asked,
        }
        self._exposition = Exposition(self._stages, self._unknown, self._backend)
        self._registry = CollectorRegistry()
        self._registry.register(self._exposition)

    def __repr__(self) -> str:
        return f"PrometheusObserver({', '.join(self._stages)})"

    def on_event(self, event: Event) -> None:
        """Count one event."""
        if type(event) is RequestEnded:
            self._request(event)
            return
        take = self._takers.get(type(event))
        if take is not None:
            take(event)

    def exposition(self, now: Gauges) -> bytes:
        """Everything in the Prometheus text format."""
        self._exposition.now = now
        return generate_latest(self._registry)

    def _stage(self, name: str) -> StageTally:
        """The tally of a stage; "" for requests that ended before one was known."""
        tally = self._stages.get(name)
        if tally is None:
            if not name or len(self._stages) >= MOST_STAGES:
                return self._unknown
            tally = self._stages[name] = StageTally()
        return tally

    def _request(self, event: RequestEnded) -> None:
        stage = self._stages.get(event.stage) or self._stage(event.stage)
        role, code, status = event.role, event.code, event.status
        tally = stage.roles[role]
        if code is None and not event.cut:
            tally.complete[status // 100] += 1
        else:
            tally.others[_outcome(event), status // 100] += 1
        if status:
            tally.first_byte.observe(event.first_byte_s)
            tally.overhead.observe(event.overhead_s)
        if code is not None:
            stage.errors[code.code] += 1
        elif role is Role.REPLAY or role is Role.FOLLOWER:
            avoided, usage = stage.avoided[role], event.usage
            avoided.calls += 1
            avoided.prompt += usage.prompt
            avoided.completion += usage.completion
            if event.lag_s is not None:
                stage.lag.observe(event.lag_s)
        if role is Role.BYPASS:
            stage.not_shared[event.reason if event.reason in REASONS else "other"] += 1
            stage.calls[role, _call_outcome(event)] += 1

    def _call(self, event: CallEnded) -> None:
        self._stage(event.stage).calls[Role.OWNER, event.outcome] += 1

    def _flight(self, event: FlightEnded) -> None:
        if event.kept != "kept":
            self._stage(event.stage).not_kept[event.kept] += 1

    def _taken_over(self, event: TakenOver) -> None:
        self._stage(event.stage).takeovers[event.reason] += 1

    def _refused(self, event: WriteRefused) -> None:
        self._stage(event.stage).fenced[event.refusal] += 1

    def _waited(self, event: SessionWaited) -> None:
        waits = self._stage(event.stage).session_wait
        wait = waits.get(event.outcome)
        if wait is None:
            wait = waits[event.outcome] = Histogram(SLOW_S)
        wait.observe(event.wait_s)

    def _asked(self, event: BackendAsked) -> None:
        tally = self._backend.get(event.op)
        if tally is None:
            tally = self._backend[event.op] = BackendTally()
        tally.seconds.observe(event.took_s)
        if not event.answered:
            tally.failed += 1


def _outcome(event: RequestEnded) -> str:
    """How a request ended that is not complete: cut (visibly) | refused (by the proxy) | left (the client went first)."""
    if not event.cut:
        return "refused"
    return "left" if event.code is None else "cut"


def _call_outcome(event: RequestEnded) -> str:
    """How the call of a request that went alone ended, in the words of CallEnded."""
    if event.code is not None:
        return "fault"
    if event.cut:
        return "abandoned"
    return "complete" if event.status < 400 else "error"
