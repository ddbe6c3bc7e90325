"""Two nodes and a Redis: what coordination costs against a PING, and how far followers elsewhere are behind."""

from __future__ import annotations

import secrets
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import redis.asyncio

from bench.contest import LOAD_CORE, crowd, free_port, full, running, soloflight, table
from soloflight.config.load import load
from soloflight.core.flight import Claim, Owned
from soloflight.plugins import Plugins
from soloflight.testing.script import sse
from soloflight.testing.upstream import ScriptedUpstream

TIMES = {"pending_ms": 5000, "running_ms": 5000, "first_byte_ms": 60000, "deadline_ms": 60000, "watch_ms": 5000}


@pytest.fixture
def redis_port(tmp_path: Path) -> Iterator[int]:
    port = free_port()
    with running("redis-server", "--port", str(port), "--save", "", "--dir", str(tmp_path), port=port, core=LOAD_CORE):
        yield port


async def timed(ask: Callable[[], Awaitable[object]]) -> float:
    """Microseconds of one round trip."""
    began = time.perf_counter()
    await ask()
    return (time.perf_counter() - began) * 1e6


async def test_a_claim_against_a_ping(redis_port: int) -> None:
    url = f"redis://127.0.0.1:{redis_port}/0"
    settings = load(None, {}, {"backend": "redis", "redis_url": url})
    coordinator = Plugins.load().coordinator("redis", settings)
    await coordinator.open("bench", lambda _: None)
    client = redis.asyncio.Redis.from_url(url)
    pings, claims = [], []
    nonce = secrets.token_hex(16)

    async def claim() -> None:
        op = Claim(nonce=nonce, node="bench", flight="f", max_attempts=3, poison_ms=1000, direct=True, **TIMES)
        assert isinstance(await coordinator.step(secrets.token_hex(24), op), Owned)

    for _ in range(6000 if full() else 2000):
        pings.append(await timed(client.ping))
        claims.append(await timed(claim))
    await client.aclose()
    await coordinator.close()
    ping, own = statistics.median(pings), statistics.median(claims)
    rows = [
        ("one after the other, loopback", "p50", "ratio", "reach"),
        ("PING by redis-py", f"{ping:.0f} µs", "1.00", ""),
        ("claim by the coordinator", f"{own:.0f} µs", f"{own / ping:.2f}", "<= 1.7"),
    ]
    table("A claim", rows)


def test_followers_on_another_node(redis_port: int) -> None:
    events = [b'data: {"n":%d,"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n' % n for n in range(600)]
    steps = [step for event in events for step in (0.005, event)]
    last = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    rows = [("followers in one process elsewhere, 200 frames/s", "lag p50", "lag p99", "reach p50")]
    more = ["--backend", "redis", "--redis-url", f"redis://127.0.0.1:{redis_port}/0"]
    with ScriptedUpstream(sse(*steps, last, b"data: [DONE]\n\n")).in_thread() as upstream:
        one, two = free_port(), free_port()
        with (
            running(*soloflight(one, upstream.url, *more), port=one),
            running(*soloflight(two, upstream.url, *more), port=two),
        ):
            for count, reach in ((1, "<= 2 ms"), (100, "<= 3 ms")):
                result = crowd(one, count, "sse", two)
                rows.append((str(count), f"{result['p50_ms']:.2f} ms", f"{result['p99_ms']:.2f} ms", reach))
        assert upstream.calls == len(rows) - 1
    table("Following on another node", rows)
