"""Fixtures that a folder of system tests imports into its conftest: the world as processes."""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
import pytest_asyncio

from harness.ports import free_port
from harness.proxy import Proxy, merged
from harness.redis import RedisServer
from soloflight.testing.upstream import ScriptedUpstream

DEFAULTS: dict[str, Any] = {"server": {"drain_timeout": "2s"}, "coordination": {"command_timeout": "5s"}}
"""``command_timeout``: a machine that stands still for a second is no backend that is away."""


class StartProxy(Protocol):
    def __call__(
        self,
        config: str | dict[str, Any] | None = None,
        *args: str,
        upstream: str | int | None = None,
        backend: str | None = None,
        redis_url: str | None = None,
        check: bool = True,
        ready: bool = True,
        env: dict[str, str] | None = None,
    ) -> Proxy: ...


def all_ready(proxies: Iterable[Proxy]) -> list[Proxy]:
    """Several that come up at the same time, each started with ``ready=False``."""
    several = list(proxies)
    for proxy in several:
        proxy.wait_ready()
    return several


def _proxies(folder: Path) -> Iterator[StartProxy]:
    started: list[tuple[Proxy, bool]] = []

    def start(
        config: str | dict[str, Any] | None = None,
        *args: str,
        check: bool = True,
        ready: bool = True,
        **options: Any,
    ) -> Proxy:
        settings = config if isinstance(config, str) else merged(DEFAULTS, config or {})
        proxy = Proxy(settings, *args, folder=folder, **options)
        started.append((proxy, check))
        if ready:
            proxy.wait_ready()
        return proxy

    faults: list[Exception | AssertionError] = []
    try:
        yield start
    finally:
        for proxy, check in started:
            try:
                proxy.stop(check=check)
            except (AssertionError, TimeoutError) as fault:
                faults.append(fault)
    if faults:
        raise faults[0]


@pytest.fixture
def start_proxy(tmp_path: Path) -> Iterator[StartProxy]:
    """``start_proxy({"stage": [...]}, "--workers=2", upstream=port, backend="redis", redis_url=...)``.

    Ended after the test by SIGTERM; it must exit with 0 and log no traceback, unless ``check=False``.
    """
    yield from _proxies(tmp_path)


@pytest.fixture(scope="module")
def upstream_port() -> int:
    """The port on which this module's upstreams listen, one after the other."""
    return free_port()


@pytest.fixture(scope="module")
def proxy(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, upstream_port: int
) -> Iterator[Proxy]:
    """One proxy for the whole module, in front of ``upstream_port``; its ``PROXY`` dict configures it.

    Tests that share it use ``fresh()`` bodies, so that none is answered from another's flight.
    """
    config = getattr(request.module, "PROXY", {})
    proxies = _proxies(tmp_path_factory.mktemp("proxy"))
    start = next(proxies)
    try:
        yield start(config, upstream=upstream_port)
    finally:
        next(proxies, None)


@pytest_asyncio.fixture
async def upstream(upstream_port: int) -> AsyncIterator[ScriptedUpstream]:
    """A scripted upstream for one test, behind the module's ``proxy``: tell it with ``upstream.play``."""
    async with ScriptedUpstream(port=upstream_port) as server:
        yield server


@pytest.fixture
def start_redis(tmp_path: Path) -> Iterator[Callable[..., RedisServer]]:
    """``start_redis("--maxmemory", "20mb")``: a server of one's own, ended after the test."""
    started: list[RedisServer] = []

    def start(*options: str) -> RedisServer:
        server = RedisServer(tmp_path, *options)
        started.append(server)
        server.wait_ready()
        return server

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="session")
def redis_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """The session's one redis-server; use ``redis_server``, which empties it first."""
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.wait_ready()
    yield server
    server.stop()


@pytest.fixture
def redis_server(redis_process: RedisServer) -> RedisServer:
    """An empty redis-server, shared over the session: leave it running and with its default config."""
    redis_process.command("FLUSHALL")
    redis_process.command("SCRIPT", "FLUSH")
    return redis_process
