"""One backend's processes, and what of them must be at rest between two tests."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgpack

from harness.client import settle
from harness.process import eventually
from harness.proxy import Proxy
from harness.redis import RedisServer

BACKENDS = ("memory", "redis")
HOLDER, QUEUE = 2, 3


class Site:
    """A proxy with the memory backend, or two at one Redis. ``one`` and ``other`` are the same where there is one only."""

    def __init__(self, backend: str, nodes: list[Proxy], redis: RedisServer | None) -> None:
        self.backend = backend
        self.nodes = nodes
        self.redis = redis

    def __repr__(self) -> str:
        return f"<Site {self.backend} {self.nodes}>"

    @property
    def one(self) -> Proxy:
        return self.nodes[0]

    @property
    def other(self) -> Proxy:
        return self.nodes[-1]

    @property
    def fleet(self) -> bool:
        """Whether there is another node."""
        return len(self.nodes) > 1

    def flights(self) -> list[Any]:
        """Every flight that runs on any node."""
        return [flight for node in self.nodes for flight in node.api("/api/flights")["flights"]]

    async def settle(self, node: Proxy) -> None:
        """Let ``node`` take in all that was sent before, and the backend answer what that made it ask."""
        await settle(node.port)
        if self.fleet:
            await eventually(lambda: all(flight["owner"] for flight in node.api("/api/flights")["flights"]))

    async def over(self, node: Proxy) -> None:
        """Wait until no flight is left at ``node``: other nodes' clients may have an answer's end a moment before its owner."""
        await eventually(lambda: not node.api("/api/flights")["flights"])

    def locks(self) -> dict[str, tuple[Any, list[Any]]]:
        """(holder, queue) of each session that Redis knows; each record must have an end of its own."""
        if self.redis is None:
            return {}
        with self.redis.client(decode_responses=False) as client:
            found = {}
            for name in client.scan_iter("soloflight:*:session"):
                record = client.get(name)
                if record is not None:
                    assert client.pttl(name) > 0
                    lock = msgpack.unpackb(record)
                    found[name.decode()] = (lock[HOLDER], lock[QUEUE])
            return found

    def locked(self) -> list[str]:
        """The sessions that are held or waited for."""
        return [name for name, (holder, queue) in self.locks().items() if holder or queue]

    def at_rest(self) -> bool:
        """Whether nothing runs and no session is locked."""
        return not self.flights() and not self.locked()


def open_site(
    backend: str, folder: Path, upstream_port: int, config: str | dict[str, Any], stack: ExitStack, *, size: int = 2
) -> Site:
    """Start the processes of one backend; ``stack`` ends them, and each must end well."""
    redis, options = None, {}
    if backend == "redis":
        redis = RedisServer(folder)
        stack.callback(redis.stop)
        redis.wait_ready()
        options = {"redis_url": redis.url}
    nodes = []
    for _ in range(size if redis is not None else 1):
        node = Proxy(config, upstream=upstream_port, backend=backend, folder=folder, **options)
        stack.callback(node.stop)
        nodes.append(node)
    for node in nodes:
        node.wait_ready()
    return Site(backend, nodes, redis)
