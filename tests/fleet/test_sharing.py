"""Who shares with whom, over several nodes: refresh, purge, credentials, Idempotency-Key, publishing on demand, large answers."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

import pytest

from fleet.answers import error_of, got_all, json_body, numbered, stream, whole
from fleet.nodes import CALM, HEARTBEAT_S, Fleet, Node
from fleet.witness import Witness
from harness.client import ask, chat, connect, fresh, settle
from harness.process import eventually
from harness.proxy import merged
from harness.refusals import error_code, refused
from soloflight.core.flight import NoticeKind
from soloflight.testing.chat import DONE, FIN
from soloflight.testing.script import CLOSE, Step, head, json, sse
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

SMALL = 256 << 10
FLEET = {
    "size": 3,
    "config": merged(
        CALM,
        {
            "stage": [
                {"name": "small", "match": {"paths": ["/small/*"]}, "max_recording": SMALL, "local_retention": 0},
                {"name": "no-l1", "match": {"paths": ["/no-l1/*"]}, "local_retention": 0},
            ]
        },
    ),
}
NO_CACHE = "Cache-Control: no-cache"


def by_call(upstream: ScriptedUpstream) -> None:
    """Every call says another thing."""
    upstream.play(lambda received: stream(numbered(received.number, 5)))


# ── refresh, purge ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("target", ["/v1/chat/completions", "/no-l1/v1/chat/completions"], ids=["L1", "no L1"])
async def test_after_a_refresh_every_node_serves_the_new_answer(
    target: str, fleet: Fleet, history: Witness, upstream: ScriptedUpstream
) -> None:
    by_call(upstream)
    body = fresh()
    plain, anew = chat(body, target=target), chat(body, NO_CACHE, target=target)
    for node in fleet.nodes:
        assert (await ask(node.port, plain)).body == whole(numbered(1, 5))
    refresh = await ask(fleet.nodes[1].port, anew)
    assert (refresh.role, refresh.body) == ("owner", whole(numbered(2, 5)))
    for node in fleet.nodes:
        await until_it_knows(node, plain, whole(numbered(1, 5)))
        answer = await ask(node.port, plain)
        assert (answer.role, answer.body) == ("replay", whole(numbered(2, 5))), node
    assert upstream.calls == 2
    history.check()


async def until_it_knows(node: Node, plain: bytes, old: bytes) -> None:
    """Wait until a node does not replay ``old`` any more: word of what is new comes by publication."""
    async with asyncio.timeout(10):
        while (answer := await ask(node.port, plain)).body == old:
            assert answer.role == "replay"


async def test_while_a_refresh_runs_the_old_answer_stays_and_refreshes_share(
    fleet: Fleet, history: Witness, upstream: ScriptedUpstream
) -> None:
    gate = asyncio.Event()
    old, new = numbered(1, 5), numbered(2, 5)
    upstream.play(stream(old), stream(new, gate))
    body = fresh()
    a, b, c = (node.port for node in fleet.nodes)
    await ask(a, chat(body))
    async with connect(a) as first, connect(b) as second:
        await first.send(chat(body, NO_CACHE))
        await first.read_events(1)
        await second.send(chat(body, NO_CACHE))
        await second.read_events(1)
        for port in (a, b, c):
            answer = await ask(port, chat(body))
            assert (answer.role, answer.body) == ("replay", whole(old))
        gate.set()
        answers = [await first.finish(), await second.finish()]
    assert [answer.body for answer in answers] == [whole(new)] * 2
    assert [answer.role for answer in answers] == ["owner", "follower"]
    assert upstream.calls == 2
    history.check()


@pytest.mark.parametrize("how", ["refused", "cut"])
async def test_the_old_answer_survives_a_failed_refresh(how: str, fleet: Fleet, upstream: ScriptedUpstream) -> None:
    old = numbered(1, 5)
    failed = json({"error": {"message": "no"}}, status=500) if how == "refused" else sse(numbered(2, 1)[0], last=False)
    upstream.play(stream(old), failed if how == "refused" else [*failed, CLOSE])
    body = fresh()
    a, b, c = (node.port for node in fleet.nodes)
    await ask(a, chat(body))
    refresh = await ask(b, chat(body, NO_CACHE))
    assert refresh.status == 500 or not refresh.complete
    for port in (a, b, c):
        answer = await ask(port, chat(body))
        assert (answer.role, answer.body) == ("replay", whole(old))
    assert upstream.calls == 2


async def test_what_redis_has_forgotten_is_made_anew(fleet: Fleet, upstream: ScriptedUpstream) -> None:
    """A purge in Redis: nobody without an L1 of its own replays it; the next one is the owner of a new flight."""
    from soloflight_redis import Options, RedisCoordinator

    by_call(upstream)
    body = chat(fresh(), target="/no-l1/v1/chat/completions")
    a, b, c = (node.port for node in fleet.nodes)
    assert [(await ask(port, body)).role for port in (a, b)] == ["owner", "replay"]
    (record,) = fleet.keys("record")
    purger = RedisCoordinator(Options(fleet.redis.url))
    await purger.open("purger", lambda key: None)
    try:
        assert await purger.purge(record.partition("{")[2].partition("}")[0])
    finally:
        await purger.close()
    assert fleet.keys("answer") == []
    answers = [await ask(port, body) for port in (b, a, c)]
    assert [answer.role for answer in answers] == ["owner", "replay", "replay"]
    assert {answer.body for answer in answers} == {whole(numbered(2, 5))}


@pytest.mark.parametrize("by", ["key", "stage", "flight"])
async def test_a_purge_at_one_node_reaches_them_all(by: str, fleet: Fleet, upstream: ScriptedUpstream) -> None:
    """Redis, and every node's L1; another answer stays."""
    by_call(upstream)
    asked, other = fresh(), chat(fresh(), target="/no-l1/v1/chat/completions")
    body, wish = chat(asked), chat(asked, "Cache-Control: only-if-cached")
    a, b, c = fleet.nodes
    flight = (await ask(a.port, body)).get("X-Soloflight-Flight")
    (record,) = fleet.keys("record")
    await ask(a.port, other)
    for node in (b, c):
        assert [(await ask(node.port, sent)).role for sent in (body, other)] == ["replay", "replay"]
    wanted = {"key": record.partition("{")[2].partition("}")[0], "stage": "default", "flight": flight}[by]
    a.purge("stage" if by == "stage" else "key", wanted)
    for node in fleet.nodes:
        await until_it_knows(node, wish, whole(numbered(1, 5)))
    answers = [await ask(node.port, body) for node in (c, a, b)]
    assert [answer.role for answer in answers] == ["owner", "replay", "replay"]
    assert {answer.body for answer in answers} == {whole(numbered(3, 5))}
    assert (await ask(b.port, other)).role == "replay"


# ── scope, Idempotency-Key ──────────────────────────────────────────────────────────────────────────────────────────


async def test_credentials_never_share_across_nodes(fleet: Fleet, upstream: ScriptedUpstream) -> None:
    """Six credentials, three nodes, at once: a call for each credential, and each one's answer is its own."""
    gate = asyncio.Event()
    upstream.play(
        lambda received: [gate, *stream([numbered(0, 1)[0], b"data: " + received.field(b"authorization") + b"\n\n"])]
    )
    body = fresh()
    async with AsyncExitStack() as stack:
        asked = []
        for key in "abcdef":
            for node in fleet.nodes:
                client = await stack.enter_async_context(connect(node.port))
                await client.send(chat(body, key=key))
                asked.append((key, client))
        await upstream.wait_calls(6)
        gate.set()
        for key, client in asked:
            answer = await client.finish()
            assert answer.events[1].data == f"Bearer {key}"
    for key in "abcdef":
        for node in fleet.nodes:
            answer = await ask(node.port, chat(body, key=key))
            assert (answer.role, answer.events[1].data) == ("replay", f"Bearer {key}")
    assert upstream.calls == 6


async def test_an_idempotency_key_names_one_operation_for_the_fleet(
    fleet: Fleet, history: Witness, upstream: ScriptedUpstream
) -> None:
    gate = asyncio.Event()
    upstream.play(lambda received: stream(numbered(received.number, 5), gate))
    body, other = fresh(temperature=1), fresh(temperature=1)
    named = "Idempotency-Key: op-1"
    a, b, c = (node.port for node in fleet.nodes)
    async with connect(a) as first, connect(b) as second:
        await first.send(chat(body, named))
        await first.read_events(1)
        await second.send(chat(body, named))
        await second.read_events(1)
        assert refused(await ask(c, chat(other, named))) == (422, "idempotency_mismatch")
        gate.set()
        answers = [await first.finish(), await second.finish()]
    assert [answer.body for answer in answers] == [whole(numbered(1, 5))] * 2
    assert upstream.calls == 1
    for port in (a, b, c):
        assert (await ask(port, chat(body, named))).role == "replay"
        assert refused(await ask(port, chat(other, named))) == (422, "idempotency_mismatch")
    # Other keys never share, even with equal bodies; nor does another credential with the same key.
    assert (await ask(b, chat(body, "Idempotency-Key: op-2"))).role == "owner"
    assert (await ask(b, chat(other, named, key="another"))).role == "owner"
    assert upstream.calls == 3
    history.check()


async def test_a_failed_operation_may_be_run_again_anywhere(fleet: Fleet, upstream: ScriptedUpstream) -> None:
    upstream.play(json({"error": {"message": "busy"}}, status=503), stream(numbered(2, 5)))
    body, named = fresh(), "Idempotency-Key: op-3"
    assert (await ask(fleet.nodes[0].port, chat(body, named))).status == 503
    answer = await ask(fleet.nodes[1].port, chat(body, named))
    assert (answer.role, answer.body) == ("owner", whole(numbered(2, 5)))


async def test_only_if_cached_anywhere(fleet: Fleet, upstream: ScriptedUpstream) -> None:
    gate = asyncio.Event()
    upstream.play(stream(numbered(1, 5), gate))
    body = fresh()
    wish = chat(body, "Cache-Control: only-if-cached")
    a, b, c = (node.port for node in fleet.nodes)
    assert refused(await ask(b, wish)) == (504, "not_cached")
    async with connect(a) as owner, connect(b) as joins:
        await owner.send(chat(body))
        await owner.read_events(1)
        await joins.send(wish)
        await joins.read_events(1)
        gate.set()
        assert (await joins.finish()).body == (await owner.finish()).body
    assert (await ask(c, wish)).role == "replay"
    assert upstream.calls == 1


@pytest.mark.parametrize("status", [400, 429, 503])
async def test_an_upstreams_error_is_for_all_who_wait_and_for_nobody_later(
    status: int, fleet: Fleet, history: Witness, upstream: ScriptedUpstream
) -> None:
    gate = asyncio.Event()
    error = json({"error": {"message": "no"}}, "Retry-After: 1", status=status)
    upstream.play([gate, error], stream(numbered(2, 5)))
    body = chat(fresh())
    async with AsyncExitStack() as stack:
        clients = []
        for node in fleet.nodes:
            for _ in range(3):
                clients.append(await stack.enter_async_context(connect(node.port)))
                await clients[-1].send(body)
        await upstream.wait_calls(1)
        await eventually(lambda: sum(fleet.channels().values()) == 2)
        for node in fleet.nodes:
            await settle(node.port)
        gate.set()
        answers = [await client.finish() for client in clients]
    assert {(answer.status, answer.body, answer.get("Retry-After")) for answer in answers} == {
        (status, error.partition(b"\r\n\r\n")[2], "1")
    }
    assert upstream.calls == 1
    assert (await ask(fleet.nodes[2].port, body)).role == "owner"
    assert upstream.calls == 2


async def test_the_proxys_own_fault_reaches_every_node(fleet: Fleet, upstream: ScriptedUpstream) -> None:
    gate = asyncio.Event()
    upstream.play([gate, head(200, "Content-Type: application/json", "Content-Length: 100"), CLOSE])
    body = chat(fresh(stream=False), target="/no-l1/v1/chat/completions")
    async with connect(fleet.nodes[0].port) as a, connect(fleet.nodes[1].port) as b:
        await a.send(body)
        await upstream.wait_calls(1)
        await b.send(body)
        await eventually(lambda: len(fleet.channels()) == 1)
        gate.set()
        answers = [await a.finish(), await b.finish()]
    assert [error_code(answer) for answer in answers] == ["upstream_truncated"] * 2
    assert upstream.calls == 1


# ── publishing on demand ────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_ring_switches_publishing_on(fleet: Fleet, history: Witness, upstream: ScriptedUpstream) -> None:
    """The follower's claim rings the owner's node: nothing waits for a heartbeat."""
    gates = [asyncio.Event(), asyncio.Event()]
    events = numbered(1, 3)
    upstream.play(sse(events[0], gates[0], events[1], gates[1], events[2], FIN, DONE))
    body = chat(fresh())
    async with connect(fleet.nodes[0].port) as owner, connect(fleet.nodes[1].port) as follower:
        await owner.send(body)
        await owner.read_events(1)
        await asyncio.sleep(2 * HEARTBEAT_S)  # the passing of time is what is tested: beats publish nothing
        await history.caught_up()
        assert history.history == []
        await follower.send(body)
        await history.saw(NoticeKind.APPENDED)
        await eventually(lambda: history.rings >= 1)
        gates[0].set()
        await follower.read_events(2)
        gates[1].set()
        assert (await follower.finish()).body == whole(events)
        await owner.finish()
    history.check()


async def test_a_lost_ring_is_made_good_by_the_next_beat(
    fleet: Fleet, history: Witness, upstream: ScriptedUpstream
) -> None:
    """The owner is deaf: its subscription is half-open. The beat's reply tells of the watchers."""
    gate = asyncio.Event()
    events = numbered(1, 3)
    upstream.play(stream(events, gate))
    body = chat(fresh())
    a, b, _ = fleet.nodes
    async with connect(a.port) as owner, connect(b.port) as follower:
        await owner.send(body)
        await owner.read_events(1)
        assert a.way.mute() == 1
        await follower.send(body)
        await follower.read_events(1, within_s=8)  # not only by the look that the lease makes due
        gate.set()
        answers = [await owner.finish(), await follower.finish()]
    assert [answer.body for answer in answers] == [whole(events)] * 2
    assert upstream.calls == 1
    history.check()


# ── larger than what is recorded ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("form", ["SSE", "JSON"])
async def test_an_answer_larger_than_max_recording(
    form: str, fleet: Fleet, history: Witness, upstream: ScriptedUpstream
) -> None:
    """The owner's clients have all of it; followers elsewhere that have got bytes are cut visibly; nobody calls for nobody."""
    size = 8 * SMALL
    gate = asyncio.Event()
    if form == "SSE":
        events = [event for number in range(32) for event in [b"data: %d " % number + b"z" * (size // 32) + b"\n\n"]]
        expected = whole(events)
        upstream.play(sse(events[0], gate, *[step for event in events[1:] for step in (event, 0.01)], FIN, DONE))
    else:
        expected = json_body(1, size)
        parts: list[Step] = [expected[at : at + 65_536] for at in range(65_536, len(expected), 65_536)]
        slowly = [step for part in parts for step in (part, 0.01)]
        opening = head(200, "Content-Type: application/json", f"Content-Length: {len(expected)}")
        upstream.play([opening, expected[:65_536], gate, *slowly])
    body = chat(fresh(stream=form == "SSE"), target="/small/v1/chat/completions")
    a, b, _ = fleet.nodes
    async with connect(a.port) as owner, connect(a.port) as local, connect(b.port) as remote:
        for client in (owner, local, remote):
            await client.send(body)
            await client.read_body(1_000)
        gate.set()
        answers = await asyncio.gather(owner.finish(), local.finish(), remote.finish())
    assert [answer.body == expected and answer.complete for answer in answers[:2]] == [True, True]
    if not got_all(answers[2], expected) and form == "SSE" and answers[2].body.endswith(b"}\n\n"):
        assert error_of(answers[2])
    assert upstream.calls == 1, "a call for nobody"
    assert fleet.keys("answer") == []
    await eventually(lambda: not fleet.keys("log"))
    history.check(sizes=False)


async def test_who_comes_to_a_window_goes_alone(fleet: Fleet, upstream: ScriptedUpstream) -> None:
    """No new joiners once the beginning is not recorded any more: on no node do they wait for what they can not get."""
    size = 4 * SMALL
    gate = asyncio.Event()
    big = [b"data: " + b"z" * (size // 16) + b"\n\n" for _ in range(16)]
    upstream.play(sse(*big, gate, FIN, DONE), stream(numbered(2, 2)))
    body = chat(fresh(), target="/small/v1/chat/completions")
    a, b, _ = fleet.nodes
    async with connect(a.port) as owner:
        await owner.send(body)
        await owner.read_body(len(b"".join(big)))
        answer = await ask(b.port, body)
        assert (answer.status, answer.body) == (200, whole(numbered(2, 2)))
        gate.set()
        assert (await owner.finish()).body == whole(big)
    assert upstream.calls == 2


async def test_roles_of_a_crowd(fleet: Fleet, upstream: ScriptedUpstream) -> None:
    """Sixty requests on three nodes in one burst, answered at once: each is owner, follower or replay, and one call was made."""
    upstream.play(lambda received: stream(numbered(received.number, 2)))
    body = chat(fresh())
    answers = await asyncio.gather(*(ask(node.port, body) for _ in range(20) for node in fleet.nodes))
    roles = Counter(answer.role for answer in answers)
    assert roles["owner"] == 1, roles
    assert set(roles) <= {"owner", "follower", "replay"}
    assert {answer.body for answer in answers} == {whole(numbered(1, 2))}
    assert upstream.calls == 1
