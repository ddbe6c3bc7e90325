"""``soloflight serve``: one process, or a supervisor and its workers; the exit code."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from collections.abc import Callable

from soloflight.config.faults import ConfigError
from soloflight.config.models import Settings
from soloflight.flow.tasks import Tasks
from soloflight.plugins import PluginError, Plugins
from soloflight.web.app import CLOSE_S, App
from soloflight.web.control import Control, Signals
from soloflight.web.logs import configure

log = logging.getLogger("soloflight")

Reload = Callable[[], Settings]

CAN_NOT_START = 2
GC_THRESHOLDS = (700, 10, 5_000)
"""Of the collector's generations (docs/performance.md). With Python's own (700, 10, 10) it walks all kept answers time and again:
pauses of 180 ms at 230,000 objects, against 2.5 ms. Nothing here leaves cycles behind that only a full collection would find."""


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
    app = App(settings, plugins, control.team)
    try:
        await app.open()
    except (OSError, ValueError, PluginError) as error:
        log.error("can not start: %s", error)
        await app.close()
        return CAN_NOT_START
    calm_collector()
    control.ready()
    control.on_reload(lambda: _reload(app, reload, control))
    life = Tasks("life")
    if control.beat_s is not None:
        life.spawn(_signs_of_life(control, control.beat_s), "signs of life")
    await control.first.wait()
    control.on_reload(lambda: None)  # what ends takes no new rules
    control.stopping(app.drain_s + CLOSE_S)
    draining = life.spawn(app.drain(), "drain")
    second = life.spawn(control.second.wait(), "second signal")
    await asyncio.wait([draining, second], return_when=asyncio.FIRST_COMPLETED)
    draining.cancel()
    await app.close()
    await life.close()
    log.info("stopped")
    return 0


def calm_collector() -> None:
    """Let the garbage collector look at what is young; what was made for the start is not looked at again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def _reload(app: App, reload: Reload, control: Control) -> None:
    """Take a new configuration; a bad one is told of, and the old one stays."""
    control.reloading()
    taken = False
    try:
        settings = reload()
        app.reload(settings)
        configure(settings.log.level, settings.log.format)
        taken = True
    except (ConfigError, PluginError, OSError, ValueError) as error:
        for line in str(error).splitlines():
            log.error("configuration not reloaded: %s", line)
    control.reloaded(taken=taken)


async def _signs_of_life(control: Control, every_s: float) -> None:
    """The watchdog hears from the loop itself: a loop that hangs says nothing."""
    while True:
        control.alive()
        await asyncio.sleep(every_s)
