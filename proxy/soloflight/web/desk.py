"""What the admin listener serves, as JSON-ready values: looked at, never kept. HTTP is ``admin``'s affair.

Rule 1: every number under a stage's ``counts`` may be added to another process's: ``team`` merges by that.
Rule 2: nothing in here is a credential or a prompt. What clients name (models, paths without query) is shown, and bounded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from soloflight import __version__
from soloflight.core.stage import Stage, Stages
from soloflight.flow.oversight import Abort, Oversight
from soloflight.ports import Exposes
from soloflight.web.health import Condition
from soloflight.web.tally import Tally

Json = dict[str, Any]
FLIGHTS_SHOWN = 2_000
"""Of an overview; ``flights_total`` has the rest."""


class Desk(Protocol):
    """What can be seen and done, in one process or in several."""

    async def overview(self) -> Json:
        """Everything that the status page and ``soloflight top`` show."""

    async def flights(self) -> list[Json]:
        """Every live flight, oldest first."""

    async def flight(self, flight_id: str) -> Json | None:
        """One live flight."""

    async def abort(self, flight_id: str) -> Abort:
        """End a flight."""

    async def stages(self) -> list[Json]:
        """Every configured stage with its rules and counts."""

    async def purge(self, *, key: str | None = None, stage: str | None = None) -> Json | None:
        """Forget one answer, or a stage's; None where there is no such stage."""

    async def metrics(self) -> bytes:
        """What the observers expose, in the Prometheus text format."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Where a desk looks: ``exposing`` are the observers that /metrics serves, ``stages`` gives those configured now."""

    oversight: Oversight
    tally: Tally
    state: Condition
    exposing: Sequence[Exposes]
    stages: Callable[[], Stages]
    backend: str


class OwnDesk:
    """One process's desk."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._since = time.monotonic()

    def __repr__(self) -> str:
        return f"OwnDesk({self._sources.oversight!r})"

    async def overview(self) -> Json:
        sources = self._sources
        flights = await self.flights()
        degraded = sources.state.degraded()
        return {
            "version": __version__,
            "nodes": [sources.oversight.node],
            "uptime_s": time.monotonic() - self._since,
            "status": "draining" if sources.state.draining else "degraded" if degraded else "ok",
            "degraded": degraded or None,
            "backend": {"name": sources.backend, "up": sources.oversight.gauges().backend_up},
            "flights_total": len(flights),
            "flights": flights[:FLIGHTS_SHOWN],
            "stages": await self.stages(),
            "errors": list(sources.tally.errors)[::-1],
        }

    async def flights(self) -> list[Json]:
        return [asdict(seen) for seen in self._sources.oversight.flights()]

    async def flight(self, flight_id: str) -> Json | None:
        seen = self._sources.oversight.flight(flight_id)
        return asdict(seen) if seen is not None else None

    async def abort(self, flight_id: str) -> Abort:
        return await self._sources.oversight.abort(flight_id)

    async def stages(self) -> list[Json]:
        sources = self._sources
        gauges = sources.oversight.gauges()
        told = []
        for stage in sources.stages():
            counts = {
                "flights": gauges.flights.get(stage.name, 0),
                "followers": gauges.followers.get(stage.name, 0),
                "local_bytes": gauges.local_bytes.get(stage.name, 0),
                **sources.tally.told(stage.name),
            }
            told.append({"name": stage.name, "rules": _rules(stage), "counts": counts})
        return told

    async def purge(self, *, key: str | None = None, stage: str | None = None) -> Json | None:
        oversight = self._sources.oversight
        if key is not None:
            return asdict(await oversight.purge_key(key))
        if stage is None or self._sources.stages().get(stage) is None:
            return None
        return asdict(await oversight.purge_stage(stage))

    async def metrics(self) -> bytes:
        now = self._sources.oversight.gauges()
        return b"".join([one.exposition(now) for one in self._sources.exposing])


def _rules(stage: Stage) -> Json:
    """The rules that matter when the counts are read; ``soloflight check`` has all of them."""
    return {
        "share": stage.share,
        "replay": stage.replay,
        "session": stage.session,
        "retention_s": stage.retention,
        "sampled_retention_s": stage.sampled_retention,
        "local_retention_s": stage.local_retention,
        "local_max_bytes": stage.local_max_bytes,
        "max_upstream": stage.max_upstream,
        "queue_wait_s": stage.queue_wait,
        "max_recording": stage.max_recording,
        "max_attempts": stage.max_attempts,
        "upstream": stage.upstream,
    }
