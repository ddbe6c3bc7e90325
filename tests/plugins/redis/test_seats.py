"""Seats at session locks over a real Redis: one heavy job per session in the whole fleet, whatever becomes of its nodes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from secrets import token_hex

import pytest
import pytest_asyncio
import redis

from harness.redis import RedisServer
from harness.stalls import lasted
from soloflight.core.errors import Code, SoloflightError
from soloflight.core.session import session_key
from soloflight.core.stage import Stage
from soloflight.flow.session import SessionSeat, SessionSeats
from soloflight_redis import Options, RedisCoordinator

QUEUE = Stage(session="queue", heartbeat=0.1, running_lease=0.5, pending_lease=0.4, session_wait=10.0)
REJECT = replace(QUEUE, session="reject")
PREFIX = "seats"


class Fleet:
    """Nodes with seats at one Redis."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.nodes: list[tuple[RedisCoordinator, SessionSeats]] = []

    async def node(self) -> SessionSeats:
        coordinator = RedisCoordinator(Options(self.url, prefix=PREFIX))
        name = token_hex(8)
        seats = SessionSeats(coordinator, name)
        await coordinator.open(name, lambda key: None, seats.told)
        self.nodes.append((coordinator, seats))
        return seats

    async def kill(self, seats: SessionSeats) -> None:
        """The node is gone without a word."""
        (coordinator,) = [one for one, other in self.nodes if other is seats]
        self.nodes.remove((coordinator, seats))
        await coordinator.close()
        await seats.tasks.close()

    async def close(self) -> None:
        for coordinator, seats in self.nodes:
            await seats.close()
            await coordinator.close()


@pytest_asyncio.fixture
async def fleet(redis_server: RedisServer) -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        fleet = Fleet(redis_server.url)
        stack.push_async_callback(fleet.close)
        yield fleet


async def stays() -> bool:
    return False


def seat(seats: SessionSeats, key: str, stage: Stage = QUEUE, contest: Callable[[], object] = stays) -> SessionSeat:
    return seats.seat(key, stage, "flight", contest)  # type: ignore[arg-type]


async def test_a_crowd_over_three_nodes_goes_in_one_at_a_time(fleet: Fleet, client: redis.Redis) -> None:
    nodes = [await fleet.node() for _ in range(3)]
    key = session_key("scope", b"any \x00\xff{bytes}\r\n: are an id")
    inside = most = served = 0

    async def come(node: SessionSeats) -> None:
        nonlocal inside, most, served
        async with seat(node, key):
            inside += 1
            most, served = max(most, inside), served + 1
            await asyncio.sleep(0.001)
            inside -= 1

    began = asyncio.get_running_loop().time()
    async with asyncio.timeout(30), asyncio.TaskGroup() as crowd:
        for _ in range(20):
            for node in nodes:
                crowd.create_task(come(node))
    assert (most, served) == (1, 60)
    assert lasted(began) < 5, "turns are told, not waited for"
    names = [name for name in client.keys(f"{PREFIX}:*") if b"session" in name]
    assert names
    assert all(client.pttl(name) > 0 for name in names)


async def test_a_node_that_dies_frees_its_session_within_the_lease(fleet: Fleet) -> None:
    dying, alive, other = [await fleet.node() for _ in range(3)]
    first, second, third = seat(dying, "k"), seat(alive, "k"), seat(other, "k")
    await first.take()
    loop, tasks = asyncio.get_running_loop(), []
    async with asyncio.timeout(10):
        for place, one in enumerate((seat(dying, "k"), second, third), 1):
            tasks.append(asyncio.create_task(one.take()))
            await until(lambda place=place: first.waiting == place)
        began = loop.time()
        await fleet.kill(dying)
        await tasks[1]
        assert lasted(began) < QUEUE.running_lease + QUEUE.pending_lease
        await second.release()
        await tasks[2]
        await third.release()
    tasks[0].cancel()
    await asyncio.wait(tasks)


async def until(wanted: Callable[[], object]) -> None:
    """Wait until something holds that only Redis, or the next beat, can tell."""
    while not wanted():
        await asyncio.sleep(0.01)


async def test_a_newcomer_is_told_at_once_whether_the_holder_gives_way(fleet: Fleet) -> None:
    here, there = await fleet.node(), await fleet.node()
    listened = True

    async def contested() -> bool:
        if not listened:
            leaving.append(asyncio.create_task(first.release()))
        return not listened

    leaving: list[asyncio.Task[None]] = []
    first = seat(here, "k", REJECT, contested)
    await first.take()
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(SoloflightError) as refused:
        await seat(there, "k", REJECT).take()
    assert refused.value.fault.code is Code.SESSION_BUSY
    assert lasted(began) < 0.5
    assert await there.tasks.wait_idle(5)
    listened = False
    second = seat(there, "k", REJECT)
    await second.take()
    assert not first.seated
    assert lasted(began) < 1.0
    await asyncio.wait(leaving)
    await second.release()


async def test_a_seat_outlives_an_emptied_redis(fleet: Fleet, client: redis.Redis) -> None:
    here, there = await fleet.node(), await fleet.node()
    first, second = seat(here, "k"), seat(there, "k")
    await first.take()
    client.flushall()
    async with asyncio.timeout(5):
        await until(lambda: client.keys(f"{PREFIX}:*session*"))
        task = asyncio.create_task(second.take())
        await until(lambda: first.waiting)
        assert not task.done()
        await first.release()
        await task
        await second.release()
