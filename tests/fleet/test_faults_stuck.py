"""Owners that live and do not get on: a silent upstream, a node that beats without progress, requests that kill their owner."""

import asyncio
import time

import pytest

from fleet.answers import error_of, got_all, numbered, stream, whole
from fleet.clients import Clients
from fleet.nodes import HEARTBEAT_S, LEASE_S, Fleet, Node
from fleet.strangers import key_of, stranger
from fleet.witness import Witness
from harness.client import ask, chat, fresh
from harness.process import eventually
from harness.refusals import error_code, refused
from harness.stalls import lasted
from soloflight.core.flight import Claim, Owned, Refused, Renew
from soloflight.testing.chat import DONE, FIN
from soloflight.testing.exchange import Exchange
from soloflight.testing.script import HANG, Script, sse
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

POISON_S = 2.0
SILENT_S = 1.2
SLACK_S = 2.0
SILENT, BRITTLE, NARROW = (f"/{name}/v1/chat/completions" for name in ("silent", "brittle", "narrow"))
FLEET = {
    "size": 3,
    "config": {
        "stage": [
            {
                "name": "silent",
                "match": {"paths": [SILENT]},
                "first_byte_timeout": SILENT_S,
                "progress_timeout": SILENT_S,
                "local_retention": 0,
            },
            {
                "name": "brittle",
                "match": {"paths": [BRITTLE]},
                "poison_ttl": POISON_S,
                "heartbeat": 0.1,
                "pending_lease": 0.5,
                "running_lease": 0.5,
            },
            {"name": "narrow", "match": {"paths": [NARROW]}, "max_upstream": 1, "queue_wait": "60s"},
        ]
    },
}


@pytest.mark.parametrize("late", [False, True], ids=["before the first byte", "after it"])
async def test_a_silent_upstream_behind_a_beating_owner(
    late: bool, fleet: Fleet, clients: Clients, history: Witness, upstream: ScriptedUpstream
) -> None:
    """504 for all who wait on all nodes, and not a second paid call; who has got bytes is cut."""
    upstream.play(sse(numbered(1, 1)[0], HANG, last=False) if late else [HANG], stream(numbered(2, 5)))
    body = chat(fresh(), target=SILENT)
    a, b, c = fleet.nodes
    began = time.monotonic()
    asked = [await clients.ask(a, body, events=int(late))]
    await upstream.wait_calls(1)
    asked += [await clients.follow(node, body, events=int(late)) for node in (b, c)]
    asked += [await clients.ask(node, body, events=int(late)) for node in (b, c)]
    answers = await asyncio.gather(*(client.finish() for client in asked))
    took_s = lasted(began)
    if late:
        assert [error_of(answer) for answer in answers] == ["upstream_timeout"] * 5
    else:
        assert [refused(answer) for answer in answers] == [(504, "upstream_timeout")] * 5
        assert {answer.get("x-should-retry") for answer in answers} == {"false"}
    assert time.monotonic() - began >= SILENT_S
    assert took_s < SILENT_S + SLACK_S
    assert upstream.calls == 1
    history.check()


async def test_a_slow_upstream_is_not_a_silent_one(
    fleet: Fleet, clients: Clients, history: Witness, upstream: ScriptedUpstream
) -> None:
    """Comments are bytes, too: an answer that takes three times the bound, with a byte now and then, is one call."""
    beat = [0.4, b": PROCESSING\n\n"] * 8
    events = numbered(1, 2)
    upstream.play(sse(*beat, *events, FIN, DONE))
    body = chat(fresh(), target=SILENT)
    a, b, _ = fleet.nodes
    owner = await clients.ask(a, body)
    await upstream.wait_calls(1)
    follower = await clients.follow(b, body)
    answers = await asyncio.gather(owner.finish(), follower.finish())
    assert all(got_all(answer, b": PROCESSING\n\n" * 8 + whole(events)) for answer in answers)
    assert upstream.calls == 1
    history.check()


async def test_a_node_that_beats_without_progress_is_unseated(
    fleet: Fleet, history: Witness, upstream: ScriptedUpstream
) -> None:
    """A process gone mad: its renewals are refused once its time is over, however often it beats, and its seat is taken."""
    upstream.play(lambda received: stream(numbered(received.number, 5)))
    body = chat(fresh(), target=SILENT)
    key = await key_of(fleet, body)
    lease_ms, silent_ms = int(LEASE_S * 1e3), int(SILENT_S * 1e3)
    claim = Claim("nonce", "mad-node", "mad", lease_ms, lease_ms, silent_ms, 60_000, 3, 1000, 0, direct=True)
    async with stranger(fleet, "mad-node") as mad:
        owned = await mad.step(key, claim)
        assert isinstance(owned, Owned)
        began = time.monotonic()

        async def beat() -> float:
            while True:
                if isinstance(await mad.step(key, Renew(owned.fence, lease_ms, 0, silent_ms)), Refused):
                    return lasted(began)
                await asyncio.sleep(HEARTBEAT_S)

        refused_s, *answers = await asyncio.gather(beat(), *(ask(node.port, body) for node in fleet.nodes))
    took_s = lasted(began, upstream.requests[1].arrived_at)
    print(f"\nbeating without progress: the next call came {took_s:.3f} s after the claim, bound {SILENT_S} s")
    assert all(got_all(answer, whole(numbered(2, 5))) for answer in answers)
    assert upstream.requests[1].arrived_at - began >= SILENT_S - 0.1
    assert took_s < SILENT_S * 1.1 + SLACK_S
    assert refused_s < SILENT_S + HEARTBEAT_S + SLACK_S
    assert upstream.calls == 2
    history.check()


async def test_a_request_that_kills_its_owner_is_not_tried_for_ever(
    fleet: Fleet, clients: Clients, history: Witness, upstream: ScriptedUpstream
) -> None:
    """Whoever calls dies. After three attempts who waits gets 502, and so does who comes within ``poison_ttl``; then it is
    tried again."""
    killed: list[Node] = []

    def deadly(received: object) -> Script:
        async def kill(exchange: Exchange) -> None:
            node = fleet.caller(exchange)
            node.kill()
            killed.append(node)

        return [kill, HANG]

    upstream.play(deadly)
    body = chat(fresh(), target=BRITTLE)
    for number in range(1, 4):
        # Each time there is one that waits where it is not its node's turn to die, and one whose node takes the call.
        alive = [node for node in fleet.nodes if not node.killed]
        for node in alive:
            await clients.ask(node, body)
        await upstream.wait_until(lambda number=number: len(killed) == number)
        if number < 3:
            killed[-1].start_again()
            killed[-1].proxy.wait_ready()
    alive = [node for node in fleet.nodes if not node.killed]
    assert len(alive) == 2
    waiting = [await clients.ask(node, body) for node in alive]
    for client in waiting:
        assert refused(await client.finish()) == (502, "attempts_exhausted")
        assert client.response.get("x-should-retry") == "false"
    exhausted_at = time.monotonic()
    for node in alive:
        answer = await ask(node.port, body)
        assert error_code(answer) == "attempts_exhausted"
        assert int(answer.get("Retry-After") or 0) >= 1
    assert upstream.calls == 3
    upstream.play(stream(numbered(4, 3)))
    await asyncio.sleep(POISON_S + 0.2 - (time.monotonic() - exhausted_at))
    assert got_all(await ask(alive[0].port, body), whole(numbered(4, 3)))
    assert upstream.calls == 4
    history.check()


async def test_killed_while_it_waits_for_a_slot(
    fleet: Fleet, clients: Clients, history: Witness, upstream: ScriptedUpstream
) -> None:
    """The owner is PENDING: it has the flight and no slot of its stage. It dies there: the next one calls, and that is one call."""
    upstream.play([HANG], stream(numbered(2, 5)))
    a, b, c = fleet.nodes
    busy, body = chat(fresh(), target=NARROW), chat(fresh(), target=NARROW)
    await clients.ask(a, busy)
    await upstream.wait_calls(1)
    await clients.ask(a, body)
    await eventually(
        lambda: {seen["state"] for seen in a.proxy.api("/api/flights")["flights"]} == {"running", "pending"}
    )
    a.kill()
    killed_at = time.monotonic()
    answers = await asyncio.gather(ask(b.port, body), ask(c.port, body))
    took_s = lasted(killed_at, upstream.requests[1].arrived_at)
    print(
        f"\nkilled while it waited for a slot: the call came {took_s * 1e3:.0f} ms later, lease {LEASE_S * 1e3:.0f} ms"
    )
    assert all(got_all(answer, whole(numbered(2, 5))) for answer in answers)
    assert took_s < LEASE_S * 1.1 + SLACK_S
    assert upstream.calls == 2
    history.check()


async def test_a_follower_elsewhere_does_not_wait_for_the_owners_slot_for_ever(
    fleet: Fleet, clients: Clients, history: Witness, upstream: ScriptedUpstream
) -> None:
    """The owner waits for its slot while a node with a free one joins: there the call is made, once, for both."""
    gate = asyncio.Event()
    upstream.play([gate, *stream(numbered(1, 2))], stream(numbered(2, 5)))
    a, b, _ = fleet.nodes
    busy, body = chat(fresh(), target=NARROW), chat(fresh(), target=NARROW)
    first = await clients.ask(a, busy)
    await upstream.wait_calls(1)
    waiting = await clients.ask(a, body)
    await eventually(lambda: len(a.proxy.api("/api/flights")["flights"]) == 2)
    elsewhere = await ask(b.port, body)
    assert got_all(elsewhere, whole(numbered(2, 5)))
    assert got_all(await waiting.finish(), whole(numbered(2, 5)))
    gate.set()
    assert got_all(await first.finish(), whole(numbered(1, 2)))
    assert upstream.calls == 2
    history.check(sizes=False)
