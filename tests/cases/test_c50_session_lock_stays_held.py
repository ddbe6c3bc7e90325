"""C50: a session's lock stays held after a disconnect, a crash or a stop.

Source: radixark/miles#870, chenhg5/cc-connect#1830, openclaw/openclaw#3030, Agenta-AI/agenta#6417.
Right: (a) who works for nobody gives way, and the next one starts within a second of its upstream call being stopped;
(b) a killed holder is free within its lease; (c) a waiter that is gone blocks nobody; (d) sessions do not concern each
other, and theirs wait in the order of their arrival; (e) an id is one name, whatever is in it. Who waits too long gets a
409 with Retry-After. Lock keys in Redis all have an end of their own.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from harness.client import RawClient, ask, chat, connect, fresh
from harness.process import eventually
from harness.proxy import merged
from harness.refusals import refused
from harness.site import BACKENDS, Site, open_site
from harness.stalls import lasted
from soloflight.testing.chat import CH, DONE, FIN
from soloflight.testing.received import Received
from soloflight.testing.script import HANG, Script, sse
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

LEASE_S, WAIT_S, SOON_S = 1.0, 1.5, 1.0
CONFIG = {
    "coordination": {"command_timeout": "5s"},
    "stage_defaults": {"heartbeat": "200ms", "pending_lease": "20s", "running_lease": "20s", "session": "queue"},
    "stage": [{"name": "long", "session_wait": "10s"}, {"name": "short", "session_wait": f"{int(WAIT_S * 1000)}ms"}],
}
BRIEF = merged(CONFIG, {"stage_defaults": {"pending_lease": LEASE_S, "running_lease": LEASE_S}})
"""For the one that waits for a lapse."""
ROUTES = ["/v1/chat/completions", "/v1/extract"]
every_route = pytest.mark.parametrize("target", ROUTES, ids=["shared", "lone"])


@pytest.fixture(scope="module", params=BACKENDS)
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, upstream_port: int
) -> Iterator[Site]:
    """A proxy with the memory backend; two at one Redis."""
    with ExitStack() as stack:
        yield open_site(request.param, tmp_path_factory.mktemp("site"), upstream_port, CONFIG, stack)


@pytest.fixture
def session() -> str:
    """An id that no other test has."""
    return str(fresh()["messages"][0]["content"])


def job(session: str | bytes, target: str = ROUTES[0], stage: str = "long", key: str = "k1") -> bytes:
    named = b"X-Soloflight-Session: " + (session.encode() if isinstance(session, str) else session)
    return chat(fresh(), f"X-Soloflight-Stage: {stage}", named, target=target, key=key)


async def holds(client: RawClient, upstream: ScriptedUpstream, raw: bytes) -> None:
    """``client`` has the first event of its answer."""
    calls = upstream.calls
    await client.send(raw)
    await upstream.wait_calls(calls + 1)
    await client.read_events(1)


RUNS = sse(CH, HANG, last=False)
WHOLE = sse(CH, FIN, DONE)


@every_route
async def test_a_its_client_leaves(target: str, site: Site, session: str, upstream: ScriptedUpstream) -> None:
    upstream.play(RUNS, WHOLE)
    async with connect(site.other.port) as second:
        async with connect(site.one.port) as first:
            await holds(first, upstream, job(session, target))
            await second.send(job(session, target))
            await site.settle(site.other)
            assert upstream.calls == 1
        assert (await second.finish()).complete
    stopped = upstream.requests[0].left_at
    assert stopped is not None
    assert lasted(stopped, upstream.requests[1].arrived_at) < SOON_S


@pytest.mark.redis
@every_route
async def test_b_its_process_is_killed(
    target: str, session: str, tmp_path: Path, upstream_port: int, upstream: ScriptedUpstream
) -> None:
    upstream.play(RUNS, WHOLE)
    with ExitStack() as stack:
        site = open_site("redis", tmp_path, upstream_port, BRIEF, ExitStack())
        assert site.redis is not None
        stack.callback(site.redis.stop)
        stack.callback(site.other.stop)
        stack.callback(site.one.kill)
        async with connect(site.one.port) as first, connect(site.other.port) as second:
            await holds(first, upstream, job(session, target))
            await second.send(job(session, target))
            await site.settle(site.other)
            site.one.kill()
            killed_at = time.monotonic()
            assert (await second.finish()).complete
        assert lasted(killed_at, upstream.requests[1].arrived_at) < LEASE_S + SOON_S
        assert site.locks(), "and each of them has an end of its own"


@every_route
async def test_c_who_waits_leaves(target: str, site: Site, session: str, upstream: ScriptedUpstream) -> None:
    gate = asyncio.Event()
    upstream.play(sse(CH, gate, FIN, DONE), WHOLE)
    async with connect(site.one.port) as first, connect(site.one.port) as third:
        await holds(first, upstream, job(session, target))
        async with connect(site.other.port) as second:
            await second.send(job(session, target))
            await site.settle(site.other)
        await third.send(job(session, target))
        await site.settle(site.one)
        freed_at = time.monotonic()
        gate.set()
        assert (await first.finish()).complete
        assert (await third.finish()).complete
    assert upstream.calls == 2
    assert lasted(freed_at, upstream.requests[1].arrived_at) < SOON_S


@every_route
async def test_d_sessions_do_not_concern_each_other(
    target: str, site: Site, session: str, upstream: ScriptedUpstream
) -> None:
    """Two sessions with three jobs each: never two at a time, each in the order of arrival, both at once."""
    running: dict[bytes, int] = {}
    most: dict[bytes, int] = {}
    gate = asyncio.Event()

    async def answer(received: Received) -> None:
        name = received.field(b"x-of")
        running[name] = running.get(name, 0) + 1
        most[name] = max(most.get(name, 0), running[name])

    async def ended(received: Received) -> None:
        running[received.field(b"x-of")] -= 1

    def play(received: Received) -> Script:
        return [
            lambda _: answer(received),
            *sse(CH, gate, FIN, DONE)[:-1],
            lambda _: ended(received),
            sse(CH, FIN, DONE)[-1],
        ]

    upstream.play(play)
    asking = []
    for number in range(3):
        for of in ("a", "b"):
            raw = job(f"{session} {of}", target).replace(
                b"\r\n", f"\r\nX-Of: {of}\r\nX-Place: {number}\r\n".encode(), 1
            )
            node = site.nodes[number % len(site.nodes)]
            asking.append(asyncio.create_task(ask(node.port, raw)))
            if number == 0:
                await upstream.wait_calls(1 if of == "a" else 2)
            else:
                await queued(site, 2 * number - (of == "a"))
    assert running == {b"a": 1, b"b": 1}
    gate.set()
    assert all([(await task).complete for task in asking])
    assert most == {b"a": 1, b"b": 1}
    for of in (b"a", b"b"):
        places = [r.field(b"x-place") for r in upstream.requests if r.field(b"x-of") == of]
        assert places == [b"0", b"1", b"2"]


async def queued(site: Site, count: int) -> None:
    """So many wait in all."""
    if site.redis is not None:
        await eventually(lambda: sum(len(queue) for _, queue in site.locks().values()) == count)
    else:
        await site.settle(site.one)


@every_route
async def test_e_an_id_is_one_name(target: str, site: Site, upstream: ScriptedUpstream) -> None:
    gate = asyncio.Event()
    upstream.play(lambda _: sse(CH, gate, FIN, DONE))
    ids = [
        (b"a:b", "k"),
        (b"a", "k"),
        (b"b", "k"),
        (b"a:b", "k:a"),
        (b"a:b:k", "k"),
        (b"\xe4:\xff", "k"),
        (b"a\tb", "k"),
    ]
    asking = [
        asyncio.create_task(ask(site.nodes[n % len(site.nodes)].port, job(id_, target, key=key)))
        for n, (id_, key) in enumerate(ids)
    ]
    await upstream.wait_calls(len(ids))
    gate.set()
    assert all([(await task).complete for task in asking])


@every_route
async def test_a_wait_that_is_too_long(target: str, site: Site, session: str, upstream: ScriptedUpstream) -> None:
    upstream.play(RUNS, WHOLE)
    async with connect(site.one.port) as first:
        await holds(first, upstream, job(session, target, "short"))
        asked_at = time.monotonic()
        answer = await ask(site.other.port, job(session, target, "short"))
        assert refused(answer) == (409, "session_busy")
        assert int(answer.get("Retry-After") or 0) >= 1
        assert time.monotonic() - asked_at > WAIT_S * 0.9
        assert lasted(asked_at) < WAIT_S + SOON_S
    assert upstream.calls == 1
    assert (await ask(site.one.port, job(session, target, "short"))).complete
