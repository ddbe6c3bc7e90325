"""C62: SIGTERM with running streams, followers elsewhere, and somebody who waits for a session's lock.

Source: BerriAI/litellm#14334, #28714, PostHog/posthog#73863, ding113/claude-code-hub#1178.
Right: readiness goes 503 at once, the listener refuses, running streams end well within the drain's limit, followers on
other nodes are served to the end, locks and leases are given back, exit code 0. Over the limit, or at a second signal:
an end that shows, in time, and others go on at once. Leases are long here: who waited for one to lapse would be seen.
"""

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgpack
import pytest

from harness.client import RawClient, ask, chat, connect, fresh
from harness.fixtures import StartProxy, all_ready
from harness.process import eventually, http_status
from harness.proxy import Proxy
from harness.redis import RedisServer
from harness.refusals import refused
from harness.stalls import lasted
from harness.wire import Response
from soloflight.testing.chat import CH, DONE, FIN, content
from soloflight.testing.received import Received
from soloflight.testing.script import Script, sse
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = [pytest.mark.redis, pytest.mark.beside]

STREAM = CH + FIN + DONE
LEASES = {"heartbeat": "1s", "pending_lease": "30s", "running_lease": "30s"}
SOON_S = 1.5


@pytest.fixture
def two(start_proxy: StartProxy, redis_server: RedisServer, upstream: ScriptedUpstream) -> list[Proxy]:
    """Two nodes of a fleet; the first one, which is stopped, has a second for its drain... unless a test says more."""
    return all_ready(
        start_proxy(
            {
                "server": {"drain_timeout": limit},
                "stage_defaults": {**LEASES, "session": "queue", "session_wait": "20s"},
            },
            upstream=upstream.port,
            backend="redis",
            redis_url=redis_server.url,
            ready=False,
        )
        for limit in ("20s", "1s")
    )


def left_behind(redis_server: RedisServer) -> list[bytes]:
    """Session locks that somebody holds or waits for, and flights that are held (PENDING, RUNNING)."""
    with redis_server.client(decode_responses=False) as client:
        found = [key for key in client.scan_iter("*:record") if client.hget(key, "state") in (b"P", b"R")]
        for key in client.scan_iter("*:session"):
            _, _, holder, queue = msgpack.unpackb(client.get(key))
            found += [key] if holder or queue else []
    return found


@asynccontextmanager
async def connections(*ports: int) -> AsyncIterator[list[RawClient]]:
    clients = [await RawClient.open(port) for port in ports]
    try:
        yield clients
    finally:
        for client in clients:
            client.close()


async def refuses(proxy: Proxy) -> bool:
    try:
        async with connect(proxy.port):
            return False
    except ConnectionRefusedError:
        return True


async def exits(proxy: Proxy, within_s: float) -> None:
    await eventually(lambda: proxy.exit_code is not None, within_s)
    assert proxy.exit_code == 0
    proxy.check_log()


async def test_running_streams_end_well_here_and_elsewhere(
    two: list[Proxy], redis_server: RedisServer, upstream: ScriptedUpstream
) -> None:
    goes, stays = two
    gate = asyncio.Event()
    running: Script = sse(CH, gate, FIN, DONE)
    upstream.play(running, running, running, sse(content("waiter"), FIN, DONE), sse(content("next"), FIN, DONE))
    session = "X-Soloflight-Session: s"
    jobs = [chat(fresh(), session), chat(fresh()), chat(fresh())]
    async with connections(*[goes.port] * 3, *[stays.port] * 3) as clients, connect(goes.port) as waiter:
        for client, job in zip(clients, jobs * 2, strict=True):
            await client.send(job)
            await client.read_events(1)
        await waiter.send(chat(fresh(), session))
        with pytest.raises(TimeoutError):
            await waiter.head(within_s=0.3)
        assert upstream.calls == 3
        await eventually(lambda: len(left_behind(redis_server)) == 5)  # three calls, the one that waits, and the lock

        goes.send(signal.SIGTERM)
        begun = time.monotonic()
        await eventually(lambda: http_status(f"{goes.admin}/readyz") == 503)
        assert lasted(begun) < 0.5
        assert http_status(f"{goes.admin}/livez") == 200
        async with asyncio.timeout(10):
            while not await refuses(goes):
                await asyncio.sleep(0.02)
        assert http_status(f"{stays.url}/_soloflight/health") == 200

        gate.set()
        answers = [await client.finish() for client in clients]
        assert (await waiter.finish()).body == content("waiter") + FIN + DONE
    assert [answer.body for answer in answers] == [STREAM] * 6
    assert [answer.complete for answer in answers] == [True] * 6
    assert [answer.role for answer in answers] == ["owner"] * 3 + ["follower"] * 3
    await exits(goes, 3)
    assert left_behind(redis_server) == []

    begun = time.monotonic()
    answer = await ask(stays.port, chat(fresh(), session))  # nobody waits for a lock to lapse
    assert lasted(begun) < SOON_S
    assert answer.body == content("next") + FIN + DONE


def told(answer: Response, code: str) -> None:
    """A stream that was cut: the bytes so far, one error event with this code, no end, a reset."""
    assert answer.body.startswith(CH)
    assert json.loads(answer.events[-1].data)["error"]["code"] == code
    assert b"[DONE]" not in answer.body
    assert (answer.ended, answer.last_chunk_seen) == ("rst", False)


@pytest.mark.parametrize("how", ["over the limit", "a second signal"])
async def test_what_is_left_is_cut_and_the_others_go_on_at_once(
    how: str, two: list[Proxy], redis_server: RedisServer, upstream: ScriptedUpstream
) -> None:
    goes, stays = (two[1], two[0]) if how == "over the limit" else two
    calls: dict[bytes, int] = {}

    def answers(received: Received) -> Script:
        calls[received.body] = calls.get(received.body, 0) + 1
        if calls[received.body] == 2:
            return sse(content("second"), FIN, DONE)
        return sse(CH, asyncio.Event()) if b'"seen"' in received.body else [asyncio.Event()]

    upstream.play(answers)
    seen, silent = chat(fresh(user="seen"), "X-Soloflight-Session: s"), chat(fresh())
    async with connections(goes.port, stays.port, goes.port, stays.port) as (a, b, c, d):
        for client in (a, b):
            await client.send(seen)
            await client.read_events(1)
        for client in (c, d):
            await client.send(silent)
            await upstream.wait_calls(2)
        await eventually(lambda: len(left_behind(redis_server)) == 3)

        goes.send(signal.SIGTERM)
        begun = time.monotonic()
        if how == "a second signal":
            await asyncio.sleep(1.1)
            assert goes.exit_code is None
            goes.send(signal.SIGTERM)
        told(await a.finish(), "draining")  # the owner's own client
        told(await b.finish(), "owner_lost")  # has bytes of the lost call: never joined with another's
        mine, theirs = await c.finish(), await d.finish()
        assert refused(mine) == (503, "draining")
        assert mine.get("Retry-After") == "1"
        assert (theirs.status, theirs.body) == (200, content("second") + FIN + DONE)  # had none: takes over
        assert lasted(begun) < 1.1 + SOON_S
    await exits(goes, 3)
    assert sorted(calls.values()) == [1, 2]
    assert left_behind(redis_server) == []

    again = await ask(stays.port, seen)  # the key is free at once, the session too
    assert (again.role, again.body) == ("owner", content("second") + FIN + DONE)
