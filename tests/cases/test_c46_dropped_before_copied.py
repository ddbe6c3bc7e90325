"""C46: the result is dropped before the followers have copied it.

Source: erpc/erpc#581 and #615.
Right: all who wait get the result of the one call, whether anything is kept (replay off), or not in this process
(L1 of size 0). Also when the answer is there as soon as the last of them has joined, and over Redis on two nodes.
"""

import asyncio
from contextlib import AsyncExitStack

import pytest

from harness.client import RawClient, chat, connect, fresh, settle
from harness.fixtures import StartProxy, all_ready
from harness.process import eventually
from harness.proxy import Proxy
from harness.redis import RedisServer
from harness.wire import Response
from soloflight.testing.chat import completion_object
from soloflight.testing.script import json
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

CROWD = 200
PROXY = {
    "stage": [
        {"name": "joins-only", "replay": "never", "match": {"paths": ["/joins-only/*"]}},
        {"name": "no-l1", "local_max_bytes": 0, "match": {"paths": ["/no-l1/*"]}},
    ]
}


async def one_round(
    proxy: Proxy, upstream: ScriptedUpstream, owner: RawClient, crowd: list[RawClient], target: str
) -> list[Response]:
    """All ask the same while the upstream has not answered; the answers, the owner's first."""
    gate = asyncio.Event()
    answer = json(completion_object(target))
    upstream.play([gate, 0.001, answer])
    body = chat(fresh(stream=False), target=target)
    calls = upstream.calls
    await owner.send(body)
    await upstream.wait_calls(calls + 1)
    for client in crowd:
        await client.send(body)
    await settle(proxy.port)
    gate.set()
    return [await client.finish() for client in (owner, *crowd)]


@pytest.mark.parametrize(("stage", "rounds"), [("joins-only", 100), ("no-l1", 20)])
async def test_all_get_the_one_result(stage: str, rounds: int, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    target = f"/{stage}/v1/chat/completions"
    body = json(completion_object(target)).partition(b"\r\n\r\n")[2]
    async with AsyncExitStack() as stack:
        owner, *crowd = [await stack.enter_async_context(connect(proxy.port)) for _ in range(1 + CROWD)]
        for number in range(1, rounds + 1):
            answers = await one_round(proxy, upstream, owner, crowd, target)
            assert {(answer.status, answer.body, answer.complete) for answer in answers} == {(200, body, True)}
            assert len({answer.get("X-Soloflight-Flight") for answer in answers}) == 1
            assert [answer.role for answer in answers] == ["owner", *["follower"] * CROWD]
            assert upstream.calls == number


@pytest.mark.redis
@pytest.mark.parametrize(("stage", "rounds"), [("joins-only", 20), ("no-l1", 10)])
async def test_all_get_the_one_result_on_two_nodes(
    stage: str, rounds: int, start_proxy: StartProxy, redis_server: RedisServer, upstream: ScriptedUpstream
) -> None:
    """Redis holds nothing for a stage that only joins but what those who follow still need."""
    target = f"/{stage}/v1/chat/completions"
    body = json(completion_object(target)).partition(b"\r\n\r\n")[2]
    nodes = all_ready(
        start_proxy(PROXY, upstream=upstream.port, backend="redis", redis_url=redis_server.url, ready=False)
        for _ in range(2)
    )
    async with AsyncExitStack() as stack:
        crowds = [[await stack.enter_async_context(connect(node.port)) for _ in range(CROWD // 2)] for node in nodes]
        for number in range(1, rounds + 1):
            gate = asyncio.Event()
            upstream.play([gate, 0.001, json(completion_object(target))])
            sent = chat(fresh(stream=False), target=target)
            owner, *others = [client for crowd in crowds for client in crowd]
            await owner.send(sent)
            await upstream.wait_calls(number)
            for client in others:
                await client.send(sent)
            await eventually(lambda: bool(redis_server.command("PUBSUB", "CHANNELS", "soloflight:*:notices")))
            for node in nodes:
                await settle(node.port)
            gate.set()
            answers = [await client.finish() for client in (owner, *others)]
            assert {(answer.status, answer.body, answer.complete) for answer in answers} == {(200, body, True)}
            assert [answer.role for answer in answers] == ["owner", *["follower"] * (CROWD - 1)]
            assert upstream.calls == number
    kept = redis_server.command("KEYS", "soloflight:*:answer")
    assert isinstance(kept, list)
    assert len(kept) == (0 if stage == "joins-only" else rounds)
