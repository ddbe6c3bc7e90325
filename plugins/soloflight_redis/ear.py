"""One pub/sub connection: holds channels, survives the loss of its connection, and knows what may have been missed.

Rule 1: ``hold`` is done when the server has said so. Nothing published after that is missed while the connection stands.
Rule 2: after every reconnection each channel that had been held gets a gap, once it is held again.
Rule 3: what goes wrong with one channel is that channel's fault alone.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError, RedisError, ResponseError

from soloflight.flow.tasks import Tasks
from soloflight_redis.topology import Peer, explained, hang_up, peer
from soloflight_redis.wire import Lost, Outbox, packed

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0


class Elsewhere(Lost):
    """The channel is not served here: ``error`` is what the server said (NOPERM, MOVED), None if it only let go."""

    def __init__(self, error: ResponseError | None) -> None:
        super().__init__(str(error or "its slot has moved"))
        self.error = error


class Listening(Protocol):
    """Who owns an ear."""

    def on_message(self, channel: str, said: bytes) -> None:
        """A message came."""

    def on_gap(self, channel: str) -> None:
        """A held channel is held again; what was published meanwhile is lost."""

    def on_elsewhere(self, channel: str, why: Elsewhere) -> None:
        """The server does not serve a channel that it had confirmed before: it is not held here any more."""

    def on_deaf(self, why: str) -> None:
        """There is no connection."""


@dataclass(slots=True)
class Held:
    """One channel: whether the server has confirmed it, now and ever, and who waits for that."""

    confirmed: bool = False
    before: bool = False
    waiting: list[asyncio.Future[None]] = field(default_factory=list)


class Ear:
    """Listens on one connection that ``dial`` makes. ``sharded``: by SSUBSCRIBE."""

    def __init__(
        self,
        dial: Callable[[], Awaitable[AbstractConnection]],
        tasks: Tasks,
        owner: Listening,
        *,
        sharded: bool = False,
    ) -> None:
        self._dial = dial
        self._tasks = tasks
        self._owner = owner
        self._words = ("SSUBSCRIBE", "SUNSUBSCRIBE") if sharded else ("SUBSCRIBE", "UNSUBSCRIBE")
        self._held: dict[str, Held] = {}
        self._asked: deque[str] = deque()
        self._leaving: Counter[str] = Counter()
        self._outbox: Outbox | None = None
        self._serving: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self._running = tasks.spawn(self._run(), "redis ear")
        self._loop = asyncio.get_running_loop()
        self.heard = self._loop.time()
        self.probed: float | None = None
        self.peer: Peer = ()

    def __repr__(self) -> str:
        state = "open" if self._outbox else "deaf"
        return f"Ear({state}, channels={len(self._held)})"

    @property
    def open(self) -> bool:
        """Whether it has a connection."""
        return self._outbox is not None

    @property
    def channels(self) -> list[str]:
        """The channels that it holds or tries to."""
        return list(self._held)

    def hold(self, channel: str) -> asyncio.Future[None]:
        """Listen to ``channel``; done when the server has confirmed it. The future raises Elsewhere if it refuses."""
        future: asyncio.Future[None] = self._loop.create_future()
        held = self._held.get(channel)
        if held is None:
            held = self._held[channel] = Held()
            if self._outbox is not None:
                self._ask(channel, self._outbox)
        if held.confirmed:
            future.set_result(None)
        else:
            held.waiting.append(future)
        return future

    def let_go(self, channel: str) -> None:
        """Listen to ``channel`` no longer."""
        if self._held.pop(channel, None) is not None and self._outbox is not None:
            self._leaving[channel] += 1
            self._outbox.put(packed(self._words[1], channel))

    def drop(self, why: str) -> None:
        """Give up the present connection; another one is made at once."""
        if self._serving is not None:
            self._serving.cancel(why)

    def hurry(self) -> None:
        """Do not wait any longer before the next try to connect."""
        self._hurry.set()

    def close(self) -> None:
        """Stop; its channels are forgotten."""
        self._held.clear()
        self._running.cancel()

    # ── the connection ──────────────────────────────────────────────────────────────────────────────────────────

    async def _run(self) -> None:
        """Connection after connection."""
        pause_s = FIRST_PAUSE_S
        try:
            while True:
                self._serving = self._tasks.spawn(self._serve(), "redis listening")
                await asyncio.wait([self._serving])
                pause_s = FIRST_PAUSE_S if self.heard > self._loop.time() - 1 else min(2 * pause_s, LONGEST_PAUSE_S)
                await self._pause(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - spread, not secrecy
        finally:
            if self._serving is not None:
                self._serving.cancel()

    async def _pause(self, pause_s: float) -> None:
        self._hurry.clear()
        try:
            async with asyncio.timeout(pause_s):
                await self._hurry.wait()
        except TimeoutError:
            pass

    async def _serve(self) -> None:
        """One connection, from its opening to its end."""
        try:
            connection = await self._dial()
        except (RedisError, OSError, Lost) as error:
            self._owner.on_deaf(explained(error))
            return
        outbox, self.peer = Outbox(), peer(connection)
        self._outbox = outbox
        self.probed = None
        for channel in self._held:
            self._ask(channel, outbox)
        writing = self._tasks.spawn(self._write(outbox, connection), "redis subscriptions")
        try:
            while True:
                await self._take(connection)
        except (RedisError, OSError) as error:
            self._owner.on_deaf(explained(error))
        finally:
            writing.cancel()
            self._fall_silent()
            await hang_up(connection)

    async def _write(self, outbox: Outbox, connection: AbstractConnection) -> None:
        try:
            await outbox.run(connection)
        except (RedisError, OSError) as error:
            self.drop(explained(error))

    def _fall_silent(self) -> None:
        self._outbox = None
        self._asked.clear()
        self._leaving.clear()
        for held in self._held.values():
            held.confirmed = False

    def _ask(self, channel: str, outbox: Outbox) -> None:
        self._asked.append(channel)
        outbox.put(packed(self._words[0], channel))

    async def _take(self, connection: AbstractConnection) -> None:
        try:
            said = await connection.read_response(disable_decoding=True, timeout=math.inf, disconnect_on_error=False)
        except ResponseError as error:
            self._refused(error)
            return
        if not isinstance(said, list) or len(said) != 3:
            raise ConnectionError("what came is no message")
        kind, channel = bytes(said[0]), bytes(said[1]).decode()
        self.heard = self._loop.time()
        if kind.endswith(b"message"):
            self.probed = None
            if channel in self._held:
                self._owner.on_message(channel, said[2])
        elif kind.endswith(b"unsubscribe"):
            self._left(channel)
        else:
            self._confirmed(channel)

    def _confirmed(self, channel: str) -> None:
        if self._asked and self._asked[0] == channel:
            self._asked.popleft()
        held = self._held.get(channel)
        if held is None or channel in self._asked:
            return  # let go of meanwhile; or asked for again since, and that is the answer to wait for
        gap, held.confirmed, held.before = held.before, True, True
        _done(held)
        if gap:
            self._owner.on_gap(channel)

    def _left(self, channel: str) -> None:
        if self._leaving[channel] > 0:
            self._leaving[channel] -= 1
        elif channel in self._held:  # the server's own doing: its slot has moved
            self._give_up(channel, Elsewhere(None))

    def _refused(self, error: ResponseError) -> None:
        if self._asked:
            channel = self._asked.popleft()
            if channel in self._held and channel not in self._asked:
                self._give_up(channel, Elsewhere(error))

    def _give_up(self, channel: str, why: Elsewhere) -> None:
        held = self._held.pop(channel)
        for future in held.waiting:
            if not future.done():
                future.set_exception(Elsewhere(why.error))
                future.exception()  # whoever waits is told; if nobody does, that is no fault
        if held.before:
            self._owner.on_elsewhere(channel, why)


def _done(held: Held) -> None:
    for future in held.waiting:
        if not future.done():
            future.set_result(None)
    held.waiting.clear()
