"""Commands to Redis within their bound, the breaker around them, and the probe that closes it again.

Rule 1: a command is sent at most twice, and only where no reply came; every one of ours may be executed twice.
Rule 2: while Redis is away nobody waits for it: the breaker answers. It is told of once, not for every request.
Rule 3: an error reply is an answer: Redis is there. Only silence, refused connections and read-only servers trip the breaker.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Callable
from typing import Any

from redis.exceptions import (
    AskError,
    ClusterDownError,
    MovedError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)

from soloflight.flow.tasks import Tasks
from soloflight.ports import BackendError
from soloflight_redis.breaker import Breaker
from soloflight_redis.keys import Names
from soloflight_redis.operations import Invocation
from soloflight_redis.scripts import Script
from soloflight_redis.servers import Servers
from soloflight_redis.topology import explained
from soloflight_redis.wire import Lane, Lost, packed

log = logging.getLogger("soloflight.redis")

FIRST_PROBE_S, LONGEST_PROBE_S = 0.1, 1.0
"""How long the prober waits at most before it looks at a Redis that is away: twice as long each time (the promise is 5 s)."""
PROBE_BOUND_S = 2.0
TURNS = 5
"""How often a command may be sent elsewhere, or again."""
TURNED_AWAY = (AskError, ClusterDownError, ReadOnlyError, TryAgainError)  # AskError: MovedError, too


class WritesRefused(BackendError):
    """Redis is there and takes no writes (maxmemory)."""


class Backend:
    """One Redis, as far as this process can reach it.

    shown       the address, for the log
    otherwise   what happens while it is away, for the log
    """

    def __init__(
        self,
        servers: Servers,
        scripts: dict[str, Script],
        names: Names,
        *,
        bound_s: float,
        shown: str,
        otherwise: str,
        tasks: Tasks,
    ) -> None:
        self._servers = servers
        self._scripts = scripts
        self._names = names
        self._bound_s = bound_s
        self._shown = shown
        self._otherwise = otherwise
        self._tasks = tasks
        self._tags = itertools.count(1)
        self._tripped = asyncio.Event()
        self._suspicion: asyncio.Task[None] | None = None
        self._full = False
        self.breaker = Breaker()
        self.on_return: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"Backend({self._shown}, {self.breaker!r}, {self._servers!r})"

    async def open(self) -> None:
        """Look once, and keep looking while it is away. Does not raise."""
        self._tasks.spawn(self._watch(), "redis probe")
        try:
            await self._look()
        except Lost as error:
            self._trip(str(error))

    async def close(self) -> None:
        """Give every connection back. The owner of ``tasks`` ends them."""
        await self._servers.close()

    # ── commands ────────────────────────────────────────────────────────────────────────────────────────────────

    async def script(self, keys: tuple[str, ...], call: Invocation) -> list[Any]:
        """Execute a script on ``keys``, all in one slot; its reply without the tag. Raises BackendError."""
        until = asyncio.get_running_loop().time() + self._bound_s
        script, tag = self._scripts[call.script], b"%d" % next(self._tags)
        words = (len(keys), *keys, tag, *call.arguments)
        said = await self._ask(keys[0], packed("EVALSHA", script.digest, *words), until, large=call.large, tag=tag)
        if isinstance(said, NoScriptError):
            said = await self._ask(keys[0], packed("EVAL", script.source, *words), until, large=call.large, tag=tag)
        self._refuse(said)
        reply: list[Any] = said[1:]
        return reply

    async def command(self, name: str, *words: str | bytes | int) -> Any:
        """Execute a command on the server of the key or channel ``name``. Raises BackendError."""
        until = asyncio.get_running_loop().time() + self._bound_s
        said = await self._ask(name, packed(*words), until)
        self._refuse(said)
        return said

    async def _ask(
        self, name: str, command: bytes, until: float, *, large: bool = False, tag: bytes | None = None
    ) -> Any:
        """The reply, an error reply as a value; a script's begins with ``tag``. Raises BackendError where there is none."""
        why, losses = "", 0
        for _ in range(TURNS):
            if not self.breaker.closed:
                raise BackendError(f"redis is away: {self.breaker.why}")
            try:
                lane = await self._servers.lane(name, large=large, until=until)
                said = _unwrapped(await lane.send(command, until))
                if tag is not None and not _in_order(said, tag):
                    lane.drop("replies out of order")
                    raise Lost("replies out of order")
                if not isinstance(said, TURNED_AWAY):
                    return said
                why = str(said)
                await self._turn(said, lane, until)
            except Lost as error:
                why, losses = str(error), losses + 1
            if losses == 2 or asyncio.get_running_loop().time() >= until:
                break
        self._failed(why, large)
        raise BackendError(f"redis did not answer: {why}")

    async def _turn(self, said: RedisError, lane: Lane, until: float) -> None:
        """The server said that another one is to be asked, or that it is too early. Raises Lost."""
        if isinstance(said, MovedError):
            await self._servers.moved(said, until)
        elif isinstance(said, ReadOnlyError):
            lane.drop("it takes no writes")  # a demoted master: the next connection finds the new one
        else:  # the slot is on its way between two servers, or without one (cluster): soon over, or not
            await asyncio.sleep(self._bound_s / (2 * TURNS))

    def _refuse(self, said: Any) -> None:
        """Raise BackendError for an error reply."""
        if isinstance(said, OutOfMemoryError):
            if not self._full:
                self._full = True
                log.warning("redis %s is full: it takes no writes", self._shown)
                self._tasks.spawn(self._wait_for_room(), "redis room")
            raise WritesRefused("redis is full")
        if isinstance(said, Exception):
            raise BackendError(f"redis refused: {said}") from said

    async def _wait_for_room(self) -> None:
        """Look until a full Redis takes writes again, for the log's sake: every request tries for itself."""
        while self._full:
            await asyncio.sleep(random.uniform(0.5, LONGEST_PROBE_S))  # noqa: S311 - spread, not secrecy
            try:
                self._full = await self._look()
            except Lost:
                continue
        log.warning("redis %s takes writes again", self._shown)

    # ── the breaker ─────────────────────────────────────────────────────────────────────────────────────────────

    def _failed(self, why: str, large: bool) -> None:
        """A command got no answer. A large one may only have been too large; a cluster may only miss a shard."""
        if not (large or self._servers.sharded):
            self._trip(why)
        else:
            self.suspect()

    def suspect(self) -> None:
        """Something hints that Redis is away: look, and trip if it is."""
        if self.breaker.closed and (self._suspicion is None or self._suspicion.done()):
            self._suspicion = self._tasks.spawn(self._verify(), "redis verify")

    async def _verify(self) -> None:
        try:
            await self._look()
        except Lost as error:
            self._trip(str(error))

    def _trip(self, why: str) -> None:
        if self.breaker.trip(why):
            log.warning("redis %s is away: %s; %s", self._shown, why, self._otherwise)
        self._servers.drop(why)
        self._tripped.set()

    async def _watch(self) -> None:
        """While the breaker is open: one probe after the other, until one succeeds."""
        pause_s = FIRST_PROBE_S
        while True:
            await self._tripped.wait()
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - spread, not secrecy
            self.breaker.probe()
            try:
                await self._look()
            except Lost as error:
                self._trip(str(error))
                pause_s = min(2 * pause_s, LONGEST_PROBE_S)
                continue
            self._tripped.clear()
            pause_s = FIRST_PROBE_S
            if self.breaker.recover():
                log.warning("redis %s is back", self._shown)
                for tell in self.on_return:
                    tell()

    async def _look(self) -> bool:
        """Write one small key, past the breaker. True: the server is full, but there. Raises Lost."""
        until = asyncio.get_running_loop().time() + min(self._bound_s, PROBE_BOUND_S)
        command = packed("SET", self._names.health, 1, "PX", 60_000)
        await self._servers.lane(self._names.health, large=False, until=until)
        why = "no server"
        lanes = self._servers.any_lanes()
        for lane in (*lanes, *lanes):
            try:
                said = await lane.send(command, until)
            except Lost as error:
                why = str(error)
                continue
            if not isinstance(said, RedisError) or isinstance(said, (OutOfMemoryError, MovedError)):
                return isinstance(said, OutOfMemoryError)
            lane.drop("it takes no writes")
            why = explained(said)
        raise Lost(why)


def _unwrapped(said: Any) -> Any:
    """What an error reply is about: Redis 6.2 tells of one inside a script as the text of another."""
    if isinstance(said, ResponseError) and "running script" in (text := str(said)):
        if "-READONLY " in text:
            return ReadOnlyError(text)
        if "-OOM " in text:
            return OutOfMemoryError(text)
    return said


def _in_order(said: Any, tag: bytes) -> bool:
    """Whether this can be the reply to the script that was called with ``tag``. An error names nobody."""
    return isinstance(said, RedisError) or (isinstance(said, list) and said[:1] == [tag])
