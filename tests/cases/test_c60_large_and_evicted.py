"""C60: a value that is too large, a Redis that is full, evictions in the middle.

Source: caddyserver/cache-handler#81, dginev/ar5iv#247, ziaadini/nuxt-perfect-cache#1, redis/redis#11830.
Right: the answer is delivered in each case; what is too large is not kept; a follower or a replay that finds a part missing
fails over to a new call before it has sent bytes, or ends visibly: never a silent gap. Memory comes back.
"""

import asyncio
import hashlib
from collections.abc import Callable

import pytest

from harness.client import ask, chat, connect, fresh
from harness.fixtures import StartProxy, all_ready
from harness.process import eventually
from harness.proxy import Proxy
from harness.redis import RedisServer
from soloflight.testing.chat import DONE, FIN, completion_object
from soloflight.testing.script import Step, head, sse
from soloflight.testing.script import json as json_answer
from soloflight.testing.upstream import ScriptedUpstream

StartRedis = Callable[..., RedisServer]
MIB = 1 << 20
LEASE_S = 1.0
PIECE = 64 << 10
CONFIG = {
    "server": {"drain_timeout": "2s"},
    "stage_defaults": {
        "heartbeat": 0.2,
        "pending_lease": LEASE_S,
        "running_lease": LEASE_S,
        "local_retention": 0,
        "max_recording": "96MiB",
    },
}
pytestmark = [pytest.mark.redis, pytest.mark.beside]


def start_two(start_proxy: StartProxy, server: RedisServer, upstream: ScriptedUpstream) -> list[Proxy]:
    return all_ready(
        start_proxy(CONFIG, upstream=upstream.port, backend="redis", redis_url=server.url, ready=False)
        for _ in range(2)
    )


def document(size: int) -> bytes:
    """A chat answer's JSON of about ``size`` bytes."""
    return json_answer(completion_object("x" * size)).partition(b"\r\n\r\n")[2]


def in_pieces(body: bytes, *, first: int, gate: asyncio.Event) -> list[Step]:
    opening = head(200, "Content-Type: application/json", f"Content-Length: {len(body)}")
    return [opening, body[:first], gate, *[body[at : at + PIECE] for at in range(first, len(body), PIECE)]]


@pytest.mark.timeout(120)
async def test_a_redis_of_20_mb(start_proxy: StartProxy, start_redis: StartRedis, upstream: ScriptedUpstream) -> None:
    """1, 15 and 60 MB: the owner's clients have all of it, a follower elsewhere all of it or a visible end."""
    server = start_redis("--maxmemory", "20mb", "--maxmemory-policy", "noeviction")
    nodes = start_two(start_proxy, server, upstream)
    for size in (1, 15, 60):
        for follows in (False, True):
            await one_large_answer(size * MIB, follows, nodes, upstream)
            # What a flight needed while it ran is given back; what is kept has its retention.
            await eventually(lambda: not keys(server, "log"), within_s=5)
            assert all(ttls(server))
            forget(server)
    small = chat(fresh())
    upstream.play(sse(FIN, DONE))
    assert [(await ask(node.port, small)).status for node in nodes] == [200, 200]


async def one_large_answer(size: int, follows: bool, nodes: list[Proxy], upstream: ScriptedUpstream) -> None:
    first, second = nodes
    body, gate, calls = document(size), asyncio.Event(), upstream.calls
    sent = chat(fresh(stream=False))
    upstream.play(in_pieces(body, first=PIECE, gate=gate))
    async with connect(first.port) as owner, connect(second.port) as follower:
        await owner.send(sent)
        await owner.read_body(1_000)
        if follows:
            await follower.send(sent)
            await follower.read_body(1_000)
        gate.set()
        reading = [owner, follower] if follows else [owner]
        answers = await asyncio.gather(*(client.finish(within_s=40) for client in reading))
    assert (answers[0].complete, digest(answers[0].body)) == (True, digest(body))
    for answer in answers[1:]:
        if answer.complete:
            assert digest(answer.body) == digest(body)
        else:
            assert (answer.ended, body.startswith(answer.body)) == ("rst", True)
    assert upstream.calls == calls + 1


def forget(server: RedisServer) -> None:
    """The memory is free again."""
    with server.client() as client:
        for name in list(client.scan_iter("soloflight:*{*")):
            client.delete(name)


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def keys(server: RedisServer, part: str) -> list[str]:
    with server.client() as client:
        return list(client.scan_iter(f"soloflight:*:{part}"))


def ttls(server: RedisServer) -> list[bool]:
    """Whether each key of a flight has a time to live."""
    with server.client() as client:
        return [client.pttl(name) != -1 for name in client.scan_iter("soloflight:*{*")]


async def test_too_large_for_one_value(
    start_proxy: StartProxy, start_redis: StartRedis, upstream: ScriptedUpstream
) -> None:
    """``proto-max-bulk-len``: the result can not be stored. It is told and not kept; who followed has it from the log."""
    server = start_redis("--proto-max-bulk-len", "1mb")
    first, second = start_two(start_proxy, server, upstream)
    body, gate = document(3 * MIB), asyncio.Event()
    sent = chat(fresh(stream=False))
    upstream.play(in_pieces(body, first=PIECE, gate=gate))
    async with connect(first.port) as owner, connect(second.port) as follower:
        await owner.send(sent)
        await owner.read_body(1_000)
        await follower.send(sent)
        await follower.read_body(1_000)
        gate.set()
        answers = await asyncio.gather(owner.finish(), follower.finish())
    assert [(answer.complete, digest(answer.body)) for answer in answers] == [(True, digest(body))] * 2
    assert upstream.calls == 1
    assert keys(server, "answer") == []
    assert (await ask(second.port, sent)).role == "owner"
    assert upstream.calls == 2


@pytest.mark.timeout(120)
async def test_eviction_while_a_follower_reads(
    start_proxy: StartProxy, start_redis: StartRedis, upstream: ScriptedUpstream
) -> None:
    """allkeys-lru, and others fill the memory: whatever goes, no body has a gap, is short, or is made of two."""
    server = start_redis("--maxmemory", "24mb", "--maxmemory-policy", "allkeys-lru")
    first, second = start_two(start_proxy, server, upstream)
    attempts = [document(2 * MIB), document(2 * MIB).replace(b"x", b"y")]
    filling = asyncio.create_task(asyncio.to_thread(fill, server, 40 * MIB))
    for _ in range(6):
        gate, sent, calls = asyncio.Event(), chat(fresh(stream=False)), upstream.calls
        upstream.play(*[in_pieces(body, first=PIECE, gate=gate) for body in attempts])
        async with connect(first.port) as owner, connect(second.port) as follower:
            await owner.send(sent)
            await owner.read_body(1_000)
            await follower.send(sent)
            await upstream.wait_calls(calls + 1)
            gate.set()
            answers = await asyncio.gather(owner.finish(within_s=30), follower.finish(within_s=30))
        assert (answers[0].complete, digest(answers[0].body)) == (True, digest(attempts[0]))
        if answers[1].complete:
            assert digest(answers[1].body) in map(digest, attempts)
        else:
            assert answers[1].ended == "rst"
            assert any(body.startswith(answers[1].body) for body in attempts)
        assert upstream.calls <= calls + 2
    await filling


def fill(server: RedisServer, size: int) -> None:
    """Somebody else's data, piece by piece."""
    with server.client() as client:
        for number in range(size // 100_000):
            client.set(f"other:{number}", "y" * 100_000)
