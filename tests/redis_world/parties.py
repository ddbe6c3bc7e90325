"""Open nodes of the Redis coordinator at one key, closed at the end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from secrets import token_hex
from typing import Any

from soloflight.testing.party import Party
from soloflight_redis import Options, RedisCoordinator

BOUND_S = 0.5


@asynccontextmanager
async def parties(*urls: str, key: str = "", **options: Any) -> AsyncIterator[list[Party]]:
    """A node for each URL, named a, b, c, …, all at one fresh key, on the server's own clock."""
    key = key or token_hex(20)
    async with AsyncExitStack() as opened:
        found = []
        for at, url in enumerate(urls):
            coordinator = RedisCoordinator(Options(url, **{"bound_s": BOUND_S, **options}))
            party = Party(chr(ord("a") + at), coordinator, key)
            coordinator.hear(party.words)
            await coordinator.open(party.name, party.rings)
            opened.push_async_callback(coordinator.close)
            found.append(party)
        yield found


def at_key(party: Party, key: str) -> Party:
    """The same node at another key."""
    return Party(party.name, party.coordinator, key)
