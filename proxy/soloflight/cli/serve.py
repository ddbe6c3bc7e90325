"""``soloflight serve``: settings, plugins and logging, handed to the doors. The composition starts here."""

from __future__ import annotations

import os
from pathlib import Path

import click

from soloflight.cli.refusal import plugin_names_checked, refusing
from soloflight.config import load
from soloflight.plugins import Plugins

__all__ = ["serve"]


# The options' values are read by config: a fault in one is told like a fault in the file.
@click.command(epilog="Exit codes: 0 after a clean end, 2 for bad usage or configuration.")
@click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="TOML file with the settings.")
@click.option("--upstream", metavar="URL", help="The API behind the proxy [https://api.openai.com].")
@click.option("--listen", metavar="HOST:PORT|unix:PATH", help="Where clients connect [127.0.0.1:8080].")
@click.option("--admin-listen", metavar="HOST:PORT|off", help="Health, metrics, status page [127.0.0.1:8081].")
@click.option("--backend", metavar="NAME", help="Coordinator: memory, redis, or a plugin's [memory].")
@click.option("--redis-url", metavar="URL", help="Where the Redis backend is [redis://127.0.0.1:6379/0].")
@click.option("--workers", metavar="N", help="Processes that share the listener [1].")
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error [info].")
@click.option("--log-format", metavar="text|json", help="How log lines look [text].")
def serve(config: Path | None, **flags: str | None) -> None:
    """Start the proxy.

    A flag goes before its environment variable (SOLOFLIGHT_UPSTREAM, SOLOFLIGHT_LISTEN, ...), which goes before
    the file, which goes before the default.
    """
    with refusing():
        settings = load(config, os.environ, flags)
        plugins = Plugins.load(settings.plugins.disabled)
        plugin_names_checked(plugins, [*settings.plugins.disabled, *settings.plugins.sections])
        from soloflight.web.logs import configure  # a refusal above needs no web server
        from soloflight.web.serve import run

        configure(settings.log.level, settings.log.format)
        raise SystemExit(run(settings, plugins, lambda: load(config, os.environ, flags)))
