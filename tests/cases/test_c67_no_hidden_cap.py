"""C67: an HTTP library's cap of 100 upstream connections.

Source: vllm-project/production-stack#767, Azure/azure-openai-benchmark#8, BerriAI/litellm#15247, NVIDIA-NeMo/RL#3590.
Right: no hidden cap: 150 streams start at once, and one more request is answered at once. Under a configured cap
the wait is bounded and ends in 503 with Retry-After; who waits and leaves gives up its place.
"""

import asyncio
import time
from contextlib import AsyncExitStack
from itertools import count

import pytest

from harness.client import RawClient, ask, chat, connect, fresh, settle
from harness.fixtures import StartProxy
from harness.proxy import Proxy
from harness.refusals import refused
from harness.stalls import lasted
from soloflight.testing.chat import CH, DONE, FIN
from soloflight.testing.script import Script, json, sse
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

STREAMS = 150
CAP = 10


async def open_streams(stack: AsyncExitStack, port: int, number: int) -> list[RawClient]:
    clients = [await stack.enter_async_context(connect(port)) for _ in range(number)]
    for client in clients:
        await client.send(chat(fresh()))
    return clients


@pytest.mark.parametrize("target", ["/v1/chat/completions", "/v1/unknown"])
async def test_all_streams_start_at_once(target: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    gate = asyncio.Event()
    numbers = count()
    upstream.play(lambda _: sse(CH, gate, FIN, DONE) if next(numbers) < STREAMS else json({}))
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connect(proxy.port)) for _ in range(STREAMS)]
        for client in clients:
            await client.send(chat(fresh(), target=target))
        for client in clients:
            await client.read_events(1)
        assert upstream.open_now == STREAMS

        begun = time.monotonic()
        assert (await ask(proxy.port, chat(fresh(stream=False), target=target))).status == 200
        assert lasted(begun) < 1
        gate.set()
        for client in clients:
            answer = await client.finish()
            assert (answer.body, answer.complete) == (CH + FIN + DONE, True)
    assert upstream.calls == STREAMS + 1


@pytest.mark.timeout(90)
async def test_a_configured_cap_waits_within_bounds(start_proxy: StartProxy) -> None:
    gate = asyncio.Event()

    def answer(_: object) -> Script:
        return sse(CH, gate, FIN, DONE)

    async with ScriptedUpstream(answer) as upstream, AsyncExitStack() as stack:
        proxy = start_proxy({"upstream": {"max_connections": CAP, "connect_timeout": "200ms"}}, upstream=upstream.port)
        clients = await open_streams(stack, proxy.port, CAP)
        for client in clients:
            await client.read_events(1)

        (late,) = await open_streams(stack, proxy.port, 1)
        refusal = await late.finish(within_s=20)
        assert refused(refusal) == (503, "saturated")
        assert int(refusal.get("Retry-After") or 0) >= 1
        assert upstream.open_max == CAP

        gone = await stack.enter_async_context(connect(proxy.port))
        await gone.send(chat(fresh(), target="/v1/gone"))
        (waiting,) = await open_streams(stack, proxy.port, 1)
        await settle(proxy.port)
        gone.reset()
        await settle(proxy.port)
        gate.set()
        for client in (*clients, waiting):
            assert (await client.finish()).body == CH + FIN + DONE
        assert upstream.open_max == CAP
        assert upstream.calls == CAP + 1
        assert "/v1/gone" not in [received.target for received in upstream.requests]
