"""Everything this process hears from Redis: listeners by key, the rings of its own flights, and whether it hears at all.

Rule 1: one connection for all keys; in a cluster one for each shard that is listened to, and one for the rings.
Rule 2: a listener is told in the order of publication. What it raises is its own affair.
Rule 3: silence is not trusted. Whoever is quiet is probed: a message to oneself must come back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import MovedError

from soloflight.core.flight import Notice
from soloflight.flow.tasks import Tasks
from soloflight.ports import BackendError, OnSession, OnWord
from soloflight_redis.backend import Backend
from soloflight_redis.cipher import Cipher
from soloflight_redis.codec import Unreadable
from soloflight_redis.ear import Ear, Elsewhere
from soloflight_redis.keys import Names
from soloflight_redis.notices import GAP, PROBE, RING, WORD, read_notice
from soloflight_redis.servers import Servers
from soloflight_redis.sessions import SESSION, read_session_notice
from soloflight_redis.topology import Peer
from soloflight_redis.wire import Lost

log = logging.getLogger("soloflight.redis")

PROBE_S = 1.0
"""How long a connection may be quiet before it is probed, and how long the probe may take; looked at as often: 3 s in all."""
MOVES = 4
"""How often a channel is followed from one server to another before it is given up."""

Listener = Callable[[Notice], None]


class RedisSubscription:
    """A listener at one key; ``close`` ends it."""

    __slots__ = ("_hearing", "_key")

    def __init__(self, hearing: Hearing, key: str) -> None:
        self._hearing = hearing
        self._key = key

    def __repr__(self) -> str:
        return f"RedisSubscription({self._key!r})"

    async def close(self) -> None:
        """End it; idempotent."""
        self._hearing.leave(self._key, self)


class Hearing:
    """The listening side of a node."""

    def __init__(
        self, backend: Backend, servers: Servers, names: Names, cipher: Cipher, tasks: Tasks, bound_s: float
    ) -> None:
        self._backend = backend
        self._servers = servers
        self._names = names
        self._cipher = cipher
        self._tasks = tasks
        self._bound_s = bound_s
        self._keys: dict[str, str] = {}  # by channel
        self._listeners: dict[str, dict[RedisSubscription, Listener]] = {}
        self._ears: dict[str, Ear] = {}  # by the address of their server
        self._at: dict[str, Ear] = {}  # by channel
        self._rung: Callable[[str], None] | None = None
        self._on_session: OnSession | None = None
        self._node_channel = ""
        self._node_ear: Ear | None = None
        self.on_word: OnWord | None = None
        self.unreadable = 0

    def __repr__(self) -> str:
        return f"Hearing(keys={len(self._listeners)}, ears={list(self._ears.values())}, unreadable={self.unreadable})"

    async def open(self, node: str, on_ring: Callable[[str], None], on_session: OnSession | None) -> None:
        """Listen for what is told to this node, and to all; returns when that is confirmed, or after the bound. Does not raise."""
        self._node_channel, self._rung, self._on_session = self._names.node(node), on_ring, on_session
        self._backend.on_return.append(self._hurry)
        self._servers.on_peer.append(self._follow_commands)
        if self._servers.sharded:
            self._node_ear = Ear(self._dialer(self._node_channel), self._tasks, self)
        else:
            self._node_ear = self._ear(self._node_channel)
        node_held, fleet_held = (self._node_ear.hold(channel) for channel in (self._node_channel, self._names.fleet))
        patience_s = self._bound_s if self._backend.breaker.closed else 0.0
        done, late = await asyncio.wait([node_held, fleet_held], timeout=patience_s)
        if fleet_held in late:
            fleet_held.add_done_callback(self._late)
        for future in done:
            if (error := future.exception()) is not None:
                log.error("redis does not let this node listen: %s", error)
        self._tasks.spawn(self._probe(), "redis hearing probe")

    def _late(self, held: asyncio.Future[None]) -> None:
        """Redis was away at the start: what was said until now has been missed."""
        if not held.cancelled() and held.exception() is None:
            self.on_gap(self._names.fleet)

    def close(self) -> None:
        """Hear nothing any more."""
        self._rung = self._on_session = self.on_word = None
        self._listeners.clear()
        for ear in self._all():
            ear.close()
        self._ears.clear()

    async def subscribe(self, key: str, listener: Listener) -> RedisSubscription:
        """Tell ``listener`` of every notice of ``key`` from now on. Raises BackendError."""
        if not self._backend.breaker.closed:
            raise BackendError("redis is away")
        channel = self._names.notices(key)
        subscription = RedisSubscription(self, key)
        self._keys[channel] = key
        self._listeners.setdefault(key, {})[subscription] = listener
        try:
            async with asyncio.timeout(self._bound_s):
                await self._hold(channel)
        except (TimeoutError, Lost) as error:
            self.leave(key, subscription)
            raise BackendError("redis did not confirm the subscription") from error
        except BaseException:
            self.leave(key, subscription)
            raise
        return subscription

    def leave(self, key: str, subscription: RedisSubscription) -> None:
        """End a subscription; the last one of a key gives its channel back."""
        listeners = self._listeners.get(key)
        if listeners is None or listeners.pop(subscription, None) is None or listeners:
            return
        del self._listeners[key]
        channel = self._names.notices(key)
        self._keys.pop(channel, None)
        ear = self._at.pop(channel, None)
        if ear is not None:
            ear.let_go(channel)
            self._retire(ear)

    # ── ears ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _hold(self, channel: str) -> None:
        """Hold ``channel`` where it is served. Raises Lost."""
        until = asyncio.get_running_loop().time() + self._bound_s
        for _ in range(MOVES):
            if self._servers.sharded:
                await self._servers.lane(channel, large=False, until=until)  # now the slots are known
            ear = self._at.get(channel)
            if ear is None:
                ear = self._at[channel] = self._ear(channel)
            try:
                await ear.hold(channel)
                return
            except Elsewhere as why:
                self._at.pop(channel, None)
                if not isinstance(why.error, MovedError | None):
                    raise
                await self._servers.moved(why.error, until)
        raise Lost("the channel moves about")

    def _ear(self, channel: str) -> Ear:
        where = self._servers.where(channel)
        ear = self._ears.get(where)
        if ear is None:
            ear = Ear(self._dialer(channel), self._tasks, self, sharded=self._servers.sharded)
            self._ears[where] = ear
        return ear

    def _dialer(self, channel: str) -> Callable[[], Awaitable[AbstractConnection]]:
        return lambda: self._servers.dial(channel)

    def _retire(self, ear: Ear) -> None:
        """A shard that nobody listens to needs no connection."""
        if not ear.channels:
            self._ears = {where: other for where, other in self._ears.items() if other is not ear}
            ear.close()

    def _all(self) -> list[Ear]:
        ears = list(self._ears.values())
        if self._node_ear is not None and self._node_ear not in ears:
            ears.append(self._node_ear)
        return ears

    def _follow_commands(self, to: Peer) -> None:
        """After a failover the old master may go on answering: listen where the commands go."""
        for ear in self._all():
            if ear.open and ear.peer != to:
                ear.drop("commands go to another server")

    def _hurry(self) -> None:
        for ear in self._all():
            ear.hurry()

    async def _probe(self) -> None:
        """Who is quiet is sent a message by ourselves; who does not hear it gets a new connection."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(PROBE_S)
            for ear in self._all():
                if not ear.open or loop.time() - ear.heard < PROBE_S:
                    continue
                if ear.probed is not None:
                    log.warning("a redis subscription had gone silent: connecting again")
                    ear.drop("silent")
                elif ear.channels:
                    ear.probed = loop.time()
                    self._tasks.spawn(self._say(ear), "redis hearing probe message")

    async def _say(self, ear: Ear) -> None:
        channel = ear.channels[0]
        word = "PUBLISH" if ear is self._node_ear else "SPUBLISH" if self._servers.sharded else "PUBLISH"
        try:
            await self._backend.command(channel, word, channel, PROBE)
        except BackendError:
            ear.probed = None  # that Redis is away is another matter

    # ── what the ears tell ──────────────────────────────────────────────────────────────────────────────────────

    def on_message(self, channel: str, said: bytes) -> None:
        """Pass it on to whom it is for."""
        if said[:1] == PROBE:
            return
        try:
            if channel == self._node_channel:
                self._told(said)
            elif channel == self._names.fleet:
                if self.on_word is not None and said[:1] == WORD:
                    self._call(self.on_word, said[1:].decode("utf-8", "replace"))
            elif (key := self._keys.get(channel)) is not None:
                self._tell(key, read_notice(key, said, self._cipher))
        except Unreadable as error:
            self.unreadable += 1
            log.debug("a notice could not be read: %s", error)

    def on_gap(self, channel: str) -> None:
        """Notices may have been lost: everybody at this key looks again; what the fleet was told may have been missed."""
        if channel == self._names.fleet and self.on_word is not None:
            self._call(self.on_word, "")
        key = self._keys.get(channel)
        if key is not None:
            self._tell(key, GAP)

    def on_elsewhere(self, channel: str, why: Elsewhere) -> None:
        """Find the channel's new place, and tell its listeners to look again."""
        self._at.pop(channel, None)
        if channel in self._keys:
            self._tasks.spawn(self._follow(channel, why), "redis channel moved")

    async def _follow(self, channel: str, why: Elsewhere) -> None:
        """Hold the channel where it is now, however long that takes, while somebody listens."""
        error = why.error if isinstance(why.error, MovedError) else None
        while channel in self._keys:
            until = asyncio.get_running_loop().time() + self._bound_s
            try:
                await self._servers.moved(error, until)
                async with asyncio.timeout_at(until):
                    await self._hold(channel)
                self.on_gap(channel)
                return
            except (Lost, TimeoutError):
                error = None
                await asyncio.sleep(self._bound_s)

    def on_deaf(self, why: str) -> None:
        """A connection was lost: is Redis there at all?"""
        self._backend.suspect()

    def _told(self, said: bytes) -> None:
        """Something for this node alone."""
        if said[:1] == RING and self._rung is not None:
            self._call(self._rung, said[1:].decode("utf-8", "replace"))
        elif said[:1] == SESSION and self._on_session is not None:
            self._call(self._on_session, *read_session_notice(said))

    def _tell(self, key: str, notice: Notice) -> None:
        for listener in list(self._listeners.get(key, {}).values()):
            self._call(listener, notice)

    @staticmethod
    def _call(callback: Callable[..., None], *values: object) -> None:
        try:
            callback(*values)
        except Exception:  # somebody else's code: it harms nobody but itself
            log.exception("a listener raised")
