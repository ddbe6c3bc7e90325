"""One connection that many commands share: what one tick of the loop sends goes out in one write, replies come back in order.

redis-py makes the connection (address, TLS, AUTH, SELECT) and parses; the order of replies is kept here.

Rule 1: a caller that is cancelled, or no longer waits, leaves its place in the line; the next reply is the next one's.
Rule 2: nobody waits for ever. A wire that is silent while something is owed, is lost; whatever was on it may be sent again.
Rule 3: a lost wire stays lost. Its lane makes another.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from hiredis import pack_command
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError, ResponseError

from soloflight.flow.tasks import Tasks
from soloflight_redis.topology import explained, hang_up

HELD_UP_S = 0.05
"""A timer that comes later than this tells of a loop that stood still, not of a silent server."""


def packed(*words: str | bytes | int) -> bytes:
    """A command in RESP."""
    command: bytes = pack_command(words)  # type: ignore[arg-type]  # its stub takes tuples of one
    return command


class Lost(Exception):
    """No reply came: the command may have been executed, or not. The text says why."""


class Outbox:
    """What is to be written to a connection: everything since the last write goes out in the next."""

    def __init__(self) -> None:
        self._out: list[bytes] = []
        self._more = asyncio.Event()

    def __repr__(self) -> str:
        return f"Outbox({len(self._out)})"

    def put(self, command: bytes) -> None:
        """Write a command, packed in RESP, as soon as the loop comes round."""
        self._out.append(command)
        self._more.set()

    async def run(self, connection: AbstractConnection) -> None:
        """Write until cancelled. Raises RedisError or OSError."""
        while True:
            await self._more.wait()
            self._more.clear()
            out, self._out = self._out, []
            try:
                await connection.send_packed_command(out, check_health=False)
            except RuntimeError as error:  # uvloop's word for a transport that is closed
                raise ConnectionResetError("the connection was lost") from error


class Wire:
    """One open connection. ``silence_s``: how long it may owe replies without a sound; None: until each one's own time."""

    def __init__(self, connection: AbstractConnection, tasks: Tasks, silence_s: float | None) -> None:
        self._connection = connection
        self._silence_s = silence_s
        self._loop = asyncio.get_running_loop()
        self._owed: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._outbox = Outbox()
        self._timer: asyncio.TimerHandle | None = None
        self._due = self._heard = self._loop.time()
        self._excused = False
        self._why: str | None = None
        self._running = (tasks.spawn(self._read(), "redis replies"), tasks.spawn(self._write(), "redis commands"))

    def __repr__(self) -> str:
        return f"Wire({self._why or 'open'}, owed={len(self._owed)})"

    @property
    def lost(self) -> bool:
        """Whether it is of no use any more."""
        return self._why is not None

    def send(self, command: bytes, until: float) -> asyncio.Future[Any]:
        """Send a command in RESP; the future gets the reply (an error reply as a value) by loop time ``until``, or Lost."""
        future = self._loop.create_future()
        if self._why is not None:
            future.set_exception(Lost(self._why))
            return future
        if not self._owed:
            self._heard = self._loop.time()
        self._owed.append((future, until))
        self._outbox.put(command)
        if self._timer is None:
            self._arm()
        return future

    def drop(self, why: str) -> None:
        """Give it up; what is owed is Lost. Idempotent."""
        if self._why is not None:
            return
        self._why = why
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for task in self._running:
            task.cancel()
        while self._owed:
            future, _ = self._owed.popleft()
            if not future.done():
                future.set_exception(Lost(why))

    async def _read(self) -> None:
        try:
            while True:
                try:
                    reply = await self._connection.read_response(
                        disable_decoding=True, timeout=math.inf, disconnect_on_error=False
                    )
                except ResponseError as error:
                    reply = error
                self._heard, self._excused = self._loop.time(), False
                if not self._owed:
                    self.drop("a reply that nobody had asked for")
                    return
                future, _ = self._owed.popleft()
                if not future.done():
                    future.set_result(reply)
        except (RedisError, OSError) as error:
            self.drop(explained(error))
        finally:
            await hang_up(self._connection)

    async def _write(self) -> None:
        try:
            await self._outbox.run(self._connection)
        except (RedisError, OSError) as error:
            self.drop(explained(error))

    def _arm(self) -> None:
        until = self._owed[0][1]
        self._due = until if self._silence_s is None else min(until, self._heard + self._silence_s)
        self._timer = self._loop.call_at(self._due, self._look)

    def _look(self) -> None:
        """The timer: is something owed for too long?"""
        self._timer = None
        if not self._owed:
            return
        now = self._loop.time()
        if now > self._due + HELD_UP_S and not self._excused:
            self._excused = True  # what was answered meanwhile has not been read yet
            self._due = now + HELD_UP_S
            self._timer = self._loop.call_at(self._due, self._look)
            return
        if self._silence_s is not None and now >= self._heard + self._silence_s:
            self.drop("no answer")
            return
        for future, until in self._owed:
            if now >= until and not future.done():
                future.set_exception(Lost("no answer in time"))
        if self._silence_s is None and all(future.done() for future, _ in self._owed):
            self.drop("no answer in time")
            return
        self._rearm(now)

    def _rearm(self, now: float) -> None:
        waiting = [until for future, until in self._owed if not future.done()]
        if self._silence_s is not None:
            waiting.append(self._heard + self._silence_s)
        self._due = max(now + 0.001, min(waiting))
        self._timer = self._loop.call_at(self._due, self._look)


class Lane:
    """The way to one server for one kind of command: a wire, made when it is needed and made anew when it was lost.

    dial   makes a connection that is open and checked; raises RedisError or OSError
    """

    def __init__(
        self, dial: Callable[[], Awaitable[AbstractConnection]], tasks: Tasks, silence_s: float | None = None
    ) -> None:
        self._dial = dial
        self._tasks = tasks
        self._silence_s = silence_s
        self._wire: Wire | None = None
        self._dialing: asyncio.Task[Wire | Lost] | None = None

    def __repr__(self) -> str:
        return f"Lane({self._wire!r}, dialing={self._dialing is not None})"

    async def send(self, command: bytes, until: float) -> Any:
        """The reply to a command, an error reply as a value. Raises Lost."""
        wire = self._wire
        if wire is None or wire.lost:
            wire = await self._connected(until)
        return await wire.send(command, until)

    def drop(self, why: str) -> None:
        """Give up the present wire, if there is one."""
        if self._wire is not None:
            self._wire.drop(why)
            self._wire = None

    async def _connected(self, until: float) -> Wire:
        if self._dialing is None:
            self._dialing = self._tasks.spawn(self._make(), "redis connect")
        dialing = self._dialing
        try:
            async with asyncio.timeout_at(until):
                await asyncio.wait([dialing])
        except TimeoutError:
            raise Lost("no connection in time") from None
        made = dialing.result()
        if isinstance(made, Lost):
            raise Lost(*made.args)
        return made

    async def _make(self) -> Wire | Lost:
        try:
            self._wire = Wire(await self._dial(), self._tasks, self._silence_s)
            return self._wire
        except (RedisError, OSError) as error:
            return Lost(explained(error))
        finally:
            self._dialing = None
