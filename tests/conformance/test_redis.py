"""The Redis coordinator keeps the law, on a real redis-server and a test's clock."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import redis

from harness.redis import RedisServer
from soloflight.ports import Coordinator
from soloflight.testing.conformance import CoordinatorConformance, SessionLockConformance
from soloflight_redis import Options, RedisCoordinator

CLOCK = "soloflight:test-clock"  # under the prefix, where the smallest user may read it
DOCS = Path(__file__).parents[2] / "docs/redis.md"
BEGIN = 1_800_000_000_000


@pytest.mark.redis
class RedisNodes:
    encryption_key = ""
    user = ""

    @pytest.fixture(autouse=True)
    def _clock(self, redis_server: RedisServer) -> Iterator[None]:
        self.server = redis_server
        with redis_server.client() as client:
            self.client: redis.Redis = client
            client.set(CLOCK, BEGIN)
            yield

    async def make_nodes(self, count: int) -> Sequence[Coordinator]:
        url = self.server.url.replace("://", f"://{self.user}")
        options = Options(url, encryption_key=self.encryption_key, bound_s=5.0, clock_key=CLOCK)
        return [RedisCoordinator(options) for _ in range(count)]

    async def advance(self, ms: int) -> None:
        self.client.incrby(CLOCK, ms)


class TestRedis(RedisNodes, CoordinatorConformance):
    pass


class TestRedisSessionLock(RedisNodes, SessionLockConformance):
    pass


class TestEncrypted(RedisNodes, CoordinatorConformance):
    encryption_key = "any text will do"


class TestSmallestUser(RedisNodes, CoordinatorConformance, SessionLockConformance):
    """All of it, as the user of docs/redis.md."""

    user = "soloflight:PASSWORD@"

    @pytest.fixture(autouse=True)
    def _user(self, redis_server: RedisServer) -> Iterator[None]:
        found = re.search(r"ACL SETUSER soloflight (.*?)\n```", DOCS.read_text(), re.DOTALL)
        assert found is not None
        redis_server.command("ACL", "SETUSER", "soloflight", *found[1].split())
        yield
        redis_server.command("ACL", "DELUSER", "soloflight")
