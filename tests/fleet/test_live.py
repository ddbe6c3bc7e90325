"""One upstream call for the whole fleet, live everywhere: followers on other nodes, replays, late joiners, large answers."""

import asyncio
import hashlib
import statistics
import time
from collections import Counter
from contextlib import AsyncExitStack
from itertools import accumulate

import pytest

from fleet.answers import json_body, json_script, numbered, stream, whole
from fleet.nodes import CALM, Fleet
from fleet.witness import Witness
from harness.client import RawClient, ask, chat, connect, fresh, settle
from harness.process import eventually
from harness.proxy import merged
from harness.stalls import lasted
from harness.wire import Response
from soloflight.core.flight import NoticeKind
from soloflight.testing.chat import DONE, FIN
from soloflight.testing.script import Step, head, sse
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

ALONE = "/alone/v1/chat/completions"
FLEET = {
    "size": 3,
    "config": merged(CALM, {"stage": [{"name": "alone", "match": {"paths": [ALONE]}, "heartbeat": "5s"}]}),
}
SIZES = [1, 2, 7, 100, 1_000, 4_095, 4_096, 4_097, 20_000, 65_535, 65_536, 65_537, 150_000, 3]


def blob(size: int) -> bytes:
    """Bytes that show any loss, doubling or change of order."""
    return b"".join(hashlib.sha256(b"%d" % number).digest() for number in range(size // 32 + 1))[:size]


def opaque(size: int) -> bytes:
    """A JSON document of exactly ``size`` bytes that is one chat answer."""
    bare = json_body(1, 0)
    return json_body(1, size - len(bare))


async def followers_on(port: int, count: int, stack: AsyncExitStack, body: bytes) -> list[RawClient]:
    clients = [await stack.enter_async_context(connect(port)) for _ in range(count)]
    for client in clients:
        await client.send(body)
    return clients


def pieces(form: str) -> list[bytes]:
    """An answer's body in pieces of many sizes."""
    if form == "SSE":
        events = [
            b"data: " + hashlib.sha256(b"%d" % size).hexdigest().encode() + b"y" * size + b"\n\n" for size in SIZES
        ]
        return [*events, whole([])]
    body, cuts = opaque(sum(SIZES) + 2_000), [0, *accumulate(SIZES)]
    return [body[start:end] for start, end in zip(cuts, [*cuts[1:], None], strict=True)]


@pytest.mark.parametrize("form", ["SSE", "JSON"])
async def test_every_byte_once_and_in_order(
    form: str, fleet: Fleet, history: Witness, upstream: ScriptedUpstream
) -> None:
    """Followers that come before the first byte, and between any two pieces, on two other nodes."""
    parts = pieces(form)
    gates = [asyncio.Event() for _ in parts]
    expected = b"".join(parts)
    steps: list[Step] = [step for pair in zip(gates, parts, strict=True) for step in pair]
    if form == "SSE":
        upstream.play(sse(*steps))
    else:
        upstream.play([head(200, "Content-Type: application/json", f"Content-Length: {len(expected)}"), *steps])
    body = chat(fresh(stream=form == "SSE"))
    async with AsyncExitStack() as stack:
        a, b, c = fleet.nodes
        clients = await followers_on(a.port, 1, stack, body)
        await upstream.wait_calls(1)
        for number, gate in enumerate(gates):
            clients += await followers_on((b, c)[number % 2].port, 1, stack, body)
            await clients[-1].read_body(sum(map(len, parts[:number])))
            if number == 0:
                await eventually(lambda: len(fleet.channels()) == 1)
            gate.set()
            await upstream.wait_until(lambda sent=number: len(upstream.requests[0].sent) >= sent + 2)
        answers = await asyncio.gather(*(client.finish() for client in clients))
    assert {hashlib.sha256(answer.body).hexdigest() for answer in answers} == {hashlib.sha256(expected).hexdigest()}
    assert all(answer.complete for answer in answers)
    assert Counter(answer.role for answer in answers) == {"owner": 1, "follower": len(parts)}
    assert len({answer.get("X-Soloflight-Flight") for answer in answers}) == 1
    assert upstream.calls == 1
    history.check()


@pytest.mark.parametrize("form", ["SSE", "JSON"])
async def test_thirty_followers_on_each_of_three_nodes(
    form: str, fleet: Fleet, history: Witness, upstream: ScriptedUpstream
) -> None:
    """One call, one subscription and one pump for each process that follows; nothing of it is left afterwards."""
    gate = asyncio.Event()
    events = numbered(1, 20)
    expected = whole(events) if form == "SSE" else json_body(1, 5_000)
    upstream.play([gate, *(stream(events, 0.005) if form == "SSE" else json_script(expected, 900, 0.1))])
    body = chat(fresh(stream=form == "SSE"))
    base = len(fleet.listening())
    async with AsyncExitStack() as stack:
        clients = []
        for node in fleet.nodes:
            clients += await followers_on(node.port, 30, stack, body)
        await upstream.wait_calls(1)
        await eventually(lambda: sum(fleet.channels().values()) == 2)
        for node in fleet.nodes:
            await settle(node.port)
        assert (sum(fleet.channels().values()), len(fleet.listening()), base) == (2, 3, 3)
        gate.set()
        answers = await asyncio.gather(*(client.finish() for client in clients))
    assert {(answer.status, answer.body, answer.complete) for answer in answers} == {(200, expected, True)}
    assert Counter(answer.role for answer in answers) == {"owner": 1, "follower": 89}
    assert upstream.calls == 1
    await eventually(lambda: not fleet.channels())
    assert len(fleet.listening()) == base
    await eventually(lambda: fleet.keys("watchers") == [])
    history.check()


async def test_a_flight_that_nobody_shares_costs_two_round_trips(
    fleet: Fleet, history: Witness, upstream: ScriptedUpstream
) -> None:
    """The claim, and the seal: no batch is published. What lasts longer beats as well."""
    upstream.play(lambda received: stream(numbered(1, 50)))
    before = fleet.script_calls()
    for _ in range(10):
        answer = await ask(fleet.nodes[0].port, chat(fresh(), target=ALONE))
        assert answer.complete
    await history.told(NoticeKind.SEALED, 10)
    assert fleet.script_calls() - before == 2 * 10
    assert {told.kind for told in history.history} == {NoticeKind.SEALED}
    assert fleet.channels() == {}


async def test_a_replay_on_every_other_node(fleet: Fleet, upstream: ScriptedUpstream) -> None:
    """A replay is one round trip; a second one on the same node none."""
    upstream.play(lambda received: stream(numbered(upstream.calls, 50)))
    body = chat(fresh())
    first = await ask(fleet.nodes[0].port, body)
    before = fleet.script_calls()
    for node in fleet.nodes[1:]:
        for _ in range(2):
            answer = await ask(node.port, body)
            assert (answer.role, answer.body, answer.complete) == ("replay", first.body, True)
            assert answer.get("Age") is not None
            assert answer.get("X-Soloflight-Flight") == first.get("X-Soloflight-Flight")
    assert fleet.script_calls() - before == 2
    assert upstream.calls == 1


@pytest.mark.parametrize("already", [1, 400, 799])
async def test_a_late_joiner_gets_all_of_it(
    already: int, fleet: Fleet, history: Witness, upstream: ScriptedUpstream
) -> None:
    """After most of a stream that was not published at all until now."""
    events = numbered(1, 800)
    gate = asyncio.Event()
    steps: list[Step] = [*events[:already], gate, *events[already:]]
    upstream.play(sse(*steps, FIN, DONE))
    body = chat(fresh())
    a, b, c = fleet.nodes
    async with connect(a.port) as owner, connect(b.port) as late, connect(c.port) as last:
        await owner.send(body)
        await owner.read_events(already)
        await history.caught_up()
        assert history.history == []
        await late.send(body)
        await late.read_events(already)
        assert late.response.body == b"".join(events[:already])
        await last.send(body)
        await last.read_events(already)
        gate.set()
        answers = [await client.finish() for client in (owner, late, last)]
    assert [answer.body for answer in answers] == [whole(events)] * 3
    assert all(answer.complete for answer in answers)
    assert upstream.calls == 1
    history.check()


async def test_each_frame_is_live(fleet: Fleet, upstream: ScriptedUpstream) -> None:
    """A follower on another node has each event before the next one is made: nothing waits for a batch to fill."""
    events = numbered(1, 100)
    gates = [asyncio.Event() for _ in events]
    steps: list[Step] = [step for pair in zip(gates, events, strict=True) for step in pair]
    upstream.play(sse(*steps, FIN, DONE))
    body = chat(fresh())
    lags: list[float] = []
    async with connect(fleet.nodes[0].port) as owner, connect(fleet.nodes[1].port) as follower:
        await owner.send(body)
        await upstream.wait_calls(1)
        gates[0].set()
        await owner.read_events(1)
        await follower.send(body)
        await follower.read_events(1)
        length = len(events[0])
        for gate, event in zip(gates[1:], events[1:], strict=True):
            length += len(event)
            sent = time.monotonic()
            gate.set()
            await asyncio.gather(owner.read_body(length), follower.read_body(length))
            lags.append(follower.response.arrival_s(length) - owner.response.arrival_s(length))
            assert lasted(sent, follower.response.arrival_s(length)) < 1
        await asyncio.gather(owner.finish(), follower.finish())
    assert follower.response.body == owner.response.body == whole(events)
    print(
        f"\nlag owner → follower on another node: p50 {statistics.median(lags) * 1e3:.2f} ms, max {max(lags) * 1e3:.1f} ms"
    )
    assert statistics.median(lags) < 0.1


@pytest.mark.parametrize("form", ["SSE", "JSON"])
@pytest.mark.parametrize("when", ["from the start", "late", "after the end"])
async def test_five_megabytes(form: str, when: str, fleet: Fleet, history: Witness, upstream: ScriptedUpstream) -> None:
    size = 5 << 20
    gate = asyncio.Event()
    if form == "SSE":
        events = [b"data: " + blob(size // 80).hex().encode() + b"\n\n" for _ in range(40)]
        expected = whole(events)
        upstream.play(sse(events[0], gate, *events[1:], FIN, DONE))
    else:
        expected = opaque(size)
        upstream.play(json_script(expected, size // 2, gate))
    body = chat(fresh(stream=form == "SSE"))
    a, b, _ = fleet.nodes
    async with connect(a.port) as owner, connect(b.port) as follower:
        await owner.send(body)
        await owner.read_body(1_000)
        if when == "from the start":
            await follower.send(body)
            await follower.read_body(1_000)
        gate.set()
        if when == "late":
            await follower.send(body)
        first = await owner.finish()
        if when == "after the end":
            await follower.send(body)
        second = await follower.finish()
    assert (first.body == expected, second.body == expected) == (True, True)
    assert first.complete
    assert second.complete
    assert upstream.calls == 1
    history.check()


async def test_three_answers_at_once_stay_apart(fleet: Fleet, upstream: ScriptedUpstream) -> None:
    """Fifteen flights at a time, each followed on all nodes."""
    upstream.play(lambda received: stream(numbered(received.number, 30), 0.002))

    async def one() -> list[Response]:
        body = chat(fresh())
        return list(await asyncio.gather(*(ask(node.port, body) for node in fleet.nodes)))

    rounds = await asyncio.gather(*(one() for _ in range(15)))
    assert all(len({answer.body for answer in answers}) == 1 for answers in rounds)
    assert len({answers[0].body for answers in rounds}) == 15
    assert upstream.calls == 15
