"""The lock is given back on every path: whatever ends a job, the next one starts soon."""

import asyncio
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from governance.jobs import CUT, FAILED, JOB, WAYS, Way, job
from governance.stages import BRIEF, BRIEF_LEASE_S, CONFIG
from harness.client import RawClient, ask, connect, request
from harness.process import eventually
from harness.proxy import merged
from harness.refusals import refused
from harness.site import BACKENDS, Site, open_site
from harness.stalls import lasted
from soloflight.testing.script import CLOSE, HANG, RESET, Answer, sse
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

SOON_S = 1.0
"""Case C50: the next one starts within a second of the upstream being stopped."""
every_way = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)

ENDS: dict[str, Answer] = {
    "an error": FAILED,
    "a broken head": [b"nonsense\r\n\r\n", CLOSE],
    "no answer": [CLOSE],
    "cut in the body": [CUT, 0.02, CLOSE],
    "reset in the body": [CUT, 0.02, RESET],
    "cut in the stream": sse(b"data: x\n\n", CLOSE, last=False),
    "silent": [HANG],
    "silent in the middle": [CUT, HANG],
}


@every_way
@pytest.mark.parametrize("end", ENDS)
async def test_however_the_upstream_ends(end: str, way: Way, site: Site, upstream: ScriptedUpstream) -> None:
    upstream.play(ENDS[end], JOB)
    await ask(site.one.port, way.job("slow", f"{end} {way.name}"))
    asked = time.monotonic()
    assert (await ask(site.other.port, way.job("slow", f"{end} {way.name}"))).status == 200
    assert lasted(asked) < SOON_S
    assert upstream.calls == 2


@every_way
async def test_an_upstream_that_can_not_be_reached(way: Way, site: Site, upstream: ScriptedUpstream) -> None:
    await upstream.stop()
    assert refused(await ask(site.one.port, way.job("slow", "nobody")))[1] == "upstream_unreachable"
    await upstream.start()
    upstream.play(JOB)
    assert (await ask(site.other.port, way.job("slow", "nobody"))).status == 200


# ── its client leaves ───────────────────────────────────────────────────────────────────────────────────────────────


@every_way
@pytest.mark.parametrize("stage", ["reject", "queue"])
async def test_a_newcomer_stops_what_nobody_listens_to(
    stage: str, way: Way, site: Site, upstream: ScriptedUpstream
) -> None:
    """The stage would finish it (10 s); the newcomer does not wait for that, and is not refused."""
    upstream.play(way.answer(end=(HANG,)), JOB)
    session = f"newcomer {way.name}"
    async with connect(site.one.port) as leaver:
        await leaver.send(way.job(stage, session))
        await upstream.wait_calls(1)
        if way.stream:
            await leaver.read_events(1)
    asked = time.monotonic()
    answer = await ask(site.other.port, way.job(stage, session))
    assert answer.status == 200
    first, second = upstream.requests
    await upstream.wait_until(lambda: first.left is not None)
    assert first.left_at is not None
    assert lasted(first.left_at, second.arrived_at) < SOON_S
    assert lasted(asked, second.arrived_at) < SOON_S


async def test_what_is_listened_to_elsewhere_is_not_stopped(site: Site, upstream: ScriptedUpstream) -> None:
    """The owner's client is gone, a follower on the other node is there: it works for somebody."""
    gate = asyncio.Event()
    way = WAYS[1]
    upstream.play(way.answer(gate))
    asked = way.job("reject", "watched")
    async with connect(site.other.port) as follower:
        async with connect(site.one.port) as leaver:
            await leaver.send(asked)
            await leaver.read_events(1)
            await follower.send(asked)
            await follower.read_events(1)
        for node in site.nodes:
            assert refused(await ask(node.port, way.job("reject", "watched"))) == (409, "session_busy")
        gate.set()
        assert (await follower.finish()).complete
    assert upstream.calls == 1


@every_way
async def test_by_the_stages_own_policy(way: Way, site: Site, upstream: ScriptedUpstream) -> None:
    """``on_abandon = "cancel"``: 200 ms behind its last listener the job is ended, and nobody had to ask."""
    upstream.play(way.answer(end=(HANG,)), JOB)
    async with connect(site.one.port) as leaver:
        await leaver.send(way.job("gone", "policy"))
        await upstream.wait_calls(1)
    await upstream.wait_until(lambda: upstream.requests[0].left is not None)
    left_at = upstream.requests[0].left_at
    assert left_at is not None
    assert (await ask(site.other.port, way.job("gone", "policy"))).status == 200
    assert lasted(left_at, upstream.requests[1].arrived_at) < SOON_S


@every_way
@pytest.mark.parametrize("how", ["reset", "close"])
async def test_who_waits_and_leaves_does_not_block(how: str, way: Way, site: Site, upstream: ScriptedUpstream) -> None:
    gate = asyncio.Event()
    upstream.play(way.answer(gate), JOB)
    session = f"waiter {how} {way.name}"
    async with connect(site.one.port) as holder, connect(site.one.port) as third:
        await holder.send(way.job("queue", session))
        await upstream.wait_calls(1)
        async with connect(site.other.port) as leaver:
            await leaver.send(way.job("queue", session))
            await site.settle(site.other)
            if how == "reset":
                leaver.reset()
        await third.send(way.job("queue", session))
        await site.settle(site.one)
        assert upstream.calls == 1
        freed = time.monotonic()
        gate.set()
        assert (await holder.finish()).complete
        assert (await third.finish()).status == 200
    assert upstream.calls == 2, "the one who left made no call"
    assert lasted(freed, upstream.requests[1].arrived_at) < SOON_S


@pytest.mark.parametrize("how", ["reset", "close"])
async def test_a_large_upload_that_waits_and_is_given_up(how: str, site: Site, upstream: ScriptedUpstream) -> None:
    """More than is read of it before its turn, so that its client's leaving may not show before: nobody waits for it then."""
    gate = asyncio.Event()
    upstream.play([gate, JOB], JOB)
    session = f"upload {how}"
    async with connect(site.one.port) as holder, connect(site.one.port) as third:
        await holder.send(job("queue", session))
        await upstream.wait_calls(1)
        leaver = await RawClient.open(site.other.port)
        sending = asyncio.create_task(leaver.send(upload("queue", session, 20_000_000)))
        await site.settle(site.other)
        sending.cancel()
        await asyncio.wait([sending])
        getattr(leaver, how)()
        await third.send(job("queue", session))
        await site.settle(site.one)
        assert upstream.calls == 1
        freed = time.monotonic()
        gate.set()
        assert (await holder.finish()).status == 200
        assert (await third.finish()).status == 200
        assert lasted(freed) < SOON_S
    begun = [received.body_complete for received in upstream.requests]
    assert begun in ([True, True], [True, False, True]), "what had come of it may have been begun, and was broken off"


def upload(stage: str, session: str, size: int) -> bytes:
    """A form for a route that is not shared."""
    fields = ("Content-Type: multipart/form-data; boundary=b", "Authorization: Bearer k1")
    named = (f"X-Soloflight-Stage: {stage}", f"X-Soloflight-Session: {session}")
    part = b'--b\r\nContent-Disposition: form-data; name="file"; filename="cv.pdf"\r\n\r\n'
    return request("POST", "/v1/files", *fields, *named, body=part + b"x" * size + b"\r\n--b--\r\n")


# ── its process ends ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(params=BACKENDS)
def own_site(request: pytest.FixtureRequest, tmp_path: Path, upstream_port: int) -> Iterator[Site]:
    """A site that a test may break."""
    with ExitStack() as stack:
        config = merged(CONFIG, {"server": {"drain_timeout": "300ms"}})
        yield open_site(request.param, tmp_path, upstream_port, config, stack)


@every_way
async def test_a_drain_gives_it_back(way: Way, own_site: Site, upstream: ScriptedUpstream) -> None:
    """What runs past ``drain_timeout`` is cut, and its session is free at once; who waited there is told to come again."""
    upstream.play(way.answer(end=(HANG,)), JOB)
    site = own_site
    async with connect(site.one.port) as holder, connect(site.one.port) as waiter:
        await holder.send(way.job("queue", "drained"))
        await upstream.wait_calls(1)
        await waiter.send(way.job("queue", "drained"))
        await site.settle(site.one)
        site.one.send(signal.SIGTERM)
        await holder.finish()
        assert not holder.response.complete or holder.response.status == 503
        await waiter.finish()
        assert not waiter.response.complete or waiter.response.status == 503
        await eventually(lambda: site.one.exit_code is not None)
    assert site.one.exit_code == 0
    assert not site.locked()
    if site.fleet:
        asked = time.monotonic()
        assert (await ask(site.other.port, way.job("queue", "drained"))).status == 200
        assert lasted(asked, upstream.requests[-1].arrived_at) < SOON_S / 2
    assert upstream.calls == 1 + site.fleet


@pytest.fixture
def fragile(tmp_path: Path, upstream_port: int) -> Iterator[Site]:
    """Two nodes, of which one will be killed."""
    with ExitStack() as stack:
        site = open_site("redis", tmp_path, upstream_port, BRIEF, ExitStack())
        stack.callback(site.redis.stop)  # type: ignore[union-attr]
        stack.callback(site.other.stop)
        stack.callback(site.one.kill)
        yield site


@pytest.mark.parametrize("way", [WAYS[1], WAYS[2]], ids=lambda way: way.name)
async def test_a_killed_holder_is_free_within_its_lease(way: Way, fragile: Site, upstream: ScriptedUpstream) -> None:
    """``kill -9``: also for who waited before."""
    upstream.play(way.answer(end=(HANG,)), JOB)
    async with connect(fragile.one.port) as holder, connect(fragile.other.port) as waiter:
        await holder.send(way.job("queue", "killed"))
        await upstream.wait_calls(1)
        await waiter.send(way.job("queue", "killed"))
        await eventually(lambda: any(queue for _, queue in fragile.locks().values()))
        fragile.one.kill()
        killed_at = time.monotonic()
        assert (await waiter.finish()).status == 200
    assert lasted(killed_at, upstream.requests[1].arrived_at) < BRIEF_LEASE_S + SOON_S
    assert upstream.calls == 2


async def test_a_killed_waiter_blocks_nobody(fragile: Site, upstream: ScriptedUpstream) -> None:
    """The first of the queue dies with its process: the one behind it has its turn when the dead one's ticket is over."""
    gate = asyncio.Event()
    upstream.play([gate, JOB], JOB)
    async with (
        connect(fragile.other.port) as holder,
        connect(fragile.one.port) as dying,
        connect(fragile.other.port) as third,
    ):
        await holder.send(job("queue", "dead"))
        await upstream.wait_calls(1)
        await dying.send(job("queue", "dead"))
        await eventually(lambda: any(len(queue) == 1 for _, queue in fragile.locks().values()))
        await third.send(job("queue", "dead"))
        await eventually(lambda: any(len(queue) == 2 for _, queue in fragile.locks().values()))
        fragile.one.kill()
        killed_at = time.monotonic()
        gate.set()
        assert (await third.finish()).status == 200
        assert (await holder.finish()).status == 200
    assert lasted(killed_at, upstream.requests[1].arrived_at) < BRIEF_LEASE_S + SOON_S
    assert upstream.calls == 2
