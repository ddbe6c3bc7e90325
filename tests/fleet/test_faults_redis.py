"""Redis itself: silent for a while, emptied, without its scripts, one key short, full, started again, and a replica."""

import asyncio
import time
from collections.abc import Iterator

import pytest
import redis

from fleet.answers import error_of, got_all, json_body, json_script, numbered, stream, whole
from fleet.clients import Clients
from fleet.nodes import BACK_WITHIN_S, LEASE_S, PATIENT, Fleet
from fleet.witness import Witness
from harness.client import ask, chat, fresh
from harness.process import eventually
from harness.redis import RedisServer
from harness.stalls import lasted
from soloflight.core.flight import NoticeKind
from soloflight.testing.chat import DONE, FIN
from soloflight.testing.script import HANG, Step, sse
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

NO_L1 = "/no-l1/v1/chat/completions"
CALM = "/calm/v1/chat/completions"
FLEET = {
    "config": {
        "stage": [
            {"name": "no-l1", "match": {"paths": [NO_L1]}, "local_retention": 0, **PATIENT},
            {"name": "calm", "match": {"paths": [CALM]}, **PATIENT},
        ]
    }
}
SLACK_S = 2.0
PARTS = ("record", "watchers", "log")


# ── silence ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mode", ["WRITE", "ALL"])
async def test_a_short_pause(
    mode: str, fleet: Fleet, clients: Clients, history: Witness, upstream: ScriptedUpstream
) -> None:
    """150 ms without an answer: shorter than a command's bound. Nobody notices."""
    events = numbered(1, 30)
    steps: list[Step] = [step for event in events for step in (event, 0.02)]
    upstream.play(sse(*steps, FIN, DONE))
    body = chat(fresh(), target=CALM)
    a, b = fleet.nodes
    owner = await clients.ask(a, body, events=1)
    follower = await clients.follow(b, body, events=5)
    fleet.command("CLIENT", "PAUSE", 150, mode)
    answers = await asyncio.gather(owner.finish(), follower.finish())
    assert all(got_all(answer, whole(events)) for answer in answers)
    assert upstream.calls == 1
    history.check()


async def test_a_pause_longer_than_the_lease(fleet: Fleet, clients: Clients, upstream: ScriptedUpstream) -> None:
    """Two seconds: who is new is served by each process alone, who has an answer under way keeps it."""
    upstream.play(lambda received: stream(numbered(received.number, 5), 0.1))
    body = chat(fresh())
    a, b = fleet.nodes
    owner = await clients.ask(a, body, events=1)
    fleet.command("CLIENT", "PAUSE", 2_000, "ALL")
    paused_at = time.monotonic()
    assert got_all(await owner.finish(), whole(numbered(1, 5)))
    other = chat(fresh())
    answers = await asyncio.gather(*(ask(node.port, other) for node in (a, b) for _ in range(10)))
    took_s = lasted(paused_at)
    assert all(got_all(answer, whole(numbered(2, 5)), whole(numbered(3, 5))) for answer in answers)
    assert upstream.calls == 3
    assert took_s < 2
    for node in (a, b):
        await eventually(lambda node=node: node.degraded is None, within_s=2 + BACK_WITHIN_S)
    print(f"\na silent Redis: 20 requests on two nodes had their answers {took_s:.2f} s after it fell silent")
    again = chat(fresh())
    assert [(await ask(node.port, again)).role for node in (a, b)] == ["owner", "replay"]


# ── data that is gone ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("when", ["before the first byte", "between batches", "before the end"])
async def test_flushall(
    when: str, fleet: Fleet, clients: Clients, history: Witness, upstream: ScriptedUpstream
) -> None:
    """The owner's client has its answer; followers get a new one, or are cut: one more call at most for one loss (U1, I4)."""
    first, second = numbered(1, 9), numbered(2, 9)
    gates = [asyncio.Event() for _ in range(3)]
    upstream.play([gates[0], *sse(*first[:3], gates[1], *first[3:], gates[2], FIN, DONE)], stream(second))
    body = chat(fresh())
    a, b = fleet.nodes
    before = a.fenced
    owner = await clients.ask(a, body)
    await upstream.wait_calls(1)
    follower = await clients.follow(b, body)
    if when != "before the first byte":
        gates[0].set()
        await follower.read_events(3)
    if when == "before the end":
        gates[1].set()
        await follower.read_events(9)
    fleet.command("FLUSHALL")
    await eventually(lambda: a.fenced > before)  # its record is gone: the owner is told so
    for gate in gates:
        gate.set()
    assert got_all(await owner.finish(), whole(first))
    answer = await follower.finish()
    if when == "before the first byte":
        assert got_all(answer, whole(first), whole(second))
    elif not got_all(answer, whole(first)):
        assert error_of(answer) == "owner_lost"
    assert upstream.calls <= 2
    newcomer = await ask(b.port, chat(fresh()))
    assert newcomer.complete


async def test_flushall_after_the_end(fleet: Fleet, upstream: ScriptedUpstream) -> None:
    """The kept answer is gone: it is made anew where it is not kept locally."""
    upstream.play(lambda received: stream(numbered(received.number, 5)))
    body = chat(fresh(), target=NO_L1)
    a, b = fleet.nodes
    await ask(a.port, body)
    fleet.command("FLUSHALL")
    answers = [await ask(b.port, body), await ask(a.port, body)]
    assert [(answer.role, answer.body) for answer in answers] == [
        ("owner", whole(numbered(2, 5))),
        ("replay", whole(numbered(2, 5))),
    ]


async def test_script_flush(fleet: Fleet, clients: Clients, history: Witness, upstream: ScriptedUpstream) -> None:
    """All the time, through a shared answer: nothing is to be seen of it."""
    events = numbered(1, 60)
    steps: list[Step] = [step for event in events for step in (event, 0.01)]
    upstream.play(sse(*steps, FIN, DONE))
    body = chat(fresh(), target=CALM)
    a, b = fleet.nodes
    owner = await clients.ask(a, body, events=1)
    follower = await clients.follow(b, body, events=1)
    for number in range(5, 60, 5):
        fleet.command("SCRIPT", "FLUSH")
        await owner.read_events(number)
    answers = await asyncio.gather(owner.finish(), follower.finish())
    fleet.command("SCRIPT", "FLUSH")
    assert all(got_all(answer, whole(events)) for answer in answers)
    assert (await ask(b.port, body)).role == "replay"
    assert upstream.calls == 1
    history.check()


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("sent", [0, 3])
async def test_one_key_is_evicted_while_a_flight_runs(
    part: str, sent: int, fleet: Fleet, clients: Clients, history: Witness, upstream: ScriptedUpstream
) -> None:
    """No hole and no short answer, whichever it is: whole, or cut visibly, and one more call at most."""
    first, second = numbered(1, 9), numbered(2, 9)
    gate = asyncio.Event()
    upstream.play(sse(*first[:3], gate, *first[3:], FIN, DONE) if sent else [gate, *stream(first)], stream(second))
    body = chat(fresh())
    a, b = fleet.nodes
    owner = await clients.ask(a, body, events=sent)
    await upstream.wait_calls(1)
    follower = await clients.follow(b, body, events=sent)
    if part != "log" or sent:
        (name,) = fleet.keys(part)
        assert fleet.command("DEL", name) == 1
    b.way.cut()  # what was published meanwhile has to be read
    gate.set()
    assert got_all(await owner.finish(), whole(first))
    answer = await follower.finish()
    if not got_all(answer, whole(first), whole(second)):
        assert sent
        assert error_of(answer) == "owner_lost"
    assert upstream.calls <= 2
    if part == "watchers":
        assert (answer.complete, upstream.calls) == (True, 1)
    history.check(sizes=False)


@pytest.mark.parametrize("part", ["record", "answer"])
async def test_one_key_of_a_kept_answer_is_evicted(part: str, fleet: Fleet, upstream: ScriptedUpstream) -> None:
    """It is a miss, and the next one makes it anew."""
    upstream.play(lambda received: stream(numbered(received.number, 5)))
    body = chat(fresh(), target=NO_L1)
    a, b = fleet.nodes
    await ask(a.port, body)
    (name,) = fleet.keys(part)
    fleet.command("DEL", name)
    answers = [await ask(node.port, body) for node in (b, a, b)]
    assert [(answer.role, answer.body) for answer in answers] == [
        ("owner", whole(numbered(2, 5))),
        ("replay", whole(numbered(2, 5))),
        ("replay", whole(numbered(2, 5))),
    ]


async def test_a_large_kept_answer_that_is_evicted_while_it_is_promised(
    fleet: Fleet, clients: Clients, upstream: ScriptedUpstream
) -> None:
    """Too large to come with the promise: it is asked for, and gone. A new call, not a short answer."""
    upstream.play(lambda received: json_script(json_body(received.number, 500_000), 1_000))
    body = chat(fresh(stream=False), target=NO_L1)
    a, b = fleet.nodes
    await ask(a.port, body)
    (name,) = fleet.keys("answer")
    fleet.command("DEL", name)
    answer = await ask(b.port, body)
    assert (answer.role, got_all(answer, json_body(2, 500_000))) == ("owner", True)


# ── full ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def full(fleet: Fleet) -> Iterator[None]:
    """Lets a test fill Redis, and gives it its memory back."""
    yield
    fleet.command("CONFIG", "SET", "maxmemory", 0)


@pytest.mark.usefixtures("full")
async def test_full_from_the_start(fleet: Fleet, upstream: ScriptedUpstream) -> None:
    """Nothing can be claimed: each process goes on alone, with one call of its own for all of its clients."""
    upstream.play(lambda received: stream(numbered(received.number, 5), 0.05))
    fleet.command("CONFIG", "SET", "maxmemory", 1)
    body = chat(fresh())
    answers = await asyncio.gather(*(ask(node.port, body) for node in fleet.nodes for _ in range(20)))
    assert all(got_all(answer, whole(numbered(1, 5)), whole(numbered(2, 5))) for answer in answers)
    assert upstream.calls == 2
    fleet.command("CONFIG", "SET", "maxmemory", 0)
    again = chat(fresh())
    assert [(await ask(node.port, again)).role for node in fleet.nodes] == ["owner", "replay"]


@pytest.mark.usefixtures("full")
@pytest.mark.parametrize("sent", [0, 3])
async def test_full_in_the_middle(sent: int, fleet: Fleet, clients: Clients, upstream: ScriptedUpstream) -> None:
    """No batch and no seal goes in: the owner's client has everything; followers a call of their own, or a visible cut."""
    first, second = numbered(1, 9), numbered(2, 9)
    gate = asyncio.Event()
    upstream.play(sse(*first[:3], gate, *first[3:], FIN, DONE) if sent else [gate, *stream(first)], stream(second))
    body = chat(fresh())
    a, b = fleet.nodes
    owner = await clients.ask(a, body, events=sent)
    await upstream.wait_calls(1)
    follower = await clients.follow(b, body, events=sent)
    fleet.command("CONFIG", "SET", "maxmemory", 1)
    gate.set()
    assert got_all(await owner.finish(), whole(first))
    ended_at = time.monotonic()
    answer = await follower.finish()
    took_s = lasted(ended_at)
    print(f"\nfull Redis ({sent} events sent): the follower knew {took_s:.2f} s after the owner's end")
    assert took_s < LEASE_S * 1.1 + SLACK_S
    if sent:
        assert not got_all(answer, whole(first), whole(second))
    else:
        assert got_all(answer, whole(second))
    assert upstream.calls == (1 if sent else 2)


# ── started again, a replica ────────────────────────────────────────────────────────────────────────────────────────


async def test_restarted_empty(fleet: Fleet, clients: Clients, upstream: ScriptedUpstream) -> None:
    """In the middle of a shared answer: the owner's client has it, the follower with bytes sent is cut, and all goes on."""
    first = numbered(1, 9)
    gate = asyncio.Event()
    upstream.play(sse(*first[:3], gate, *first[3:], FIN, DONE), stream(numbered(2, 9)))
    body = chat(fresh())
    a, b = fleet.nodes
    owner = await clients.ask(a, body, events=3)
    follower = await clients.follow(b, body, events=3)
    fleet.redis.stop()
    fleet.redis = fleet.redis.again()
    back_at = time.monotonic()
    answer = await follower.finish()
    assert not got_all(answer, whole(first))
    assert error_of(answer) == "owner_lost"
    gate.set()
    assert got_all(await owner.finish(), whole(first))
    for node in (a, b):
        await eventually(lambda node=node: node.degraded is None, within_s=BACK_WITHIN_S)
    print(f"\nrestarted empty: both nodes had it back {time.monotonic() - back_at:.2f} s after it answered")
    assert upstream.calls == 1
    again = chat(fresh())
    assert [(await ask(node.port, again)).role for node in (a, b)] == ["owner", "replay"]


@pytest.mark.parametrize("traffic", [True, False], ids=["traffic", "no traffic"])
async def test_stopped_and_back(traffic: bool, fleet: Fleet, upstream: ScriptedUpstream) -> None:
    """Each process goes on alone, and with Redis again at most five seconds after it is there, asked or not."""
    upstream.play(lambda received: stream(numbered(received.number, 3)))
    a, b = fleet.nodes
    fleet.redis.stop()
    answers = await asyncio.gather(*(ask(a.port, chat(body)) for body in [fresh()] * 100))
    assert {answer.status for answer in answers} == {200}
    assert upstream.calls == 1
    for node in (a, b):
        await eventually(lambda node=node: node.degraded is not None)
    fleet.redis = fleet.redis.again()
    back_at = time.monotonic()
    while traffic and a.degraded is not None:
        assert (await ask(a.port, chat(fresh()))).status == 200
        assert lasted(back_at) < BACK_WITHIN_S
    for node in (a, b):
        await eventually(lambda node=node: node.degraded is None, within_s=BACK_WITHIN_S)
    print(f"\nstopped and back: both nodes had it {time.monotonic() - back_at:.2f} s after it answered")
    shared = chat(fresh())
    assert [(await ask(node.port, shared)).role for node in (a, b)] == ["owner", "replay"]
    assert a.log.count("is away") <= 3 * a.log.count("is back") + 1, "told by change, not by request"


async def test_demoted_to_a_replica(fleet: Fleet, clients: Clients, upstream: ScriptedUpstream) -> None:
    """READONLY is no answer: each process goes on alone, and with the new master when the address leads to one again."""
    upstream.play(lambda received: stream(numbered(received.number, 5), 0.05))
    a, b = fleet.nodes
    running = chat(fresh())
    owner = await clients.ask(a, running, events=1)
    fleet.command("REPLICAOF", "127.0.0.1", "1")
    assert got_all(await owner.finish(), whole(numbered(1, 5)))
    body = chat(fresh())
    answers = await asyncio.gather(*(ask(node.port, body) for node in (a, b) for _ in range(10)))
    assert all(got_all(answer, whole(numbered(2, 5)), whole(numbered(3, 5))) for answer in answers)
    assert upstream.calls == 3
    for node in (a, b):
        await eventually(lambda node=node: node.degraded is not None)
    fleet.command("REPLICAOF", "NO", "ONE")
    back_at = time.monotonic()
    for node in (a, b):
        await eventually(lambda node=node: node.degraded is None, within_s=BACK_WITHIN_S)
    print(f"\nREADONLY: both nodes wrote again {time.monotonic() - back_at:.2f} s after the switch back")
    shared = chat(fresh())
    assert [(await ask(node.port, shared)).role for node in (a, b)] == ["owner", "replay"]


async def test_another_server_under_the_same_address(
    fleet: Fleet, clients: Clients, upstream: ScriptedUpstream
) -> None:
    """The address leads to an empty server while the old one lives: a flight of the old one's is not mixed with the new one's."""
    first, second = numbered(1, 9), numbered(2, 9)
    gate = asyncio.Event()
    upstream.play(sse(*first[:3], gate, *first[3:], FIN, DONE), stream(second))
    body = chat(fresh())
    a, b = fleet.nodes
    owner = await clients.ask(a, body, events=3)
    follower = await clients.follow(b, body, events=3)
    new = RedisServer(fleet.redis.folder)
    new.wait_ready()
    old_port = fleet.redis.port
    try:
        for node in (a, b):
            node.way.lead_to(new.port)
        answer = await follower.finish()
        assert not got_all(answer, whole(first))
        newcomer = await ask(b.port, body)
        assert got_all(newcomer, whole(second))
        gate.set()
        assert got_all(await owner.finish(), whole(first))
        with redis.Redis(port=new.port) as client:
            await eventually(lambda: len(list(client.scan_iter("soloflight:*:answer"))) == 1)
        assert (await ask(b.port, body)).body == whole(second)
        assert upstream.calls == 2
    finally:
        for node in (a, b):
            node.way.lead_to(old_port)
        new.stop()
        for node in (a, b):
            node.wait_whole()


# ── refused where it is asked for ───────────────────────────────────────────────────────────────────────────────────


async def test_no_call_is_lost_behind_a_hang(fleet: Fleet, clients: Clients, upstream: ScriptedUpstream) -> None:
    """Redis stops while a follower waits for a silent upstream: it makes a call of its own within its lease, not after 65 s."""
    upstream.play([HANG], stream(numbered(2, 3)))
    body = chat(fresh())
    a, b = fleet.nodes
    await clients.ask(a, body)
    await upstream.wait_calls(1)
    follower = await clients.follow(b, body)
    fleet.redis.stop()
    stopped_at = time.monotonic()
    assert got_all(await follower.finish(), whole(numbered(2, 3)))
    print(f"\nRedis stopped: the follower had an answer of its own after {time.monotonic() - stopped_at:.2f} s")
    assert lasted(stopped_at) < 2 * LEASE_S + SLACK_S
    assert upstream.calls == 2


async def test_sealed_is_told_once(fleet: Fleet, history: Witness, upstream: ScriptedUpstream) -> None:
    """Many flights at once, FLUSHALL in between: each history has one seal for each number (I1)."""
    upstream.play(lambda received: stream(numbered(received.number, 3), 0.02))

    async def one() -> None:
        body = chat(fresh())
        answers = await asyncio.gather(*(ask(node.port, body) for node in fleet.nodes))
        assert all(answer.complete or answer.ended == "rst" for answer in answers)

    running = [asyncio.create_task(one()) for _ in range(30)]
    for _ in range(3):
        await asyncio.sleep(0.05)
        fleet.command("FLUSHALL")
    await asyncio.gather(*running)
    await history.caught_up()
    numbers = [(told.key, told.number) for told in history.of(NoticeKind.SEALED)]
    assert len(numbers) == len(set(numbers))
    assert upstream.calls <= 30 * 4
