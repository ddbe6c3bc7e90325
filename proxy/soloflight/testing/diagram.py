"""docs/state-machine.md, written from the ledger's own table.

``python -m soloflight.testing.diagram > docs/state-machine.md`` writes it anew.

Nothing here knows a rule of the ledger: what the page says is what ``core.ledger.TABLE`` and its clauses say.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from soloflight.core.flight import Operation, State
from soloflight.core.ledger import TABLE
from soloflight.core.transition import Clause

OPENING = """\
# The state machine of a flight

Written by `python -m soloflight.testing.diagram` from the table in `core/ledger.py`; a test holds it equal.
Do not edit it here.

A record whose times are all past (answer, outcome, poison, and for an open attempt its last date) counts as no
record, whether or not anybody has dropped it yet: from every state a way leads back to none.
"""

TABLE_TEXT = """\
## The table

An operation meets the cell of its row and of the state that the record is in. The cell's clauses are asked
from left to right; the first whose condition holds answers.
"""

CLAUSES_TEXT = """\
## The clauses

Where the last column is empty the flight stays in its state.
"""


def state_machine() -> str:
    """The whole page, as Markdown with a Mermaid diagram."""
    return "\n".join((OPENING, *_diagram(), TABLE_TEXT, *_table(), "", CLAUSES_TEXT, *_clauses(), ""))


def _diagram() -> Iterator[str]:
    yield "```mermaid"
    yield "stateDiagram-v2"
    for (before, after), labels in sorted(_edges().items()):
        yield f"    {before} --> {after}: {', '.join(labels)}"
    yield "```"
    yield ""


def _edges() -> dict[tuple[str, str], list[str]]:
    """What leads from one state to another: labels by (before, after)."""
    edges: dict[tuple[str, str], list[str]] = {}
    for state, row in TABLE.items():
        for clause in (clause for cell in row.values() for clause in cell):
            for after in clause.to:
                labels = edges.setdefault((_node(state), _node(after)), [])
                labels.append(clause.name)
    return edges


def _table() -> Iterator[str]:
    yield "| | " + " | ".join(_title(state) for state in TABLE) + " |"
    yield "|---" * (len(TABLE) + 1) + "|"
    for operation in TABLE[None]:
        cells = (" · ".join(clause.name for clause in row[operation]) for row in TABLE.values())
        yield f"| **{_operation(operation)}** | " + " | ".join(cells) + " |"


def _clauses() -> Iterator[str]:
    yield "| clause | when it applies, and what it does | replies | leads to |"
    yield "|---|---|---|---|"
    for clause in _each_clause():
        replies = ", ".join(reply.__name__ for reply in clause.replies)
        yield f"| {clause.name} | {clause.when} | {replies} | {', '.join(map(_title, clause.to))} |"


def _each_clause() -> list[Clause]:
    """Every clause once, in the order in which operations meet them."""
    cells = (row[operation] for operation in TABLE[None] for row in TABLE.values())
    return list(dict.fromkeys(clause for cell in cells for clause in cell))


def _node(state: State | None) -> str:
    return state.name if state else "[*]"


def _title(state: State | None) -> str:
    return state.name if state else "none"


def _operation(operation: type[Operation]) -> str:
    return operation.__name__


if __name__ == "__main__":
    sys.stdout.write(state_machine())
