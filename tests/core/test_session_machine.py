"""Random walks of a few clients keep the laws of the session lock; and each planted fault is seen.

Here is the short form; `make soak` runs the long one.
"""

from random import Random
from types import ModuleType

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from sessions.machine import SessionMachine, walk
from sessions.mutants import MUTANTS, Mutant, planted
from sessions.world import LawBroken
from soloflight.core import session

SHORT = settings(max_examples=60, stateful_step_count=40)
LONG = settings(max_examples=3_000, stateful_step_count=80)
WALKS, STEPS = 400, 40


def test_no_law_is_broken() -> None:
    run_state_machine_as_test(SessionMachine, settings=SHORT)


def hunt(module: ModuleType, seed: str) -> None:
    """Walk until a fault is seen."""
    random = Random(seed)
    for _ in range(WALKS):
        walk(module, random, STEPS)


def test_the_hunt_sees_nothing_where_nothing_is() -> None:
    hunt(session, "genuine")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_fault_is_seen(mutant: Mutant) -> None:
    with pytest.raises(LawBroken):
        hunt(planted(mutant), mutant.name)


@pytest.mark.soak
@pytest.mark.timeout(1_800)
def test_no_law_is_broken_in_the_depth() -> None:
    run_state_machine_as_test(SessionMachine, settings=LONG)
