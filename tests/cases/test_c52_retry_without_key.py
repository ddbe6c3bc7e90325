"""C52: the same POST again, without any key, after a client or an nginx has given up.

Source: Augustas11/macprovider#762, NatLabRockies/api-umbrella#18, openresty/openresty#200.
Right: the second attempt joins the first one, on another node too (through Redis): one upstream call, and an answer when
it ends. Behind a real nginx: tests/system/test_nginx.py.
"""

import asyncio

import pytest

from harness.client import ask, chat, connect, fresh
from harness.fixtures import StartProxy, all_ready
from harness.process import eventually
from harness.proxy import Proxy
from harness.redis import RedisServer
from soloflight.testing.chat import CH, DONE, FIN, completion_object
from soloflight.testing.script import json, sse
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside


@pytest.fixture
def nodes(start_proxy: StartProxy, redis_server: RedisServer, upstream: ScriptedUpstream) -> list[Proxy]:
    return all_ready(
        start_proxy(upstream=upstream.port, backend="redis", redis_url=redis_server.url, ready=False) for _ in range(2)
    )


def waits_for_what_runs(node: Proxy) -> bool:
    """Whether a client listens there to a flight that has its owner."""
    return [(bool(row["owner"]), row["listeners"]) for row in node.api("/api/flights")["flights"]] == [(True, 1)]


@pytest.mark.redis
@pytest.mark.parametrize("at", [0, 1], ids=["the same node", "another node"])
@pytest.mark.parametrize("stream", [True, False], ids=["SSE", "JSON"])
async def test_given_up_on_and_sent_again(
    stream: bool, at: int, nodes: list[Proxy], upstream: ScriptedUpstream
) -> None:
    gate = asyncio.Event()
    opening = sse(CH, FIN, DONE) if stream else [json(completion_object())]
    upstream.play([gate, *opening])
    body = chat(fresh(stream=stream))
    async with connect(nodes[0].port) as first:
        await first.send(body)
        await upstream.wait_calls(1)
    await eventually(lambda: "client_gone" in nodes[0].log)
    async with connect(nodes[at].port) as again:
        await again.send(body)
        await eventually(lambda: waits_for_what_runs(nodes[at]))
        assert upstream.calls == 1, "it asks nobody else"
        gate.set()
        answer = await again.finish()
    assert (answer.status, answer.role) == (200, "follower")
    assert answer.body == (CH + FIN + DONE if stream else json(completion_object()).partition(b"\r\n\r\n")[2])
    assert upstream.requests[0].left is None

    for node in nodes:  # who follows may have the end before its owner's process has put the flight away
        await eventually(lambda node=node: node.api("/api/flights")["flights"] == [])
    replay = await ask(nodes[1 - at].port, body)
    assert (replay.role, replay.body, upstream.calls) == ("replay", answer.body, 1)
