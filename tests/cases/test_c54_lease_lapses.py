"""C54: a lock expires while its owner still streams; a release is cancelled half way.

Source: redis/redis-py#3847 and #3900, SandeepVashishtha/Eventra#19115, ITISFoundation/osparc-simcore#4195,
redis/redis-py#3532.
Right: the lease is renewed while the owner lives: one call, however long it takes. After a freeze longer than the lease a
second owner may exist, but the first notices by its fence: it overwrites nothing, deletes nothing, and its own client
still gets its stream. A client that leaves while the end is being written leaves no key behind that nobody can free.
"""

import asyncio
import time

import pytest

from harness.client import ask, chat, connect, fresh
from harness.fixtures import StartProxy, all_ready
from harness.process import eventually
from harness.proxy import Proxy
from harness.redis import RedisServer
from harness.stalls import lasted
from soloflight.testing.chat import DONE, FIN, content
from soloflight.testing.fault_proxy import FaultProxy
from soloflight.testing.script import Step, sse
from soloflight.testing.upstream import ScriptedUpstream

LEASE_S = 0.6
STAGE = {"heartbeat": LEASE_S / 4, "pending_lease": LEASE_S, "running_lease": LEASE_S, "local_retention": 0}
CONFIG = {"stage_defaults": STAGE}
pytestmark = pytest.mark.redis


def said(call: int, count: int) -> list[bytes]:
    return [content(f"{call}.{number}") for number in range(count)]


def whole(call: int, count: int) -> bytes:
    return b"".join(said(call, count)) + FIN + DONE


def slowly(call: int, count: int, pause_s: float) -> list[Step]:
    steps: list[Step] = [step for event in said(call, count) for step in (event, pause_s)]
    return sse(*steps, FIN, DONE)


@pytest.fixture
def nodes(start_proxy: StartProxy, redis_server: RedisServer, upstream: ScriptedUpstream) -> list[Proxy]:
    return all_ready(
        start_proxy(CONFIG, upstream=upstream.port, backend="redis", redis_url=redis_server.url, ready=False)
        for _ in range(2)
    )


async def test_an_answer_of_five_leases_is_one_call(nodes: list[Proxy], upstream: ScriptedUpstream) -> None:
    upstream.play(slowly(1, 20, 5 * LEASE_S / 20))
    body = chat(fresh())
    first, second = nodes
    async with connect(first.port) as owner, connect(second.port) as early, connect(second.port) as late:
        await owner.send(body)
        await owner.read_events(6)
        await early.send(body)
        await owner.read_events(12)
        await late.send(body)
        answers = [await client.finish() for client in (owner, early, late)]
    assert [answer.body for answer in answers] == [whole(1, 20)] * 3
    assert upstream.calls == 1


@pytest.mark.parametrize("pause_s", [0.05, 0.0], ids=["while both run", "after the other's end"])
async def test_frozen_for_longer_than_the_lease(
    pause_s: float, nodes: list[Proxy], redis_server: RedisServer, upstream: ScriptedUpstream
) -> None:
    gate = asyncio.Event()
    opening = said(1, 10)
    upstream.play(sse(opening[0], gate, *opening[1:], FIN, DONE), slowly(2, 10, pause_s))
    body = chat(fresh())
    first, second = nodes
    async with connect(first.port) as owner, connect(second.port) as other:
        await owner.send(body)
        await owner.read_events(1)
        first.freeze()
        await asyncio.sleep(1.2 * LEASE_S)  # the passing of time is what is tested
        await other.send(body)
        await upstream.wait_calls(2)
        if not pause_s:
            await other.finish()
        first.thaw()
        gate.set()
        own, new = await owner.finish(), await other.finish()
    assert (own.body, own.complete) == (whole(1, 10), True)
    assert (new.body, new.complete, upstream.calls) == (whole(2, 10), True, 2)
    await eventually(lambda: "an owner's write was refused" in first.log)
    for node in nodes:
        replay = await ask(node.port, body)
        assert (replay.role, replay.body) == ("replay", whole(2, 10))
    with redis_server.client() as client:
        assert all(client.ttl(name) != -1 for name in client.scan_iter("soloflight:*{*"))


async def test_the_client_leaves_while_the_end_is_written(
    start_proxy: StartProxy, redis_server: RedisServer, upstream: ScriptedUpstream
) -> None:
    """200 ms on every reply of Redis: the client goes in the middle of claim, seal and abandon; the next one starts in time."""
    async with FaultProxy("127.0.0.1", redis_server.port) as way:
        slow = start_proxy(
            {"stage_defaults": {**STAGE, "on_abandon": "cancel", "abandon_grace": "1ms"}},
            upstream=upstream.port,
            backend="redis",
            redis_url=f"redis://127.0.0.1:{way.port}/0",
        )
        other = start_proxy(CONFIG, upstream=upstream.port, backend="redis", redis_url=redis_server.url)
        upstream.play(lambda received: slowly(received.number, 4, 0.02))
        way.down.delay_s = 0.2
        for leaves_after_s in (0.01, 0.1, 0.22, 0.28, 0.4, 0.5):
            body = chat(fresh())
            async with connect(slow.port) as client:
                await client.send(body)
                await asyncio.sleep(leaves_after_s)
                client.reset()
            begun = time.monotonic()
            answer = await ask(other.port, body)
            assert (answer.status, answer.complete) == (200, True)
            assert answer.body in [whole(number, 4) for number in range(1, upstream.calls + 1)]
            assert lasted(begun) < 2 * LEASE_S + 0.5
            with redis_server.client() as looking:
                assert all(looking.ttl(name) != -1 for name in looking.scan_iter("soloflight:*{*"))
        way.heal()
        await eventually(lambda: slow.api("/api/flights")["flights"] == [])
