"""The bulkhead of a stage: so many upstream calls at once in one process, a queue behind them, and no stage delays another."""

import asyncio
import signal
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import pytest

from governance.jobs import CUT, FAILED, JOB, LONE, SHARED, WAYS, Way, job
from governance.stages import QUEUE_WAIT_S
from harness import toml
from harness.client import ask, connect, fresh, settle
from harness.proxy import Proxy
from harness.refusals import refused
from harness.site import BACKENDS, Site, open_site
from harness.stalls import lasted
from soloflight.testing.received import Received
from soloflight.testing.script import CLOSE, RESET, Answer, Script, sse
from soloflight.testing.upstream import ScriptedUpstream

SATURATED = (503, "saturated")
SOON_S = 1.0
"""Nobody waits for the flood, nor for a queue's end."""
every_way = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)


@every_way
async def test_one_more_waits_and_is_sent_away(way: Way, site: Site, upstream: ScriptedUpstream) -> None:
    """Whichever way either goes: lone calls count, too."""
    gate = asyncio.Event()
    upstream.play(way.answer(gate))
    async with connect(site.one.port) as first:
        await first.send(way.job("narrow", None))
        await upstream.wait_calls(1)
        asked = time.monotonic()
        answers = await asyncio.gather(*(ask(site.one.port, other.job("narrow", None)) for other in WAYS))
        assert time.monotonic() - asked > QUEUE_WAIT_S * 0.9
        assert lasted(asked) < QUEUE_WAIT_S + SOON_S
        for answer in answers:
            assert refused(answer) == SATURATED
            assert int(answer.get("Retry-After") or 0) >= 1
        assert upstream.calls == 1
        gate.set()
        assert (await first.finish()).complete
    upstream.play(JOB)
    assert (await ask(site.one.port, way.job("narrow", None))).status == 200


async def test_it_is_one_process_own(site: Site, upstream: ScriptedUpstream) -> None:
    gate = asyncio.Event()
    upstream.play(lambda _: [gate, JOB])
    asking = [asyncio.create_task(ask(node.port, job("narrow"))) for node in site.nodes]
    await upstream.wait_calls(len(site.nodes))
    gate.set()
    assert [(await task).status for task in asking] == [200] * len(site.nodes)


async def test_a_flood_delays_no_other_stage(site: Site, upstream: ScriptedUpstream) -> None:
    gate = asyncio.Event()
    flood = b"x-flood"

    def answer(received: Received) -> Script:
        return [gate, JOB] if received.field(flood) else JOB

    upstream.play(answer)
    async with AsyncExitStack() as stack:
        crowd = []
        for number in range(60):
            client = await stack.enter_async_context(connect(site.one.port))
            await client.send(job("patient", None, "X-Flood: 1", target=(SHARED, LONE)[number % 2]))
            crowd.append(client)
        await upstream.wait_calls(2)
        await site.settle(site.one)
        for stage in ("", "narrow", "reject"):
            for way in WAYS:
                asked = time.monotonic()
                assert (await ask(site.one.port, way.job(stage, None))).status == 200
                assert lasted(asked) < SOON_S
        assert sum(bool(received.field(flood)) for received in upstream.requests) == 2
        gate.set()
        assert [(await client.finish()).status for client in crowd] == [200] * 60


async def test_first_come_first_served(site: Site, upstream: ScriptedUpstream) -> None:
    """And never more than the stage has at once."""
    running = most = 0
    order = []

    async def begin(_: object) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)

    async def end(_: object) -> None:
        nonlocal running
        running -= 1

    def answer(received: Received) -> Script:
        order.append(int(received.field(b"x-place")))
        return [begin, 0.01, end, JOB]

    upstream.play(answer)
    async with AsyncExitStack() as stack:
        clients = []
        for place in range(12):
            client = await stack.enter_async_context(connect(site.one.port))
            await client.send(job("patient", None, f"X-Place: {place}", target=(SHARED, LONE)[place % 2]))
            await site.settle(site.one)
            clients.append(client)
        assert [(await client.finish()).status for client in clients] == [200] * 12
    assert sorted(order) == list(range(12))
    assert [abs(place - at) <= 1 for at, place in enumerate(order)] == [True] * 12
    assert most == 2


async def test_followers_and_replays_need_no_place(site: Site, upstream: ScriptedUpstream) -> None:
    gate = asyncio.Event()
    upstream.play(JOB, [gate, JOB])
    kept, running = fresh(stream=False), fresh(stream=False)
    await ask(site.one.port, job("narrow", body=kept))
    async with AsyncExitStack() as stack:
        clients = []
        for node in (site.one, site.one, site.other):
            client = await stack.enter_async_context(connect(node.port))
            await client.send(job("narrow", body=running))
            await upstream.wait_calls(2)
            clients.append(client)
        for node in site.nodes:
            await site.settle(node)
            assert (await ask(node.port, job("narrow", body=kept))).role == "replay"
        gate.set()
        assert [(await client.finish()).role for client in clients] == ["owner", "follower", "follower"]
    assert upstream.calls == 2


ENDS: dict[str, Answer] = {
    "an error": FAILED,
    "no answer": [CLOSE],
    "cut in the body": [CUT, 0.02, RESET],
    "cut in the stream": sse(b"data: x\n\n", CLOSE, last=False),
}


@every_way
@pytest.mark.parametrize("end", ENDS)
async def test_a_place_is_given_back_however_the_call_ends(
    end: str, way: Way, site: Site, upstream: ScriptedUpstream
) -> None:
    upstream.play(ENDS[end], JOB)
    await ask(site.one.port, way.job("narrow", None))
    asked = time.monotonic()
    assert (await ask(site.one.port, way.job("narrow", None))).status == 200
    assert lasted(asked) < SOON_S


@every_way
@pytest.mark.parametrize("how", ["reset", "close"])
async def test_the_wait_ends_with_its_last_listener(how: str, way: Way, site: Site, upstream: ScriptedUpstream) -> None:
    """Who left makes no call, and the next one of the queue moves up."""
    gate = asyncio.Event()
    upstream.play(lambda received: [gate, JOB] if received.number <= 2 else JOB)
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connect(site.one.port)) for _ in range(4)]
        for number, client in enumerate(clients):
            await client.send(way.job("patient", None, f"X-Place: {number}"))
            await upstream.wait_calls(min(number + 1, 2))
        await site.settle(site.one)
        getattr(clients[2], how)()
        await site.settle(site.one)
        gate.set()
        for client in (clients[0], clients[1], clients[3]):
            assert (await client.finish()).status == 200
    assert [received.field(b"x-place") for received in upstream.requests] == [b"0", b"1", b"3"]


async def test_a_follower_keeps_the_wait_alive(site: Site, upstream: ScriptedUpstream) -> None:
    """The one that began it leaves; whoever has joined, here or on the other node, has the answer."""
    gate = asyncio.Event()
    upstream.play([gate, JOB], [gate, JOB], JOB)
    body = fresh(stream=False)
    async with AsyncExitStack() as stack:
        for _ in range(2):
            busy = await stack.enter_async_context(connect(site.one.port))
            await busy.send(job("patient"))
        await upstream.wait_calls(2)
        async with connect(site.one.port) as first, connect(site.other.port) as second:
            await first.send(job("patient", body=body))
            await site.settle(site.one)
            await second.send(job("patient", body=body))
            await site.settle(site.other)
            first.reset()
            await site.settle(site.one)
            gate.set()
            assert (await second.finish()).status == 200
    assert upstream.calls == 3


async def test_a_full_process_keeps_no_other_from_the_call(site: Site, upstream: ScriptedUpstream) -> None:
    """The owner's process has no place, the follower's has: it does not inherit the refusal (and need not wait for it)."""
    gate = asyncio.Event()
    upstream.play([gate, JOB], JOB)
    body = fresh(stream=False)
    async with connect(site.one.port) as busy, connect(site.one.port) as first, connect(site.other.port) as second:
        await busy.send(job("narrow"))
        await upstream.wait_calls(1)
        await first.send(job("narrow", body=body))
        await site.settle(site.one)
        await second.send(job("narrow", body=body))
        if site.fleet:
            assert (await second.finish()).status == 200
            assert (await first.finish()).status in (200, 503)
        else:
            assert refused(await second.finish()) == SATURATED
        gate.set()
        await busy.finish()


async def test_who_waits_for_a_session_holds_no_place(site: Site, upstream: ScriptedUpstream) -> None:
    """Flight, session, place, in this order: a job that waits for its session is passed by another session's."""
    gates = [asyncio.Event() for _ in range(3)]
    order = []

    def answer(received: Received) -> Script:
        order.append(received.field(b"x-name").decode())
        return [gates[len(order) - 1], JOB]

    upstream.play(answer)
    async with AsyncExitStack() as stack:
        clients = []
        for name, session in (("a", "1"), ("b", "1"), ("c", "2")):
            client = await stack.enter_async_context(connect(site.one.port))
            await client.send(job("both", session, f"X-Name: {name}"))
            await (upstream.wait_calls(1) if name == "a" else site.settle(site.one))
            clients.append(client)
        for number, gate in enumerate(gates):
            await upstream.wait_calls(number + 1)
            gate.set()
        assert [(await client.finish()).status for client in clients] == [200] * 3
    assert order == ["a", "c", "b"]


# ── a reload ────────────────────────────────────────────────────────────────────────────────────────────────────────


def config(limit: int) -> dict[str, Any]:
    stage = {"name": "limited", "max_upstream": limit, "queue_wait": "8s"}
    return {"server": {"drain_timeout": "2s"}, "stage": [stage]}


@pytest.fixture(params=BACKENDS)
def limited(request: pytest.FixtureRequest, tmp_path: Path, upstream_port: int) -> Iterator[Proxy]:
    """A proxy whose stage "limited" has one place."""
    with ExitStack() as stack:
        yield open_site(request.param, tmp_path, upstream_port, config(1), stack, size=1).one


def reload(proxy: Proxy, limit: int) -> None:
    """Have the proxy read another limit."""
    count = proxy.log.count("configuration reloaded")
    proxy.config_file.write_text(toml.dump(config(limit)))
    proxy.send(signal.SIGHUP)
    proxy.wait_log(rf"(?s)(configuration reloaded.*){{{count + 1}}}")


async def test_a_reload_changes_the_limit(limited: Proxy, upstream: ScriptedUpstream) -> None:
    """A higher one lets those through who wait; a lower one counts those that run already; none at all holds nobody."""
    gates = [asyncio.Event() for _ in range(12)]
    upstream.play(lambda received: [gates[received.number - 1], JOB])
    async with AsyncExitStack() as stack:

        async def send(count: int) -> None:
            for number in range(count):
                client = await stack.enter_async_context(connect(limited.port))
                await client.send(job("limited", target=(SHARED, LONE)[number % 2]))
            await settle(limited.port)

        async def calls(count: int) -> None:
            await upstream.wait_calls(count)
            await settle(limited.port)
            assert upstream.calls == count

        await send(4)
        await calls(1)
        reload(limited, 3)
        await calls(3)
        await send(1)
        await calls(3)
        gates[0].set()
        await calls(4)
        reload(limited, 1)
        for gate in gates[1:3]:
            gate.set()
        await settle(limited.port)
        await calls(4)
        gates[3].set()
        await calls(5)
        await send(3)
        await calls(5)
        reload(limited, 0)
        await calls(8)
        for gate in gates:
            gate.set()
