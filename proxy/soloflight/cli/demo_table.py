"""What the demo draws: a live table on a terminal, plain lines elsewhere, and the summary."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from soloflight.cli.demo_clients import Client, Crowd

__all__ = ["Report", "Screen", "summary"]

COLUMNS = 5
BAR = 8
PLAIN_EVERY_S = 1.0
SIGNS = {"owner": "◆", "follower": "·", "replay": "↺"}
COLOURS = {"owner": "bold yellow", "follower": "cyan", "replay": "green"}
LEGEND = "  ".join(f"{sign} {role}" for role, sign in SIGNS.items()) + "  ✗ failed"


@dataclass(frozen=True, slots=True)
class Report:
    """The end of a demo: what to print, and whether it showed what it promises."""

    text: str
    shown: bool


def summary(crowd: Crowd, calls: int) -> Report:
    """The last lines. It is shown if one upstream call gave every client all bytes of the answer."""
    size = len(crowd.clients)
    roles = ", ".join(f"{count} {role}{'s' if count > 1 else ''}" for role, count in crowd.roles.most_common())
    lines = [f"{size} requests, {calls} upstream call{'' if calls == 1 else 's'}"]
    if crowd.alike:
        lines.append(f"Every client got the same {crowd.expected_bytes:,} bytes, from the first one on ({roles}).")
    else:
        faults = sorted({client.fault for client in crowd.clients if client.fault})
        lines.append(
            f"Not every client got the whole answer: {crowd.finished} of {size} ({'; '.join(faults) or roles})."
        )
    return Report("\n".join(lines), shown=calls == 1 and crowd.alike)


class Screen:
    """Draws a crowd: in place on a terminal, else a line each second."""

    def __init__(self, crowd: Crowd, console: Console | None = None) -> None:
        self._crowd = crowd
        self._console = console or Console()
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None
        self._next_line_s = 0.0

    def __repr__(self) -> str:
        return f"Screen({self._crowd!r}, live={self._live is not None})"

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def draw(self, elapsed_s: float, calls: int) -> None:
        """Show the crowd as it is now."""
        if self._live is not None:
            self._live.update(self._table(elapsed_s, calls), refresh=True)
        elif elapsed_s >= self._next_line_s:
            self._next_line_s = elapsed_s + PLAIN_EVERY_S
            self._console.print(self._headline(elapsed_s, calls), highlight=False)

    def _headline(self, elapsed_s: float, calls: int) -> str:
        connected = sum(self._crowd.roles.values())
        return f"{elapsed_s:4.1f} s  clients {connected:2}  upstream calls {calls}  finished {self._crowd.finished:2}"

    def _table(self, elapsed_s: float, calls: int) -> Table:
        table = Table.grid(padding=(0, 2))  # five columns of 13 characters fit into 80
        table.title, table.caption = self._headline(elapsed_s, calls), LEGEND
        clients = self._crowd.clients
        rows = -(-len(clients) // COLUMNS)
        for row in range(rows):
            table.add_row(*(self._cell(client) for client in clients[row::rows]))
        return table

    def _cell(self, client: Client) -> Text:
        done = min(BAR, BAR * client.received // self._crowd.expected_bytes)
        sign = "✗" if client.fault else SIGNS.get(client.role, " ")
        style = "bold red" if client.fault else COLOURS.get(client.role, "dim")
        return Text(f"{client.number:2} {'█' * done}{'░' * (BAR - done)} {sign}", style=style, no_wrap=True)
