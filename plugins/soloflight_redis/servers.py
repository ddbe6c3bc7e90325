"""Which lane a command takes: one server's two, or a cluster node's.

Rule: small commands and large ones never share a wire, so that no heartbeat waits behind a megabyte.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import MovedError

from soloflight.flow.tasks import Tasks
from soloflight_redis.topology import Dialer, Peer, peer
from soloflight_redis.wire import Lane

SILENCE = 0.45
"""Part of a command's bound after which a silent wire is given up, so that there is time to ask once more."""


class Servers(Protocol):
    """The servers behind one URL.

    on_peer     called with the server when a single one's commands go to another than before
    """

    on_peer: list[Callable[[Peer], None]]

    @property
    def sharded(self) -> bool:
        """Whether keys are spread over several."""

    async def lane(self, name: str, *, large: bool, until: float) -> Lane:
        """The lane for commands on the key or channel ``name``. Raises Lost."""

    async def moved(self, error: MovedError | None, until: float) -> None:
        """A slot is not its server's any more: ``error`` says whose it is, None: nobody has said. Raises Lost."""

    def any_lanes(self) -> list[Lane]:
        """A lane for small commands to each known server."""

    async def dial(self, name: str) -> AbstractConnection:
        """A connection of one's own to the server of ``name``, for listening. Raises Lost, RedisError or OSError."""

    def where(self, name: str) -> str:
        """The address of the server of ``name``: names with the same one can share a listening connection."""

    def drop(self, why: str) -> None:
        """Give up every wire."""

    async def close(self) -> None:
        """Give everything back."""


class Single:
    """One server, or the present master that the Sentinels name."""

    sharded = False

    def __init__(self, dialer: Dialer, tasks: Tasks, bound_s: float) -> None:
        self._dialer = dialer
        self._peer: Peer = ()
        self.on_peer: list[Callable[[Peer], None]] = []
        self._small = Lane(self._dial_small, tasks, bound_s * SILENCE)
        self._large = Lane(dialer.dial, tasks)

    def __repr__(self) -> str:
        return f"Single({self._dialer.target.shown}, {self._small!r})"

    async def lane(self, name: str, *, large: bool, until: float) -> Lane:
        return self._large if large else self._small

    async def moved(self, error: MovedError | None, until: float) -> None:
        """A single server has no slots."""

    def any_lanes(self) -> list[Lane]:
        return [self._small]

    async def dial(self, name: str) -> AbstractConnection:
        return await self._dialer.dial()

    async def _dial_small(self) -> AbstractConnection:
        connection = await self._dialer.dial()
        if self._peer != (now := peer(connection)):
            self._peer = now
            for tell in self.on_peer:
                tell(now)
        return connection

    def where(self, name: str) -> str:
        return ""

    def drop(self, why: str) -> None:
        self._small.drop(why)
        self._large.drop(why)

    async def close(self) -> None:
        self.drop("closed")
        await self._dialer.close()
