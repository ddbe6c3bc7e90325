"""docs/state-machine.md is what the table says, and the table is whole."""

from pathlib import Path
from typing import get_args

import pytest

from soloflight.core.flight import Operation, State
from soloflight.core.ledger import TABLE
from soloflight.testing.diagram import state_machine

PAGE = Path(__file__).parents[2] / "docs/state-machine.md"


def test_the_page_is_written_from_the_table() -> None:
    assert PAGE.read_text() == state_machine()


def test_the_page_draws_each_way_between_states() -> None:
    page = state_machine()
    assert "    PENDING --> RUNNING: takes over, starts" in page
    assert "    [*] --> PENDING: begins" in page
    assert "    RUNNING --> COMPLETE: seals" in page


def test_every_state_meets_every_operation() -> None:
    assert set(TABLE) == {None, *State}
    assert all(set(row) == set(get_args(Operation)) for row in TABLE.values())


@pytest.mark.parametrize("clause", {clause for row in TABLE.values() for cell in row.values() for clause in cell})
def test_every_clause_says_when_it_applies(clause) -> None:
    assert clause.when.endswith(".")
    assert "\n" not in clause.when
    assert clause.replies
