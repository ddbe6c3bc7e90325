"""The owner is lost or frozen: killed before and after the first byte, between the last batch and the seal, while PENDING;
stopped past its lease and resumed."""

import asyncio
import os
import signal
import time

import pytest

from fleet.answers import error_of, got_all, json_body, json_script, numbered, stream, whole
from fleet.clients import Clients
from fleet.nodes import HEARTBEAT_S, LEASE_S, PATIENT, Fleet, Node
from fleet.strangers import key_of, stranger
from fleet.witness import Witness
from harness.client import ask, chat, fresh, settle
from harness.process import eventually
from harness.stalls import lasted
from soloflight.core.flight import Claim, NoticeKind, Owned
from soloflight.testing.exchange import Exchange
from soloflight.testing.script import HANG, Script, sse
from soloflight.testing.upstream import ScriptedUpstream
from soloflight_redis.scripts import build

pytestmark = pytest.mark.beside

CALM = "/calm/v1/chat/completions"
FLEET = {"size": 3, "config": {"stage": [{"name": "calm", "match": {"paths": [CALM]}, **PATIENT}]}}
SLACK_S = 2.0
"""What a busy machine may add to a takeover, which is due when the lease and a tenth of it are over."""
SEAL = build()["seal"].digest.encode()


def took(what: str, lost_at: float, upstream: ScriptedUpstream, call: int = 1) -> float:
    """How long after the loss the next attempt called (L1); printed, because it is to be kept small."""
    took_s = lasted(lost_at, upstream.requests[call].arrived_at)
    print(f"\n{what}: the next call came {took_s * 1e3:.0f} ms after the loss, lease {LEASE_S * 1e3:.0f} ms")
    return took_s


# ── killed ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_killed_before_the_first_byte(
    fleet: Fleet, clients: Clients, history: Witness, upstream: ScriptedUpstream
) -> None:
    """Nobody has been sent a byte: all get the new attempt's whole answer, one attempt for all nodes (L1, I4, U1)."""
    events = numbered(2, 5)
    upstream.play([HANG], stream(events))
    body = chat(fresh())
    a, b, c = fleet.nodes
    await clients.ask(a, body)
    await upstream.wait_calls(1)
    followers = [await clients.follow(b, body), await clients.follow(c, body)]
    followers += [await clients.join(b, body), await clients.join(c, body)]
    a.kill()
    killed_at = time.monotonic()
    answers = await asyncio.gather(*(follower.finish() for follower in followers))
    assert all(got_all(answer, whole(events)) for answer in answers)
    assert {answer.role for answer in answers} == {"owner", "follower"}
    assert upstream.calls == 2
    assert took("killed before the first byte", killed_at, upstream) < LEASE_S * 1.1 + SLACK_S
    await history.told(NoticeKind.TAKEN, 1)
    history.check()


async def test_killed_after_the_first_byte(
    fleet: Fleet, clients: Clients, history: Witness, upstream: ScriptedUpstream
) -> None:
    """Who has got bytes is cut: one error event at an event boundary, no [DONE], a reset. Who has not gets the new answer."""
    first, second = numbered(1, 5), numbered(2, 5)
    upstream.play(sse(*first[:2], HANG, last=False), stream(second))
    body = chat(fresh())
    a, b, c = fleet.nodes
    await clients.ask(a, body, events=2)
    followers = [await clients.follow(node, body, events=2) for node in (b, c)]
    a.kill()
    killed_at = time.monotonic()
    followers.append(await clients.ask(c, body, events=2))  # joins the lost attempt's log
    for answer in await asyncio.gather(*(follower.finish() for follower in followers)):
        assert not got_all(answer, whole(first), whole(second))
        assert (answer.body.startswith(b"".join(first[:2])), error_of(answer)) == (True, "owner_lost")
        assert len(answer.events) == 3
    answer = await ask(b.port, body)
    assert got_all(answer, whole(second))
    assert upstream.calls == 2
    assert took("killed after the first byte", killed_at, upstream) < LEASE_S * 1.1 + SLACK_S
    history.check()


async def test_a_lost_call_is_not_made_again_for_nobody(
    fleet: Fleet, clients: Clients, upstream: ScriptedUpstream
) -> None:
    """All followers have got bytes, and are cut: there is no one left to make another call for (U1)."""
    first = numbered(1, 5)
    upstream.play(sse(*first[:2], HANG, last=False), stream(numbered(2, 5)))
    body = chat(fresh())
    a, b, c = fleet.nodes
    await clients.ask(a, body, events=2)
    followers = [await clients.follow(node, body, events=2) for node in (b, c)]
    a.kill()
    for answer in await asyncio.gather(*(follower.finish() for follower in followers)):
        assert not got_all(answer, whole(first))
        assert error_of(answer) == "owner_lost"
    await eventually(lambda: not fleet.channels())
    for node in (b, c):
        await settle(node.port)
    assert upstream.calls == 1


@pytest.mark.parametrize("got", [0, 40])
async def test_json_is_never_patched_together(
    got: int, fleet: Fleet, clients: Clients, history: Witness, upstream: ScriptedUpstream
) -> None:
    """A follower with nothing sent gets the whole new document; one that has got a part of the old one is reset inside it."""
    old, new = json_body(1), json_body(2)
    upstream.play(json_script(old, 40, HANG) if got else [HANG], json_script(new, 40))
    body = chat(fresh(stream=False))
    a, b, _ = fleet.nodes
    await clients.ask(a, body)
    await upstream.wait_calls(1)
    follower = await clients.follow(b, body, size=got)
    a.kill()
    answer = await follower.finish()
    if got:
        assert (answer.ended, answer.body, upstream.calls) == ("rst", old[:got], 1)
    else:
        assert got_all(answer, new)
        assert (answer.role, upstream.calls) == ("owner", 2)
    history.check()


async def test_killed_between_the_last_batch_and_the_seal(
    fleet: Fleet, clients: Clients, history: Witness, upstream: ScriptedUpstream
) -> None:
    """The seal never reaches Redis: what looks like all of an answer is not one. Nobody takes the log's end for the answer's."""
    await redis_knows_the_seal(fleet, upstream)
    first, second = numbered(1, 5), numbered(2, 5)
    gate = asyncio.Event()
    upstream.play(stream(first, gate), stream(second))
    body = chat(fresh())
    a, b, c = fleet.nodes
    await clients.ask(a, body, events=1)
    follower = await clients.follow(b, body, events=1)
    a.way.before(SEAL, lambda: os.kill(a.proxy.pid, signal.SIGKILL))
    gate.set()
    answer = await follower.finish()
    assert not got_all(answer, whole(first), whole(second)), "there was no seal, so there is no end"
    assert error_of(answer) == "owner_lost"
    a.kill()
    assert got_all(await ask(c.port, body), whole(second))
    assert upstream.calls == 3
    await history.told(NoticeKind.SEALED, 2)
    history.check()


async def redis_knows_the_seal(fleet: Fleet, upstream: ScriptedUpstream) -> None:
    """From here on its digest alone is sent, not its source."""
    upstream.play(stream(numbered(0, 1)))
    await ask(fleet.nodes[0].port, chat(fresh()))


async def test_killed_while_pending(fleet: Fleet, history: Witness, upstream: ScriptedUpstream) -> None:
    """A node has claimed and not called yet: that is taken over when the lease of PENDING lapses, and costs no call (U1)."""
    upstream.play(lambda received: stream(numbered(received.number, 5)))
    body = chat(fresh())
    key = await key_of(fleet, body)
    lease_ms = int(LEASE_S * 1e3)
    claim = Claim("nonce", "lost-node", "lost", lease_ms, lease_ms, 60_000, 60_000, 3, 1000, 0, direct=False)
    async with stranger(fleet, "lost-node") as lost:
        assert isinstance(await lost.step(key, claim), Owned)
    claimed_at = time.monotonic()
    answers = await asyncio.gather(*(ask(node.port, body) for node in fleet.nodes))
    assert upstream.requests[1].arrived_at - claimed_at >= LEASE_S - 0.1
    assert took("lost while PENDING", claimed_at, upstream) < LEASE_S * 1.1 + SLACK_S
    assert all(got_all(answer, whole(numbered(2, 5))) for answer in answers)
    assert upstream.calls == 2
    history.check()


async def test_takeover_after_takeover(
    fleet: Fleet, clients: Clients, history: Witness, upstream: ScriptedUpstream
) -> None:
    """The second owner is lost as well: the third attempt's answer reaches who still waits (I6, U1)."""
    callers: list[Node] = []

    def call(received: object) -> Script:
        async def note(exchange: Exchange) -> None:
            callers.append(fleet.caller(exchange))

        return [note, HANG]

    upstream.play(call, call, stream(numbered(3, 5)))
    body = chat(fresh())
    a, b, c = fleet.nodes
    await clients.ask(a, body)
    await upstream.wait_calls(1)
    followers = {b: await clients.follow(b, body), c: await clients.follow(c, body)}
    a.kill()
    await upstream.wait_until(lambda: len(callers) == 2)
    followers.pop(callers[1])
    callers[1].kill()
    (last,) = followers.values()
    assert got_all(await last.finish(), whole(numbered(3, 5)))
    assert upstream.calls == 3
    await history.told(NoticeKind.TAKEN, 2)
    history.check()


# ── frozen ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_stopped_past_its_lease_and_resumed(
    fleet: Fleet, clients: Clients, history: Witness, upstream: ScriptedUpstream
) -> None:
    """Its writes are refused and counted (I5), its own client still gets its answer, and the accepted result stands (I1, I8)."""
    first, second = numbered(1, 6), numbered(2, 6)
    go_on = asyncio.Event()
    upstream.play(stream(first, go_on), stream(second))
    body = chat(fresh())
    a, b, c = fleet.nodes
    owner = await clients.ask(a, body, events=1)
    early = await clients.follow(b, body, events=1)
    a.proxy.freeze()
    frozen_at = time.monotonic()
    assert not got_all(await early.finish(), whole(first), whole(second))
    assert got_all(await ask(c.port, body), whole(second))
    assert took("frozen", frozen_at, upstream) < LEASE_S * 1.1 + SLACK_S
    go_on.set()
    a.proxy.thaw()
    assert got_all(await owner.finish(), whole(first)), "the owner's client keeps its stream"
    await eventually(lambda: a.fenced >= 1)
    await eventually(lambda: a.log.count("an owner's write was refused") == a.fenced)
    for node in (b, c):
        replay = await ask(node.port, body)
        assert (replay.role, replay.body, node.fenced) == ("replay", whole(second), 0)
    assert upstream.calls == 2
    await history.told(NoticeKind.SEALED, 1)
    history.check()


async def test_resumed_while_the_new_attempt_runs(
    fleet: Fleet, clients: Clients, history: Witness, upstream: ScriptedUpstream
) -> None:
    """Both answers are under way at once: each client gets one of them whole, Redis the new one only."""
    first, second = numbered(1, 6), numbered(2, 6)
    go_on, finish = asyncio.Event(), asyncio.Event()
    upstream.play(stream(first, go_on), stream(second, finish))
    body = chat(fresh())
    a, b, c = fleet.nodes
    before = a.fenced
    owner = await clients.ask(a, body, events=1)
    waiting = await clients.follow(b, body, events=1)
    a.proxy.freeze()
    await waiting.finish()
    newcomer = await clients.ask(c, body, events=1)
    a.proxy.thaw()
    await eventually(lambda: a.fenced > before)
    go_on.set()
    own = await owner.finish()
    finish.set()
    new = await newcomer.finish()
    assert (got_all(own, whole(first)), got_all(new, whole(second))) == (True, True)
    replay = await ask(b.port, body)
    assert (replay.role, replay.body) == ("replay", whole(second))
    assert upstream.calls == 2
    history.check()


async def test_a_short_stop_changes_nothing(
    fleet: Fleet, clients: Clients, history: Witness, upstream: ScriptedUpstream
) -> None:
    """Shorter than the lease: no takeover, no refused write (I8)."""
    events = numbered(1, 6)
    gate = asyncio.Event()
    upstream.play(stream(events, gate))
    body = chat(fresh(), target=CALM)
    a, b, _ = fleet.nodes
    before = a.fenced
    owner = await clients.ask(a, body, events=1)
    follower = await clients.follow(b, body, events=1)
    a.proxy.freeze()
    await asyncio.sleep((LEASE_S - HEARTBEAT_S) / 2)  # the passing of time is what is tested
    a.proxy.thaw()
    gate.set()
    assert all(got_all(answer, whole(events)) for answer in [await owner.finish(), await follower.finish()])
    assert (upstream.calls, a.fenced) == (1, before)
    history.check()


async def test_a_follower_stopped_and_resumed(
    fleet: Fleet, clients: Clients, history: Witness, upstream: ScriptedUpstream
) -> None:
    """The answer ends while its node is frozen past everything: it has all of it when it wakes (L2)."""
    events = numbered(1, 300)
    gate = asyncio.Event()
    upstream.play(stream(events, gate))
    body = chat(fresh(), target=CALM)
    a, b, _ = fleet.nodes
    owner = await clients.ask(a, body, events=1)
    follower = await clients.follow(b, body, events=1)
    b.proxy.freeze()
    gate.set()
    assert got_all(await owner.finish(), whole(events))
    await asyncio.sleep(1.2 * LEASE_S)  # the passing of time is what is tested
    b.proxy.thaw()
    thawed_at = time.monotonic()
    assert got_all(await follower.finish(), whole(events))
    assert lasted(thawed_at) < SLACK_S
    assert upstream.calls == 1
    history.check()
