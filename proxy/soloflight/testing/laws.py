"""What every part of the conformance suite stands on: how nodes are made, and how time is moved."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from secrets import token_hex

from soloflight.core.flight import Refusal, Refused
from soloflight.ports import Coordinator
from soloflight.testing.party import Party

FENCED = Refused(Refusal.FENCED)
GONE = Refused(Refusal.GONE)


class Laws:
    """A coordinator under test. A subclass says how to make nodes of it and how its clock is moved."""

    async def make_nodes(self, count: int) -> Sequence[Coordinator]:
        """``count`` coordinators that see the same flights, not opened yet. The suite opens and closes them."""
        raise NotImplementedError

    async def advance(self, ms: int) -> None:
        """Move the coordinator's clock by ``ms`` (back, if negative). The suite never waits for time to pass."""
        raise NotImplementedError

    @asynccontextmanager
    async def parties(self, count: int) -> AsyncIterator[Sequence[Party]]:
        """``count`` open nodes, named a, b, c, …, at one fresh key. Each is closed at the end, some twice."""
        key = token_hex(20)
        nodes = await self.make_nodes(count)
        parties = [Party(chr(ord("a") + at), node, key) for at, node in enumerate(nodes)]
        async with AsyncExitStack() as opened:
            for party in parties:
                party.coordinator.hear(party.words)
                await party.coordinator.open(party.name, party.rings)
                opened.push_async_callback(party.coordinator.close)
            yield parties
