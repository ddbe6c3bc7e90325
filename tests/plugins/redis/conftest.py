"""One server for the session, servers of one's own, and a client to look in from outside."""

from collections.abc import Iterator

import pytest
import redis

from harness.fixtures import redis_process, redis_server, start_redis
from harness.redis import RedisServer

__all__ = ["redis_process", "redis_server", "start_redis"]


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    """A sync client whose replies are bytes."""
    with redis_server.client(decode_responses=False) as client:
        yield client


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "plugins/redis" in str(item.path):
            item.add_marker("redis")
