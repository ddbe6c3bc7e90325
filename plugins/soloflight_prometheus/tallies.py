"""Counters and histograms as plain numbers. One loop writes and the same loop reads, so nothing is locked.

prometheus_client's own metric objects take a lock for every increment; here an event is on the way of each replay.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator

from soloflight.ports import Role

FAST_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
"""Bounds for what the proxy itself takes: overhead, lag, the backend."""
SLOW_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Bounds for what upstreams and sessions are waited for."""


class Histogram:
    """How often a time fell between two of ``bounds`` (seconds, ascending); ``counts`` has one more, for what is beyond."""

    __slots__ = ("bounds", "counts", "total_s")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total_s = 0.0

    def __repr__(self) -> str:
        return f"Histogram(count={sum(self.counts)}, total_s={self.total_s:.6f})"

    def observe(self, value_s: float) -> None:
        """Count one."""
        self.counts[bisect_left(self.bounds, value_s)] += 1
        self.total_s += value_s

    def cumulative(self) -> Iterator[tuple[str, float]]:
        """(upper bound as Prometheus writes it, how many were at most that), ``+Inf`` last."""
        count = 0
        for bound, more in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            count += more
            yield bound, float(count)


class RoleTally:
    """What one role was in one stage. Requests that ended as they should are in ``complete``, by status class; all others in
    ``others``, by (outcome, status class)."""

    __slots__ = ("complete", "first_byte", "others", "overhead")

    def __init__(self) -> None:
        self.complete = [0] * 10
        self.others: defaultdict[tuple[str, int], int] = defaultdict(int)
        self.first_byte = Histogram(SLOW_S)
        self.overhead = Histogram(FAST_S)

    def __repr__(self) -> str:
        return f"RoleTally({list(self.requests())})"

    def requests(self) -> Iterator[tuple[str, int, int]]:
        """(outcome, status class, count) of those that there were."""
        yield from (("complete", status, count) for status, count in enumerate(self.complete) if count)
        yield from ((outcome, status, count) for (outcome, status), count in self.others.items())


class Avoided:
    """Upstream calls that were not made, and the tokens that these did not cost."""

    __slots__ = ("calls", "completion", "prompt")

    def __init__(self) -> None:
        self.calls = self.prompt = self.completion = 0

    def __repr__(self) -> str:
        return f"Avoided(calls={self.calls}, prompt={self.prompt}, completion={self.completion})"


class StageTally:
    """Everything that is counted of one stage."""

    __slots__ = (
        "avoided", "calls", "errors", "fenced", "lag", "not_kept", "not_shared", "roles", "session_wait", "takeovers",
    )  # fmt: skip

    def __init__(self) -> None:
        self.roles = {role: RoleTally() for role in Role}
        self.avoided = {Role.FOLLOWER: Avoided(), Role.REPLAY: Avoided()}
        self.lag = Histogram(FAST_S)
        self.calls: defaultdict[tuple[Role, str], int] = defaultdict(int)
        self.errors: defaultdict[str, int] = defaultdict(int)
        self.not_shared: defaultdict[str, int] = defaultdict(int)
        self.not_kept: defaultdict[str, int] = defaultdict(int)
        self.takeovers: defaultdict[str, int] = defaultdict(int)
        self.fenced: defaultdict[str, int] = defaultdict(int)
        self.session_wait: dict[str, Histogram] = {}

    def __repr__(self) -> str:
        return f"StageTally({self.roles})"


class BackendTally:
    """One operation of the backend."""

    __slots__ = ("failed", "seconds")

    def __init__(self) -> None:
        self.failed = 0
        self.seconds = Histogram(FAST_S)

    def __repr__(self) -> str:
        return f"BackendTally({self.seconds!r}, failed={self.failed})"
