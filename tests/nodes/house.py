"""A whole app in this process, on a free port, and what was seen of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Self

from harness.proxy import merged
from soloflight.config.models import Settings
from soloflight.plugins import Plugins
from soloflight.ports import Event, RequestEnded
from soloflight.testing.upstream import ScriptedUpstream
from soloflight.web.app import App
from soloflight.web.connection import Connection

DEFAULTS = {"server": {"listen": "127.0.0.1:0", "admin_listen": "off", "drain_timeout": 1.0}}


class House:
    """One app. ``events`` are those that observers are told.

    ``unparsed`` counts the requests that aiohttp did not parse, ``at_once`` those of them answered in the call that read them.
    """

    def __init__(self, settings: Settings) -> None:
        self.app = App(settings, Plugins.load())
        self.events: list[Event] = []
        self.unparsed = self.at_once = 0

    async def open(self) -> Self:
        """Serve, and look on."""
        await self.app.open()
        front, door = self.app.front, self.app._door
        assert front is not None
        assert door is not None
        emit, short_way = front.emit, front.shortcuts.take

        def seen(event: Event) -> None:
            self.events.append(event)
            emit(event)

        def counted(block: bytes, connection: Connection) -> bool:
            taken = short_way(block, connection)
            self.unparsed += taken
            self.at_once += taken and connection._gone is None
            return taken

        front.emit, door.short_way = seen, counted
        return self

    def __repr__(self) -> str:
        return f"House({self.app!r})"

    @property
    def port(self) -> int:
        """Where the public listener is."""
        return int(self.app.addresses[0].rpartition(":")[2])

    @property
    def admin_port(self) -> int:
        """Where the admin listener is, if it is on."""
        return int(self.app.addresses[1].rpartition(":")[2])

    @property
    def requests(self) -> list[RequestEnded]:
        """Every request that has been told of."""
        return [event for event in self.events if isinstance(event, RequestEnded)]


OpenHouse = Callable[..., Awaitable[House]]


def settings_for(upstream: ScriptedUpstream, config: dict[str, Any]) -> Settings:
    """Settings with ``config`` on top of what a test needs."""
    return Settings.model_validate(merged(merged(DEFAULTS, {"upstream": {"url": upstream.url}}), config))
