"""Every order of a few nodes' acts and mishaps keeps the laws; and each planted fault is seen.

Here is the short form. The deep one is `make soak`, or `PYTHONPATH=tests python -m exploration`.
"""

import pytest

from exploration.explorer import SCENARIOS, Explorer, Scenario
from exploration.mutants import MUTANTS, Mutant, genuine, hunt

SHORT = 1_000
LONG = 150_000


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_no_law_is_broken(scenario: Scenario) -> None:
    report = Explorer(scenario, genuine()).explore(SHORT)
    assert not report.violation, "\n".join((report.violation, *report.path))
    assert report.exhausted or report.states >= SHORT


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_fault_is_seen(mutant: Mutant) -> None:
    report = hunt(mutant, max_states=4_000)
    assert report.violation, f"it lives after {report.states} states"
    assert "Error" not in report.violation, "a mutant must break a law, not the interpreter"


@pytest.mark.soak
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_no_law_is_broken_in_the_depth(scenario: Scenario) -> None:
    report = Explorer(scenario, genuine()).explore(LONG)
    assert not report.violation, "\n".join((report.violation, *report.path))
