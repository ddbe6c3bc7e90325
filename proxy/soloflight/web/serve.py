"""``soloflight serve``: one process, or a supervisor and its workers; the exit code."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable

from soloflight.config.faults import ConfigError
from soloflight.config.models import Settings
from soloflight.flow.tasks import Tasks
from soloflight.plugins import PluginError, Plugins
from soloflight.web.app import App
from soloflight.web.control import Control, Signals
from soloflight.web.notify import notify, reloading, watchdog_s

log = logging.getLogger("soloflight")

Reload = Callable[[], Settings]


def run(settings: Settings, plugins: Plugins, reload: Reload) -> int:
    """Serve until a signal ends it; returns the exit code: 0 clean, 2 where it could not start.

    ``reload`` reads the configuration again (raises ConfigError for a bad one).
    """
    if settings.server.workers > 1:
        from soloflight.web.supervisor import Supervisor

        return Supervisor(settings, plugins, reload).run()
    return serve_process(settings, plugins, reload, Signals)


def serve_process(settings: Settings, plugins: Plugins, reload: Reload, control: Callable[[], Control]) -> int:
    """Serve in this process until ``control`` says stop."""
    main = _serve(settings, plugins, reload, control)
    if sys.platform == "win32":
        return asyncio.run(main)
    import uvloop

    return uvloop.run(main)


async def _serve(settings: Settings, plugins: Plugins, reload: Reload, make_control: Callable[[], Control]) -> int:
    control = make_control()
    control.listen()
    app = App(settings, plugins)
    try:
        await app.open()
    except (OSError, ValueError, PluginError) as error:
        log.error("can not start: %s", error)
        await app.close()
        control.failed()
        return 2
    control.on_reload = lambda: _reload(app, reload)
    control.ready()
    notify("READY=1")
    life = Tasks("life")
    if (every_s := watchdog_s()) is not None:
        life.spawn(_signs_of_life(every_s), "watchdog")
    await control.first.wait()
    notify("STOPPING=1")
    draining = life.spawn(app.drain(), "drain")
    second = life.spawn(control.second.wait(), "second signal")
    await asyncio.wait([draining, second], return_when=asyncio.FIRST_COMPLETED)
    await life.close()
    await app.close()
    log.info("stopped")
    return 0


def _reload(app: App, reload: Reload) -> None:
    """Take a new configuration; a bad one is told of, and the old one stays."""
    reloading()
    try:
        app.reload(reload())
    except (ConfigError, PluginError, OSError, ValueError) as error:
        for line in str(error).splitlines():
            log.error("configuration not reloaded: %s", line)
    notify("READY=1")


async def _signs_of_life(every_s: float) -> None:
    """The watchdog hears from the loop itself: a loop that hangs says nothing."""
    while True:
        notify("WATCHDOG=1")
        await asyncio.sleep(every_s)
