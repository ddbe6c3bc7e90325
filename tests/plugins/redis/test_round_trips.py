"""What a flight costs, counted by the server: nobody pays for followers that are not there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from pydantic import SecretStr

from harness.redis import RedisServer
from redis_world.parties import at_key, parties
from soloflight.core.flight import Answered, Done, Joined, Owned
from soloflight.testing.party import ANSWER, recording
from soloflight_redis import RedisCoordinator, soloflight_coordinator

INSIDE = {
    "time",
    "hgetall",
    "hmget",
    "hset",
    "hdel",
    "pexpire",
    "del",
    "set",
    "get",
    "strlen",
    "zcount",
    "zadd",
    "rpush",
}
"""What scripts call: no round trips of their own."""


class Counted(dict[str, int]):
    """Commands by name, and ``net``: how often the server had something to read."""


@contextmanager
def counted(client: redis.Redis) -> Iterator[Counted]:
    """Count what clients other than ``client`` send meanwhile."""
    client.config_resetstat()
    found = Counted()
    yield found
    for name, facts in client.info("commandstats").items():
        command = name.removeprefix("cmdstat_")
        if command not in INSIDE and not command.startswith(("config", "info", "zrem")):
            found[command] = facts["calls"]


async def test_a_flight_that_nobody_else_wants_is_two_round_trips(
    redis_server: RedisServer, client: redis.Redis
) -> None:
    async with parties(redis_server.url) as (a,):
        warm = at_key(a, "warm")
        await warm.seal(await warm.run())
        with counted(client) as sent:
            fence = await a.run()
            assert await a.seal(fence) == Done()
        assert sent == {"evalsha": 2, "publish": 1}  # the notice is the script's own: nobody listens to it


@pytest.mark.parametrize(("size", "trips"), [(10, 1), (60_000, 1), (200_000, 2)])
async def test_a_replay_is_one_round_trip_unless_it_is_large(
    redis_server: RedisServer, client: redis.Redis, size: int, trips: int
) -> None:
    async with parties(redis_server.url, redis_server.url) as (a, b):
        result = recording(b"x" * size)
        fence = await a.run()
        await a.seal(fence, result)
        await b.claim()
        await b.result(fence.number)
        with counted(client) as sent:
            reply = await b.claim()
            assert isinstance(reply, Answered)
            assert await b.result(reply.number) == result
        assert sent["evalsha"] == trips


async def test_a_thousand_claims_at_once_are_a_thousand_commands_and_few_reads(
    redis_server: RedisServer, client: redis.Redis
) -> None:
    import asyncio

    async with parties(redis_server.url) as (a,):
        await a.claim()
        before = client.info("stats")["total_reads_processed"]
        with counted(client) as sent:
            replies = await asyncio.gather(*(at_key(a, f"key-{at}").claim() for at in range(1_000)))
            reads = client.info("stats")["total_reads_processed"]
        assert all(isinstance(reply, Owned) for reply in replies)
        assert sent["evalsha"] == 1_000
        assert reads < before + 200


@pytest.mark.parametrize(("batches", "trips"), [(1, 1), (15, 1), (16, 2), (40, 2)])
async def test_a_short_log_comes_with_the_look(
    redis_server: RedisServer, client: redis.Redis, batches: int, trips: int
) -> None:
    async with parties(redis_server.url, redis_server.url) as (a, b):
        fence = await a.run()
        for index in range(1, batches + 1):
            await a.append(fence, index)
        await b.claim()
        await b.log(fence.number)
        with counted(client) as sent:
            assert isinstance(await b.claim(claim=False, watch_ms=3_000), Joined)
            assert [index for index, _ in await b.log(fence.number)] == list(range(1, batches + 1))
        assert sent["evalsha"] == trips
        await b.look()
        assert [index for index, _ in await b.log(fence.number, after=batches)] == []
        await b.look()
        assert [index for index, _ in await b.log(fence.number, after=batches - 1)] == [batches]
        await b.look()
        large = recording(b"x" * 200_000)
        await a.seal(fence, large)
        assert isinstance(await b.claim(), Answered)
        assert await b.result(fence.number) == large  # no entry of the log is taken for it


async def test_values_kept_aside_do_not_pile_up(redis_server: RedisServer) -> None:
    async with parties(redis_server.url) as (a,):
        for at in range(200):
            party = at_key(a, f"key-{at}")
            await party.seal(await party.run())
            assert isinstance(await party.claim(), Answered)  # and nobody asks for the result
        assert len(a.coordinator._aside) <= 64
        assert len(a.coordinator._sizes) <= 64
        last = at_key(a, "key-199")
        reply = await last.claim()
        assert await last.result(reply.number) == ANSWER  # type: ignore[union-attr]


# ── the hook ────────────────────────────────────────────────────────────────────────────────────────────────


def settings(url: str = "redis://h", **redis_more: Any) -> Any:
    fields = {"url": url, "prefix": "p", "encryption_key": SecretStr(""), "encryption_key_previous": SecretStr("")}
    return SimpleNamespace(
        redis=SimpleNamespace(**{**fields, **redis_more}),
        coordination=SimpleNamespace(command_timeout=0.25, on_backend_error="reject"),
    )


def test_the_hook_answers_to_its_name_only() -> None:
    assert soloflight_coordinator("memory", settings()) is None
    coordinator = soloflight_coordinator("redis", settings(encryption_key=SecretStr("secret")))
    assert isinstance(coordinator, RedisCoordinator)
    assert coordinator.shared
    assert not coordinator.up
    assert repr(coordinator) == "RedisCoordinator('redis://h', unreadable=0)"
    options = coordinator._options
    assert (options.prefix, options.bound_s, options.otherwise) == ("p", 0.25, "answering 503")
    assert "secret" not in repr(options)


def test_the_hook_refuses_a_url_that_can_not_be_meant() -> None:
    with pytest.raises(ValueError, match=r"^redis\.url: unknown option nope$"):
        soloflight_coordinator("redis", settings("redis://user:secret@h?nope=1"))
