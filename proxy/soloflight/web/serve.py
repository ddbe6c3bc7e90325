"""``soloflight serve``'s process: the loop, the signals, the exit code."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time

from soloflight.config.models import Settings
from soloflight.flow.tasks import Tasks
from soloflight.plugins import Plugins
from soloflight.web.app import App

log = logging.getLogger("soloflight")

SECOND_SIGNAL_S = 1.0


def run(settings: Settings, plugins: Plugins) -> int:
    """Serve until a signal ends it; returns the exit code: 0 clean, 2 where it could not start."""
    if sys.platform == "win32":
        return asyncio.run(_serve(settings, plugins))
    import uvloop

    return uvloop.run(_serve(settings, plugins))


async def _serve(settings: Settings, plugins: Plugins) -> int:
    signals = Signals()
    app = App(settings, plugins)
    try:
        await app.open()
    except OSError as error:
        log.error("can not listen: %s", error)
        await app.close()
        return 2
    await signals.first.wait()
    drain = Tasks("drain")
    draining = drain.spawn(app.drain(), "drain")
    second = drain.spawn(signals.second.wait(), "second signal")
    await asyncio.wait([draining, second], return_when=asyncio.FIRST_COMPLETED)
    await drain.close()
    await app.close()
    log.info("stopped")
    return 0


class Signals:
    """SIGTERM and SIGINT: the first drains; one that comes at least a second after the first was acted on ends at once."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        self._acted = 0.0
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signal)

    def __repr__(self) -> str:
        return f"Signals(first={self.first.is_set()}, second={self.second.is_set()})"

    def _signal(self) -> None:
        now = time.monotonic()
        if not self.first.is_set():
            self._acted = now
            self.first.set()
        elif now - self._acted >= SECOND_SIGNAL_S:
            self.second.set()
