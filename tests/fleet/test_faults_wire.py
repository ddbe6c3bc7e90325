"""Between a node and its Redis: replies lost, doubled and late; holes in one direction or both; subscriptions killed or mute."""

import asyncio
import time

import pytest

from fleet.answers import error_of, got_all, numbered, stream, whole
from fleet.clients import Clients
from fleet.nodes import BACK_WITHIN_S, HEARTBEAT_S, LEASE_S, PATIENT, Fleet, Node
from fleet.witness import Witness
from harness.client import ask, chat, fresh
from harness.process import eventually
from harness.stalls import lasted
from harness.wire import Response
from soloflight.core.flight import NoticeKind
from soloflight.testing.chat import DONE, FIN
from soloflight.testing.script import HANG, Step, sse
from soloflight.testing.upstream import ScriptedUpstream
from soloflight_redis.scripts import build

pytestmark = pytest.mark.beside

NO_L1, CALM = "/no-l1/v1/chat/completions", "/calm/v1/chat/completions"
LOOP, LOOP_LEASE_S = "/loop/v1/chat/completions", 4.0
FLEET = {
    "config": {
        "stage": [
            {"name": "no-l1", "match": {"paths": [NO_L1]}, "local_retention": 0, **PATIENT},
            {"name": "calm", "match": {"paths": [CALM]}, **PATIENT},
            {"name": "loop", "match": {"paths": [LOOP]}, "pending_lease": LOOP_LEASE_S, "running_lease": LOOP_LEASE_S},
        ]
    }
}
DIGEST = {name: script.digest.encode() for name, script in build().items()}
SLACK_S = 2.0
OWNERS = ("claim", "renew", "append", "seal")
FOLLOWERS = ("claim", "log", "result", "leave")


@pytest.fixture(autouse=True, scope="module")
def _scripts_are_known(fleet_process: Fleet) -> None:
    """Every script is in Redis: a request is known by its digest, not told from a source that is sent along."""
    with fleet_process.redis.client() as client:
        for script in build().values():
            client.script_load(script.source)


async def shared_answer(
    fleet: Fleet, clients: Clients, upstream: ScriptedUpstream, body: bytes, *, for_s: float = 0.1
) -> tuple[list[Response], bytes]:
    """Owner on a, follower on b from the first event on; 19 more events, spread over so many seconds."""
    events = numbered(upstream.calls + 1, 20)
    gate = asyncio.Event()
    steps: list[Step] = [events[0], gate, *[step for event in events[1:] for step in (for_s / 20, event)]]
    upstream.play(sse(*steps, FIN, DONE))
    a, b = fleet.nodes
    owner = await clients.ask(a, body, events=1)
    follower = await clients.follow(b, body, events=1)
    gate.set()
    return list(await asyncio.gather(owner.finish(), follower.finish())), whole(events)


# ── replies ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("what", ["lost", "cut", "doubled"])
@pytest.mark.parametrize("script", OWNERS)
async def test_of_the_owners(
    script: str, what: str, fleet: Fleet, clients: Clients, history: Witness, upstream: ScriptedUpstream
) -> None:
    """The reply to one of the owner's operations is lost, alone or with its connection, or comes twice: nobody sees it (I7)."""
    a, _ = fleet.nodes
    before = a.fenced
    spoil(a, script, what)
    for_s = 3 * HEARTBEAT_S if script == "renew" else 0.1
    answers, expected = await shared_answer(fleet, clients, upstream, chat(fresh(), target=CALM), for_s=for_s)
    assert all(got_all(answer, expected) for answer in answers)
    assert [answer.role for answer in answers] == ["owner", "follower"]
    assert (upstream.calls, a.fenced) == (1, before)
    await eventually(lambda: what == "doubled" or a.way.replies_lost >= 1)
    await history.told(NoticeKind.SEALED, 1)
    history.check(sizes=False)


@pytest.mark.parametrize("what", ["lost", "cut", "doubled"])
@pytest.mark.parametrize("script", FOLLOWERS)
async def test_of_a_followers(
    script: str, what: str, fleet: Fleet, clients: Clients, history: Witness, upstream: ScriptedUpstream
) -> None:
    """The same on the follower's side; then of its replay."""
    _, b = fleet.nodes
    spoil(b, script, what)
    body = chat(fresh(), target=NO_L1)
    answers, expected = await shared_answer(fleet, clients, upstream, body)
    assert all(got_all(answer, expected) for answer in answers)
    replay = await ask(b.port, body)
    assert (replay.role, replay.body, upstream.calls) == ("replay", expected, 1)
    history.check(sizes=False)


def spoil(node: Node, script: str, what: str) -> None:
    node.way.faults.replies_lost = 0
    if what == "doubled":
        node.way.double_reply(DIGEST[script])
    else:
        node.way.lose_reply(DIGEST[script], cut=what == "cut")


async def test_late_replies_within_the_bound(
    fleet: Fleet, clients: Clients, history: Witness, upstream: ScriptedUpstream
) -> None:
    """100 ms late on both ways, always: slower, and nothing else."""
    for node in fleet.nodes:
        node.way.delay(0.1)
    body = chat(fresh(), target=CALM)
    answers, expected = await shared_answer(fleet, clients, upstream, body)
    assert all(got_all(answer, expected) for answer in answers)
    assert [node.degraded for node in fleet.nodes] == [None, None]
    assert upstream.calls == 1
    history.check()


async def test_replies_later_than_the_lease(
    fleet: Fleet, clients: Clients, history: Witness, upstream: ScriptedUpstream
) -> None:
    """The owner's way back is slower than its lease: another takes over, the old one's late writes change nothing (I5, I7)."""
    first, second = numbered(1, 10), numbered(2, 10)
    gate = asyncio.Event()
    upstream.play(stream(first, gate), stream(second))
    body = chat(fresh())
    a, b = fleet.nodes
    owner = await clients.ask(a, body, events=1)
    a.way.delay(1.5 * LEASE_S)
    await eventually(lambda: a.degraded is not None)
    await asyncio.sleep(LEASE_S)  # the passing of time is what is tested
    answer = await ask(b.port, body)
    assert got_all(answer, whole(second) if upstream.calls == 2 else whole(first))
    gate.set()
    assert got_all(await owner.finish(), whole(first))
    a.way.delay(0)
    assert upstream.calls <= 2
    replay = await ask(b.port, body)
    assert (replay.role, replay.body) == ("replay", answer.body)
    history.check(sizes=False)


# ── holes ───────────────────────────────────────────────────────────────────────────────────────────────────────────

DIRECTIONS = {"both": (True, True), "to Redis": (True, False), "from Redis": (False, True)}


@pytest.mark.parametrize("direction", DIRECTIONS)
async def test_the_owner_is_cut_off(
    direction: str, fleet: Fleet, clients: Clients, history: Witness, upstream: ScriptedUpstream
) -> None:
    """Past its lease: its own client has all of its answer, the others a new one; at most two calls (U1), one accepted (I1)."""
    first, second = numbered(1, 10), numbered(2, 10)
    gate = asyncio.Event()
    upstream.play(stream(first, gate), stream(second))
    body = chat(fresh())
    a, b = fleet.nodes
    owner = await clients.ask(a, body, events=1)
    early = await clients.follow(b, body, events=1)
    up, down = DIRECTIONS[direction]
    a.way.hole(up=up, down=down)
    cut_at = time.monotonic()
    cut = await early.finish()
    assert not got_all(cut, whole(first), whole(second))
    assert error_of(cut) == "owner_lost"
    print(f"\nowner cut off ({direction}): its follower was told after {time.monotonic() - cut_at:.2f} s")
    assert lasted(cut_at) < LEASE_S * 1.1 + HEARTBEAT_S + SLACK_S
    answer = await ask(b.port, body)
    assert got_all(answer, whole(second))
    gate.set()
    assert got_all(await owner.finish(), whole(first))
    a.way.heal()
    assert upstream.calls == 2
    await eventually(lambda: a.degraded is None, within_s=BACK_WITHIN_S)
    replay = await ask(b.port, body)
    assert (replay.role, replay.body) == ("replay", whole(second))
    await history.told(NoticeKind.SEALED, 1)
    history.check()


async def test_an_owner_that_comes_back_too_late_is_refused(
    fleet: Fleet, clients: Clients, history: Witness, upstream: ScriptedUpstream
) -> None:
    """The way heals while both attempts run: the stale one's writes are refused and counted (I5), its client is served (I1)."""
    first, second = numbered(1, 10), numbered(2, 10)
    gates = [asyncio.Event(), asyncio.Event()]
    upstream.play(stream(first, gates[0]), stream(second, gates[1]))
    body = chat(fresh())
    a, b = fleet.nodes
    before = a.fenced
    owner = await clients.ask(a, body, events=1)
    a.way.hole()
    newcomer = await clients.ask(b, body, events=1)
    assert upstream.calls == 2
    a.way.close()  # a swallowed request makes what is behind it unreadable: the connections of the hole end with it
    a.way.heal()
    await eventually(lambda: a.fenced > before, within_s=BACK_WITHIN_S + HEARTBEAT_S)
    for gate in gates:
        gate.set()
    answers = await asyncio.gather(owner.finish(), newcomer.finish())
    assert (got_all(answers[0], whole(first)), got_all(answers[1], whole(second))) == (True, True)
    replay = await ask(a.port, body.replace(b"Content-Type", b"Cache-Control: max-age=60\r\nContent-Type", 1))
    assert replay.body in (whole(first), whole(second))
    assert (await ask(b.port, body)).body == whole(second)
    history.check()


async def test_the_owner_is_cut_off_for_less_than_its_lease(
    fleet: Fleet, clients: Clients, history: Witness, upstream: ScriptedUpstream
) -> None:
    """Publishing goes on where it was: the follower has every byte once, live, and not only by the seal (I8)."""
    events = numbered(1, 40)
    gates = [asyncio.Event(), asyncio.Event(), asyncio.Event()]
    steps: list[Step] = [*events[:10], gates[0], *events[10:20], gates[1], *events[20:30], gates[2], *events[30:]]
    upstream.play(sse(*steps, FIN, DONE))
    body = chat(fresh(), target=CALM)
    a, b = fleet.nodes
    before = a.fenced
    owner = await clients.ask(a, body, events=10)
    follower = await clients.follow(b, body, events=10)
    a.way.close()
    gates[0].set()
    await owner.read_events(20)
    await eventually(lambda: a.degraded is not None)
    gates[1].set()
    await owner.read_events(30)
    assert len(follower.response.events) == 10
    a.way.heal()
    healed_at = time.monotonic()
    await follower.read_events(30, within_s=BACK_WITHIN_S)
    print(
        f"\nowner cut off for less than its lease: live again {time.monotonic() - healed_at:.2f} s after the way was healed"
    )
    gates[2].set()
    answers = await asyncio.gather(owner.finish(), follower.finish())
    assert all(got_all(answer, whole(events)) for answer in answers)
    assert (upstream.calls, a.fenced) == (1, before)
    history.check()


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("sent", [0, 2])
async def test_a_follower_is_cut_off(
    sent: int, direction: str, fleet: Fleet, clients: Clients, upstream: ScriptedUpstream
) -> None:
    """With nothing sent it makes a call of its own in time; with bytes sent it is cut, or catches up: never patched."""
    first, second = numbered(1, 10), numbered(2, 10)
    gate = asyncio.Event()
    upstream.play([gate, *stream(first)] if not sent else sse(*first[:2], gate, *first[2:], FIN, DONE), stream(second))
    body = chat(fresh())
    a, b = fleet.nodes
    owner = await clients.ask(a, body, events=sent)
    await upstream.wait_calls(1)
    follower = await clients.follow(b, body, events=sent)
    up, down = DIRECTIONS[direction]
    b.way.hole(up=up, down=down)
    cut_at = time.monotonic()
    answer = await follower.finish()
    took_s = lasted(cut_at)
    print(f"\nfollower cut off ({direction}, {sent} events sent): its client knew after {took_s:.2f} s")
    if sent:
        assert not got_all(answer, whole(first), whole(second))
        assert upstream.calls == 1, "a call for nobody"
    else:
        assert got_all(answer, whole(second))
        assert (answer.role, upstream.calls) == ("owner", 2)
    assert took_s < 2 * LEASE_S + SLACK_S
    gate.set()
    assert got_all(await owner.finish(), whole(first))


async def test_a_follower_is_cut_off_for_a_moment(
    fleet: Fleet, clients: Clients, history: Witness, upstream: ScriptedUpstream
) -> None:
    """Its connections are reset while batches come: what was missed is read from the log, in order, once."""
    events = numbered(1, 60)
    steps: list[Step] = [step for event in events for step in (event, 0.02)]
    upstream.play(sse(*steps, FIN, DONE))
    body = chat(fresh(), target=CALM)
    a, b = fleet.nodes
    owner = await clients.ask(a, body, events=1)
    follower = await clients.follow(b, body, events=5)
    for number in (10, 20, 30):
        await follower.read_events(number)
        assert b.way.cut() >= 1
    answers = await asyncio.gather(owner.finish(), follower.finish())
    assert all(got_all(answer, whole(events)) for answer in answers)
    assert upstream.calls == 1
    history.check()


# ── subscriptions ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("step", ["joined", "between batches", "before the seal"])
async def test_pub_sub_is_killed(
    step: str, fleet: Fleet, clients: Clients, history: Witness, upstream: ScriptedUpstream
) -> None:
    """CLIENT KILL of every subscription at each step: no hole, and nobody waits for a deadline (L2)."""
    events = numbered(1, 9)
    gates = [asyncio.Event() for _ in range(3)]
    upstream.play([gates[0], *sse(*events[:3], gates[1], *events[3:], gates[2], FIN, DONE)])
    body = chat(fresh(), target=CALM)
    a, b = fleet.nodes
    owner = await clients.ask(a, body)
    await upstream.wait_calls(1)
    follower = await clients.follow(b, body)
    if step == "joined":
        assert fleet.kill_listening() == 2
    gates[0].set()
    await follower.read_events(3)
    if step == "between batches":
        assert fleet.kill_listening() == 2
    gates[1].set()
    await follower.read_events(9)
    if step == "before the seal":
        assert fleet.kill_listening() == 2
    gates[2].set()
    await owner.finish()
    ended_at = time.monotonic()
    answer = await follower.finish()
    lag_s = lasted(ended_at)
    print(f"\npub/sub killed ({step}): the follower ended {lag_s * 1e3:.0f} ms after the owner")
    assert got_all(answer, whole(events))
    assert lag_s < 1
    assert upstream.calls == 1
    history.check()


async def test_pub_sub_is_killed_in_a_loop(
    fleet: Fleet, clients: Clients, history: Witness, upstream: ScriptedUpstream
) -> None:
    """Every 30 ms, through sixty flights: no client waits, misses or doubles a byte."""
    upstream.play(lambda received: stream(numbered(received.number, 15), 0.01))
    ended = asyncio.Event()
    kills = 0

    async def kill() -> None:
        nonlocal kills
        while not ended.is_set():
            kills += await asyncio.to_thread(fleet.kill_listening)
            await asyncio.sleep(0.03)

    async def one() -> None:
        body = chat(fresh(), target=LOOP)
        began = time.monotonic()
        first, second = await asyncio.gather(*(ask(node.port, body) for node in fleet.nodes))
        assert (first.complete, first.body) == (second.complete, second.body) == (True, first.body)
        slowest.append(lasted(began))

    slowest: list[float] = []
    killing = asyncio.create_task(kill())
    for _ in range(6):
        await asyncio.gather(*(one() for _ in range(10)))
    ended.set()
    await killing
    print(f"\n{kills} subscriptions killed through 60 flights; slowest pair of answers {max(slowest):.2f} s")
    assert kills > 10
    assert upstream.calls == 60
    assert max(slowest) < LOOP_LEASE_S * 1.1 + SLACK_S
    history.check()


async def test_a_half_open_subscription(
    fleet: Fleet, clients: Clients, history: Witness, upstream: ScriptedUpstream
) -> None:
    """The follower's subscription stands and brings nothing: looks at the record keep it going, and the probe replaces it."""
    events = numbered(1, 30)
    gate = asyncio.Event()
    upstream.play(sse(*events[:5], gate, *[step for event in events[5:] for step in (0.2, event)], FIN, DONE))
    body = chat(fresh())
    a, b = fleet.nodes
    owner = await clients.ask(a, body, events=5)
    follower = await clients.follow(b, body, events=5)
    accepted = b.way.faults.accepted
    assert b.way.mute() == 1
    muted_at = time.monotonic()
    gate.set()
    await eventually(lambda: b.way.faults.accepted > accepted, within_s=4)
    print(f"\nhalf-open subscription: replaced after {time.monotonic() - muted_at:.2f} s")
    await follower.read_events(len(owner.response.events) + 1)
    answers = await asyncio.gather(owner.finish(), follower.finish())
    assert all(got_all(answer, whole(events)) for answer in answers)
    assert upstream.calls == 1
    history.check()


async def test_an_end_that_nobody_hears_of(
    fleet: Fleet, clients: Clients, history: Witness, upstream: ScriptedUpstream
) -> None:
    """The subscription is mute when the seal is told: the next look is due within the lease (L1, L3), not after 65 s."""
    events = numbered(1, 5)
    gate = asyncio.Event()
    upstream.play(stream(events, gate))
    body = chat(fresh())
    a, b = fleet.nodes
    owner = await clients.ask(a, body, events=1)
    follower = await clients.follow(b, body, events=1)
    assert b.way.mute() == 1
    gate.set()
    await owner.finish()
    ended_at = time.monotonic()
    assert got_all(await follower.finish(), whole(events))
    lag_s = lasted(ended_at)
    print(f"\nan end that was not heard of: known {lag_s:.2f} s later, lease {LEASE_S} s")
    assert lag_s < LEASE_S * 1.1 + SLACK_S
    assert upstream.calls == 1
    history.check()


async def test_a_lost_owner_that_nobody_hears_of(
    fleet: Fleet, clients: Clients, history: Witness, upstream: ScriptedUpstream
) -> None:
    """Mute and orphaned at once."""
    events = numbered(2, 5)
    upstream.play([HANG], stream(events))
    body = chat(fresh())
    a, b = fleet.nodes
    await clients.ask(a, body)
    await upstream.wait_calls(1)
    follower = await clients.follow(b, body)
    assert b.way.mute() == 1
    a.kill()
    assert got_all(await follower.finish(), whole(events))
    assert upstream.calls == 2
    history.check()
