"""A real cluster of three nodes: keys and channels where their slots are, and after those have moved."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from redis.crc import key_slot

from harness.process import eventually
from harness.redis import RedisServer
from redis_world.fleets import RedisCluster
from redis_world.parties import at_key, parties
from soloflight.core.flight import Answered, Done, Joined, Notice, NoticeKind, Owned
from soloflight.ports import BackendError
from soloflight.testing.party import ANSWER, Party
from soloflight_redis.keys import Names

NAMES = Names("soloflight")
T = TypeVar("T")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    found = RedisCluster(tmp_path_factory.mktemp("cluster"))
    try:
        found.start()
        yield found
    finally:
        found.stop()


def keys_on_every_node(cluster: RedisCluster, word: str) -> list[str]:
    """One key for each primary."""
    found: dict[int, str] = {}
    for at in range(1_000):
        key = f"{word}-{at}"
        found.setdefault(cluster.owner(NAMES.notices(key)).port, key)
        if len(found) == len(cluster.primaries):
            break
    return list(found.values())


async def whole_flight(a: Party, b: Party) -> None:
    """From a claim on one node to a replay on the other, live in between."""
    there, subscription = await b.listen()
    fence = await a.run()
    joined = await b.claim()
    assert isinstance(joined, Joined)
    assert await a.append(fence, 1) == Done(watchers=1)
    assert [index for index, _ in await b.log(fence.number)] == [1]
    assert await a.seal(fence) == Done()
    reply = await b.claim()
    assert isinstance(reply, Answered)
    assert await b.result(reply.number) == ANSWER
    await there.until(lambda notices: notices[-1:] == [Notice(NoticeKind.SEALED, fence.number, ANSWER.size)])
    assert [notice.kind for notice in there.items] == [NoticeKind.APPENDED, NoticeKind.SEALED]
    assert await b.coordinator.purge(b.key)
    await subscription.close()


async def test_flights_on_every_node_are_shared_live_and_rung(cluster: RedisCluster) -> None:
    async with parties(cluster.url, cluster.url) as (a, b):
        keys = keys_on_every_node(cluster, "flight")
        for key in keys:
            await whole_flight(at_key(a, key), at_key(b, key))
        await a.rings.until(lambda rung: sorted(rung) == sorted(keys))


async def test_many_flights_at_once(cluster: RedisCluster) -> None:
    async with parties(cluster.url, cluster.url) as (a, b):
        await asyncio.gather(*(whole_flight(at_key(a, f"many-{at}"), at_key(b, f"many-{at}")) for at in range(60)))
        await eventually(lambda: not any(node.command("PUBSUB", "SHARDCHANNELS", "*") for node in cluster.primaries))
        await eventually(lambda: "keys=0" in repr(b.coordinator._hearing))
        listening = sum(
            str(node.command("CLIENT", "LIST", "TYPE", "pubsub")).count("id=") for node in cluster.primaries
        )
        assert listening == 2  # of each node the one for rings


async def test_all_nodes_have_one_scope_key(cluster: RedisCluster) -> None:
    async with parties(cluster.url, cluster.url) as (a, b):
        assert await a.coordinator.scope_key() == await b.coordinator.scope_key()


async def test_a_flight_goes_on_when_its_slot_moves(cluster: RedisCluster) -> None:
    async with parties(cluster.url, cluster.url) as (a, b):
        there, _ = await b.listen()
        fence = await a.run(running_ms=60_000)
        assert await a.append(fence, 1) == Done()
        source = cluster.owner(NAMES.notices(a.key))
        target = next(node for node in cluster.primaries if node is not source)
        await asyncio.to_thread(cluster.move, NAMES.notices(a.key), target)
        assert await a.append(fence, 2) == Done()
        assert [index for index, _ in await b.log(fence.number)] == [1, 2]
        await there.until(lambda notices: any(notice.number == 0 for notice in notices))  # look again
        assert await a.append(fence, 3) == Done()
        await there.until(lambda notices: notices[-1].index == 3)
        assert await a.seal(fence) == Done()
        # A node that comes now, with no map yet, finds it; one whose map is old is told.
        async with parties(cluster.url, key=a.key) as (c,):
            assert isinstance(await c.claim(), Answered)
            inbox, _ = await c.listen()
            newer = await c.run(fresh_ms=-1)
            await c.append(newer, 1)
            await inbox.until(bool)


async def test_while_a_slot_moves_its_flights_are_nobody_s_and_then_there_again(cluster: RedisCluster) -> None:
    async with parties(cluster.url) as (a,):
        source = cluster.owner(NAMES.notices(a.key))
        target = next(node for node in cluster.primaries if node is not source)
        await a.claim()
        slot = key_slot(NAMES.notices(a.key).encode())
        target.command("CLUSTER", "SETSLOT", slot, "IMPORTING", str(source.command("CLUSTER", "MYID")))
        source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", str(target.command("CLUSTER", "MYID")))
        keys = source.command("CLUSTER", "GETKEYSINSLOT", slot, 100)
        source.command("MIGRATE", "127.0.0.1", target.port, "", 0, 5_000, "KEYS", *keys)  # type: ignore[misc]
        try:
            with pytest.raises(BackendError):  # a script's keys must all be on one server: not now
                await a.claim()
            assert a.coordinator.up
        finally:
            for node in (target, source, *(node for node in cluster.primaries if node not in (source, target))):
                node.command("CLUSTER", "SETSLOT", slot, "NODE", str(target.command("CLUSTER", "MYID")))
        assert isinstance(await a.claim(), Joined)


async def test_a_killed_pubsub_connection_is_told_and_replaced(cluster: RedisCluster) -> None:
    async with parties(cluster.url, cluster.url) as (a, b):
        there, _ = await b.listen()
        for node in cluster.primaries:
            node.command("CLIENT", "KILL", "TYPE", "pubsub")
        await there.until(lambda notices: any(notice.number == 0 for notice in notices))
        fence = await a.run()
        await a.append(fence, 1)
        await there.until(lambda notices: notices[-1].index == 1)


async def test_a_single_node_s_url_is_told_what_it_is(
    cluster: RedisCluster, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with parties(cluster.primaries[0].url) as (a,):
        assert not a.coordinator.up
    assert "it is a node of a cluster: use redis+cluster://" in caplog.text
    caplog.clear()
    async with parties(f"redis+cluster://127.0.0.1:{redis_server.port}") as (a,):
        assert not a.coordinator.up
    assert "it is not a node of a cluster: use redis://" in caplog.text


async def test_one_node_lost_takes_only_its_own_keys(tmp_path: Path) -> None:
    cluster = RedisCluster(tmp_path)
    try:
        await asyncio.to_thread(cluster.start)
        for node in cluster.nodes:
            node.command("CONFIG", "SET", "cluster-require-full-coverage", "no")
        async with parties(cluster.url) as (a,):
            keys = keys_on_every_node(cluster, "key")
            for key in keys:
                assert isinstance(await at_key(a, key).claim(), Owned)
            lost = cluster.owner(NAMES.notices(keys[0]))
            lost.stop()
            with pytest.raises(BackendError):
                await at_key(a, keys[0]).claim()
            for key in keys[1:]:
                assert isinstance(await at_key(a, key).claim(), Joined)
            assert a.coordinator.up
    finally:
        cluster.stop()


@pytest.mark.timeout(120)
async def insist(step: Callable[[], Awaitable[T]]) -> T:
    """Until the cluster answers: behind a failover its nodes take a while to agree that it is up."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await step()
            except BackendError:
                await asyncio.sleep(0.1)


async def test_a_failover_inside_the_cluster(tmp_path: Path) -> None:
    cluster = RedisCluster(tmp_path, replicas=True)
    try:
        await asyncio.to_thread(cluster.start)
        async with parties(cluster.url, cluster.url) as (a, b):
            there, _ = await b.listen()
            fence = await a.run(running_ms=60_000)
            await a.append(fence, 1)
            lost = cluster.owner(NAMES.notices(a.key))
            lost.command("WAIT", 1, 1_000)
            lost.stop()
            cluster.nodes.remove(lost)
            done = (Done(), Done(duplicate=True))
            for index in (2, 3):
                assert await insist(lambda index=index: a.append(fence, index)) in done
            await there.until(lambda notices: any(notice.number == 0 for notice in notices))
            assert await insist(lambda: a.append(fence, 4)) in done
            await there.until(lambda notices: notices[-1].index == 4)
            assert await insist(lambda: a.seal(fence)) in done
            assert isinstance(await insist(b.claim), Answered)
    finally:
        cluster.stop()
