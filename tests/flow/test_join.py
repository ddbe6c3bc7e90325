"""Whoever asks for the same reads the same log from byte 0: here, on another node, in mid-stream, or behind the end."""

from __future__ import annotations

import asyncio

import pytest

from harness.process import eventually
from nodes import Client, NodeAt, Town
from soloflight.core.flight import Append, Claim, Seal
from soloflight.ports import Role
from soloflight.testing.chat import CH, DONE, FIN, completion_object, content
from soloflight.testing.script import json, sse

ANSWER = CH + FIN + DONE


async def test_a_crowd_on_one_node_makes_one_call_and_one_claim(town: Town) -> None:
    gate = asyncio.Event()
    town.upstream.play(sse(CH, gate, FIN, DONE))
    node = await town.node()
    clients = [await node.ask(town.call()) for _ in range(50)]
    await clients[0].until_bytes(1)
    clients += [await node.ask(town.call()) for _ in range(50)]
    gate.set()
    for client in clients:
        await client.read()
    assert {client.body for client in clients} == {ANSWER}
    assert all(client.whole for client in clients)
    assert [client.role for client in clients] == [Role.OWNER] + [Role.FOLLOWER] * 99
    assert len({client.flight for client in clients}) == 1
    assert town.upstream.calls == 1
    assert (len(node.wire.done(Claim)), len(node.wire.done(Seal))) == (1, 1)


async def test_a_flight_that_nobody_else_wants_is_two_round_trips(town: Town) -> None:
    town.upstream.play(sse(CH, FIN, DONE))
    node = await town.node()
    await node.answer(town.call(heartbeat=30.0, running_lease=100.0))
    assert [type(op) for op, _ in node.wire.steps] == [Claim, Seal]


async def joined(town: Town, owner: NodeAt, other: NodeAt) -> tuple[Client, Client, asyncio.Event]:
    """An owner's client that has read the first event, and a client on another node."""
    gate = asyncio.Event()
    town.upstream.play(sse(CH, gate, FIN, DONE))
    first = await (await owner.ask(town.call())).until_bytes(len(CH))
    return first, await other.ask(town.call()), gate


async def test_a_follower_on_another_node_is_live_from_byte_zero(town: Town) -> None:
    owner, other = await town.node(), await town.node()
    first, second, gate = await joined(town, owner, other)
    await second.until_bytes(len(CH))
    assert (second.body, second.end) == (CH, None), "what is there is here while the upstream still works"
    gate.set()
    await first.read()
    await second.read()
    assert (first.body, second.body) == (ANSWER, ANSWER)
    assert first.pieces == second.pieces
    assert first.head == second.head
    assert (first.role, second.role) == (Role.OWNER, Role.FOLLOWER)
    assert first.flight == second.flight
    assert town.upstream.calls == 1


async def test_a_follower_that_comes_before_the_first_byte_waits_for_it(town: Town) -> None:
    gate = asyncio.Event()
    town.upstream.play([gate, *sse(CH, FIN, DONE)])
    owner, other = await town.node(), await town.node()
    first, second = await owner.ask(town.call()), await other.ask(town.call())
    await town.upstream.wait_calls(1)
    gate.set()
    for client in (await first.read(), await second.read()):
        assert (client.body, client.whole) == (ANSWER, True)
    assert town.upstream.calls == 1


async def test_a_crowd_on_another_node_has_one_claim_and_one_subscription(town: Town) -> None:
    owner, other = await town.node(), await town.node()
    first, second, gate = await joined(town, owner, other)
    crowd = [await other.ask(town.call()) for _ in range(30)]
    await second.until_bytes(1)
    gate.set()
    for client in (first, second, *crowd):
        assert (await client.read()).body == ANSWER
    assert other.wire.subscriptions == 1
    assert len([op for op in other.wire.done(Claim) if op.claim]) == 1


async def test_an_answer_without_a_body_reaches_the_other_node(town: Town) -> None:
    gate = asyncio.Event()
    town.upstream.play([gate, b"HTTP/1.1 204 No Content\r\nX-A: 1\r\n\r\n"])
    owner, other = await town.node(), await town.node()
    first, second = await owner.ask(town.call()), await other.ask(town.call())
    await town.upstream.wait_calls(1)
    gate.set()
    for client in (await first.read(), await second.read()):
        assert client.head is not None
        assert (client.head.status, client.body, client.whole) == (204, b"", True)


async def test_an_upstreams_error_is_everybodys_answer_once(town: Town) -> None:
    gate = asyncio.Event()
    error = json({"error": {"message": "slow down"}}, "Retry-After: 7", status=429)
    town.upstream.play([gate, error], sse(CH, FIN, DONE))
    owner, other = await town.node(), await town.node()
    first, second = await owner.ask(town.call()), await other.ask(town.call())
    await town.upstream.wait_calls(1)
    await other.wire.until(lambda: other.wire.done(Claim))
    gate.set()
    for client in (await first.read(), await second.read()):
        assert client.head is not None
        assert (client.head.status, client.head.get(b"retry-after"), client.whole) == (429, b"7", True)
        assert client.body == error.partition(b"\r\n\r\n")[2]
    assert (await other.answer(town.call())).body == ANSWER
    assert town.upstream.calls == 2
    assert [(event.outcome, event.kept) for event in owner.ended] == [("error", "status")]


async def test_a_finished_answer_is_replayed_here_and_elsewhere(town: Town) -> None:
    town.upstream.play(sse(CH, content("y"), FIN, DONE))
    owner, other = await town.node(), await town.node()
    made = await owner.answer(town.call())
    here, there, again = [await node.answer(town.call()) for node in (owner, other, other)]
    for client in (here, there, again):
        assert (client.role, client.pieces, client.head) == (Role.REPLAY, made.pieces, made.head)
        assert client.flight == made.flight
        assert client.listener.age_s < 1
        assert 295 < client.listener.ttl_s <= 300
    assert len(owner.wire.done(Claim)) == 1, "its own answer is in its own memory"
    assert len(other.wire.done(Claim)) == 1, "a second replay does not ask the coordinator"
    assert town.upstream.calls == 1


@pytest.mark.parametrize("stage", [{"local_retention": 0.0}, {"local_max_bytes": 10}])
async def test_without_room_of_its_own_a_node_asks_the_coordinator(town: Town, stage: dict[str, float]) -> None:
    town.upstream.play(json(completion_object()))
    node = await town.node()
    made = await node.answer(town.call(**stage))
    again = await node.answer(town.call(**stage))
    assert (again.role, again.body, again.flight) == (Role.REPLAY, made.body, made.flight)
    assert (len(node.wire.done(Claim)), node.replays.size, town.upstream.calls) == (2, 0, 1)


async def test_a_result_that_is_gone_is_a_miss(town: Town) -> None:
    """The record promises an answer that can not be read any more: it is made anew, once."""
    town.upstream.play(sse(CH, FIN, DONE))
    owner, other = await town.node(), await town.node()
    await owner.answer(town.call())

    async def nothing(key: str, number: int) -> None:
        return None

    other.wire.result = nothing  # type: ignore[method-assign]
    made = await other.answer(town.call())
    assert (made.role, made.body, town.upstream.calls) == (Role.OWNER, ANSWER, 2)


async def test_stages_never_share(town: Town) -> None:
    gate = asyncio.Event()
    town.upstream.play(lambda _: sse(CH, gate, FIN, DONE))
    node = await town.node()
    first, second = await node.ask(town.call(name="a")), await node.ask(town.call(name="b"))
    await town.upstream.wait_calls(2)
    gate.set()
    assert {(await client.read()).role for client in (first, second)} == {Role.OWNER}


async def test_a_large_answer_is_published_in_bounded_batches(town: Town) -> None:
    gate = asyncio.Event()
    piece = content("z" * 100_000)
    town.upstream.play(sse(CH, gate, *[piece] * 12, FIN, DONE))
    owner, other = await town.node(), await town.node()
    first, second = await owner.ask(town.call()), await other.ask(town.call())
    await second.until_bytes(len(CH))
    gate.set()
    await first.read()
    await second.read()
    assert first.body == second.body == CH + piece * 12 + FIN + DONE
    batches = owner.wire.done(Append)
    assert [op.index for op in batches] == list(range(1, len(batches) + 1))
    assert b"".join(f.data for op in batches for f in op.frames if hasattr(f, "data")) == second.body


# ── frames that are taken in the call that appends them ─────────────────────────────────────────────────────────────


async def test_frames_are_pushed_as_they_are_appended_and_no_task_wakes(town: Town) -> None:
    gate = asyncio.Event()
    town.upstream.play(sse(CH, gate, FIN, DONE))
    owner, other = await town.node(), await town.node()
    clients = [await node.ask(town.call(), pushed=True) for node in (owner, owner, other, other)]
    turns = dict.fromkeys(clients, 0)

    async def read(client: Client) -> None:
        while not client.over and client.end is None:
            turns[client] += 1
            await client.step()

    reading = [asyncio.create_task(read(client)) for client in clients]
    await eventually(lambda: all(client.body == CH for client in clients))
    gate.set()
    async with asyncio.timeout(5):
        await asyncio.gather(*reading)
    assert [(client.body, client.whole) for client in clients] == [(ANSWER, True)] * 4
    assert set(turns.values()) == {1}, "each waited once, and was woken for the end"


async def test_a_client_whose_push_fails_is_alone_with_it(town: Town) -> None:
    gate = asyncio.Event()
    town.upstream.play([gate, *sse(CH, FIN, DONE)])
    node = await town.node()
    broken, sound = await node.ask(town.call(), pushed=True), await node.ask(town.call(), pushed=True)

    def fails(_: object) -> bool:
        raise ValueError("this client's own")

    broken.push = fails
    failing = asyncio.create_task(broken.read())
    reading = asyncio.create_task(sound.read())
    await town.upstream.wait_calls(1)
    gate.set()
    with pytest.raises(ValueError, match="own"):
        await failing
    assert ((await reading).body, sound.whole) == (ANSWER, True)
    assert [event.kept for event in node.ended] == ["kept"]


async def test_a_client_that_does_not_take_what_is_pushed_gets_it_by_its_task(town: Town) -> None:
    gate = asyncio.Event()
    town.upstream.play([gate, *sse(CH, FIN, DONE)])
    node = await town.node()
    client = await node.ask(town.call())
    client.push = lambda _: False
    reading = asyncio.create_task(client.read())
    await town.upstream.wait_calls(1)
    gate.set()
    assert ((await reading).body, client.whole) == (ANSWER, True)
