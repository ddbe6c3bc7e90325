"""Two processes and one key, at the worst moment: who joins against who abandons, and crowds that come and go."""

import asyncio
import json
import random
from collections import Counter
from time import monotonic

import pytest

from fleet.nodes import CALM, Fleet
from fleet.witness import Witness
from harness.client import RawClient, chat, connect, fresh
from harness.process import eventually
from harness.proxy import merged
from harness.stalls import lasted
from harness.wire import Response
from soloflight.testing.chat import DONE, FIN, content
from soloflight.testing.received import Received
from soloflight.testing.script import Script, sse
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

ROUNDS, MANY_ROUNDS = 960, 10_000
LANES = 24
CANCEL = "/cancel/v1/chat/completions"
FLEET = {
    "config": merged(
        CALM,
        {
            "stage": [
                {"name": "cancel", "match": {"paths": [CANCEL]}, "on_abandon": "cancel", "abandon_grace": "1ms"},
            ]
        },
    )
}


def own_words(received: Received) -> Script:
    """A short stream that says which call it is: every answer can be traced to its request."""
    return sse(content(f"{received.number}"), 0.004, content("…"), 0.004, FIN, DONE)


def said_by(answer: Response) -> int:
    """The number of the call that made a whole answer."""
    assert (answer.status, answer.complete) == (200, True), answer
    first, second, end, done = answer.events
    assert (json.loads(second.data)["choices"][0]["delta"], done.data) == ({"content": "…"}, "[DONE]")
    assert json.loads(end.data)["choices"][0]["finish_reason"] == "stop"
    return int(json.loads(first.data)["choices"][0]["delta"]["content"])


async def join_against_abandon(fleet: Fleet, upstream: ScriptedUpstream, rounds: int) -> Counter[str]:
    """Each round: one comes to a and leaves, another comes to b around that moment. Gives the roles that b's clients had."""
    upstream.play(own_words)
    roles: Counter[str] = Counter()
    slowest = 0.0
    begun = monotonic()

    async def leave_soon(client: RawClient, after_s: float) -> None:
        await asyncio.sleep(after_s)
        client.reset()

    async def one(chance: random.Random) -> None:
        nonlocal slowest
        raw = json.dumps(fresh()).encode()
        sent = chat(raw, target=CANCEL)
        a, b = fleet.nodes
        if chance.random() < 0.5:
            a, b = b, a
        async with connect(b.port) as second:
            first = await RawClient.open(a.port)
            await first.send(sent)
            leaving = asyncio.create_task(leave_soon(first, chance.random() * 0.012))
            await asyncio.sleep(chance.random() * 0.014)
            at = monotonic()
            await second.send(sent)
            answer = await second.finish()
            slowest = max(slowest, lasted(at))
            await leaving
        assert upstream.requests[said_by(answer) - 1].body == raw, "another request's answer"
        roles[str(answer.role)] += 1

    async def lane(number: int) -> None:
        chance = random.Random(number)
        for _ in range(rounds // LANES):
            await one(chance)

    await asyncio.gather(*map(lane, range(LANES)))
    stopped = sum(received.left is not None for received in upstream.requests)
    print(
        f"\njoin against abandon: {roles.total()} rounds in {monotonic() - begun:.1f} s, {dict(roles)}, "
        f"{upstream.calls} calls of which {stopped} were stopped, slowest answer {slowest * 1e3:.0f} ms"
    )
    assert upstream.calls <= 2 * rounds
    assert slowest < 5
    return roles


async def nothing_is_left(fleet: Fleet) -> None:
    """No flight, no subscription, no watcher."""
    for node in fleet.nodes:
        await eventually(lambda node=node: node.proxy.api("/api/flights")["flights"] == [])
    await eventually(lambda: fleet.channels() == {})
    await eventually(lambda: fleet.keys("watchers") == [])


async def test_join_against_abandon(fleet: Fleet, history: Witness, upstream: ScriptedUpstream) -> None:
    """Nobody joins a dying flight: each newcomer keeps it alive, or makes a call of its own; none hangs."""
    roles = await join_against_abandon(fleet, upstream, ROUNDS)
    assert {"owner", "follower"} <= roles.keys(), "the moment was missed"
    await nothing_is_left(fleet)
    history.check(sizes=False)


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_join_against_abandon_ten_thousand_times(fleet: Fleet, upstream: ScriptedUpstream) -> None:
    roles = await join_against_abandon(fleet, upstream, MANY_ROUNDS)
    assert {"owner", "follower"} <= roles.keys()
    await nothing_is_left(fleet)


async def test_a_storm_of_followers_that_leave(fleet: Fleet, history: Witness, upstream: ScriptedUpstream) -> None:
    """Four hundred on two nodes, three of four leave at random: who stays has everything, and nothing is left behind."""
    upstream.play(lambda received: [step for _ in range(1) for step in sse(*[content("x"), 0.01] * 40, FIN, DONE)])
    chance = random.Random(7)
    bodies = [chat(fresh()) for _ in range(10)]
    before = [node.proxy.open_files() for node in fleet.nodes]

    async def one(number: int) -> bytes | None:
        group, body = number // len(bodies), bodies[number % len(bodies)]
        node = fleet.nodes[(group + group // 4) % 2]  # of each body, some stay on each node
        async with connect(node.port) as client:
            await client.send(body)
            if group % 4:
                await client.read_body(chance.randrange(1, 3_000))
                client.reset()
                return None
            return (await client.finish()).body

    whole = content("x") * 40 + FIN + DONE
    assert {body for body in await asyncio.gather(*map(one, range(400))) if body is not None} == {whole}
    assert upstream.calls == len(bodies)
    assert all(received.left is None for received in upstream.requests)
    await nothing_is_left(fleet)
    for node, files in zip(fleet.nodes, before, strict=True):
        await eventually(lambda node=node, files=files: node.proxy.open_files() <= files + len(bodies))
    history.check(sizes=False)
