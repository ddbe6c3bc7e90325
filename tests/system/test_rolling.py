"""A rolling restart of two nodes under load, behind nginx as it is shipped: no request fails, no stream is cut."""

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.client import chat, connect, request
from harness.nginx import Nginx, shipped
from harness.process import eventually
from harness.proxy import Proxy
from harness.redis import RedisServer
from soloflight.testing import chat as api
from soloflight.testing.received import Received
from soloflight.testing.script import Script, Step, json, raw, sse
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = [pytest.mark.redis, pytest.mark.timeout(120)]

CLIENTS, EVENTS, PAUSE_S = 12, 10, 0.03
PACE_S = 0.02
CONFIG = {
    "server": {"drain_timeout": "10s", "drain_delay": "300ms"},
    "stage_defaults": {"heartbeat": "300ms", "pending_lease": "3s", "running_lease": "3s"},
}


class Node:
    """One place behind nginx, and the process that serves there now."""

    def __init__(self, folder: Path, upstream_port: int, redis_url: str) -> None:
        self._folder = folder
        self._options: dict[str, Any] = {"upstream": upstream_port, "backend": "redis", "redis_url": redis_url}
        self.port = None
        self.proxy = self._start()
        self.port = self.proxy.port

    def _start(self) -> Proxy:
        self._folder.mkdir(exist_ok=True)
        return Proxy(CONFIG, folder=self._folder, port=self.port, **self._options)

    async def restart(self) -> None:
        """SIGTERM, the end, and a new process in the same place."""
        self.proxy.send(signal.SIGTERM)
        await eventually(lambda: self.proxy.exit_code is not None, 15)
        assert self.proxy.exit_code == 0
        self.proxy.check_log()
        self.proxy = self._start()
        await asyncio.to_thread(self.proxy.wait_ready)


@pytest.fixture
def nodes(redis_server: RedisServer, upstream: ScriptedUpstream, tmp_path: Path) -> Iterator[list[Node]]:
    started = [Node(tmp_path / name, upstream.port, redis_server.url) for name in "ab"]
    for node in started:
        node.proxy.wait_ready()
    yield started
    for node in started:
        node.proxy.stop()


@pytest.fixture
def nginx(nodes: list[Node], tmp_path: Path) -> Iterator[Nginx]:
    server = Nginx(tmp_path / "nginx", shipped(*(node.proxy.port for node in nodes)))
    server.wait_ready()
    yield server
    server.stop()


def events(name: str) -> list[bytes]:
    return [api.content(f"<{name} {number}>") for number in range(EVENTS)]


def whole(name: str) -> bytes:
    return b"".join(events(name)) + api.FIN + api.DONE


def answer(received: Received) -> Script:
    """A stream whose every event says which prompt it answers; JSON; or what an upload is told."""
    if received.target != "/v1/chat/completions":
        return raw(b'{"id":"file-1"}', type="application/json")
    name = received.body.partition(b"<")[2].partition(b">")[0].decode()
    if b'"stream": true' not in received.body:
        return [PAUSE_S, json(api.completion_object(name))]
    steps: list[Step] = [step for event in events(name) for step in (event, PAUSE_S)]
    return sse(*steps, api.FIN, api.DONE)


class Load:
    """Clients that ask one thing after the other, each on a connection that it keeps, until ``over``."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._chance = random.Random(7)
        self._round = 0
        self.over = asyncio.Event()
        self.done: Counter[str] = Counter()
        self.roles: Counter[str | None] = Counter()
        self.failed: list[str] = []

    async def run(self) -> None:
        async with asyncio.TaskGroup() as clients:
            for number in range(CLIENTS):
                clients.create_task(self._client(number))

    async def _client(self, number: int) -> None:
        while not self.over.is_set():
            async with connect(self._port) as client:
                for _ in range(5):
                    self._round += 1
                    kind = self._chance.choice(["shared", "shared", "own", "json", "upload", "files"])
                    name = f"common {self._round // 40}" if kind == "shared" else f"{number} {self._round}"
                    data, expected = self._asked(kind, name)
                    got = await client.ask(data, within_s=20)
                    self.done[kind] += 1
                    self.roles[got.role] += 1
                    if got.status != 200 or not got.complete or got.body != expected:
                        self.failed.append(f"{kind} {name}: {got.raw_head!r} {got.ended} {got.body[-200:]!r}")
                        break
                    if self.over.is_set():
                        return
                    await asyncio.sleep(PACE_S)

    def _asked(self, kind: str, name: str) -> tuple[bytes, bytes]:
        """The request, and the body of its right answer."""
        if kind == "upload":
            return request("POST", "/v1/files", body=b"x" * 20_000), b'{"id":"file-1"}'
        if kind == "files":
            return request("GET", "/v1/files"), b'{"id":"file-1"}'
        body = {"model": "m", "messages": [{"role": "user", "content": f"<{name}>"}], "stream": kind != "json"}
        data = chat(body)
        if kind == "json":
            return data, json(api.completion_object(name)).partition(b"\r\n\r\n")[2]
        return data, whole(name)


async def test_nobody_notices(nodes: list[Node], nginx: Nginx, upstream: ScriptedUpstream) -> None:
    upstream.play(answer)
    load = Load(nginx.port)
    running = asyncio.create_task(load.run())
    try:
        await eventually(lambda: sum(load.done.values()) > 3 * CLIENTS, 20)
        for node in nodes:
            before = sum(load.done.values())
            await node.restart()
            await eventually(lambda before=before: sum(load.done.values()) > before + 2 * CLIENTS, 20)
    finally:
        load.over.set()
        await running
    assert load.failed == []
    assert min(load.done.values()) > 5, load.done
    assert load.roles["follower"] > 0  # there was something to share
    assert upstream.calls < sum(load.done.values())
