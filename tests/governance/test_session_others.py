"""A session's queue and its refusals are its own: an equal request of another session inherits neither."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from governance.jobs import JOB, job
from governance.stages import BRIEF_WAIT_S
from harness.client import RawClient, ask, connect, fresh, settle
from harness.refusals import refused
from harness.site import Site
from harness.stalls import lasted
from soloflight.testing.received import Received
from soloflight.testing.script import Script
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

SOON_S = 0.8
UNREACHABLE = (502, "upstream_unreachable")


class Jobs:
    """Jobs that hold a session's lock until told, and one request that several sessions wait with."""

    def __init__(self, site: Site, upstream: ScriptedUpstream, stack: AsyncExitStack, stage: str) -> None:
        self.site = site
        self.upstream = upstream
        self.stage = stage
        self.body = fresh(stream=False)
        self._stack = stack
        self._gates: dict[bytes, asyncio.Event] = {}
        upstream.play(self._answer)

    def _answer(self, received: Received) -> Script:
        gate = self._gates.get(received.field(b"x-gate"))
        return [gate, JOB] if gate is not None else JOB

    async def hold(self, session: str) -> asyncio.Event:
        """Lock ``session`` until the event is set."""
        gate = self._gates[session.encode()] = asyncio.Event()
        client = await self._stack.enter_async_context(connect(self.site.one.port))
        calls = self.upstream.calls
        await client.send(job(self.stage, session, f"X-Gate: {session}"))
        await self.upstream.wait_calls(calls + 1)
        return gate

    async def ask(self, session: str | None, *, other: bool = False) -> RawClient:
        """Somebody who asks for the one request; its node has taken it in when this returns."""
        node = self.site.other if other else self.site.one
        client = await self._stack.enter_async_context(connect(node.port))
        await client.send(job(self.stage, session, body=self.body))
        await self.site.settle(node)
        return client


@pytest_asyncio.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


NEWCOMERS = [("free session", "free", False), ("no session", None, False)]
NEWCOMERS += [(f"{name}, elsewhere", session, True) for name, session, _ in NEWCOMERS]


@pytest.mark.parametrize(("session", "other"), [n[1:] for n in NEWCOMERS], ids=[n[0] for n in NEWCOMERS])
async def test_a_newcomer_does_not_wait_in_anothers_queue(
    session: str | None, other: bool, site: Site, upstream: ScriptedUpstream, stack: AsyncExitStack
) -> None:
    """It goes ahead at once, and whoever waited has its answer, too: the requests are equal."""
    jobs = Jobs(site, upstream, stack, "queue")
    gate = await jobs.hold("taken")
    waiter = await jobs.ask("taken")
    assert upstream.calls == 1
    asked = time.monotonic()
    newcomer = await jobs.ask(session, other=other)
    assert (await newcomer.finish()).status == 200
    assert lasted(asked) < SOON_S
    answer = await waiter.finish()
    assert (answer.status, answer.body) == (200, newcomer.response.body)
    assert upstream.calls == 2
    gate.set()


@pytest.mark.parametrize("other", [False, True], ids=["here", "elsewhere"])
async def test_a_newcomer_does_not_inherit_a_refusal(
    other: bool, site: Site, upstream: ScriptedUpstream, stack: AsyncExitStack
) -> None:
    jobs = Jobs(site, upstream, stack, "brief")
    gate = await jobs.hold("mine")
    other_gate = await jobs.hold("theirs")
    first = await jobs.ask("mine")
    await asyncio.sleep(BRIEF_WAIT_S / 2)  # the passing of time is what is tested: the first one's wait is over earlier
    second = await jobs.ask("theirs", other=other)
    assert refused(await first.finish()) == (409, "session_busy")
    other_gate.set()
    assert (await second.finish()).status == 200
    gate.set()


@pytest.mark.parametrize("freed", ["first", "second"])
@pytest.mark.parametrize("other", [False, True], ids=["here", "elsewhere"])
async def test_two_sessions_that_wait_go_when_either_is_free(
    other: bool, freed: str, site: Site, upstream: ScriptedUpstream, stack: AsyncExitStack
) -> None:
    """Both sessions are taken: neither waits for the other's to be given back."""
    jobs = Jobs(site, upstream, stack, "queue")
    gates = {"first": await jobs.hold("first"), "second": await jobs.hold("second")}
    clients = {"first": await jobs.ask("first"), "second": await jobs.ask("second", other=other)}
    assert upstream.calls == 2
    at = time.monotonic()
    gates[freed].set()
    assert (await clients[freed].finish()).status == 200
    assert lasted(at) < SOON_S
    for gate in gates.values():
        gate.set()
    for client in clients.values():
        assert (await client.finish()).status == 200


async def test_a_place_in_the_queue_is_not_lost_to_an_equal_request(
    site: Site, upstream: ScriptedUpstream, stack: AsyncExitStack
) -> None:
    """Who waits, and is joined from another node by its own session, keeps its turn before who came later."""
    jobs = Jobs(site, upstream, stack, "queue")
    gate = await jobs.hold("fifo")
    first = await jobs.ask("fifo")
    later = await stack.enter_async_context(connect(site.one.port))
    last = asyncio.Event()
    jobs._gates[b"later"] = last
    await later.send(job("queue", "fifo", "X-Gate: later"))
    await site.settle(site.one)
    mate = await jobs.ask("fifo", other=True)
    await asyncio.sleep(0.3)  # time for whatever the nodes have to say to each other
    gate.set()
    assert (await first.finish()).status == (await mate.finish()).status == 200
    await upstream.wait_calls(3)
    last.set()
    await later.finish()


async def test_a_call_that_is_tried_again_keeps_its_lock(site: Site, upstream: ScriptedUpstream) -> None:
    """The upstream can not be reached: between the attempts of one job no other one gets in, and none of them is refused."""
    await upstream.stop()
    for _ in range(8):  # the second one may come when the first one's attempts are over
        async with connect(site.one.port) as first:
            await first.send(job("reject", "again"))
            await settle(site.one.port)
            second = refused(await ask(site.other.port, job("reject", "again")))
            assert refused(await first.finish()) == UNREACHABLE
        if second != UNREACHABLE:
            break
    assert second == (409, "session_busy")
    await upstream.start()
    upstream.play(JOB)
    assert (await ask(site.other.port, job("reject", "again"))).status == 200
