"""Redis is a hint: bounded waits, what is sent twice, the breaker and its way back, what the log says and how often."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest
import redis

from harness.process import eventually
from harness.redis import RedisServer
from harness.stalls import lasted
from redis_world.parties import BOUND_S, at_key, parties
from soloflight.core.flight import Answered, Done, Dropped, Owned, Retrying
from soloflight.ports import BackendError
from soloflight.testing.fault_proxy import FaultProxy
from soloflight.testing.party import ANSWER, Party, recording
from soloflight_redis.breaker import Breaker, Circuit

SLACK_S = 0.5  # a busy machine's


class Watch:
    """Seconds since it was made, but for those in which the machine stood still."""

    def __init__(self) -> None:
        self.begun = asyncio.get_running_loop().time()

    @property
    def s(self) -> float:
        return lasted(self.begun)


async def refused(work: Awaitable[object], within_s: float) -> None:
    """``work`` raises BackendError in time."""
    watch = Watch()
    with pytest.raises(BackendError):
        await work
    assert watch.s < within_s


def through(proxy: FaultProxy) -> str:
    return f"redis://127.0.0.1:{proxy.port}"


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


# ── one command ─────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_lost_reply_is_asked_for_again_and_the_operation_done_once(redis_server: RedisServer) -> None:
    async with (
        FaultProxy("127.0.0.1", redis_server.port) as faults,
        parties(redis_server.url, through(faults)) as (
            a,
            b,
        ),
    ):
        steps: list[tuple[Callable[[], Awaitable[object]], Callable[[object], bool]]] = []
        owned: list[Owned] = []

        async def claim() -> object:
            reply = await b.claim()
            if isinstance(reply, Owned):
                owned.append(reply)
            return reply

        def fence():  # type: ignore[no-untyped-def]
            return owned[-1].fence

        steps = [
            (claim, lambda said: isinstance(said, Owned)),
            (lambda: b.start(fence()), lambda said: isinstance(said, Done)),
            (lambda: b.renew(fence(), progress=1), lambda said: said == Done()),
            (lambda: b.append(fence(), 1), lambda said: isinstance(said, Done)),
            (lambda: b.fail(fence(), retry=True), lambda said: isinstance(said, Retrying)),
            (claim, lambda said: isinstance(said, Owned)),
            (lambda: b.start(fence()), lambda said: isinstance(said, Done)),
            (lambda: b.seal(fence()), lambda said: isinstance(said, Done)),
            (lambda: b.claim(), lambda said: isinstance(said, Answered)),
        ]
        for cut in (True, False):
            for step, expected in steps:
                faults.lose_reply(b"EVALSHA", cut=cut)
                assert expected(await step())
            assert await a.result(fence().number) == ANSWER
            assert await a.coordinator.purge(a.key)
        assert faults.replies_lost == 2 * len(steps)
        assert b.coordinator.up


async def test_every_wait_is_bounded_when_redis_is_mute(redis_server: RedisServer) -> None:
    async with FaultProxy("127.0.0.1", redis_server.port) as faults, parties(through(faults)) as (a,):
        fence = await a.run()
        faults.down.swallow = True
        watch = Watch()
        many = [at_key(a, f"key-{at}").claim() for at in range(50)]
        found = await asyncio.gather(a.renew(fence), *many, return_exceptions=True)
        assert all(isinstance(one, BackendError) for one in found)
        assert watch.s < BOUND_S + SLACK_S
        await refused(a.claim(), 0.05)  # the breaker answers


async def test_a_server_that_stops_for_less_than_the_bound_is_waited_for(
    redis_server: RedisServer, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    async with parties(redis_server.url, bound_s=4.0) as (a,):
        await a.run()
        client.client_pause(700)
        assert not isinstance(await a.claim(), Owned)
        assert warnings(caplog) == []


async def test_a_server_that_stops_for_longer_trips_the_breaker_and_comes_back(
    redis_server: RedisServer, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    async with parties(redis_server.url, bound_s=0.2) as (a,):
        fence = await a.run()
        client.client_pause(600)
        await refused(a.claim(), 0.2 + SLACK_S)
        assert not a.coordinator.up
        await eventually(lambda: a.coordinator.up)
        assert await a.renew(fence, progress=1) == Done()
        away, back = warnings(caplog)
        assert "is away: no " in away
        assert "going on in this process alone" in away
        assert "is back" in back


async def test_a_loop_that_stood_still_is_no_silent_server(redis_server: RedisServer) -> None:
    async with parties(redis_server.url, bound_s=0.2) as (a,):
        import time

        claim = asyncio.create_task(a.claim())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        time.sleep(0.6)  # noqa: ASYNC251 - the point of it
        assert isinstance(await claim, Owned)
        assert a.coordinator.up


async def test_a_cancelled_command_leaves_the_replies_in_order(redis_server: RedisServer) -> None:
    async with FaultProxy("127.0.0.1", redis_server.port) as slow, parties(through(slow)) as (a,):
        slow.down.delay_s = 0.005

        async def claimed(at: int) -> bool:
            reply = await at_key(a, f"key-{at}").claim(f"nonce-{at}")
            return isinstance(reply, Owned) and reply.flight == f"flight-nonce-{at}"

        for round_ in range(20):
            tasks = [asyncio.create_task(claimed(round_ * 20 + at)) for at in range(20)]
            await asyncio.sleep(0.002)
            for task in tasks[::3]:
                task.cancel()
            found = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(one is True for at, one in enumerate(found) if at % 3)
        assert slow.accepted == 2  # no connection was given up


async def test_commands_of_one_tick_share_a_write(redis_server: RedisServer, client: redis.Redis) -> None:
    async with parties(redis_server.url) as (a,):
        await a.claim()
        before = client.info("stats")["total_reads_processed"]
        await asyncio.gather(*(at_key(a, f"key-{at}").claim() for at in range(100)))
        assert client.info("stats")["total_reads_processed"] - before < 20


async def test_replies_out_of_order_are_not_believed(redis_server: RedisServer) -> None:
    async with FaultProxy("127.0.0.1", redis_server.port) as faults, parties(through(faults)) as (a,):
        await a.claim()
        for round_ in range(10):
            faults.lose_reply(b"EVALSHA", cut=False)  # the next reply then comes in the place of this one
            keys = [f"key-{round_}-{at}" for at in range(4)]
            claims = []
            for key in keys:
                claims.append(asyncio.create_task(at_key(a, key).claim(f"nonce-{key}")))
                await asyncio.sleep(0.005)
            found = await asyncio.gather(*claims)
            assert [reply.flight for reply in found if isinstance(reply, Owned)] == [
                f"flight-nonce-{key}" for key in keys
            ]


# ── scripts ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_flushed_script_is_sent_again_unnoticed(redis_server: RedisServer, client: redis.Redis) -> None:
    async with parties(redis_server.url, redis_server.url) as (a, b):
        fence = await a.run()
        for index in range(1, 30):
            client.script_flush()
            assert await a.append(fence, index) == Done()
        client.script_flush()
        assert [index for index, _ in await b.log(fence.number)] == list(range(1, 30))
        client.script_flush()
        assert await a.seal(fence) == Done()
        client.script_flush()
        assert await b.result(fence.number) == ANSWER


async def test_scripts_flushed_under_load_are_no_fault(redis_server: RedisServer, client: redis.Redis) -> None:
    async with parties(redis_server.url, redis_server.url) as (a, b):

        async def flight(at: int) -> int:
            mine = [at_key(party, f"key-{at}") for party in (a, b)]
            replies = await asyncio.gather(*(party.claim(direct=True) for party in mine))
            (owned,) = [reply for reply in replies if isinstance(reply, Owned)]
            return len(replies) if await mine[0].seal(owned.fence) == Done() else 0

        for round_ in range(10):
            client.script_flush()
            assert await asyncio.gather(*(flight(round_ * 20 + at) for at in range(20))) == [2] * 20


# ── the breaker ─────────────────────────────────────────────────────────────────────────────────────────────


def test_the_breaker_s_three_states() -> None:
    breaker = Breaker()
    assert breaker.closed
    assert breaker.trip("why") is True
    assert breaker.trip("still") is False
    assert (breaker.closed, repr(breaker)) == (False, "Breaker(open, still)")
    breaker.probe()
    assert breaker.state is Circuit.HALF_OPEN
    assert not breaker.closed
    assert breaker.trip("again") is False
    breaker.probe()
    assert breaker.recover() is True
    assert breaker.recover() is False
    assert repr(breaker) == "Breaker(closed)"


async def outage(server: RedisServer, party: Party, *, traffic: bool) -> float:
    """Stop and start the server; seconds from its return to the coordinator's."""
    server.stop()
    await eventually(lambda: not party.coordinator.up)
    again = await asyncio.to_thread(server.again)
    try:
        watch = Watch()
        while traffic and not party.coordinator.up:
            with pytest.raises(BackendError):
                await party.claim()
            await asyncio.sleep(0.01)
        await eventually(lambda: party.coordinator.up)
        back_s = watch.s
        assert isinstance(await party.claim(), Owned)
        return back_s
    finally:
        again.stop()


@pytest.mark.parametrize("traffic", [True, False])
async def test_it_is_back_soon_after_redis_with_or_without_traffic(
    start_redis: Callable[..., RedisServer], caplog: pytest.LogCaptureFixture, traffic: bool
) -> None:
    server = start_redis()
    async with parties(server.url) as (a,):
        await a.claim()
        assert await outage(server, a, traffic=traffic) < 5.0
    away, back = warnings(caplog)
    assert f"127.0.0.1:{server.port} is away" in away
    assert "is back" in back


async def test_without_redis_it_opens_and_says_so_once(
    start_redis: Callable[..., RedisServer], caplog: pytest.LogCaptureFixture
) -> None:
    server = start_redis()
    server.stop()
    watch = Watch()
    async with parties(server.url, otherwise="answering 503") as (a,):
        assert watch.s < 2 * BOUND_S + SLACK_S
        assert not a.coordinator.up
        for _ in range(50):
            await refused(a.claim(), 0.1)
        await refused(a.listen(), 0.1)
        assert len(warnings(caplog)) == 1
        assert "answering 503" in warnings(caplog)[0]
        assert a.words.items == []
        again = await asyncio.to_thread(server.again)
        try:
            await eventually(lambda: a.coordinator.up)
            fence = await a.own()
            there, _ = await a.listen()
            await a.start(fence)
            await there.until(bool)
            await a.words.until(lambda words: "" in words)  # what was said before it could hear is missed
        finally:
            again.stop()


async def test_listeners_outlive_an_outage(start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis()
    async with parties(server.url) as (a,):
        there, _ = await a.listen()
        server.stop()
        await eventually(lambda: not a.coordinator.up)
        again = await asyncio.to_thread(server.again)
        try:
            await there.until(lambda notices: any(notice.number == 0 for notice in notices))
            await eventually(lambda: a.coordinator.up)
            fence = await a.own()
            await a.start(fence)
            await there.until(lambda notices: notices[-1].number == fence.number)
        finally:
            again.stop()


async def test_a_node_that_was_never_opened_refuses(redis_server: RedisServer) -> None:
    from soloflight_redis import Options, RedisCoordinator

    coordinator = RedisCoordinator(Options(redis_server.url))
    party = Party("a", coordinator, "key")
    assert not coordinator.up
    for work in (party.claim(), party.listen(), party.result(1), party.log(1), coordinator.purge("key")):
        await refused(work, 0.1)
    await coordinator.close()


async def test_after_its_end_nothing_of_it_is_left(redis_server: RedisServer, client: redis.Redis) -> None:
    before = len(client.client_list())
    async with parties(redis_server.url, redis_server.url) as (a, b):
        await a.run()
        await b.claim()
        await b.listen()
        await a.coordinator.close()
    await eventually(lambda: len(client.client_list()) == before)
    left = {task.get_name() for task in asyncio.all_tasks()} - {asyncio.current_task().get_name()}  # type: ignore[union-attr]
    assert not [name for name in left if name.startswith("redis")]


# ── a server that takes no writes ───────────────────────────────────────────────────────────────────────────


async def test_a_demoted_server_is_left_for_the_one_behind_the_address(
    start_redis: Callable[..., RedisServer], tmp_path, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = start_redis(), start_redis()
    async with FaultProxy("127.0.0.1", old.port) as address, parties(through(address)) as (a,):
        fence = await a.run()
        there, _ = await a.listen()
        old.command("REPLICAOF", "127.0.0.1", str(new.port))
        address.target = ("127.0.0.1", new.port)  # as a name that points to the new master
        watch = Watch()
        owned = await at_key(a, "other").claim()
        assert isinstance(owned, Owned)
        assert watch.s < 5.0
        await eventually(lambda: a.coordinator.up)
        assert await a.renew(fence) != Done()  # the new one never knew it: nobody is told that it holds
        address.cut()
        await there.until(bool)


async def test_a_replica_is_no_place_to_go_on(
    start_redis: Callable[..., RedisServer], caplog: pytest.LogCaptureFixture
) -> None:
    master, replica = start_redis(), start_redis()
    replica.command("REPLICAOF", "127.0.0.1", str(master.port))
    async with parties(replica.url) as (a,):
        assert not a.coordinator.up
        assert "it is a replica, which takes no writes" in warnings(caplog)[0]
        replica.command("REPLICAOF", "NO", "ONE")
        await eventually(lambda: a.coordinator.up)
        assert isinstance(await a.claim(), Owned)


async def test_a_full_redis_refuses_and_is_told_of_once(
    start_redis: Callable[..., RedisServer], caplog: pytest.LogCaptureFixture
) -> None:
    server = start_redis()
    async with parties(server.url, server.url) as (a, b):
        fence = await a.run()
        await b.claim()
        there, _ = await b.listen()
        server.command("CONFIG", "SET", "maxmemory", "1mb")
        for at in range(5):
            await refused(at_key(a, f"key-{at}").claim(), 0.2)
        assert a.coordinator.up  # it answers
        await refused(a.seal(fence), 0.2)
        await there.until(bool)  # dropped: who waits need not wait for the lease
        server.command("CONFIG", "SET", "maxmemory", "0")
        assert isinstance(await b.claim(), Owned)
        assert isinstance(await a.claim(), object)
    told = warnings(caplog)
    assert [line for line in told if "is full" in line and str(server.port) in line]
    assert len([line for line in told if "is full" in line]) <= 2  # one for each node
    assert len([line for line in told if "takes writes again" in line]) <= 2


async def test_abandon_needs_no_room(start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis()
    async with parties(server.url) as (a,):
        fence = await a.run()
        server.command("CONFIG", "SET", "maxmemory", "1mb")
        assert await a.abandon(fence) == Dropped()


async def test_a_result_that_redis_does_not_take_is_told_and_not_kept(
    start_redis: Callable[..., RedisServer], caplog: pytest.LogCaptureFixture
) -> None:
    server = start_redis("--proto-max-bulk-len", "1mb")
    async with parties(server.url, server.url, bound_s=2.0) as (a, b):
        fence = await a.run()
        await b.claim()
        result = recording(b"x" * (3 << 20))
        assert isinstance(await a.seal(fence, result), Done)
        reply = await b.look(follow=fence.number)
        assert isinstance(reply, Answered)
        assert (reply.kept, reply.size) == (False, result.size)
        assert await b.result(fence.number) is None
        assert isinstance(await b.claim(), Owned)
        assert a.coordinator.up
    assert "could not be stored" in warnings(caplog)[0]


async def test_large_results_and_logs_do_not_hold_up_heartbeats(redis_server: RedisServer) -> None:
    async with parties(redis_server.url, redis_server.url, bound_s=5.0) as (a, b):
        fence = await a.run()
        beating = at_key(a, "beating")
        beat = await beating.run()
        result = recording(*[b"x" * (1 << 20)] * 32)
        slowest = 0.0
        sealing = asyncio.create_task(a.seal(fence, result))
        while not sealing.done():
            watch = Watch()
            assert await beating.renew(beat) == Done()
            slowest = max(slowest, watch.s)
        assert await sealing == Done()
        assert await b.result(fence.number) == result
        assert slowest < 1.0
