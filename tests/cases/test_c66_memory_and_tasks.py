"""C66: memory that grows, sessions that are not closed, tasks that nobody ends.

Source: BerriAI/litellm#14540, #6404, #24230, #12685.
Right: under a mix of hits, misses, cut streams and clients that leave at any time, memory has a plateau, local replays
are bounded by bytes, and when it is over nothing is left: no task, no flight, no follower, no open file.
"""

import asyncio
import time

import pytest

from harness.fixtures import StartProxy
from harness.mix import CLIENTS, Mix, answer
from harness.process import eventually
from harness.proxy import Proxy
from nodes.house import House, settings_for
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

MB = 1 << 20
SHORT = {
    "stage_defaults": {
        "retention": "300ms",
        "local_retention": "300ms",
        "local_max_bytes": "100KB",
        "max_abandoned": "200ms",
        "max_abandoned_stream": "200ms",
    }
}
# A machine that does other work for some seconds is no fault of an upstream's.
LONG = {
    "upstream": {"connect_timeout": "60s"},
    "stage_defaults": {"retention": "20s", "local_max_bytes": "64MiB"},
}


async def forgetting(upstream: ScriptedUpstream) -> None:
    """The upstream of a long run keeps no record."""
    while True:
        upstream.requests.clear()
        await asyncio.sleep(0.5)


async def at_rest(proxy: Proxy) -> None:
    """Every flight and follower is gone."""
    await eventually(lambda: proxy.api("/api/flights")["flights"] == [], 10)
    await eventually(lambda: proxy.metric("soloflight_flights_live") == 0)
    await eventually(lambda: proxy.metric("soloflight_followers") == 0)


async def lived_through(proxy: Proxy, mix: Mix, count: int) -> tuple[int, int]:
    """Resident memory after half of ``count`` requests, and after all; nothing else may be left."""
    await mix.run(CLIENTS * 4)
    await at_rest(proxy)
    files = proxy.open_files()
    await mix.run(count // 2)
    half = proxy.rss()
    await mix.run(count // 2)
    end = proxy.rss()
    await at_rest(proxy)
    # Connections to the upstream are kept for a moment, those of clients that have left were closed.
    await eventually(lambda: proxy.open_files() <= files, 10)
    assert min(mix.done.values()) > count / 50, mix.done
    assert mix.roles["owner"] > count / 50, mix.roles
    return half, end


async def test_memory_has_a_plateau(start_proxy: StartProxy, upstream: ScriptedUpstream) -> None:
    """The case in small: no new prompt comes in the second half, so nothing that is kept for prompts may grow."""
    upstream.play(answer)
    proxy = start_proxy(SHORT, "--log-level=warning", upstream=upstream.port)
    half, end = await lived_through(proxy, Mix(proxy.port, pool=200), 2400)
    assert end - half < 2 * MB
    assert proxy.metric("soloflight_local_bytes") <= 100_000


@pytest.mark.soak  # the case's own figures
@pytest.mark.timeout(1800)
async def test_two_hundred_thousand_requests(start_proxy: StartProxy, upstream: ScriptedUpstream) -> None:
    upstream.play(answer)
    proxy = start_proxy(LONG, "--log-level=warning", upstream=upstream.port)
    forget = asyncio.create_task(forgetting(upstream))
    begun = time.monotonic()
    try:
        half, end = await lived_through(proxy, Mix(proxy.port, pool=None), 200_000)
    finally:
        forget.cancel()
    print(f"{time.monotonic() - begun:.0f} s, {half / MB:.1f} MB after half, {end / MB:.1f} MB at the end")
    assert end - half < 10 * MB  # 1 MB for 10,000 requests


async def test_no_task_is_left(upstream: ScriptedUpstream) -> None:
    upstream.play(answer)
    house = await House(settings_for(upstream, SHORT)).open()
    app, mine = house.app, asyncio.all_tasks()
    assert app.node is not None
    assert app.front is not None
    mix = Mix(house.port, pool=40)
    await mix.run(600)
    node, front = app.node, app.front
    await eventually(lambda: len(node.flights) == 0 and front.running == 0)
    await eventually(lambda: upstream.open_now == 0, 10)  # what was kept has been let go
    left = [task for task in asyncio.all_tasks() - mine if not task.done()]
    assert [task.get_name() for task in left] == []
    await app.close()
    assert min(mix.done.values()) > 10
