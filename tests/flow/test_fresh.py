"""Refresh, age, and only-if-cached: who takes a finished answer, and what becomes of the old one."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from nodes import NodeAt, Town
from soloflight.core.errors import Code
from soloflight.core.flight import Claim, Owned
from soloflight.ports import Role
from soloflight.testing.chat import CH, DONE, FIN, content
from soloflight.testing.script import CLOSE, HANG, json, sse

OLD, NEW = CH + FIN + DONE, content("new") + FIN + DONE
NO_CACHE = (b"Cache-Control", b"no-cache")
ONLY = (b"Cache-Control", b"only-if-cached")
# Each replay is asked of the coordinator.
NO_L1 = {"local_retention": 0.0}


async def kept(town: Town, **stage: object) -> tuple[NodeAt, NodeAt]:
    """Two nodes, and OLD kept."""
    town.upstream.play(sse(CH, FIN, DONE))
    first, second = await town.node(), await town.node()
    assert (await first.answer(town.call(**stage))).body == OLD
    return first, second


async def test_a_refresh_calls_again_and_the_old_answer_is_served_meanwhile(town: Town) -> None:
    first, second = await kept(town)
    gate = asyncio.Event()
    town.upstream.play(sse(content("new"), gate, FIN, DONE))
    refreshing = await (await first.ask(town.call(None, NO_CACHE))).until_bytes(1)
    for node in (first, second):
        meanwhile = await node.answer(town.call())
        assert (meanwhile.role, meanwhile.body) == (Role.REPLAY, OLD)
    gate.set()
    await refreshing.read()
    assert (refreshing.role, refreshing.body) == (Role.OWNER, NEW)


@pytest.mark.parametrize("stage", [{}, NO_L1], ids=["L1", "no L1"])
async def test_where_a_refresh_is_followed_the_old_answer_is_served_meanwhile(
    town: Town, stage: dict[str, float]
) -> None:
    """The node has not replayed it before: it has to look, although a flight of this key is here to be joined."""
    first, _ = await kept(town, **stage)
    third = await town.node()
    gate = asyncio.Event()
    town.upstream.play(sse(content("new"), gate, FIN, DONE))
    await (await first.ask(town.call(None, NO_CACHE, **stage))).until_bytes(1)
    following = await (await third.ask(town.call(None, NO_CACHE, **stage))).until_bytes(1)
    for _ in range(2):
        meanwhile = await third.answer(town.call(**stage))
        assert (meanwhile.role, meanwhile.body) == (Role.REPLAY, OLD)
    gate.set()
    assert (await following.read()).body == NEW
    assert town.upstream.calls == 2


async def test_with_no_old_answer_who_comes_to_a_refresh_joins_it(town: Town) -> None:
    gate = asyncio.Event()
    town.upstream.play(sse(content("new"), gate, FIN, DONE))
    node = await town.node()
    refreshing = await (await node.ask(town.call(None, NO_CACHE))).until_bytes(1)
    joined = await (await node.ask(town.call())).until_bytes(1)
    node.wire.cut = True
    blind = await (await node.ask(town.call())).until_bytes(1)
    node.wire.cut = False
    gate.set()
    assert [(await client.read()).body for client in (refreshing, joined, blind)] == [NEW] * 3
    assert (joined.role, town.upstream.calls) == (Role.FOLLOWER, 1)


async def test_the_fleet_is_told_of_a_refresh_before_its_end(town: Town) -> None:
    first, second = await kept(town)
    assert second.wire.told == first.wire.told == []
    town.upstream.play(sse(content("new"), FIN, DONE))
    refreshed = await second.answer(town.call(None, NO_CACHE))
    (word,) = second.wire.told
    assert word == f"anew {town.call().key} {second.wire.replies(Owned)[-1].fence.number}"
    assert (refreshed.body, first.wire.told) == (NEW, [])


async def test_behind_a_refresh_every_node_serves_the_new_answer(town: Town) -> None:
    first, second = await kept(town, **NO_L1)
    assert (await second.answer(town.call(**NO_L1))).body == OLD
    town.upstream.play(sse(content("new"), FIN, DONE))
    assert (await second.answer(town.call(None, NO_CACHE, **NO_L1))).body == NEW
    for node in (first, second, await town.node()):
        client = await node.answer(town.call(**NO_L1))
        assert (client.role, client.body) == (Role.REPLAY, NEW)
    assert town.upstream.calls == 2


async def test_behind_a_refresh_no_nodes_own_memory_serves_the_old_answer(town: Town) -> None:
    first, second = await kept(town)
    third = await town.node()
    for node in (second, third):
        assert (await node.answer(town.call())).body == OLD
    town.upstream.play(sse(content("new"), FIN, DONE))
    assert (await second.answer(town.call(None, NO_CACHE))).body == NEW
    for node in (first, second, third):
        client = await node.answer(town.call())
        assert (client.role, client.body) == (Role.REPLAY, NEW)
    assert town.upstream.calls == 2


async def test_the_refreshing_node_serves_the_new_answer_from_its_own_memory(town: Town) -> None:
    first, _ = await kept(town)
    town.upstream.play(sse(content("new"), FIN, DONE))
    await first.answer(town.call(None, NO_CACHE))
    claims = len(first.wire.done(Claim))
    assert (await first.answer(town.call())).body == NEW
    assert len(first.wire.done(Claim)) == claims


@pytest.mark.parametrize(
    "failure",
    [json({"error": {}}, status=500), sse(content("new"), CLOSE, last=False), sse(content("new"), DONE)],
    ids=["status", "cut", "incomplete"],
)
async def test_the_old_answer_survives_a_refresh_that_fails(town: Town, failure: object) -> None:
    first, second = await kept(town)
    town.upstream.play(failure)
    await first.answer(town.call(None, NO_CACHE))
    for node in (first, second, await town.node()):
        client = await node.answer(town.call())
        assert (client.role, client.body) == (Role.REPLAY, OLD)
    assert town.upstream.calls == 2


async def test_refreshes_at_the_same_time_share_one_call(town: Town) -> None:
    first, second = await kept(town)
    gate = asyncio.Event()
    town.upstream.play(sse(content("new"), gate, FIN, DONE))
    clients = [await node.ask(town.call(None, NO_CACHE)) for node in (first, first, second, second)]
    for client in clients:
        await client.until_bytes(1)
    gate.set()
    assert {(await client.read()).body for client in clients} == {NEW}
    assert town.upstream.calls == 2


async def test_a_refresh_joins_a_call_that_runs(town: Town) -> None:
    gate = asyncio.Event()
    town.upstream.play(sse(CH, gate, FIN, DONE))
    first, second = await town.node(), await town.node()
    await (await first.ask(town.call())).until_bytes(1)
    clients = [await node.ask(town.call(None, NO_CACHE)) for node in (first, second)]
    for client in clients:
        await client.until_bytes(1)
    gate.set()
    assert [(await client.read()).body for client in clients] == [OLD, OLD]
    assert town.upstream.calls == 1


async def test_a_refresh_does_not_join_a_replay_that_is_on_its_way(town: Town) -> None:
    """The node has asked for a claim without bounds; its reply is a replay, which the one behind it does not accept."""
    _, second = await kept(town)
    town.upstream.play(sse(content("new"), FIN, DONE))
    held = second.wire.held = asyncio.Event()
    first = await second.ask(town.call())
    asking = asyncio.create_task(second.answer(town.call(None, NO_CACHE)))
    await second.wire.until(lambda: second.wire.waiting)
    held.set()
    assert (await first.read()).body == OLD
    assert (await asking).body == NEW


async def test_an_answer_older_than_asked_for_is_made_anew(town: Town) -> None:
    first, second = await kept(town)
    await asyncio.sleep(0.05)
    town.upstream.play(sse(content("new"), FIN, DONE))
    young, old = replace(town.call(), fresh_s=60.0), replace(town.call(), fresh_s=0.04)
    for node in (first, second):
        assert (await node.answer(young)).body == OLD
    assert (await second.answer(old)).body == NEW
    assert (await second.answer(young)).body == NEW


# ── only-if-cached ──────────────────────────────────────────────────────────────────────────────────────────────────


async def test_with_nothing_kept_only_if_cached_is_no_call(town: Town) -> None:
    node = await town.node()
    client = await node.answer(town.call(None, ONLY))
    assert (client.code, client.head, town.upstream.calls) == (Code.NOT_CACHED, None, 0)


async def test_only_if_cached_takes_what_is_kept_here_and_elsewhere(town: Town) -> None:
    first, second = await kept(town)
    for node in (first, second):
        client = await node.answer(town.call(None, ONLY))
        assert (client.role, client.body) == (Role.REPLAY, OLD)
    assert town.upstream.calls == 1


async def test_only_if_cached_joins_a_call_that_runs_here_and_elsewhere(town: Town) -> None:
    gate = asyncio.Event()
    town.upstream.play(sse(CH, gate, FIN, DONE))
    first, second = await town.node(), await town.node()
    await (await first.ask(town.call())).until_bytes(1)
    clients = [await node.ask(town.call(None, ONLY)) for node in (first, second)]
    for client in clients:
        await client.until_bytes(1)
    gate.set()
    assert [(await client.read()).body for client in clients] == [OLD, OLD]
    assert town.upstream.calls == 1


@pytest.mark.lapse
async def test_only_if_cached_does_not_take_over_a_lost_call(town: Town) -> None:
    town.upstream.play([HANG])
    first, second = await town.node(), await town.node()
    await first.ask(town.call())
    await town.upstream.wait_calls(1)
    client = await second.ask(town.call(None, ONLY))
    await second.wire.until(lambda: second.wire.subscriptions)
    await first.crash()
    await client.read()
    assert (client.code, town.upstream.calls) == (Code.NOT_CACHED, 1)


@pytest.mark.parametrize("fields", [(), (NO_CACHE,)], ids=["any answer", "a fresh one"])
async def test_who_may_call_is_not_bound_by_one_who_may_not(
    town: Town, fields: tuple[tuple[bytes, bytes], ...]
) -> None:
    """Both come while the look for a kept answer is on its way."""
    town.upstream.play(sse(CH, FIN, DONE))
    node = await town.node()
    held = node.wire.held = asyncio.Event()
    looking = await node.ask(town.call(None, ONLY))
    asking = asyncio.create_task(node.answer(town.call(None, *fields)))
    await node.wire.until(lambda: node.wire.waiting)
    await asyncio.sleep(0)
    held.set()
    client = await asking
    assert (client.body, client.whole, town.upstream.calls) == (OLD, True, 1)
    await looking.read()
    assert looking.whole or looking.code is Code.NOT_CACHED
