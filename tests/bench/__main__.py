"""The comparison: ``python -m bench quick|full [--write FILE] [--rounds N] [WORK ...]``; exit code 1 after a fault of soloflight's.

Prints Markdown: the reach, then a table for each work. A ratio that is missed is shown; a wrong answer, an error status or an
upstream call too many is a fault.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench import throughput, together
from bench.contenders import versions
from bench.figures import Figures, markdown, table
from bench.load import build
from bench.machine import LOAD_CORE, Broken, Others
from bench.reach import REACHES
from bench.stand import Bench

WORKS: dict[str, Callable[[Bench], None]] = {
    "machine": throughput.one_machine,
    "redis": throughput.over_redis,
    "identical": together.identical,
    "listeners": together.listeners,
    "elsewhere": together.followers_elsewhere,
    "nodes": together.spread,
    "start": together.start,
    "gateways": throughput.gateways,
}
QUICK = tuple(name for name in WORKS if name != "gateways")


def report(figures: Figures, minutes: float) -> str:
    """All of it in Markdown."""
    judged = [reach.judge(figures) for reach in REACHES]
    rows = [row for row in judged if row[-1] != "not measured"]
    parts = [markdown(("", "reach", "here", ""), rows)] if rows else []
    parts += [table(figures, work) for work in figures.works()]
    if figures.notes:
        parts.append("Notes:\n\n" + "\n".join(f"- {note}" for note in figures.notes))
    if figures.faults:
        parts.append("Faults:\n\n" + "\n".join(f"- {fault}" for fault in figures.faults))
    said = ", ".join(f"{name} {version}" for name, version in versions().items())
    parts.append(f"{said}. {minutes:.0f} minutes.")
    return "\n\n".join(parts) + "\n"


def main() -> int:
    """Run the works that are asked for."""
    parser = argparse.ArgumentParser(prog="python -m bench")
    parser.add_argument("form", choices=("quick", "full"))
    parser.add_argument("--write", type=Path, metavar="FILE")
    parser.add_argument("--rounds", type=int, default=9, metavar="N", help="at most so many rounds of each work")
    parser.add_argument("work", nargs="*", metavar="WORK", help=f"some of: {', '.join(WORKS)}")
    asked = parser.parse_intermixed_args()
    # What stands beside the server is on the load's core, this process, too.
    os.sched_setaffinity(0, {int(LOAD_CORE)})
    full, figures, began, others = asked.form == "full", Figures(), time.monotonic(), Others()
    with tempfile.TemporaryDirectory(prefix="soloflight-bench-") as name:
        folder = Path(name)
        bench = Bench(folder, figures, full, build(folder), asked.rounds, spare_s=300 if full else 40)
        for work in asked.work or (WORKS if full else QUICK):
            try:
                WORKS[work](bench)
            except Broken as fault:
                figures.faults.append(f"{work}: {fault}")
    figures.note(f"While this ran, all else on the two cores took {others.share():.0%} of one.")
    text = report(figures, (time.monotonic() - began) / 60)
    print(text)
    if asked.write:
        asked.write.write_text(text)
    return 1 if figures.faults else 0


if __name__ == "__main__":
    sys.exit(main())
