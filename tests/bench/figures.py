"""What was measured, as medians and ratios; and the reach: which ratio is to be at least or at most what."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Key:
    """One measure of one contender at one work."""

    work: str
    contender: str
    measure: str


@dataclass
class Figures:
    """All rounds of all measures, in the order in which they first came; and notes on what has no figure."""

    rounds: dict[Key, list[float]] = field(default_factory=lambda: defaultdict(list))
    notes: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def add(self, work: str, contender: str, **measures: float) -> None:
        """One round's measures."""
        for measure, value in measures.items():
            self.rounds[Key(work, contender, measure)].append(value)

    def fault(self, work: str, contender: str, what: str) -> None:
        """A wrong answer or a call too many. The product's is a fault of the run, another's is a note with the figures."""
        text = f"{work}: {contender}: {what}"
        if contender.startswith("soloflight"):
            self.faults.append(text)
        else:
            self.note(text)

    def note(self, text: str) -> None:
        """Something to know about the figures, told once."""
        if text not in self.notes:
            self.notes.append(text)

    def median(self, key: Key) -> float | None:
        """A measure over its rounds, or None where there is none."""
        rounds = self.rounds.get(key)
        return statistics.median(rounds) if rounds else None

    def ratio(self, key: Key, to: Key) -> float | None:
        """One median over another."""
        one, other = self.median(key), self.median(to)
        return one / other if one is not None and other else None

    def works(self) -> list[str]:
        """The works in order."""
        return list(dict.fromkeys(key.work for key in self.rounds))

    def of(self, work: str) -> dict[str, dict[str, float]]:
        """contender → measure → median, of one work."""
        found: dict[str, dict[str, float]] = {}
        for key, rounds in self.rounds.items():
            if key.work == work:
                found.setdefault(key.contender, {})[key.measure] = statistics.median(rounds)
        return found


@dataclass(frozen=True)
class Reach:
    """A target: a measure, alone or over another's, at least or at most a bound."""

    text: str
    key: Key
    to: Key | None = None
    least: float | None = None
    most: float | None = None
    unit: str = "×"

    def judge(self, figures: Figures) -> tuple[str, str, str, str]:
        """(text, reach, figure, verdict) as cells."""
        value = figures.median(self.key) if self.to is None else figures.ratio(self.key, self.to)
        bound = self.least if self.least is not None else self.most
        assert bound is not None
        sign = "≥" if self.least is not None else "≤"
        reach = f"{sign} {bound:.3g} {self.unit}"
        if value is None:
            return self.text, reach, "–", "not measured"
        held = value >= bound if self.least is not None else value <= bound
        factor = max(value, bound) / min(value, bound) if value > 0 else float("inf")
        return self.text, reach, f"{value:.3g} {self.unit}", "reached" if held else f"short by a factor of {factor:.3g}"


SATURATED = 0.95
FORMATS = {
    "rps": ("requests/s", "{:,.0f}"),
    "cpu_us": ("CPU µs/request", "{:,.1f}"),
    "calls": ("upstream calls", "{:,.0f}"),
    "added_p50_ms": ("added p50 ms", "{:,.1f}"),
    "added_p99_ms": ("added p99 ms", "{:,.1f}"),
    "waiting_kb": ("KB per waiting follower", "{:,.1f}"),
    "idle_kb": ("KB per idle connection", "{:,.1f}"),
    "lag_p50_ms": ("chunk p50 ms", "{:,.2f}"),
    "lag_p99_ms": ("chunk p99 ms", "{:,.2f}"),
    "late_p50_ms": ("behind the owner's client, p50 ms", "{:,.2f}"),
    "late_p99_ms": ("behind the owner's client, p99 ms", "{:,.2f}"),
    "core": ("server core in use", "{:.0%}"),
    "ready_s": ("start to listening s", "{:.2f}"),
    "rest_mb": ("memory at rest MB", "{:.0f}"),
}


def cell(measure: str, row: dict[str, float]) -> str:
    """One measure as text; a core with next to nothing left is called saturated."""
    if measure not in row:
        return "–"
    text = FORMATS[measure][1].format(row[measure])
    return f"{text}, saturated" if measure == "core" and row[measure] >= SATURATED else text


def markdown(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A table whose columns are aligned for plain eyes, too."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in (head, *rows)
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def table(figures: Figures, work: str) -> str:
    """One work's table: a row for each contender; ratios to the first."""
    found = figures.of(work)
    measures = [name for name in FORMATS if any(name in row for row in found.values())]
    first = next(iter(found.values()))
    head = (
        "",
        *(FORMATS[name][0] for name in measures),
        *(("ratio by rate", "ratio by CPU") if "rps" in measures else ()),
    )
    rows = []
    for contender, row in found.items():
        cells = [cell(name, row) for name in measures]
        if "rps" in measures:
            cells += [f"{row['rps'] / first['rps']:.3g}", f"{first['cpu_us'] / row['cpu_us']:.3g}"]
        rows.append((contender, *cells))
    return f"**{work}**\n\n{markdown(head, rows)}"
