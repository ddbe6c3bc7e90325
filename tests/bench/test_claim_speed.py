"""What a claim costs against a PING, both on loopback, one after the other."""

from __future__ import annotations

import secrets
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import redis.asyncio

from bench.machine import LOAD_CORE, free_port, running
from soloflight.config.load import load
from soloflight.core.flight import Claim, Owned
from soloflight.plugins import Plugins


async def timed(ask: Callable[[], Awaitable[object]]) -> float:
    """Microseconds of one round trip."""
    began = time.perf_counter()
    await ask()
    return (time.perf_counter() - began) * 1e6


async def test_a_claim_against_a_ping(tmp_path: Path) -> None:
    port = free_port()
    command = ["redis-server", "--port", str(port), "--save", "", "--dir", str(tmp_path)]
    with running(command, port, LOAD_CORE, tmp_path / "log"):
        url = f"redis://127.0.0.1:{port}/0"
        settings = load(None, {}, {"backend": "redis", "redis_url": url})
        coordinator = Plugins.load().coordinator("redis", settings)
        await coordinator.open("bench", lambda _: None)
        client = redis.asyncio.Redis.from_url(url)
        pings, claims = [], []
        op = Claim(
            nonce=secrets.token_hex(16),
            node="bench",
            flight="f",
            pending_ms=5000,
            running_ms=5000,
            first_byte_ms=60000,
            deadline_ms=60000,
            watch_ms=5000,
            max_attempts=3,
            poison_ms=1000,
            direct=True,
        )

        async def claim() -> None:
            assert isinstance(await coordinator.step(secrets.token_hex(24), op), Owned)

        for _ in range(4000):
            pings.append(await timed(client.ping))
            claims.append(await timed(claim))
        await client.aclose()
        await coordinator.close()
    ping, own = statistics.median(pings), statistics.median(claims)
    print(
        f"\n  PING by redis-py {ping:.0f} µs, claim by the coordinator {own:.0f} µs: {own / ping:.2f} × (reach: ≤ 1.7)"
    )
