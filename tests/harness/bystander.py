"""Somebody else's request while the proxy is busy: how long it is kept waiting."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from harness.client import connect, request
from harness.proxy import Proxy

PAUSE_S = 0.002


@dataclass
class Bystander:
    """``longest_s``: the longest that a health check was kept waiting by the proxy itself."""

    asked: int = 0
    longest_s: float = 0.0


@asynccontextmanager
async def bystander(proxy: Proxy) -> AsyncIterator[Bystander]:
    """Health checks, one behind the other, for the length of a block.

    What counts is the time for which the proxy's loop computed meanwhile: other work on the machine is not its lag.
    """
    found, over = Bystander(), asyncio.Event()
    asking = asyncio.create_task(_ask(proxy, found, over))
    try:
        yield found
    finally:
        over.set()
        await asking


async def _ask(proxy: Proxy, found: Bystander, over: asyncio.Event) -> None:
    async with connect(proxy.port) as client:
        while not over.is_set():
            begun, computed = time.monotonic(), proxy.cpu_s()
            assert (await client.ask(request("GET", "/_soloflight/health"))).status == 200
            found.longest_s = max(found.longest_s, min(time.monotonic() - begun, proxy.cpu_s() - computed))
            found.asked += 1
            await asyncio.sleep(PAUSE_S)
