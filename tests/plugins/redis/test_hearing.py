"""Notices across the loss of connections: what is heard, what is told as a gap, and that silence is noticed."""

from __future__ import annotations

import asyncio

import pytest
import redis

from harness.process import eventually
from harness.redis import RedisServer
from harness.stalls import lasted
from redis_world.parties import at_key, parties
from soloflight.core.flight import Joined, Notice, NoticeKind
from soloflight.ports import BackendError
from soloflight.testing.fault_proxy import Direction, FaultProxy
from soloflight.testing.party import kinds
from soloflight_redis import hearing
from soloflight_redis.keys import Names
from soloflight_redis.notices import GAP


def channels(client: redis.Redis) -> list[bytes]:
    """The channels of notices that somebody listens to."""
    return client.pubsub_channels("*:notices")  # type: ignore[no-any-return]


def listeners(client: redis.Redis) -> int:
    """Connections that listen."""
    return len(client.client_list(_type="pubsub"))


async def test_many_listeners_of_many_keys_are_one_connection(redis_server: RedisServer, client: redis.Redis) -> None:
    before = listeners(client)
    async with parties(redis_server.url) as (a,):
        found = [await at_key(a, f"key-{at % 20}").listen() for at in range(100)]
        assert listeners(client) == before + 1
        assert len(channels(client)) == 20
        for at, (_, subscription) in enumerate(found):
            await subscription.close()
            if at < 80:
                assert len(channels(client)) == 20
        await eventually(lambda: channels(client) == [])
    await eventually(lambda: listeners(client) == before)


async def test_a_subscription_is_confirmed_before_it_is_given_out(redis_server: RedisServer) -> None:
    async with (
        FaultProxy("127.0.0.1", redis_server.port) as slow,
        parties(redis_server.url, f"redis://127.0.0.1:{slow.port}") as (a, b),
    ):
        for _ in range(5):
            slow.up.delay_s = 0.1
            there, subscription = await b.listen()
            fence = await a.own()
            await a.start(fence)
            await a.abandon(fence)
            await there.until(lambda notices: len(notices) == 2)
            assert kinds(there.items) == [NoticeKind.STARTED, NoticeKind.ABANDONED]
            slow.up.delay_s = 0.0
            await subscription.close()


async def test_a_subscription_that_is_never_confirmed_is_refused_in_time(redis_server: RedisServer) -> None:
    async with FaultProxy("127.0.0.1", redis_server.port) as mute, parties(f"redis://127.0.0.1:{mute.port}") as (a,):
        mute.down.swallow = True
        begun = asyncio.get_running_loop().time()
        with pytest.raises(BackendError):
            await a.listen()
        assert lasted(begun) < 1.0


async def test_after_a_killed_connection_everybody_looks_again_and_hears_again(
    redis_server: RedisServer, client: redis.Redis
) -> None:
    async with parties(redis_server.url, redis_server.url) as (a, b):
        here, _ = await b.listen()
        other, _ = await at_key(b, "other").listen()
        fence = await a.run()
        for round_ in range(1, 4):
            client.client_kill_filter(_type="pubsub")
            await here.until(lambda notices, wanted=round_: notices.count(GAP) == wanted)
            await other.until(lambda notices, wanted=round_: notices.count(GAP) == wanted)
            await a.append(fence, round_)
            await here.until(lambda notices, wanted=round_: notices[-1].index == wanted)
        assert kinds(here.items) == [NoticeKind.RETRY, NoticeKind.APPENDED] * 3


async def test_rings_are_heard_again_after_a_killed_connection(redis_server: RedisServer, client: redis.Redis) -> None:
    async with parties(redis_server.url, redis_server.url) as (a, b):
        await a.run()
        client.client_kill_filter(_type="pubsub")
        channel = Names("soloflight").node("a")
        await eventually(lambda: client.pubsub_numsub(channel)[0][1] == 1)
        assert isinstance(await b.claim(), Joined)
        await a.rings.holds(a.key)


async def test_a_subscription_while_there_is_no_connection_waits_for_it(
    redis_server: RedisServer, client: redis.Redis
) -> None:
    async with parties(redis_server.url) as (a,):
        await a.listen()
        client.client_kill_filter(_type="pubsub")
        there, _ = await at_key(a, "later").listen()
        fence = await at_key(a, "later").own()
        await at_key(a, "later").start(fence)
        await there.until(lambda notices: notices[-1:] == [Notice(NoticeKind.STARTED, fence.number)])


@pytest.fixture
def quick_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hearing, "PROBE_S", 0.1)


@pytest.mark.usefixtures("quick_probe")
async def test_a_silent_connection_is_noticed_and_replaced(redis_server: RedisServer, client: redis.Redis) -> None:
    async with (
        FaultProxy("127.0.0.1", redis_server.port) as faults,
        parties(redis_server.url, f"redis://127.0.0.1:{faults.port}") as (a, b),
    ):
        there, _ = await b.listen()
        mute = Direction("mute")
        mute.swallow = True
        for link in faults._links:  # what is open now hears nothing any more, and sees no error
            link.down.faults = mute
        await there.until(lambda notices: GAP in notices)
        fence = await a.own()
        await a.start(fence)
        await there.until(lambda notices: notices[-1].kind is NoticeKind.STARTED)


@pytest.mark.usefixtures("quick_probe")
async def test_a_quiet_connection_is_left_alone(redis_server: RedisServer, client: redis.Redis) -> None:
    async with parties(redis_server.url) as (a,):
        there, _ = await a.listen()
        ids = {entry["id"] for entry in client.client_list(_type="pubsub")}
        published = client.info("commandstats")["cmdstat_publish"]["calls"] if _probed(client) else 0
        await eventually(lambda: _probed(client) >= published + 5)
        assert {entry["id"] for entry in client.client_list(_type="pubsub")} == ids
        assert there.items == []


def _probed(client: redis.Redis) -> int:
    return int(client.info("commandstats").get("cmdstat_publish", {}).get("calls", 0))


async def test_what_is_no_notice_is_counted_and_passed_over(redis_server: RedisServer, client: redis.Redis) -> None:
    async with parties(redis_server.url) as (a,):
        there, _ = await a.listen()
        channel = Names("soloflight").notices(a.key)
        for said in (b"", b"rubbish", b"C 1 1\n", b"C 1 1\n\x01\xff", b"D 1 \xff", b"\x00" * 100):
            client.publish(channel, said)
        client.publish(channel, b"D 7 9")
        await there.holds(Notice(NoticeKind.SEALED, 7, 9))
        assert "unreadable=6" in repr(a.coordinator._hearing)


async def test_a_storm_of_listeners_leaves_nothing_behind(redis_server: RedisServer, client: redis.Redis) -> None:
    async with parties(redis_server.url) as (a,):

        async def come_and_go(at: int) -> None:
            _, subscription = await at_key(a, f"key-{at % 7}").listen()
            await asyncio.sleep(0)
            await subscription.close()

        for _ in range(5):
            await asyncio.gather(*(come_and_go(at) for at in range(100)))
        await eventually(lambda: channels(client) == [])
        there, _ = await at_key(a, "key-1").listen()
        fence = await at_key(a, "key-1").own()
        await at_key(a, "key-1").start(fence)
        await there.holds(Notice(NoticeKind.STARTED, fence.number))
        assert "keys=1" in repr(a.coordinator._hearing)


async def test_a_subscription_whose_maker_is_cancelled_leaves_nothing_behind(
    redis_server: RedisServer, client: redis.Redis
) -> None:
    async with FaultProxy("127.0.0.1", redis_server.port) as slow, parties(f"redis://127.0.0.1:{slow.port}") as (a,):
        slow.up.delay_s = 0.1
        task = asyncio.create_task(a.listen())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await eventually(lambda: channels(client) == [] and "keys=0" in repr(a.coordinator._hearing))
