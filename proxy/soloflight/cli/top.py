"""``soloflight top``: stages and live flights of a running proxy, drawn again every second. Piped: drawn once."""

from __future__ import annotations

import time
from typing import Any

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from soloflight.cli.admin_api import AdminApi, admin_option
from soloflight.cli.amounts import count, per_second, size, span
from soloflight.cli.fitting import Reader, fitted
from soloflight.cli.flights import PIPED_WIDTH, flights_table

__all__ = ["drawn", "top"]

EVERY_S = 1.0
RESERVED_LINES = 9
STYLES = {"ok": "bold green", "degraded": "bold yellow", "draining": "bold yellow"}


@click.command()
@admin_option
@click.option("--once", is_flag=True, help="Draw once and end.")
def top(api: AdminApi, *, once: bool) -> None:
    """Watch the flights and the rates of a running proxy. Ctrl-C ends it.

    With a token on the admin listener, SOLOFLIGHT_ADMIN_TOKEN must be set.
    """
    console = Console()
    first = api.get("/api/overview")
    if once or not console.is_terminal:
        wide = console if console.is_terminal else Console(width=PIPED_WIDTH)
        wide.print(drawn(first, wide.width, len(first["flights"])), highlight=False)
        return
    with Live(console=console, auto_refresh=False, screen=True) as live:
        try:
            _watch(api, live, first)
        except KeyboardInterrupt:
            return


def _watch(api: AdminApi, live: Live, state: dict[str, Any]) -> None:
    """Draw, wait, ask again; a proxy that is away is waited for."""
    away = ""
    while True:
        room = max(3, live.console.height - RESERVED_LINES - len(state["stages"]) - bool(away))
        live.update(drawn(state, live.console.width, room, away), refresh=True)
        time.sleep(EVERY_S)
        try:
            state, away = api.get("/api/overview"), ""
        except click.ClickException as error:
            away = error.message


def drawn(state: dict[str, Any], width: int, room: int, away: str = "") -> Group:
    """An overview as it stands on a terminal of ``width`` characters with ``room`` lines for flights."""
    flights, total = state["flights"], state["flights_total"]
    lost = Text(f"connection lost, trying again: {away}", style="bold red")
    parts: list[Any] = [_head(state), *([lost] if away else []), "", _stages(state["stages"], width), ""]
    if flights:
        parts.append(flights_table(flights[:room], width))
        if total > room:
            parts.append(Text(f"… and {total - room:,} more", style="dim"))
    else:
        parts.append(Text("no flight runs at the moment", style="dim"))
    return Group(*parts)


def _head(state: dict[str, Any]) -> Text:
    backend = state["backend"]
    nodes = state["nodes"]
    who = f"node {nodes[0]}" if len(nodes) == 1 else f"{len(nodes)} workers"
    return Text.assemble(
        ("soloflight ", "bold"),
        (state["status"], STYLES.get(state["status"], "")),
        f"  {backend['name']} backend ",
        ("up", "green") if backend["up"] else ("away", "bold red"),
        (f"  {who}, up {span(state['uptime_s'])}, {state['flights_total']:,} flights", "dim"),
    )


def _tokens(by: str) -> Reader:
    return lambda stage: count(sum(stage["counts"]["avoided"]["tokens"][by].values()))


def _money(stage: dict[str, Any]) -> str:
    money = stage["counts"]["avoided"]["money"]
    return f"{sum(money.values()):,.2f}" if money else "-"


COLUMNS: dict[str, Reader] = {
    "stage": lambda stage: stage["name"],
    "req/s": lambda stage: per_second(stage["counts"]["rates"]["requests_per_s"]),
    "calls/s": lambda stage: per_second(stage["counts"]["rates"]["upstream_calls_per_s"]),
    "owner": lambda stage: count(stage["counts"]["requests"]["owner"]),
    "joined": lambda stage: count(stage["counts"]["avoided"]["calls"]["join"]),
    "replayed": lambda stage: count(stage["counts"]["avoided"]["calls"]["replay"]),
    "alone": lambda stage: count(stage["counts"]["requests"]["bypass"]),
    "errors": lambda stage: count(stage["counts"]["errors"]),
    "tokens joined": _tokens("join"),
    "tokens replayed": _tokens("replay"),
    "saved": _money,
    "L1": lambda stage: size(stage["counts"]["local_bytes"]),
}
DROPPED_FIRST = ("L1", "alone", "saved", "tokens joined", "tokens replayed", "owner")


def _stages(stages: list[dict[str, Any]], width: int) -> Table:
    return fitted(stages, COLUMNS, words={"stage"}, dropped_first=DROPPED_FIRST, width=width)
