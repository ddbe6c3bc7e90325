"""Several servers that belong together, all real and on free ports: a cluster, and a master with Sentinels."""

from __future__ import annotations

from pathlib import Path

import redis
from redis.crc import key_slot

from harness.ports import free_port
from harness.process import Process, wait_until
from harness.redis import RedisServer, redis_program

SLOTS = 16_384


class RedisCluster:
    """Primaries that share the slots evenly, each with a replica if asked for."""

    def __init__(self, folder: Path, primaries: int = 3, *, replicas: bool = False) -> None:
        self.nodes: list[RedisServer] = []
        for at in range(primaries * (2 if replicas else 1)):
            home = folder / f"node-{at}"
            home.mkdir()
            options = ("--cluster-enabled", "yes", "--cluster-port", str(free_port()), "--cluster-node-timeout", "500")
            self.nodes.append(RedisServer(home, *options))
        self.primaries = self.nodes[:primaries]
        self.replicas = self.nodes[primaries:]

    def __repr__(self) -> str:
        return f"<RedisCluster {[node.port for node in self.nodes]}>"

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.primaries)
        return f"redis+cluster://{hosts}"

    def start(self) -> None:
        """Make a cluster of the nodes; each is ready when all agree."""
        for node in self.nodes:
            node.wait_ready()
        share = -(-SLOTS // len(self.primaries))
        for at, node in enumerate(self.primaries):
            node.command("CLUSTER", "ADDSLOTSRANGE", at * share, min(SLOTS, (at + 1) * share) - 1)
            node.command("CLUSTER", "SET-CONFIG-EPOCH", at + 1)
        first = self.nodes[0]
        for node in self.nodes[1:]:
            bus = node.options[node.options.index("--cluster-port") + 1]
            first.command("CLUSTER", "MEET", "127.0.0.1", node.port, bus)
        wait_until(lambda: all(self._knows(node) for node in self.nodes), within_s=20, what="the nodes know each other")
        for primary, replica in zip(self.primaries, self.replicas, strict=False):
            replica.command("CLUSTER", "REPLICATE", str(primary.command("CLUSTER", "MYID")))
        wait_until(lambda: all(self._ready(node) for node in self.nodes), within_s=20, what="the cluster is ready")

    def _knows(self, node: RedisServer) -> bool:
        return len(str(node.command("CLUSTER", "NODES")).strip().splitlines()) == len(self.nodes)

    def _ready(self, node: RedisServer) -> bool:
        said = node.command("CLUSTER", "INFO")
        fine = "cluster_state:ok" in str(said) and len(node.command("CLUSTER", "SLOTS")) == len(self.primaries)
        if node in self.replicas:
            return fine and "'master_link_status': 'up'" in str(node.command("INFO", "replication"))
        return fine

    def owner(self, name: str) -> RedisServer:
        """The primary of the name's slot."""
        slot = key_slot(name.encode())
        for first, last, (_, port, *_rest), *_ in self.nodes[0].command("CLUSTER", "SLOTS"):  # type: ignore[union-attr]
            if first <= slot <= last:
                return next(node for node in self.nodes if node.port == port)
        raise AssertionError(f"slot {slot} has no owner")

    def move(self, name: str, target: RedisServer) -> None:
        """Move the name's slot, and the keys in it, to another primary."""
        slot, source = key_slot(name.encode()), self.owner(name)
        ids = {node: str(node.command("CLUSTER", "MYID")) for node in (source, target)}
        target.command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source])
        source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target])
        while keys := source.command("CLUSTER", "GETKEYSINSLOT", slot, 100):
            source.command("MIGRATE", "127.0.0.1", target.port, "", 0, 5_000, "KEYS", *keys)  # type: ignore[misc]
        for node in (target, source, *(other for other in self.primaries if other not in ids)):
            node.command("CLUSTER", "SETSLOT", slot, "NODE", ids[target])

    def stop(self) -> None:
        """End every node."""
        for node in self.nodes:
            node.stop()


class Sentinel(Process):
    """One Sentinel that watches ``master`` under the name ``main``, alone enough to decide."""

    def __init__(self, folder: Path, master: RedisServer, *lines: str) -> None:
        self.port = free_port()
        config = folder / f"sentinel-{self.port}.conf"
        config.write_text(
            "\n".join(
                [
                    f"port {self.port}",
                    "bind 127.0.0.1",
                    f"dir {folder}",
                    f"sentinel monitor main 127.0.0.1 {master.port} 1",
                    "sentinel down-after-milliseconds main 500",
                    "sentinel failover-timeout main 5000",
                    *lines,
                ]
            )
        )
        super().__init__([redis_program(), str(config), "--sentinel"], folder / f"sentinel-{self.port}.log")

    def command(self, *words: str | int) -> object:
        with redis.Redis(host="127.0.0.1", port=self.port, decode_responses=True, socket_timeout=5) as client:
            return client.execute_command(*words)

    def wait_ready(self, replicas: int) -> None:
        """Wait until it knows the master's replicas."""

        def ready() -> bool:
            try:
                found = self.command("SENTINEL", "REPLICAS", "main")
            except redis.RedisError:
                return False
            fit = [facts for facts in map(_facts, found) if facts["master-link-status"] == "ok"]  # type: ignore[call-overload]
            return len(fit) == replicas

        wait_until(ready, within_s=15, what="the Sentinel knows the replicas")

    def fail_over(self) -> None:
        """Have a replica promoted, as soon as the Sentinel finds one fit."""

        def begun() -> bool:
            try:
                return bool(self.command("SENTINEL", "FAILOVER", "main"))
            except redis.ResponseError:
                return False

        wait_until(begun, within_s=20, what="a failover begins")

    def master_port(self) -> int:
        """Where the master is, by its word."""
        _, port = self.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main")  # type: ignore[misc]
        return int(port)


def _facts(said: list[str] | dict[str, str]) -> dict[str, str]:
    return said if isinstance(said, dict) else dict(zip(said[::2], said[1::2], strict=True))
