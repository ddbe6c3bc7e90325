"""``soloflight demo``, as the command line knows it. What it does is in ``demo_run``, imported when it is run."""

from __future__ import annotations

import asyncio

import click

__all__ = ["demo"]


@click.command(epilog="Exit codes: 0 if one upstream call served every client, else 1.")
def demo() -> None:
    """Show 50 identical streaming clients served by one upstream call.

    Starts a scripted upstream and the proxy on free ports of 127.0.0.1; needs no key.
    """
    from soloflight.cli.demo_run import run  # aiohttp and rich take half a second that `--help` does not have

    raise SystemExit(asyncio.run(run()))
