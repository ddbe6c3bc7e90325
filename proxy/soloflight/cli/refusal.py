"""How the command line refuses: each fault is one line on standard error, and the exit code is 2."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import click

from soloflight.config import ConfigError
from soloflight.plugins import PluginError, Plugins

__all__ = ["EXIT_FAULT", "complain", "plugin_names_checked", "refusing"]

EXIT_FAULT = 2


@contextmanager
def refusing() -> Iterator[None]:
    """Faults of configuration or plugins raised inside end the program: a line for each, exit 2."""
    try:
        yield
    except (ConfigError, PluginError) as error:
        complain(error.faults)
        raise SystemExit(EXIT_FAULT) from None


def complain(faults: Iterable[object]) -> None:
    """Print one line for each fault."""
    for fault in faults:
        click.echo(f"soloflight: {fault}", err=True)


def plugin_names_checked(plugins: Plugins, names: Iterable[str]) -> None:
    """Say which names of ``[plugins]`` no plugin has. No fault: one file may serve machines that differ in plugins."""
    for name, nearest in plugins.strangers(names):
        hint = f" (nearest: {nearest})" if nearest else ""
        click.echo(f"soloflight: warning: [plugins] names {name}, which is not installed{hint}", err=True)
