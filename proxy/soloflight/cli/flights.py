"""``soloflight flights``: the live flights of a running proxy, one of them in full, or its end."""

from __future__ import annotations

from typing import Any

import click
import orjson
from rich.console import Console
from rich.table import Table

from soloflight.cli.admin_api import AdminApi, admin_option, found_flight
from soloflight.cli.amounts import count, size, span
from soloflight.cli.fitting import Reader, fitted

__all__ = ["flights", "flights_table"]

SHORT = 12
PIPED_WIDTH = 220
COLUMNS: dict[str, Reader] = {
    "flight": lambda row: row["id"][:SHORT],
    "stage": lambda row: row["stage"],
    "state": lambda row: row["state"],
    "role": lambda row: row["role"] or "-",
    "owner": lambda row: row["owner"][:SHORT] or "-",
    "try": lambda row: "-" if row["attempt"] is None else str(row["attempt"]),
    "age": lambda row: span(row["age_s"]),
    "progress": lambda row: span(row["progress_age_s"]),
    "lease": lambda row: span(row["lease_left_s"]),
    "bytes": lambda row: size(row["bytes"]),
    "frames": lambda row: count(row["frames"]),
    "clients": lambda row: count(row["listeners"]),
    "joined": lambda row: count(row["followers"]),
    "nodes": lambda row: count(row["watchers"]),
}
WORDS = frozenset({"flight", "stage", "state", "role", "owner"})
DROPPED_FIRST = ("frames", "lease", "nodes", "try", "joined", "owner", "role", "progress")


@click.group(invoke_without_command=True)
@admin_option
@click.pass_context
def flights(context: click.Context, api: AdminApi) -> None:
    """See and end the live flights of a running proxy. Without a command: list them.

    With a token on the admin listener, SOLOFLIGHT_ADMIN_TOKEN must be set.
    """
    context.obj = api
    if context.invoked_subcommand is None:
        _list(api, as_json=False)


@flights.command("list")
@admin_option
@click.option("--json", "as_json", is_flag=True, help="As the admin API has them.")
def list_(api: AdminApi, *, as_json: bool) -> None:
    """List the live flights, oldest first."""
    _list(api, as_json=as_json)


@flights.command()
@admin_option
@click.argument("flight", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="As the admin API has it.")
def show(api: AdminApi, flight: str, *, as_json: bool) -> None:
    """Show everything that is known of one flight. The first digits of its ID do, if no other begins so."""
    row = api.get(f"/api/flights/{found_flight(api, flight)}")
    if as_json:
        click.echo(orjson.dumps(row, option=orjson.OPT_INDENT_2).decode())
        return
    for label, value in _facts(row):
        click.echo(f"{label:<16} {value}")


@flights.command()
@admin_option
@click.argument("flight", metavar="ID")
def abort(api: AdminApi, flight: str) -> None:
    """End one flight: everybody who listens is cut visibly, its key and its locks are free at once."""
    flight_id = found_flight(api, flight)
    told = api.delete(f"/api/flights/{flight_id}")
    if told["result"] == "aborted":
        click.echo(f"flight {flight_id} has ended")
    else:
        click.echo(f"flight {flight_id} is owned by another node, which was told to end it")


def _list(api: AdminApi, *, as_json: bool) -> None:
    rows = api.get("/api/flights")["flights"]
    if as_json:
        click.echo(orjson.dumps(rows, option=orjson.OPT_INDENT_2).decode())
        return
    if not rows:
        click.echo("no flight runs at the moment")
        return
    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPED_WIDTH)
    console.print(flights_table(rows, console.width), highlight=False)


def flights_table(rows: list[dict[str, Any]], width: int) -> Table:
    """The rows of ``/api/flights`` as a table of at most ``width`` characters."""
    return fitted(rows, COLUMNS, words=WORDS, dropped_first=DROPPED_FIRST, width=width)


def _facts(row: dict[str, Any]) -> list[tuple[str, str]]:
    attempt = row["attempt"]
    return [
        ("flight", row["id"]),
        ("stage", row["stage"]),
        ("state", row["state"]),
        ("role here", row["role"] or "not known yet"),
        ("node", row["node"]),
        ("owner node", row["owner"] or "not known"),
        ("attempt", str(attempt) if attempt is not None else "known to its owner"),
        ("age", span(row["age_s"])),
        ("lease left", span(row["lease_left_s"])),
        ("since progress", span(row["progress_age_s"])),
        ("frames", count(row["frames"])),
        ("bytes", size(row["bytes"])),
        ("clients here", f"{row['listeners']} ({row['followers']} joined)"),
        ("other nodes", str(row["watchers"])),
        ("model", row["model"] or "-"),
        ("path", row["path"]),
        ("fingerprint", row["key"]),
    ]
