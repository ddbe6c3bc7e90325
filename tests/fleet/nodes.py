"""A fleet: one redis-server, and proxies that each have a way of their own to it."""

import json
import os
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from fleet.ways import Way, Ways
from fleet.witness import NAME
from harness.process import wait_until
from harness.proxy import Proxy, merged
from harness.redis import RedisServer
from soloflight.testing.exchange import Exchange

HEARTBEAT_S, LEASE_S = 0.2, 1.0
"""What is waited for where an owner is lost: a lapse is seen soon."""

CALM: dict[str, Any] = {
    "coordination": {"command_timeout": "5s"},
    "stage_defaults": {"pending_lease": "20s", "running_lease": "20s"},
}
"""For fleets in which nothing lapses: no stall of the machine makes it."""

PATIENT: dict[str, Any] = {"pending_lease": "20s", "running_lease": "20s"}
"""For a stage of a fleet with short leases: the tests in which none lapses."""

DEFAULTS: dict[str, Any] = {
    "server": {"drain_timeout": "1s"},
    "coordination": {"command_timeout": "400ms"},
    "stage_defaults": {
        "heartbeat": HEARTBEAT_S,
        "pending_lease": LEASE_S,
        "running_lease": LEASE_S,
        "max_abandoned_stream": "300ms",
        "max_abandoned": "300ms",
    },
}
BACK_WITHIN_S = 5.0


class Node:
    """One proxy of the fleet, which may be killed and started again in the same place."""

    def __init__(
        self, name: str, folder: Path, way: Way, config: dict[str, Any], upstream_port: int, env: dict[str, str]
    ) -> None:
        self.name = name
        self.way = way
        self._folder = folder
        self._config = config
        self._upstream_port = upstream_port
        self._env = env
        self.killed = False
        self.proxy = self._start()

    def __repr__(self) -> str:
        return f"<Node {self.name} {self.proxy!r}>"

    def _start(self) -> Proxy:
        self._folder.mkdir(parents=True, exist_ok=True)
        return Proxy(
            self._config,
            upstream=self._upstream_port,
            backend="redis",
            redis_url=f"redis://127.0.0.1:{self.way.port}/0",
            folder=self._folder,
            env=self._env,
        )

    @property
    def port(self) -> int:
        return self.proxy.port

    @property
    def log(self) -> str:
        return self.proxy.log

    @property
    def fenced(self) -> float:
        """How many of this process's writes were refused (I5)."""
        return self.proxy.metric("soloflight_fenced_writes_total")

    @property
    def degraded(self) -> str | None:
        """Why it works with less than it should, by its health."""
        with urllib.request.urlopen(f"{self.proxy.url}/_soloflight/health", timeout=5) as answer:
            return json.load(answer)["degraded"]

    def purge(self, what: str, name: str) -> None:
        """POST /api/purge of a ``key`` (or a flight's id) or a ``stage``."""
        body = json.dumps({what: name}).encode()
        fields = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.proxy.admin}/api/purge", body, fields)
        with urllib.request.urlopen(request, timeout=5) as answer:
            assert answer.status == 200

    def wait_whole(self) -> None:
        """Wait until it has its Redis (back)."""
        wait_until(lambda: self.degraded is None, within_s=BACK_WITHIN_S + 1, what=f"{self!r} has its Redis back")

    def kill(self) -> None:
        """kill -9."""
        self.killed = True
        self.proxy.kill()

    def start_again(self) -> None:
        """A new process in the same place."""
        self.killed = False
        self.proxy = self._start()

    def stop(self) -> None:
        """End it; unless it was killed it must end well, with a clean log."""
        if not self.killed:
            self.proxy.stop()
        else:
            self.proxy.check_log()


class Fleet:
    """``size`` nodes. ``options`` are redis-server's, ``env`` is for the proxies, ``prepare`` is done to Redis before they come."""

    def __init__(
        self,
        folder: Path,
        upstream_port: int,
        *,
        size: int = 2,
        config: dict[str, Any] | None = None,
        options: tuple[str, ...] = (),
        env: dict[str, str] | None = None,
        prepare: Callable[[RedisServer], None] = lambda server: None,
    ) -> None:
        self.redis = RedisServer(folder, *options)
        self.redis.wait_ready()
        prepare(self.redis)
        self.ways = Ways()
        settings = merged(DEFAULTS, config or {})
        self.nodes = [
            Node(name, folder / name, self.ways.open(self.redis.port), settings, upstream_port, env or {})
            for name in "abcdefgh"[:size]
        ]
        for node in self.nodes:
            node.proxy.wait_ready()

    def __repr__(self) -> str:
        return f"<Fleet {self.nodes}>"

    def mend(self) -> None:
        """Heal every way, and start what was killed: the next test has a whole fleet."""
        if self.redis.exit_code is not None:
            self.redis = self.redis.again()
        self.redis.thaw()
        for node in self.nodes:
            node.way.heal()
            node.proxy.thaw()
            if node.killed:
                node.start_again()
        for node in self.nodes:
            node.proxy.wait_ready()
            node.wait_whole()

    def close(self) -> None:
        """End everything; raises the first fault that there was."""
        faults: list[Exception] = []
        for node in self.nodes:
            node.way.heal()
            node.proxy.thaw()
            try:
                node.stop()
            except (AssertionError, TimeoutError) as fault:
                faults.append(fault)
        self.ways.close()
        self.redis.stop()
        if faults:
            raise faults[0]

    def caller(self, exchange: Exchange) -> Node:
        """The node that made an upstream call: one of its sockets is the exchange's peer."""
        port = exchange.writer.get_extra_info("peername")[1]
        return next(node for node in self.nodes if not node.killed and port in _local_ports(node.proxy.pid))

    # ── looking in from outside ─────────────────────────────────────────────────────────────────────────────────

    def command(self, *words: str | int | bytes) -> Any:
        """One command to Redis."""
        return self.redis.command(*words)

    def listening(self) -> list[dict[str, str]]:
        """The pub/sub connections of the nodes, as CLIENT LIST has them."""
        with self.redis.client() as client:
            return [entry for entry in client.client_list(_type="pubsub") if entry["name"] != NAME]

    def kill_listening(self) -> int:
        """CLIENT KILL of every pub/sub connection but the witness's; gives their number."""
        with self.redis.client() as client:
            return sum(client.client_kill_filter(_id=entry["id"]) for entry in self.listening())

    def channels(self) -> dict[str, int]:
        """Subscribers of each flight's channel (PUBSUB CHANNELS, NUMSUB)."""
        with self.redis.client() as client:
            names = client.pubsub_channels("soloflight:*:notices")
            return dict(client.pubsub_numsub(*names)) if names else {}

    def script_calls(self) -> int:
        """EVALSHA and EVAL executed so far (INFO commandstats)."""
        with self.redis.client() as client:
            stats = client.info("commandstats")
        return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("evalsha", "eval"))

    def keys(self, part: str) -> list[str]:
        """The names of all keys of one part: record, watchers, log, answer, outcome."""
        with self.redis.client() as client:
            return sorted(client.scan_iter(f"soloflight:*:{part}"))

    def forget(self) -> None:
        """FLUSHALL between tests; scope key and scripts stay."""
        with self.redis.client() as client:
            names = [name for name in client.scan_iter("soloflight:*") if "{" in name]
            if names:
                client.delete(*names)


def _local_ports(pid: int) -> set[int]:
    """The local TCP ports of a process's sockets."""
    inodes = set()
    for entry in os.scandir(f"/proc/{pid}/fd"):
        with suppress(OSError):
            inodes.add(os.readlink(entry.path).removeprefix("socket:[").removesuffix("]"))
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {int(row[1].rpartition(":")[2], 16) for row in rows if row[9] in inodes}
