"""Redis absent when a proxy starts, and what is asked for in the configuration: to refuse instead of going on alone."""

import asyncio
import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from fleet.answers import got_all, numbered, stream, whole
from fleet.nodes import BACK_WITHIN_S, DEFAULTS
from harness.client import ask, chat, connect, fresh
from harness.fixtures import StartProxy
from harness.ports import free_port
from harness.process import eventually
from harness.proxy import Proxy, merged
from harness.redis import RedisServer
from harness.refusals import refused
from harness.stalls import lasted
from soloflight.testing.fault_proxy import FaultProxy
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

StartRedis = Callable[..., RedisServer]
REJECT = {"coordination": {"on_backend_error": "reject"}}


def started(start_proxy: StartProxy, upstream: ScriptedUpstream, url: str, over: dict[str, Any] | None = None) -> Proxy:
    return start_proxy(merged(DEFAULTS, over or {}), upstream=upstream.port, backend="redis", redis_url=url)


def told(proxy: Proxy) -> int:
    """How often the log says that Redis is away."""
    return len(re.findall(r"redis redis://\S+ is away", proxy.log))


def degraded(proxy: Proxy) -> bool:
    return proxy.api("/readyz")["degraded"] is not None


async def share(first: Proxy, second: Proxy) -> None:
    """Wait until the second replays what the first has made: each asks for the scope key once a second."""
    async with asyncio.timeout(10):
        while True:
            body = chat(fresh())
            if [(await ask(proxy.port, body)).role for proxy in (first, second)] == ["owner", "replay"]:
                return
            await asyncio.sleep(0.1)


async def test_absent_at_the_start(
    start_proxy: StartProxy, start_redis: StartRedis, upstream: ScriptedUpstream
) -> None:
    """The proxy starts, says so in one line, serves alone; and shares with the fleet when Redis is there: the same scopes, too."""
    upstream.play(lambda received: stream(numbered(received.number, 5), 0.02))
    here = start_redis()
    there = started(start_proxy, upstream, here.url)
    body = chat(fresh())
    assert (await ask(there.port, body)).role == "owner"  # the fleet has a scope key from here on
    port = free_port()
    alone = started(start_proxy, upstream, f"redis://127.0.0.1:{port}/0")
    await eventually(lambda: told(alone) == 1)
    assert degraded(alone)
    answers = await asyncio.gather(*(ask(alone.port, body) for _ in range(50)))
    assert all(got_all(answer, whole(numbered(2, 5))) for answer in answers)
    assert upstream.calls == 2
    assert told(alone) == 1, "told by change, not by request"
    async with FaultProxy("127.0.0.1", here.port, port=port):
        begun = time.monotonic()
        await eventually(lambda: not degraded(alone), within_s=BACK_WITHIN_S)
        print(f"\nabsent at the start: shared {time.monotonic() - begun:.2f} s after it was there")
        await share(there, alone)


async def test_two_that_started_without_redis_agree(
    start_proxy: StartProxy, start_redis: StartRedis, upstream: ScriptedUpstream
) -> None:
    """Each has a scope key of its own; when Redis is there, empty, both take the one that is kept."""
    upstream.play(lambda received: stream(numbered(received.number, 5)))
    port = free_port()
    url = f"redis://127.0.0.1:{port}/0"
    proxies = [started(start_proxy, upstream, url) for _ in range(2)]
    server = start_redis()
    async with FaultProxy("127.0.0.1", server.port, port=port):
        for proxy in proxies:
            await eventually(lambda proxy=proxy: not degraded(proxy), within_s=BACK_WITHIN_S)
        await share(*proxies)


async def test_reject(start_proxy: StartProxy, start_redis: StartRedis, upstream: ScriptedUpstream) -> None:
    """503 with Retry-After while Redis is away: no call. What was under way is delivered, and what is kept here is replayed."""
    gate = asyncio.Event()
    upstream.play(stream(numbered(1, 3)), stream(numbered(2, 5), gate), stream(numbered(3, 3)))
    server = start_redis()
    proxy = started(start_proxy, upstream, server.url, REJECT)
    kept, running, new = (chat(fresh()) for _ in range(3))
    await ask(proxy.port, kept)
    async with connect(proxy.port) as client, connect(proxy.port) as local:
        await client.send(running)
        await client.read_events(1)
        await local.send(running)
        await local.read_events(1)
        server.stop()
        answer = await ask(proxy.port, new)
        assert refused(answer) == (503, "backend_unavailable")
        assert answer.get("Retry-After") is not None
        assert (await ask(proxy.port, kept)).role == "replay"
        gate.set()
        assert [got_all(await one.finish(), whole(numbered(2, 5))) for one in (client, local)] == [True, True]
    assert upstream.calls == 2
    again = server.again()
    try:
        await eventually(lambda: not degraded(proxy), within_s=BACK_WITHIN_S)
        assert got_all(await ask(proxy.port, new), whole(numbered(3, 3)))
    finally:
        again.stop()


async def test_reject_at_the_start(start_proxy: StartProxy, upstream: ScriptedUpstream) -> None:
    """It starts, and refuses: liveness never depends on Redis. Unshared routes are served."""
    proxy = started(start_proxy, upstream, f"redis://127.0.0.1:{free_port()}/0", REJECT)
    assert refused(await ask(proxy.port, chat(fresh()))) == (503, "backend_unavailable")
    assert proxy.api("/livez") == {"status": "alive"}
    assert upstream.calls == 0
    upstream.play(lambda received: stream(numbered(1, 1)))
    alone = await ask(proxy.port, chat(fresh(), "Cache-Control: no-store"))
    assert (alone.status, alone.role, upstream.calls) == (200, "bypass", 1)


@pytest.mark.parametrize("hang", ["accepts and says nothing", "stopped process"])
async def test_a_redis_that_hangs_at_the_start(
    hang: str, start_proxy: StartProxy, start_redis: StartRedis, upstream: ScriptedUpstream
) -> None:
    """It is there and says nothing: the proxy listens within its bounds all the same."""
    upstream.play(lambda received: stream(numbered(1, 1)))
    server = start_redis()
    async with FaultProxy("127.0.0.1", server.port) as way:
        if hang == "stopped process":
            server.freeze()
        else:
            way.up.swallow = True
        begun = time.monotonic()
        proxy = await asyncio.to_thread(started, start_proxy, upstream, f"redis://127.0.0.1:{way.port}/0")
        took_s = lasted(begun)
        assert (await ask(proxy.port, chat(fresh()))).status == 200
        await eventually(lambda: told(proxy) == 1)
        server.thaw()
        way.heal()
        way.cut()
        await eventually(lambda: not degraded(proxy), within_s=BACK_WITHIN_S)
    print(f"\na Redis that {hang}: ready {took_s:.2f} s after the start")
    assert took_s < 10
