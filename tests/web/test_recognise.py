"""Requests seen before: a recognised one gets exactly what the long way would have given it."""

from __future__ import annotations

import asyncio

from harness.client import chat, connect, fresh
from nodes.house import House
from soloflight.testing.chat import CH, DONE, FIN, content
from soloflight.testing.script import sse
from soloflight.testing.upstream import ScriptedUpstream


async def test_two_pipelined_requests_do_not_learn_each_others_blocks(house: House, upstream: ScriptedUpstream) -> None:
    """The second block may be read before the first one's handler runs."""
    upstream.play(sse(CH, FIN, DONE), sse(content("second"), FIN, DONE))
    first, second = chat(fresh()), chat(fresh())
    async with connect(house.port) as client:
        await client.ask(chat(fresh()))
        assert house.app._door is not None
        [connection] = house.app._door.connections
        loop = asyncio.get_running_loop()
        connection.data_received(first)
        loop.call_soon(connection.data_received, second)
        for _ in range(2):
            await client.send(b"")
            await client.finish()
    learned = {block: call for (_, block), call in house.app.front.recogniser._calls.items()}
    for block, call in learned.items():
        assert block.endswith(call.body)
