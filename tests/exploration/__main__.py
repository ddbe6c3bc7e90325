"""The deep form: `PYTHONPATH=tests python -m exploration [STATES]` (default 200,000 for each scenario)."""

import sys
import time

from exploration.explorer import SCENARIOS, Explorer
from exploration.mutants import MUTANTS, genuine, hunt


def main(max_states: int) -> int:
    """Explore every scenario, then hunt every mutant; 1 if a law was broken or a mutant lives."""
    bad = 0
    for scenario in SCENARIOS:
        begun = time.monotonic()
        report = Explorer(scenario, genuine()).explore(max_states)
        whole = "all of them" if report.exhausted else f"to depth {report.depth}"
        print(f"{scenario.name}: {report.states} states, {whole}, {time.monotonic() - begun:.0f} s", flush=True)
        if report.violation:
            bad += 1
            print(f"  {report.violation}", *report.path, sep="\n  ")
    for mutant in MUTANTS:
        report = hunt(mutant, max(max_states, 4_000))  # seen by then, all of them
        bad += not report.violation
        print(f"{mutant.name}: {report.violation[:90] or 'LIVES'} ({report.states} states)", flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 200_000))
