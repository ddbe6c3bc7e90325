"""The composition root of one process: everything is made here, handed to who needs it, and given back in reverse order."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from ipaddress import ip_network
from typing import TypeGuard

import aiohttp
from aiohttp import web

from soloflight.config import stages as configured_stages
from soloflight.config.addresses import Listen
from soloflight.config.models import Settings
from soloflight.core.stage import Stages
from soloflight.flow.admit import Admission
from soloflight.flow.memory import Memory
from soloflight.flow.metered import metered
from soloflight.flow.node import Node, Surroundings
from soloflight.flow.oversight import Oversight
from soloflight.flow.replays import Replays
from soloflight.flow.tasks import Tasks
from soloflight.plugins import Plugins
from soloflight.ports import Closes, Coordinator, Event, Exposes, Observer
from soloflight.web.admin import admin_app
from soloflight.web.connection import Door, known_inside
from soloflight.web.desk import Desk, OwnDesk, Sources
from soloflight.web.handlers import Front, Limits, State
from soloflight.web.logs import AccessLog
from soloflight.web.recognise import Recogniser
from soloflight.web.reload import with_fixed
from soloflight.web.tally import Prices, Tally
from soloflight.web.targets import Targets
from soloflight.web.team import Sibling, Team, TeamDesk

log = logging.getLogger("soloflight")

BACKLOG = 4096
# How often a process asks whether the fleet has another scope key than the one it started with; mostly no round trip.
SCOPE_KEY_S = 1.0
QUIET_CHECK_S = 0.02
# After the listener has closed: what had connected by then has its request read before the end can come.
DRAIN_SETTLE_S = 0.05
# What is cut has this long to be told why, before its connection is reset.
CUT_S = 1.0
# No close takes longer.
CLOSE_S = 10.0
# Of that, what an observer may take.
CLOSE_OBSERVER_S = 4.0


class App:
    """One serving process. ``open`` binds and serves, ``drain`` stops without losing a stream, ``close`` gives all back."""

    def __init__(self, settings: Settings, plugins: Plugins, team: Team | None = None) -> None:
        self._settings = settings
        self._plugins = plugins
        self._team = team
        self._stack = AsyncExitStack()
        self._servers: list[asyncio.AbstractServer] = []
        self._door: Door | None = None
        self.front: Front | None = None
        self.node: Node | None = None
        self.state = State()
        self._tally = Tally(_prices(settings))
        self.addresses: list[str] = []

    def __repr__(self) -> str:
        return f"App({', '.join(self.addresses) or 'not listening'}, draining={self.state.draining})"

    async def open(self) -> None:
        """Make everything and listen. Raises OSError where an address can not be bound."""
        settings, plugins = self._settings, self._plugins
        memory = Memory(settings.server.max_memory)
        replays = Replays(memory, time.monotonic)
        observers = plugins.observers(settings)
        for observer in observers:
            if closes(observer):
                self._stack.push_async_callback(close_observer, observer)
        emit = fan_out([AccessLog(), self._tally, *observers])
        coordinator = metered(plugins.coordinator(settings.coordination.backend, settings), emit)
        reject = settings.coordination.on_backend_error == "reject"
        self.node = node = Node(Surroundings(coordinator, memory, replays, emit, reject))
        oversight = Oversight(node, coordinator, replays, lambda: (stage.name for stage in self._stages()))
        coordinator.hear(oversight.heard)
        await node.open()
        self._stack.push_async_callback(node.close)
        self._stack.push_async_callback(oversight.close)
        await oversight.open()
        self.state.degraded = lambda: "" if coordinator.up else "the coordination backend is away"
        self._scope_key = settings.server.scope_key.get_secret_value().encode() or await coordinator.scope_key()
        self._targets = Targets()
        self._stack.push_async_callback(self._targets.close)
        self._replays = replays
        admission, recogniser = self._rules(settings)
        node.gate.slots.rule(admission.stages)
        self.front = Front(node, admission, recogniser, _limits(settings), emit, self.state)
        if coordinator.shared and not settings.server.scope_key.get_secret_value():
            scope = Tasks("scope key")
            self._stack.push_async_callback(scope.close)
            scope.spawn(self._follow_scope_key(coordinator), "scope key")
        self.front.traced = any(getattr(one, "wants_trace", False) for one in observers)
        exposing = [one for one in observers if exposes(one)]
        backend = settings.coordination.backend
        desk = OwnDesk(Sources(oversight, self._tally, self.state, exposing, self._stages, backend))
        await self._listen(settings, self.front, desk)

    def reload(self, settings: Settings) -> None:
        """Take the rules of a new configuration for requests to come; those under way keep theirs.

        What was bound or connected at the start stays, and is named. Raises PluginError or ValueError: then nothing changes.
        """
        assert self.front is not None
        assert self.node is not None
        settings, fixed = with_fixed(settings, self._settings)
        admission, recogniser = self._rules(settings)
        self.node.gate.slots.rule(admission.stages)
        self.front.replace(admission, recogniser, _limits(settings))
        self._tally.prices = _prices(settings)
        self._settings = settings
        log.info("configuration reloaded%s", f"; these need a restart: {', '.join(fixed)}" if fixed else "")

    async def _follow_scope_key(self, coordinator: Coordinator) -> None:
        """Who started while the backend was away has scopes of its own: take the fleet's key as soon as it is known."""
        assert self.front is not None
        while True:
            await asyncio.sleep(SCOPE_KEY_S)
            key = await coordinator.scope_key()
            if key != self._scope_key:
                self._scope_key = key
                admission, recogniser = self._rules(self._settings)
                self.front.replace(admission, recogniser, _limits(self._settings))

    def _rules(self, settings: Settings) -> tuple[Admission, Recogniser]:
        """What turns requests into calls, and what knows requests again: always made together."""
        stages, taken = configured_stages(settings), self._targets.take(settings)
        admission = Admission(stages, taken, self._plugins, self._scope_key, _client_keys(settings))
        return admission, Recogniser(self._replays, on=settings.server.recognise and known_inside(aiohttp.__version__))

    def _stages(self) -> Stages:
        """The stages in force: a reload changes them."""
        assert self.front is not None
        return self.front.admission.stages

    async def _listen(self, settings: Settings, front: Front, desk: Desk) -> None:
        trusted = [ip_network(network) for network in settings.server.trusted_proxies]
        self._door = Door(front.handle, header_timeout_s=settings.server.header_timeout, trusted=trusted)
        self._door.short_way = front.shortcuts.take
        where = await self._bind(self._door, settings.server.public)
        log.info(
            "listening on %s, upstream %s, backend %s", where, settings.upstream.url, settings.coordination.backend
        )
        if not known_inside(aiohttp.__version__):
            log.warning(
                "aiohttp %s has not been tested: no request is answered without its parser", aiohttp.__version__
            )
        if self._team is not None:
            self._stack.callback(self._team.leave)
            await self._listen_for_admin(desk, "", Listen(path=str(self._team.socket)))
        if settings.server.admin is not None:
            if self._team is not None:
                desk = team_desk = TeamDesk(desk, [Sibling(path) for path in self._team.siblings])
                self._stack.push_async_callback(team_desk.close)
            token = settings.server.admin_token.get_secret_value()
            log.info("admin listening on %s", await self._listen_for_admin(desk, token, settings.server.admin))

    async def _listen_for_admin(self, desk: Desk, token: str, at: Listen) -> str:
        runner = web.AppRunner(admin_app(self.state, token, desk), access_log=None, handle_signals=False)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        assert runner.server is not None
        return await self._bind(runner.server, at, admin=True)

    async def _bind(self, protocol_factory: Callable[[], asyncio.Protocol], at: Listen, *, admin: bool = False) -> str:
        loop = asyncio.get_running_loop()
        if at.path:
            with suppress(FileNotFoundError):
                os.unlink(at.path)
            server: asyncio.AbstractServer = await loop.create_unix_server(protocol_factory, at.path, backlog=BACKLOG)
            where = f"unix:{at.path}"
        else:
            shared = not admin and self._settings.server.workers > 1
            server = await loop.create_server(
                protocol_factory, at.host, at.port, backlog=BACKLOG, reuse_address=True, reuse_port=shared
            )
            bound: socket.socket = server.sockets[0]
            host = f"[{at.host}]" if ":" in at.host else at.host
            where = f"http://{host}:{bound.getsockname()[1]}"
        if admin:
            self._stack.callback(server.close)
        else:
            self._servers.append(server)
        self.addresses.append(where)
        return where

    @property
    def drain_s(self) -> float:
        """The longest that ``drain`` takes."""
        return self._settings.server.drain_delay + DRAIN_SETTLE_S + self._settings.server.drain_timeout

    async def drain(self) -> None:
        """Stop: not ready, then not listening, then wait for what runs, at most ``drain_timeout``; ``close`` cuts what is left."""
        server = self._settings.server
        self.state.draining = True
        if self._door is not None:
            self._door.leaving = True
        log.info("draining: %s", self._work())
        await asyncio.sleep(server.drain_delay)
        for listener in self._servers:
            listener.close()
        until = time.monotonic() + server.drain_timeout
        await asyncio.sleep(DRAIN_SETTLE_S)
        await self._quiet(until)
        if self._busy():
            log.warning("drain timeout, cutting %s", self._work())

    async def _quiet(self, until: float) -> None:
        """Wait until nothing runs here."""
        # Two counts in two rooms, looked at only at the end: not worth an event on the request path.
        while self._busy() and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(QUIET_CHECK_S)

    async def _told(self, front: Front, until: float) -> None:
        """Wait until who listened to a flight that was stopped has been told so, in its API's own form."""
        while front.listening and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(QUIET_CHECK_S)

    def _busy(self) -> bool:
        return bool((self.front and self.front.running) or (self.node and len(self.node.flights)))

    def _work(self) -> str:
        requests = self.front.running if self.front else 0
        return f"{requests} requests, {len(self.node.flights) if self.node else 0} flights"

    async def close(self) -> None:
        """Close everything at once, also what a failed ``open`` has made; idempotent."""
        self.state.draining = True
        for listener in self._servers:
            listener.close()
        if self.node is not None:
            await self.node.stop()
        if self.front is not None:
            await self._told(self.front, time.monotonic() + CUT_S)
            await self.front.cut()
        if self._door is not None:
            await self._door.shutdown(timeout=1.0)
        await self._stack.aclose()


def fan_out(observers: Sequence[Observer]) -> Callable[[Event], None]:
    """One function that tells every observer; what one raises is logged once and reaches nobody."""
    broken: set[int] = set()

    def emit(event: Event) -> None:
        for index, observer in enumerate(observers):
            try:
                observer.on_event(event)
            except Exception as error:  # an observer is a stranger: isolated, never fatal
                if index not in broken:
                    broken.add(index)
                    log.error("observer %s failed: %s", type(observer).__name__, type(error).__name__, exc_info=error)

    return emit


def exposes(observer: Observer) -> TypeGuard[Exposes]:
    """Whether an observer also has something for /metrics."""
    return callable(getattr(observer, "exposition", None))


def closes(observer: object) -> TypeGuard[Closes]:
    """Whether an observer has something to give back."""
    return callable(getattr(observer, "close", None))


async def close_observer(observer: Closes) -> None:
    """Close one within its bound; that it fails stops nothing."""
    try:
        async with asyncio.timeout(CLOSE_OBSERVER_S):
            await observer.close()
    except Exception as error:  # an observer is a stranger: isolated, never fatal
        log.error("observer %s was not closed: %s", type(observer).__name__, type(error).__name__)


def _prices(settings: Settings) -> Prices:
    return Prices(tuple((glob, price.input, price.output) for glob, price in settings.prices.items()))


def _limits(settings: Settings) -> Limits:
    server = settings.server
    return Limits(server.max_body, server.max_shared_body, server.body_timeout, server.write_timeout)


def _client_keys(settings: Settings) -> tuple[bytes, ...]:
    return tuple(key.get_secret_value().encode("latin-1") for key in settings.server.client_keys)
