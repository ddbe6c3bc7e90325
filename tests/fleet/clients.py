"""Clients of a fleet's nodes, at known points of an answer; all are closed when their test ends."""

from contextlib import AsyncExitStack

from fleet.nodes import Fleet, Node
from harness.client import RawClient, connect, settle
from harness.process import eventually


class Clients:
    """Makes clients of ``fleet``."""

    def __init__(self, fleet: Fleet, stack: AsyncExitStack) -> None:
        self._fleet = fleet
        self._stack = stack

    async def ask(self, node: Node, body: bytes, *, events: int = 0, size: int = 0) -> RawClient:
        """One that has sent ``body``, and has got so many whole events, or so many bytes, of its answer."""
        client = await self._stack.enter_async_context(connect(node.port))
        await client.send(body)
        if events:
            await client.read_events(events)
        elif size:
            await client.read_body(size)
        return client

    async def follow(self, node: Node, body: bytes, *, events: int = 0, size: int = 0) -> RawClient:
        """One on a node that follows another's flight; with nothing to be got yet, that node has subscribed."""
        before = sum(self._fleet.channels().values())
        client = await self.ask(node, body, events=events, size=size)
        if not events and not size:
            await eventually(lambda: sum(self._fleet.channels().values()) == before + 1)
            await settle(node.port)
        return client

    async def join(self, node: Node, body: bytes) -> RawClient:
        """One more on a node that has the flight already; no byte of the answer has come."""
        client = await self.ask(node, body)
        await settle(node.port)
        return client
