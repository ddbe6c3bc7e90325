"""The servers of a Redis Cluster: whose slot is whose, and two lanes to each primary.

Rule 1: the map is a guess. A server that says MOVED is believed at once; a connection that fails asks for a new map.
Rule 2: nobody asks for a map while somebody else does, nor more often than every ``MAP_S``.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from typing import Any

from redis.asyncio.connection import AbstractConnection
from redis.crc import key_slot
from redis.exceptions import MovedError, RedisError

from soloflight.flow.tasks import Tasks
from soloflight_redis.servers import SILENCE
from soloflight_redis.topology import Dialer, Peer
from soloflight_redis.wire import Lane, Lost, packed

MAP_S = 0.25

Address = tuple[str, int]


class Node:
    """The two lanes to one server."""

    def __init__(self, dial: Callable[[], Any], tasks: Tasks, bound_s: float) -> None:
        self.small = Lane(dial, tasks, bound_s * SILENCE)
        self.large = Lane(dial, tasks)

    def __repr__(self) -> str:
        return f"Node({self.small!r})"

    def drop(self, why: str) -> None:
        """Give up both wires."""
        self.small.drop(why)
        self.large.drop(why)


class Cluster:
    """``Servers`` over a cluster. ``dialer`` knows where to ask first."""

    sharded = True

    def __init__(self, dialer: Dialer, tasks: Tasks, bound_s: float) -> None:
        self.on_peer: list[Callable[[Peer], None]] = []  # a channel moves with its slot
        self._dialer = dialer
        self._tasks = tasks
        self._bound_s = bound_s
        self._nodes: dict[Address, Node] = {}
        self._slots: dict[int, Address] = {}
        self._stale = True
        self._mapped = -MAP_S
        self._mapping: asyncio.Task[None] | None = None
        self._why = ""

    def __repr__(self) -> str:
        return f"Cluster({self._dialer.target.shown}, nodes={sorted(self._nodes)})"

    async def lane(self, name: str, *, large: bool, until: float) -> Lane:
        """The lane to the primary of the name's slot."""
        slot = key_slot(name.encode())
        if self._stale or slot not in self._slots:
            await self._refresh(until)
        address = self._slots.get(slot)
        if address is None:
            raise Lost(f"no node of the cluster serves slot {slot}")
        node = self._node(address)
        return node.large if large else node.small

    async def moved(self, error: MovedError | None, until: float) -> None:
        """Believe what a server said, and ask for the rest."""
        if error is not None:
            host = error.host or next(iter(self._nodes), ("", 0))[0]
            self._slots[error.slot_id] = (host, error.port)
        self._stale = True
        if error is None:
            await self._refresh(until)

    def any_lanes(self) -> list[Lane]:
        """A lane for small commands to each primary."""
        return [self._node(address).small for address in set(self._slots.values())]

    async def dial(self, name: str) -> AbstractConnection:
        """A connection to the primary of the name's slot."""
        until = asyncio.get_running_loop().time() + self._bound_s
        await self.lane(name, large=False, until=until)
        return await self._dial(self._slots[key_slot(name.encode())])

    def where(self, name: str) -> str:
        """The primary of the name's slot, as far as known."""
        host, port = self._slots.get(key_slot(name.encode()), ("", 0))
        return f"{host}:{port}"

    def drop(self, why: str) -> None:
        """Give up every wire."""
        self._stale = True
        for node in self._nodes.values():
            node.drop(why)

    async def close(self) -> None:
        """Give everything back."""
        self.drop("closed")
        await self._dialer.close()

    # ── the map ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _node(self, address: Address) -> Node:
        node = self._nodes.get(address)
        if node is None:
            node = self._nodes[address] = Node(lambda: self._dial(address), self._tasks, self._bound_s)
        return node

    async def _dial(self, address: Address) -> AbstractConnection:
        try:
            return await self._dialer.dial_node(*address)
        except (RedisError, OSError):
            self._stale = True
            raise

    async def _refresh(self, until: float) -> None:
        """Ask for the map, or wait for who does. Raises Lost where nobody knows it and none is known."""
        loop = asyncio.get_running_loop()
        if self._slots and loop.time() - self._mapped < MAP_S:
            return
        if self._mapping is None or self._mapping.done():
            self._mapping = self._tasks.spawn(self._map(loop.time() + self._bound_s), "redis cluster map")
        mapping = self._mapping
        await asyncio.wait([mapping], timeout=max(0.0, until - loop.time()))
        if not self._slots:
            raise Lost(self._why or "no node of the cluster tells its map")

    async def _map(self, until: float) -> None:
        known = list(self._nodes)
        random.shuffle(known)
        self._mapped = asyncio.get_running_loop().time()
        command = packed("CLUSTER", "SLOTS")
        for address in dict.fromkeys((*known, *self._dialer.target.hosts)):
            try:
                said = await self._node(address).small.send(command, until)
            except Lost as error:
                self._why = str(error)
                continue
            slots = _read_slots(said, address[0]) if isinstance(said, list) else {}
            if slots:
                self._take(slots)
                return

    def _take(self, slots: dict[int, Address]) -> None:
        self._slots, self._stale = slots, False
        serving = set(slots.values())
        for address in [address for address in self._nodes if address not in serving]:
            self._nodes.pop(address).drop("it serves no slot")


def _read_slots(said: Iterable[Any], asked: str) -> dict[int, Address]:
    """The map in a reply to CLUSTER SLOTS: first slot, last slot, primary [host, port, …], replicas …"""
    slots: dict[int, Address] = {}
    for first, last, primary, *_ in said:
        host = bytes(primary[0] or b"").decode() or asked
        for slot in range(int(first), int(last) + 1):
            slots[slot] = (host, int(primary[1]))
    return slots
