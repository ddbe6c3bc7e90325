"""C56: a pub/sub wake-up is lost.

Source: blehnen/DotNetWorkQueue#331, vercel/resumable-stream#41, sonic-net/sonic-py-swsssdk#13, serverpod/serverpod#5682.
Right: pub/sub promises nothing. Whoever has subscribed looks once more; a reconnection is a reason to look; the lease is the
last date to look at; and no wait for a confirmation is without bound.
"""

import asyncio
import random
import time
from collections.abc import Iterator

import pytest

from fleet.nodes import Fleet
from harness.client import ask, chat, connect, fresh, settle
from harness.process import eventually
from harness.stalls import lasted
from soloflight.testing.chat import CH, DONE, FIN
from soloflight.testing.script import sse
from soloflight.testing.upstream import ScriptedUpstream

LEASE_S = 1.5
ANSWER = CH + FIN + DONE
# The longest that an end may go unnoticed: the next look is due within a lease and a tenth of it.
BOUND_S = 1.1 * LEASE_S + 0.5
RUNS = 500
pytestmark = [pytest.mark.redis, pytest.mark.beside]


@pytest.fixture(scope="module")
def fleet_process(tmp_path_factory: pytest.TempPathFactory, upstream_port: int) -> Iterator[Fleet]:
    config = {"stage_defaults": {"pending_lease": LEASE_S, "running_lease": LEASE_S}}
    fleet = Fleet(tmp_path_factory.mktemp("fleet"), upstream_port, config=config)
    yield fleet
    fleet.close()


@pytest.fixture
def fleet(fleet_process: Fleet) -> Iterator[Fleet]:
    """Two nodes, each with its own way to Redis."""
    yield fleet_process
    fleet_process.mend()


@pytest.mark.parametrize(("what", "times"), [("mute", 3), ("cut for 300 ms", 10)])
async def test_at_the_moment_of_the_end(what: str, times: int, fleet: Fleet, upstream: ScriptedUpstream) -> None:
    """The subscription is half-open when the end is told, or it is cut and nothing of Redis can be reached for a while."""
    a, b = fleet.nodes
    for number in range(1, times + 1):
        gate = asyncio.Event()
        upstream.play([gate, *sse(CH, FIN, DONE)])
        body = chat(fresh())
        async with connect(a.port) as owner, connect(b.port) as follower:
            await owner.send(body)
            await upstream.wait_calls(number)
            await follower.send(body)
            await eventually(lambda: len(fleet.channels()) == 1)
            await settle(b.port)
            if what == "mute":
                assert b.way.mute() == 1
            else:
                b.way.close()
                asyncio.get_running_loop().call_later(0.3, b.way.heal)
            gate.set()
            await owner.finish()
            ended_at = time.monotonic()
            answer = await follower.finish()
        assert (answer.body, answer.complete, upstream.calls) == (ANSWER, True, number)
        assert lasted(ended_at) < BOUND_S
        await eventually(lambda: b.degraded is None and not fleet.channels())


async def test_pub_sub_is_killed_all_the_time(fleet: Fleet, upstream: ScriptedUpstream) -> None:
    """500 runs, CLIENT KILL TYPE pubsub every 20 ms: none hangs, none waits longer than to the next look."""
    upstream.play(lambda received: sse(CH, 0.01, FIN, DONE))
    ended = asyncio.Event()
    chance = random.Random(1)
    lags: list[float] = []

    async def kill() -> None:
        while not ended.is_set():
            await asyncio.to_thread(fleet.command, "CLIENT", "KILL", "TYPE", "pubsub")
            await asyncio.sleep(0.02)

    async def one() -> None:
        body = chat(fresh())
        ends: list[float] = []

        async def get(port: int, after_s: float) -> None:
            await asyncio.sleep(after_s)
            answer = await ask(port, body)
            ends.append(time.monotonic())
            assert (answer.status, answer.body, answer.complete) == (200, ANSWER, True)

        a, b = fleet.nodes
        await asyncio.gather(get(a.port, 0), get(b.port, chance.random() * 0.02))
        lags.append(lasted(min(ends), max(ends)))

    killing = asyncio.create_task(kill())
    for _ in range(RUNS // 20):
        await asyncio.gather(*(one() for _ in range(20)))
    ended.set()
    await killing
    print(f"\nlost wake-ups: {len(lags)} runs, the later answer at most {max(lags) * 1e3:.0f} ms behind the other")
    assert max(lags) < BOUND_S
    assert upstream.calls == RUNS


async def test_a_slow_confirmation(fleet: Fleet, upstream: ScriptedUpstream) -> None:
    """Claim and SUBSCRIBE take 100 ms each, and the end comes between them."""
    upstream.play(sse(CH, 0.15, FIN, DONE))
    body = chat(fresh())
    a, b = fleet.nodes
    async with connect(a.port) as owner, connect(b.port) as follower:
        await owner.send(body)
        await owner.read_events(1)
        b.way.delay(0.1)
        await follower.send(body)
        await owner.finish()
        ended_at = time.monotonic()
        answer = await follower.finish()
    assert (answer.body, answer.complete, upstream.calls) == (ANSWER, True, 1)
    assert lasted(ended_at) < BOUND_S


async def test_a_confirmation_that_never_comes(fleet: Fleet, upstream: ScriptedUpstream) -> None:
    """Commands are answered, SUBSCRIBE is not: no request waits for that longer than a command's bound, and none fails."""
    upstream.play(lambda received: sse(CH, 0.6, FIN, DONE))
    body = chat(fresh())
    a, b = fleet.nodes
    async with connect(a.port) as owner, connect(b.port) as follower:
        await owner.send(body)
        await owner.read_events(1)
        assert b.way.mute() == 1
        begun = time.monotonic()
        await follower.send(body)
        answer = await follower.finish()
        assert (answer.status, answer.body, answer.complete) == (200, ANSWER, True)
        assert lasted(begun) < 2 * BOUND_S
        await owner.finish()
    assert upstream.calls <= 2
