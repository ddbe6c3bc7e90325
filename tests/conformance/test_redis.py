"""The Redis coordinator keeps the law, on a real redis-server and a test's clock."""

from collections.abc import Iterator, Sequence

import pytest
import redis

from harness.redis import RedisServer
from soloflight.ports import Coordinator
from soloflight.testing.conformance import CoordinatorConformance
from soloflight_redis import Options, RedisCoordinator

CLOCK = "test-clock"
BEGIN = 1_800_000_000_000


@pytest.mark.redis
class TestRedis(CoordinatorConformance):
    encryption_key = ""

    @pytest.fixture(autouse=True)
    def _clock(self, redis_server: RedisServer) -> Iterator[None]:
        self.server = redis_server
        with redis_server.client() as client:
            self.client: redis.Redis = client
            client.set(CLOCK, BEGIN)
            yield

    async def make_nodes(self, count: int) -> Sequence[Coordinator]:
        options = Options(self.server.url, encryption_key=self.encryption_key, bound_s=5.0, clock_key=CLOCK)
        return [RedisCoordinator(options) for _ in range(count)]

    async def advance(self, ms: int) -> None:
        self.client.incrby(CLOCK, ms)


class TestEncrypted(TestRedis):
    encryption_key = "any text will do"
