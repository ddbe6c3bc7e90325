"""What the status page tells of each stage: counts since the start, rates of the last seconds, calls, tokens and money not spent.

An observer like any other. The way of a replay's event is the hot one: a few additions.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from soloflight.core.frames import Usage
from soloflight.ports import CallEnded, Event, FlightEnded, RequestEnded, Role, TakenOver, WriteRefused

RATE_S = 10
"""Rates are means over this many whole seconds before the present one."""
ERRORS_KEPT = 50
MODELS_KNOWN = 1_000

Price = tuple[str, float, float]
"""(glob over model names, price of 1,000,000 prompt tokens, of as many completion tokens)."""


class Prices:
    """What tokens cost, by the first glob that a model's name fits. The models seen are remembered, and not without bound."""

    def __init__(self, prices: tuple[Price, ...]) -> None:
        self._prices = prices
        self._known: dict[str, tuple[float, float]] = {}

    def __repr__(self) -> str:
        return f"Prices({', '.join(glob for glob, _, _ in self._prices)})"

    def __bool__(self) -> bool:
        return bool(self._prices)

    def of(self, model: str | None, usage: Usage) -> float:
        """The price of these tokens; 0.0 where there is none for the model."""
        if model is None:
            return 0.0
        price = self._known.get(model)
        if price is None:
            found = (price[1:] for price in self._prices if fnmatchcase(model, price[0]))
            if len(self._known) >= MODELS_KNOWN:
                self._known.clear()
            price = self._known[model] = next(found, (0.0, 0.0))
        return (usage.prompt * price[0] + usage.completion * price[1]) / 1_000_000


class Rate:
    """Events a second: counts of whole seconds in a ring."""

    __slots__ = ("_counts", "_seconds")

    def __init__(self) -> None:
        self._counts = [0] * (RATE_S + 2)
        self._seconds = [-1] * (RATE_S + 2)

    def __repr__(self) -> str:
        return f"Rate({self._counts})"

    def add(self, now_s: int) -> None:
        """Count one in second ``now_s``."""
        at = now_s % (RATE_S + 2)
        if self._seconds[at] == now_s:
            self._counts[at] += 1
        else:
            self._seconds[at], self._counts[at] = now_s, 1

    def per_s(self, now_s: int) -> float:
        """The mean of the seconds before ``now_s``, which is not over yet."""
        pairs = zip(self._seconds, self._counts, strict=True)
        return sum(count for second, count in pairs if now_s - RATE_S <= second < now_s) / RATE_S


class Saved:
    """What one way of sharing (join or replay) did not cost."""

    __slots__ = ("calls", "completion", "money", "prompt")

    def __init__(self) -> None:
        self.calls = self.prompt = self.completion = 0
        self.money = 0.0

    def __repr__(self) -> str:
        return f"Saved(calls={self.calls}, prompt={self.prompt}, completion={self.completion}, money={self.money})"


class StageCounts:
    """One stage since the start of the process."""

    def __init__(self) -> None:
        self.roles = dict.fromkeys(Role, 0)
        self.errors = 0
        self.takeovers = 0
        self.fenced = 0
        self.calls: defaultdict[str, int] = defaultdict(int)
        self.not_kept: defaultdict[str, int] = defaultdict(int)
        self.not_shared: defaultdict[str, int] = defaultdict(int)
        self.saved = {Role.FOLLOWER: Saved(), Role.REPLAY: Saved()}
        self.requests = Rate()
        self.upstream = Rate()

    def __repr__(self) -> str:
        return f"StageCounts({self.roles})"

    def told(self, now_s: int, *, priced: bool) -> dict[str, Any]:
        """Everything as JSON has it. Every number may be added to another process's."""
        saved = {"join": self.saved[Role.FOLLOWER], "replay": self.saved[Role.REPLAY]}
        return {
            "rates": {"requests_per_s": self.requests.per_s(now_s), "upstream_calls_per_s": self.upstream.per_s(now_s)},
            "requests": {role.value: count for role, count in self.roles.items()},
            "upstream_calls": dict(self.calls),
            "errors": self.errors,
            "takeovers": self.takeovers,
            "fenced_writes": self.fenced,
            "not_kept": dict(self.not_kept),
            "not_shared": dict(self.not_shared),
            "avoided": {
                "calls": {by: one.calls for by, one in saved.items()},
                "tokens": {by: {"prompt": one.prompt, "completion": one.completion} for by, one in saved.items()},
                "money": {by: one.money for by, one in saved.items()} if priced else None,
            },
        }


class Tally:
    """Counts by stage, and the last errors. ``prices`` may be replaced at any time."""

    def __init__(
        self, prices: Prices, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time
    ) -> None:
        self.prices = prices
        self.errors: deque[dict[str, Any]] = deque(maxlen=ERRORS_KEPT)
        self._clock = clock
        self._wall = wall
        self._stages: dict[str, StageCounts] = {}
        self._takers: Mapping[type[Event], Callable[[Any], None]] = {
            RequestEnded: self._request,
            CallEnded: self._call,
            FlightEnded: self._flight,
            TakenOver: self._taken_over,
            WriteRefused: self._refused,
        }

    def __repr__(self) -> str:
        return f"Tally({', '.join(self._stages)}; {len(self.errors)} errors)"

    def on_event(self, event: Event) -> None:
        """Count one event."""
        take = self._takers.get(type(event))
        if take is not None:
            take(event)

    def told(self, stage: str) -> dict[str, Any]:
        """What is known of a stage, as JSON has it."""
        return self._counts(stage).told(int(self._clock()), priced=bool(self.prices))

    def _counts(self, stage: str) -> StageCounts:
        """Stages are configured, or "" before one is known: there are never many."""
        counts = self._stages.get(stage)
        if counts is None:
            counts = self._stages[stage] = StageCounts()
        return counts

    def _request(self, event: RequestEnded) -> None:
        counts, role = self._stages.get(event.stage) or self._counts(event.stage), event.role
        now_s = int(self._clock())
        counts.roles[role] += 1
        counts.requests.add(now_s)
        if event.code is not None or event.status >= 500:
            counts.errors += 1
            self._error(event)
        elif role is Role.REPLAY or role is Role.FOLLOWER:
            saved, usage = counts.saved[role], event.usage
            saved.calls += 1
            saved.prompt += usage.prompt
            saved.completion += usage.completion
            if self.prices:
                saved.money += self.prices.of(event.model, usage)
        if role is Role.BYPASS:
            counts.upstream.add(now_s)
            counts.not_shared[event.reason] += 1
            outcome = (
                "fault" if event.code else "abandoned" if event.cut else "complete" if event.status < 400 else "error"
            )
            counts.calls[outcome] += 1

    def _call(self, event: CallEnded) -> None:
        counts = self._counts(event.stage)
        counts.upstream.add(int(self._clock()))
        counts.calls[event.outcome] += 1

    def _flight(self, event: FlightEnded) -> None:
        if event.kept != "kept":
            self._counts(event.stage).not_kept[event.kept] += 1

    def _taken_over(self, event: TakenOver) -> None:
        self._counts(event.stage).takeovers += 1

    def _refused(self, event: WriteRefused) -> None:
        self._counts(event.stage).fenced += 1

    def _error(self, event: RequestEnded) -> None:
        """Remember an error by what is no client's word: neither path nor model."""
        self.errors.append(
            {
                "time": self._wall(),
                "stage": event.stage,
                "status": event.status,
                "code": event.code.code if event.code is not None else "upstream",
                "role": event.role.value,
                "flight": event.flight,
                "request_id": event.request_id,
            }
        )
