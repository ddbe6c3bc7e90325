"""Nodes without a process around them: the flow as the doors use it, over one memory coordinator and a scripted upstream.

A test reads::

    from nodes import Town

    async def test_two_nodes_share(town: Town) -> None:          # the fixture is in tests/flow/conftest.py
        gate = asyncio.Event()
        town.upstream.play(sse(CH, gate, FIN, DONE))
        a, b = await town.node(), await town.node()
        first = await a.ask(town.call())
        await first.until_bytes(1)
        second = await b.ask(town.call())
        gate.set()
        assert (await first.read()).body == (await second.read()).body

- ``Town``: the upstream, the coordinator and its nodes; all are closed after the test, and every byte must be given back.
- ``NodeAt``: one node; ``.wire`` is its line to the coordinator, to be cut, held or counted.
- ``Client``: what one client reads; it commits with its first body byte, as a door does.
"""

from nodes.client import Client
from nodes.town import NodeAt, Town
from nodes.wire import Wire

__all__ = ["Client", "NodeAt", "Town", "Wire"]
