"""C59: one pub/sub connection for each waiter exhausts the pool.

Source: kortix-ai/suna#2732, brendanlong/lion-reader#874, aio-libs/aiohttp-sse#90.
Right: one connection of a process listens for all of its followers, apart from its commands; channels are given back with
their last follower, and ordinary requests do not feel the crowd.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest

from fleet.nodes import Fleet
from harness.client import ask, chat, connect, fresh
from harness.process import eventually
from harness.stalls import lasted
from soloflight.testing.chat import CH, DONE, FIN
from soloflight.testing.received import Received
from soloflight.testing.script import Script, sse
from soloflight.testing.upstream import ScriptedUpstream

FOLLOWERS, KEYS, ORDINARY = 300, 50, 60
CONNECTIONS = 3
"""Of one process to one Redis: small commands, large ones, and what is listened to."""
pytestmark = [pytest.mark.redis, pytest.mark.beside]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, upstream_port: int) -> Iterator[Fleet]:
    # The server takes no more than the documented connections, and the few of this test's own looks.
    config = {"stage_defaults": {"max_abandoned": "2s", "max_abandoned_stream": "2s"}}
    fleet = Fleet(
        tmp_path_factory.mktemp("fleet"),
        upstream_port,
        config=config,
        options=("--maxclients", str(2 * CONNECTIONS + 4)),
    )
    yield fleet
    fleet.close()


async def test_three_hundred_followers_of_fifty_flights(fleet: Fleet, upstream: ScriptedUpstream) -> None:
    gate = asyncio.Event()

    def answer(received: Received) -> Script:
        return [gate, *sse(CH, FIN, DONE)] if b"crowd" in received.body else sse(CH, FIN, DONE)

    upstream.play(answer)
    a, b = fleet.nodes
    idle_s = await ordinary(b.port, upstream)
    bodies = [chat(fresh(metadata={"is": f"crowd {number}"})) for number in range(KEYS)]
    async with AsyncExitStack() as stack:
        for body in bodies:
            client = await stack.enter_async_context(connect(a.port))
            await client.send(body)
        await upstream.wait_until(lambda: sum(b"crowd" in received.body for received in upstream.requests) == KEYS)
        crowd = [await stack.enter_async_context(connect(b.port)) for _ in range(FOLLOWERS)]
        for number, client in enumerate(crowd):
            await client.send(bodies[number % KEYS])
        await eventually(lambda: len(fleet.channels()) == KEYS)
        assert set(fleet.channels().values()) == {1}
        assert len(fleet.listening()) == len(fleet.nodes)
        busy_s = await ordinary(b.port, upstream)
        assert len(fleet.listening()) == len(fleet.nodes)
        half = crowd[: FOLLOWERS // 2]
        for client in half:
            client.reset()
        gate.set()
        rest = [await client.finish() for client in crowd[FOLLOWERS // 2 :]]
        assert {(answer.body, answer.complete) for answer in rest} == {(CH + FIN + DONE, True)}
    await eventually(lambda: fleet.channels() == {}, within_s=10)
    assert len(fleet.listening()) == len(fleet.nodes)
    calls = [received for received in upstream.requests if b"crowd" in received.body]
    assert len(calls) == KEYS
    print(
        f"\nordinary requests, slowest of {ORDINARY}: {idle_s * 1e3:.1f} ms alone, {busy_s * 1e3:.1f} ms beside the crowd"
    )
    assert busy_s < 1


async def test_all_followers_leave(fleet: Fleet, upstream: ScriptedUpstream) -> None:
    """Nobody waits any more: every channel is given back while the flights still run."""
    gate = asyncio.Event()
    upstream.play(lambda received: [gate, *sse(CH, FIN, DONE)])
    a, b = fleet.nodes
    bodies = [chat(fresh()) for _ in range(KEYS)]
    async with AsyncExitStack() as stack:
        owners = [await stack.enter_async_context(connect(a.port)) for _ in bodies]
        for client, body in zip(owners, bodies, strict=True):
            await client.send(body)
        await upstream.wait_calls(KEYS)
        async with AsyncExitStack() as leaving:
            for body in bodies * 2:
                client = await leaving.enter_async_context(connect(b.port))
                await client.send(body)
            await eventually(lambda: len(fleet.channels()) == KEYS)
        await eventually(lambda: fleet.channels() == {}, within_s=10)
        await eventually(lambda: b.proxy.api("/api/flights")["flights"] == [])
        gate.set()
        assert {(await client.finish()).complete for client in owners} == {True}
    assert upstream.calls == KEYS
    await eventually(lambda: fleet.keys("watchers") == [])


async def ordinary(port: int, upstream: ScriptedUpstream) -> float:
    """Twenty ordinary requests a second for a while; the slowest one's seconds."""
    slowest = 0.0
    for _ in range(ORDINARY):
        began = time.monotonic()
        assert (await ask(port, chat(fresh()))).status == 200
        slowest = max(slowest, lasted(began))
        await asyncio.sleep(0.01)
    return slowest
