"""A node that is no process: a coordinator of the test's own, for what a real proxy does not do by itself."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fleet.nodes import Fleet
from harness.client import ask
from soloflight_redis import Options, RedisCoordinator


@asynccontextmanager
async def stranger(fleet: Fleet, node: str) -> AsyncIterator[RedisCoordinator]:
    """A coordinator with the node id ``node``."""
    coordinator = RedisCoordinator(Options(fleet.redis.url))
    await coordinator.open(node, lambda key: None)
    try:
        yield coordinator
    finally:
        await coordinator.close()


async def key_of(fleet: Fleet, body: bytes) -> str:
    """The flight key of a request: by a first call, of which then nothing is kept. The first node is started anew."""
    await ask(fleet.nodes[0].port, body)
    (record,) = fleet.keys("record")
    fleet.forget()
    fleet.nodes[0].kill()  # its L1 has the answer
    fleet.nodes[0].start_again()
    fleet.nodes[0].proxy.wait_ready()
    return record.partition("{")[2].partition("}")[0]
