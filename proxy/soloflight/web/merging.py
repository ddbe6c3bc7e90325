"""One process's view and another's as one: overviews, stages, and metrics in the Prometheus text format. Pure.

Counts add up; what is up is up only if it is up everywhere; what is configured is the same in all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Json = dict[str, Any]

ERRORS_SHOWN = 50
WORST = ("draining", "degraded", "ok")
LEAST = "_up"
"""Metrics whose names end so are merged by their least value, all others by their sum."""


def merged_overviews(views: Sequence[Json], most_flights: int) -> Json:
    """The overview of several processes, the first of which speaks for what they have in common."""
    first = views[0]
    errors = sorted((error for view in views for error in view["errors"]), key=lambda error: -error["time"])
    return {
        **first,
        "nodes": [node for view in views for node in view["nodes"]],
        "uptime_s": max(view["uptime_s"] for view in views),
        "status": next(status for status in WORST if any(view["status"] == status for view in views)),
        "degraded": next((view["degraded"] for view in views if view["degraded"]), None),
        "backend": {**first["backend"], "up": all(view["backend"]["up"] for view in views)},
        "flights_total": sum(view["flights_total"] for view in views),
        "flights": oldest_first(view["flights"] for view in views)[:most_flights],
        "stages": merged_stages([view["stages"] for view in views]),
        "errors": errors[:ERRORS_SHOWN],
    }


def oldest_first(lists: Iterable[Sequence[Json]]) -> list[Json]:
    """The flights of several processes."""
    return sorted((row for rows in lists for row in rows), key=lambda row: -row["age_s"])


def merged_stages(views: Sequence[Sequence[Json]]) -> list[Json]:
    """Stages by name, in the first view's order; one that only another process has (a reload is under way) comes behind."""
    by_name: dict[str, Json] = {}
    for stages in views:
        for stage in stages:
            known = by_name.get(stage["name"])
            counts = stage["counts"] if known is None else added(known["counts"], stage["counts"])
            by_name[stage["name"]] = {**(known or stage), "counts": counts}
    return list(by_name.values())


def added(one: Any, other: Any) -> Any:
    """Numbers added, mappings by member; where one has nothing it is the other's."""
    if isinstance(one, dict) and isinstance(other, dict):
        return {name: added(one.get(name), other.get(name)) for name in {**one, **other}}
    if one is None or other is None:
        return one if other is None else other
    return one + other


def merged_metrics(expositions: Sequence[bytes]) -> bytes:
    """Several expositions (text format 0.0.4) as one: each family once, equal samples added."""
    if len(expositions) == 1:
        return expositions[0]
    families: dict[str, tuple[list[str], dict[str, float]]] = {}
    for exposition in expositions:
        heads: list[str] = []
        samples: dict[str, float] = {}
        for line in exposition.decode().splitlines():
            if line.startswith("# "):
                name = line.split(" ", 3)[2]
                new = name not in families
                heads, samples = families.setdefault(name, ([], {}))
                if new or (line.startswith("# TYPE") and len(heads) == 1):
                    heads.append(line)
            elif line:
                sample, _, value = line.rpartition(" ")
                _add(samples, sample, float(value))
    return "".join(_family(*family) for family in families.values()).encode()


def _add(samples: dict[str, float], sample: str, value: float) -> None:
    known = samples.get(sample)
    if known is None:
        samples[sample] = value
    else:
        samples[sample] = min(known, value) if sample.partition("{")[0].endswith(LEAST) else known + value


def _family(heads: Sequence[str], samples: dict[str, float]) -> str:
    return "".join([*(f"{head}\n" for head in heads), *(f"{sample} {value!r}\n" for sample, value in samples.items())])
