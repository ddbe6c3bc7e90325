"""``soloflight check``: a configuration judged as ``serve`` would judge it, and printed without its secrets."""

from __future__ import annotations

import os
from pathlib import Path

import click

from soloflight.cli.refusal import plugin_names_checked, refusing
from soloflight.config import effective, load, stages
from soloflight.plugins import Plugins

__all__ = ["check"]


@click.command(epilog="Exit codes: 0 for a configuration that serve would take, else 2.")
@click.argument("file", required=False, type=click.Path(path_type=Path))
def check(file: Path | None) -> None:
    """Validate FILE and print the effective configuration, secrets masked.

    Without FILE: SOLOFLIGHT_CONFIG, else the defaults; the environment counts as it does for serve.
    """
    with refusing():
        settings = load(file, os.environ, {})
        plugins = Plugins.load(settings.plugins.disabled)
        plugin_names_checked(plugins, [*settings.plugins.disabled, *settings.plugins.sections])
        plugins.coordinator(settings.coordination.backend, settings)
        for stage in stages(settings):
            plugins.fingerprinter(stage)
            plugins.answer_rules(stage)
    click.echo(effective(settings), nl=False)
