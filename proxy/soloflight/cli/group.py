"""The command line: a click group that imports a command when it is asked for, and asks plugins for theirs last.

``soloflight --version`` and ``soloflight serve`` pay for nothing they do not use. Every name on the command line
that is not in ``COMMANDS`` is a plugin's, or nobody's.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType

import click

from soloflight import __version__

__all__ = ["CommandLine", "main"]

COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "serve": "soloflight.cli.serve:serve",
        "check": "soloflight.cli.check:check",
        "demo": "soloflight.cli.demo:demo",
        "top": "soloflight.cli.top:top",
        "flights": "soloflight.cli.flights:flights",
        "purge": "soloflight.cli.purge:purge",
        "explain": "soloflight.cli.explain:explain",
        "plugins": "soloflight.cli.show:plugins",
        "hooks": "soloflight.cli.show:hooks",
    }
)


class CommandLine(click.Group):
    """The group ``soloflight``: its own commands by table, others from plugins (``soloflight_cli``), asked once."""

    _asked = False

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names for ``--help``: ours in the table's order, then the plugins' by name."""
        self._ask_plugins(ctx, fatal=False)
        return [*COMMANDS, *sorted(self.commands.keys() - COMMANDS.keys())]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, imported now; None where nobody has it."""
        place = COMMANDS.get(cmd_name)
        if place is not None:
            module, _, attribute = place.partition(":")
            command = getattr(import_module(module), attribute)
            assert isinstance(command, click.Command)
            return command
        self._ask_plugins(ctx, fatal=True)
        return self.commands.get(cmd_name)

    def _ask_plugins(self, ctx: click.Context, *, fatal: bool) -> None:
        """Let the installed plugins add their commands. A faulty one must not keep ``--help`` from helping."""
        if self._asked:
            return
        self._asked = True
        from soloflight.cli.refusal import complain  # what nobody asked for is not imported
        from soloflight.plugins import PluginError, Plugins

        try:
            Plugins.load().cli(self)
        except PluginError as error:
            complain(error.faults)
            if fatal:
                ctx.exit(2)


@click.group(cls=CommandLine, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="soloflight")
def main() -> None:
    """Identical requests in flight make one upstream call.

    A streaming reverse proxy in front of OpenAI-compatible APIs. Point a client's base URL at it:
    http://127.0.0.1:8080/v1
    """
