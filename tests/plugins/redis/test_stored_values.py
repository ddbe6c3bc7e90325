"""Whatever happens to what is stored: keys evicted one by one, everything flushed, values replaced by rubbish.

Nobody crashes, nobody is shown a hole or half an answer, and the next claim finds its way.
"""

from __future__ import annotations

import contextlib

import pytest
import redis

from harness.process import eventually
from harness.redis import RedisServer
from redis_world.parties import parties
from soloflight.core.flight import Absent, Answered, Done, Gap, Joined, Owned, Refusal, Refused
from soloflight.core.frames import Body
from soloflight.ports import BackendError
from soloflight.testing.party import ANSWER, Party, recording
from soloflight_redis.codec import pack_result
from soloflight_redis.keys import PARTS, Names

NAMES = Names("soloflight")
GONE = Refused(Refusal.GONE)


def stored(party: Party, part: str) -> str:
    return NAMES.flight(party.key)[PARTS.index(part)]


# ── lost ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("when", ["pending", "running", "published", "retried"])
async def test_everything_flushed_in_flight(redis_server: RedisServer, client: redis.Redis, when: str) -> None:
    async with parties(redis_server.url, redis_server.url) as (a, b):
        fence = await a.own()
        if when != "pending":
            await a.start(fence)
            await b.claim()
        if when == "published":
            await a.append(fence, 1)
        if when == "retried":
            await a.fail(fence, retry=True, backoff_ms=60_000)
        client.flushall()
        assert await a.start(fence) == GONE
        assert await a.renew(fence, progress=5) == GONE
        assert await a.append(fence, 2) == GONE
        assert await a.seal(fence) == GONE
        assert await a.fail(fence) == GONE
        assert await b.look(follow=fence.number) == Absent()
        assert await b.log(fence.number) == []
        owned = await b.claim(follow=fence.number)
        assert isinstance(owned, Owned)
        assert owned.fence != fence
        assert a.coordinator.up


async def test_everything_flushed_after_the_seal(redis_server: RedisServer, client: redis.Redis) -> None:
    async with parties(redis_server.url, redis_server.url) as (a, b):
        fence = await a.run()
        await a.seal(fence)
        reply = await b.claim()
        client.flushall()
        assert isinstance(reply, Answered)
        assert await b.result(fence.number) == ANSWER  # it came with the claim
        assert await b.result(fence.number) is None
        assert isinstance(await b.claim(), Owned)


async def test_the_record_evicted(redis_server: RedisServer, client: redis.Redis) -> None:
    async with parties(redis_server.url, redis_server.url) as (a, b):
        fence = await a.run()
        await a.append(fence, 1)
        client.delete(stored(a, "record"))
        assert await a.append(fence, 2) == GONE
        newer = await b.run()
        assert await b.log(newer.number) == []  # the old log does not count
        assert await b.append(newer, 1) == Done()
        assert [index for index, _ in await a.log(newer.number)] == [1]
        assert await b.seal(newer) == Done()


async def test_the_log_evicted(redis_server: RedisServer, client: redis.Redis) -> None:
    async with parties(redis_server.url, redis_server.url) as (a, b):
        fence = await a.run()
        for index in (1, 2):
            await a.append(fence, index)
        client.delete(stored(a, "log"))
        assert await b.log(fence.number) == []
        assert await a.append(fence, 3) == Done()
        assert await b.log(fence.number) == []  # 3 without 1 and 2 is a hole
        assert await b.log(fence.number, after=2) == []  # nor can its place be known
        assert client.pttl(stored(a, "log")) > 0
        assert isinstance(await a.append(fence, 5), Gap)
        assert await a.seal(fence) == Done()
        assert isinstance(await b.claim(), Answered)
        assert await b.result(fence.number) == ANSWER


@pytest.mark.parametrize("size", [10, 300_000])
@pytest.mark.parametrize("retention_ms", [10_000, 0])
async def test_the_result_evicted(redis_server: RedisServer, client: redis.Redis, size: int, retention_ms: int) -> None:
    async with parties(redis_server.url, redis_server.url) as (a, b):
        fence = await a.run()
        await a.seal(fence, recording(b"x" * size), retention_ms=retention_ms)
        client.delete(stored(a, "answer"), stored(a, "outcome"))
        assert isinstance(await b.claim(follow=fence.number), Answered)
        assert await b.result(fence.number) is None
        assert isinstance(await b.claim(fresh_ms=-1), Owned)  # as a node does then


async def test_the_watchers_evicted(redis_server: RedisServer, client: redis.Redis) -> None:
    async with parties(redis_server.url, redis_server.url) as (a, b):
        fence = await a.run()
        await b.claim()
        client.delete(stored(a, "watchers"))
        assert await a.renew(fence) == Done(watchers=0)
        await b.claim()
        assert await a.renew(fence) == Done(watchers=1)


async def test_every_key_expires(redis_server: RedisServer, client: redis.Redis) -> None:
    async with parties(redis_server.url, redis_server.url) as (a, b):
        for end in ("leave it", "seal", "unkept", "fail", "retry", "abandon"):
            party, other = Party("a", a.coordinator, end), Party("b", b.coordinator, end)
            fence = await party.run()
            await other.claim()
            await party.append(fence, 1)
            match end:
                case "seal":
                    await party.seal(fence)
                case "unkept":
                    await party.seal(fence, retention_ms=0)
                case "fail":
                    await party.fail(fence)
                case "retry":
                    await party.fail(fence, retry=True)
                case "abandon":
                    await party.abandon(fence, force=True)
        await a.coordinator.scope_key()
        names = [name for name in client.keys("*") if name != NAMES.scope.encode()]
        assert len(names) >= 9
        longest_ms = 60_000 + 120_000 + 15_000
        assert all(0 < client.pttl(name) <= longest_ms for name in names), {name: client.pttl(name) for name in names}
        assert not [name for name in names if b"{abandon}" in name]


# ── replaced ────────────────────────────────────────────────────────────────────────────────────────────────

RUBBISH = {
    "nothing": b"",
    "text": b"rubbish",
    "another version": b"\x09" + b"x" * 50,
    "encrypted": b"\x02" + b"x" * 50,
    "no msgpack": b"\x01\xc1",
    "another key's": b"\x01" + pack_result("other", 1, ANSWER),
    "a huge claim": b"\x01\xdd\xff\xff\xff\xff",
    "large": b"\x01" + b"\x00" * 3_000_000,
}


@pytest.mark.parametrize("rubbish", RUBBISH)
async def test_a_result_replaced(redis_server: RedisServer, client: redis.Redis, rubbish: str) -> None:
    async with parties(redis_server.url, redis_server.url) as (a, b):
        fence = await a.run()
        await a.seal(fence)
        client.set(stored(a, "answer"), RUBBISH[rubbish], ex=60)
        assert isinstance(await b.claim(), Answered)
        assert await b.result(fence.number) is None
        assert await b.result(fence.number) is None
        assert isinstance(await b.claim(fresh_ms=-1), Owned)
        assert b.coordinator.up


async def test_a_result_that_is_much_larger_than_its_record_says_is_not_fetched(
    redis_server: RedisServer, client: redis.Redis
) -> None:
    async with parties(redis_server.url, redis_server.url) as (a, b):
        fence = await a.run()
        await a.seal(fence)
        client.set(stored(a, "answer"), b"\x01" + b"\x00" * (40 << 20), ex=60)
        await b.claim()
        before = client.info("stats")["total_net_output_bytes"]
        assert await b.result(fence.number) is None
        assert client.info("stats")["total_net_output_bytes"] - before < 100_000


async def test_a_result_cut_short_by_one_byte_or_grown_by_one(redis_server: RedisServer, client: redis.Redis) -> None:
    async with parties(redis_server.url, redis_server.url) as (a, b):
        fence = await a.run()
        await a.seal(fence)
        value = client.get(stored(a, "answer"))
        for changed in (value[:-1], value + b"\0", value[1:]):
            client.set(stored(a, "answer"), changed, ex=60)
            assert isinstance(await b.claim(), Answered)
            assert await b.result(fence.number) is None
        assert "unreadable=3" in repr(b.coordinator)


async def test_a_log_replaced(redis_server: RedisServer, client: redis.Redis) -> None:
    async with parties(redis_server.url, redis_server.url) as (a, b):
        fence = await a.run()
        for index in range(1, 6):
            await a.append(fence, index)
        log = stored(a, "log")
        third = client.lindex(log, 2)
        for rubbish in (*RUBBISH.values(), third.replace(b" 3\n", b" 4\n"), b"1" + third, third[:-1]):
            client.lset(log, 2, rubbish)
            assert [index for index, _ in await b.log(fence.number)] == [1, 2]
        client.lset(log, 2, third)
        assert [index for index, _ in await b.log(fence.number)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("part", PARTS)
async def test_a_key_of_another_type(redis_server: RedisServer, client: redis.Redis, part: str) -> None:
    async with parties(redis_server.url, redis_server.url) as (a, b):
        fence = await a.run()
        await b.claim()
        name = stored(a, part)
        client.delete(name)
        client.geoadd(name, (1, 1, "x"))
        for work in (
            b.claim,
            lambda: a.renew(fence),
            lambda: a.append(fence, 1),
            lambda: b.log(fence.number),
            lambda: b.result(fence.number),
            lambda: a.seal(fence),
            lambda: b.claim(fresh_ms=-1),
            lambda: b.coordinator.purge(b.key),
        ):
            with contextlib.suppress(BackendError):
                await work()  # type: ignore[no-untyped-call]
        assert a.coordinator.up


async def test_a_record_of_rubbish(redis_server: RedisServer, client: redis.Redis) -> None:
    async with parties(redis_server.url) as (a,):
        for fields in (
            {"seen": "x"},
            {"seen": "1", "state": "?"},
            {"seen": "1", "state": "R"},
            {"seen": "99999999999999", "state": "R", "number": "x", "deadline": "99999999999999"},
        ):
            client.delete(stored(a, "record"))
            client.hset(stored(a, "record"), mapping=fields)
            with contextlib.suppress(BackendError):
                await a.claim()
            assert a.coordinator.up


# ── encrypted ───────────────────────────────────────────────────────────────────────────────────────────────


async def test_with_a_key_no_byte_of_an_answer_is_in_the_clear(redis_server: RedisServer, client: redis.Redis) -> None:
    async with parties(redis_server.url, redis_server.url, encryption_key="k") as (a, b):
        there, _ = await b.listen()
        with client.pubsub() as watcher:
            watcher.psubscribe("*")
            watcher.get_message(timeout=1)
            fence = await a.run()
            await a.append(fence, 1, Body(b"a secret"))
            published = watcher.get_message(timeout=1)
        await a.coordinator.scope_key()
        everything = b"".join(client.dump(name) for name in client.keys("*")) + published["data"]
        assert b"secret" not in everything
        await a.seal(fence, recording(b"a secret"))
        everything = b"".join(client.get(stored(a, part)) or b"" for part in ("answer", "outcome"))
        assert everything
        assert b"secret" not in everything
        await b.claim()
        assert await b.result(fence.number) == recording(b"a secret")
        await there.until(lambda notices: notices[0].frames == (Body(b"a secret"),))


async def test_a_key_is_rotated_without_a_miss(redis_server: RedisServer) -> None:
    fleet = [("old", ""), ("old", "new"), ("new", "old"), ("new", "")]
    scopes = set()
    for at, (key, previous) in enumerate(fleet[:3]):
        after = fleet[at + 1]
        async with (
            parties(redis_server.url, key="k", encryption_key=key, encryption_key_previous=previous) as (a,),
            parties(redis_server.url, key="k", encryption_key=after[0], encryption_key_previous=after[1]) as (b,),
        ):
            for writer, reader in ((a, b), (b, a)) if at else ((a, b),):
                fence = await writer.run(fresh_ms=-1)
                await writer.append(fence, 1)
                if at < 2 or writer is a:
                    assert [index for index, _ in await reader.log(fence.number)] == [1]
                    await writer.seal(fence)
                    assert isinstance(await reader.claim(), Answered)
                    assert await reader.result(fence.number) == ANSWER
                else:
                    await writer.abandon(fence)
            scopes.add(await a.coordinator.scope_key())
    assert len(scopes) == 1


async def test_nodes_with_different_keys_share_nothing_and_crash_nothing(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        parties(redis_server.url, key="k", encryption_key="one") as (a,),
        parties(redis_server.url, key="k", encryption_key="two") as (b,),
    ):
        there, _ = await b.listen()
        fence = await a.run()
        assert isinstance(await b.claim(), Joined)
        await a.append(fence, 1)
        assert await b.log(fence.number) == []
        await a.seal(fence)
        await there.until(lambda notices: [notice.number for notice in notices] == [fence.number])
        assert isinstance(await b.claim(), Answered)
        assert await b.result(fence.number) is None
        assert await a.coordinator.scope_key() != await b.coordinator.scope_key()
        assert "this process shares with no other" in caplog.text


# ── the scope key ───────────────────────────────────────────────────────────────────────────────────────────


async def test_the_scope_key_is_made_once_and_kept(redis_server: RedisServer, client: redis.Redis) -> None:
    async with parties(redis_server.url, redis_server.url) as (a, b):
        key = await a.coordinator.scope_key()
        assert await b.coordinator.scope_key() == key
    async with parties(redis_server.url) as (c,):
        assert await c.coordinator.scope_key() == key
        assert client.pttl(NAMES.scope) == -1  # it is the fleet's for good
    async with parties(redis_server.url, prefix="other") as (d,):
        assert await d.coordinator.scope_key() != key


async def test_without_redis_a_process_has_a_scope_key_of_its_own_and_offers_it_later(start_redis) -> None:  # type: ignore[no-untyped-def]
    server = start_redis()
    server.stop()
    async with parties(server.url) as (a,):
        own = await a.coordinator.scope_key()
        assert await a.coordinator.scope_key() == own
        again = server.again()
        try:
            await eventually(lambda: a.coordinator.up)
            assert await a.coordinator.scope_key() == own
            assert again.command("EXISTS", NAMES.scope) == 1
            async with parties(server.url) as (b,):
                assert await b.coordinator.scope_key() == own
        finally:
            again.stop()


async def test_a_fleet_that_has_another_scope_key_by_then_is_joined(
    start_redis,
    caplog: pytest.LogCaptureFixture,  # type: ignore[no-untyped-def]
) -> None:
    server = start_redis()
    server.stop()
    async with parties(server.url) as (a,):
        own = await a.coordinator.scope_key()
        again = server.again()
        try:
            again.command("SET", NAMES.scope, b"\x01" + b"f" * 32)
            await eventually(lambda: a.coordinator.up)
            assert await a.coordinator.scope_key() == b"f" * 32 != own
            assert caplog.text.count("the fleet has another scope key") == 1
        finally:
            again.stop()
