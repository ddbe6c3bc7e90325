"""Tables that fit: columns that a terminal has no room for are left out, the least needed first, instead of cut to nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

__all__ = ["Reader", "fitted"]

GAP = 3

Reader = Callable[[dict[str, Any]], str]
"""What a cell of a column says of a row."""


def fitted(
    rows: Iterable[dict[str, Any]],
    columns: Mapping[str, Reader],
    *,
    words: Collection[str],
    dropped_first: Sequence[str],
    width: int,
) -> Table:
    """``rows`` as a table of at most ``width`` characters. Columns in ``words`` stand to the left, the others hold figures."""
    items = list(rows)
    cells = {name: [read(row) for row in items] for name, read in columns.items()}
    for dropped in dropped_first:
        if sum(GAP + max(map(len, [name, *column])) for name, column in cells.items()) <= width:
            break
        del cells[dropped]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim")
    for name in cells:
        table.add_column(name, justify="left" if name in words else "right", no_wrap=True)
    for line in zip(*cells.values(), strict=True):
        table.add_row(*line)
    return table
