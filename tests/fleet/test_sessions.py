"""Session locks over several nodes: one heavy job at a time, and free before the last byte of its answer is anywhere."""

import asyncio

import pytest

from fleet.answers import numbered, stream, whole
from fleet.clients import Clients
from fleet.nodes import CALM, LEASE_S, Fleet
from fleet.witness import Witness
from harness.client import ask, chat, connect, fresh
from harness.proxy import merged
from harness.refusals import refused
from soloflight.testing.script import HANG
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

REJECT, QUEUE = (f"/{name}/v1/chat/completions" for name in ("reject", "queue"))
BRIEF = {"pending_lease": LEASE_S, "running_lease": LEASE_S}
FLEET = {
    "config": merged(
        CALM,
        {
            "stage": [
                {"name": "reject", "match": {"paths": [REJECT]}, "session": "reject"},
                {"name": "queue", "match": {"paths": [QUEUE]}, "session": "queue", **BRIEF},
            ]
        },
    )
}
FIELD = "X-Soloflight-Session: s"
ROUNDS = 40


async def test_one_that_follows_goes_on_at_once(fleet: Fleet, history: Witness, upstream: ScriptedUpstream) -> None:
    """Owner on a, follower on b in the same session: as soon as b has its answer its next job is taken."""
    upstream.play(lambda received: stream(numbered(received.number, 3), 0.01))
    a, b = fleet.nodes
    calls = 0
    async with connect(a.port) as owner, connect(b.port) as follower:
        for _ in range(ROUNDS):
            shared, following = chat(fresh(), FIELD, target=REJECT), chat(fresh(), FIELD, target=REJECT)
            await owner.send(shared)
            calls += 1
            await upstream.wait_calls(calls)
            await follower.send(shared)
            assert (await follower.finish()).status == 200
            answer = await follower.ask(following)
            assert answer.status == 200, "the lock was still held when the last byte was there"
            calls += 1
            await owner.finish()
    assert upstream.calls == calls
    history.check()


async def test_busy_on_another_node(fleet: Fleet, clients: Clients, upstream: ScriptedUpstream) -> None:
    gate = asyncio.Event()
    upstream.play(lambda received: stream(numbered(received.number, 3), gate))
    a, b = fleet.nodes
    held, other = chat(fresh(), FIELD, target=REJECT), chat(fresh(), FIELD, target=REJECT)
    owner = await clients.ask(a, held, events=1)
    answer = await ask(b.port, other)
    assert refused(answer) == (409, "session_busy")
    assert (answer.get("Retry-After") is not None, answer.get("x-should-retry")) == (True, "false")
    follower = await clients.ask(b, held, events=1)
    gate.set()
    assert [(await client.finish()).body for client in (owner, follower)] == [whole(numbered(1, 3))] * 2
    assert (await ask(b.port, other)).status == 200
    assert upstream.calls == 2


async def test_a_lost_holder_frees_its_session_and_its_flight(
    fleet: Fleet, clients: Clients, history: Witness, upstream: ScriptedUpstream
) -> None:
    """The node that holds both dies: the queue goes on, and who waited for the flight has a new attempt's answer."""
    upstream.play([HANG], stream(numbered(2, 3)), stream(numbered(3, 3)))
    a, b = fleet.nodes
    held, queued = chat(fresh(), FIELD, target=QUEUE), chat(fresh(), FIELD, target=QUEUE)
    await clients.ask(a, held)
    await upstream.wait_calls(1)
    follower = await clients.follow(b, held)
    waiting = await clients.ask(b, queued)
    a.kill()
    answers = await asyncio.gather(follower.finish(), waiting.finish())
    assert {answer.status for answer in answers} == {200}
    assert {answer.body for answer in answers} == {whole(numbered(2, 3)), whole(numbered(3, 3))}
    assert upstream.calls == 3
    history.check()
