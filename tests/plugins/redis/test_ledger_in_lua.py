"""One model, two executors: the same random operations on ``core.ledger`` and on the scripts, on a real server.

After each operation the reply is the same, and so is everything that is stored: the record, the watchers, the log, the
results. Each is executed twice. The clock is the test's: nothing sleeps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pytest
import redis
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from exploration.words import FAULT, claim, recording
from harness.redis import RedisServer
from redis_world.pair import ACTS, Pair, walk
from redis_world.stored import Stored
from soloflight.core.flight import Abandon, Fail, Kept, Owned, Seal
from soloflight.core.ledger import step


@pytest.fixture(scope="module", autouse=True)
def client(redis_process: RedisServer) -> Iterator[redis.Redis]:
    with redis_process.client(decode_responses=False) as client:
        PairMachine.client = client
        yield client


class PairMachine(RuleBasedStateMachine):
    """Random acts that hypothesis shrinks to the fewest."""

    client: ClassVar[redis.Redis]

    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair(self.client)

    @rule(name=st.sampled_from([name for name, weight in ACTS.items() for _ in range(weight)]), random=st.randoms())
    def act(self, name: str, random: object) -> None:
        getattr(self.pair, name)(random)


TestLedgerInLua = pytest.mark.timeout(600)(PairMachine.TestCase)
TestLedgerInLua.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("seed", range(40))
def test_a_walk(client: redis.Redis, seed: int) -> None:
    walk(client, seed, 120)


@pytest.mark.soak
class TestLedgerInLuaForLong(PairMachine.TestCase):
    settings = settings(max_examples=2_000, stateful_step_count=60, deadline=None)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_walks_for_long(client: redis.Redis) -> None:
    for seed in range(1_000, 4_000):
        walk(client, seed, 150)


# ── what walks reach seldom, or not at all ────────────────────────────────────────────────────────────────────────────────────


def test_garbage_is_kept_for_a_while_and_its_number_counts(client: redis.Redis) -> None:
    stored, now = Stored(client, "garbage"), 1_800_000_000_000
    stored.set_clock(now)
    first = claim("n1", direct=True)
    owned = stored.execute(first)
    stored.execute(Seal(owned.fence, recording(), retention_ms=100, grace_ms=0))  # type: ignore[union-attr]
    stored.set_clock(now + 101)
    model = stored.flight()
    assert model is not None
    second = claim("n2", direct=True)
    assert stored.execute(second) == step(model, second, now + 101).reply
    assert stored.flight() == step(model, second, now + 101).flight


@pytest.mark.parametrize("end", [Abandon, Fail])
def test_watchers_whose_time_is_over_are_dropped_on_the_way(client: redis.Redis, end: type) -> None:
    pair = Pair(client)
    owned = pair.execute(claim("n1", "a", direct=True))
    assert isinstance(owned, Owned)
    pair.execute(claim("n2", "b", watch_ms=300))
    pair.execute(claim("n3", "c", watch_ms=3_000))
    pair.move(301)
    if end is Abandon:
        assert pair.execute(Abandon(owned.fence, "a")) == Kept(1)
    else:
        pair.execute(Fail(owned.fence, FAULT, True, 400, 3, 700))
    assert pair.stored.flight().watchers.keys() == {"c"}  # type: ignore[union-attr]


def test_numbers_are_exact_far_beyond_32_bits(client: redis.Redis) -> None:
    stored, now = Stored(client, "exact"), 8_999_999_999_999  # the year 2255: 2^53 is not reached
    stored.set_clock(now)
    owned = stored.execute(claim("n1", direct=True))
    assert owned.fence.number == now * 1000  # type: ignore[union-attr]
    assert stored.flight().deadline == now + 60_000  # type: ignore[union-attr]
