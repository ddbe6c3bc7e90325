"""One model, two executors: the same random operations on ``core.ledger`` and on the scripts, on a real server.

After each operation the reply is the same, and so is everything that is stored: the record, the watchers, the log, the
results. Each is executed twice. The clock is the test's: nothing sleeps.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import redis
from hypothesis import settings

from exploration.machine import FlightMachine
from exploration.words import claim, recording
from harness.redis import RedisServer
from redis_world.stored import Stored
from soloflight.core.flight import Append, Flight, Operation, Reply, Seal
from soloflight.core.ledger import referenced, step
from soloflight_redis.operations import Invocation

KEYS = itertools.count(1)


@pytest.fixture(scope="module", autouse=True)
def _server(redis_process: RedisServer) -> Iterator[None]:
    with redis_process.client(decode_responses=False) as client:
        RedisMachine.client = client
        yield


class RedisMachine(FlightMachine):
    """Beside the witness: the scripts."""

    client: redis.Redis

    def __init__(self) -> None:
        super().__init__()
        self.stored = Stored(self.client, f"key-{next(KEYS)}")
        self.logs: dict[int, list[Append]] = {}
        self.sealed: dict[int, Seal] = {}

    def executed(self, op: Operation, reply: Reply, flight: Flight | None) -> None:
        assert self.stored.execute(op) == reply
        self.remember(op, reply)
        self.compare(flight)
        again = step(flight, op, self.store.now)
        assert self.stored.execute(op) == again.reply
        self.compare(again.flight)

    def remember(self, op: Operation, reply: Reply) -> None:
        if type(reply).__name__ != "Done" or getattr(reply, "duplicate", False):
            return
        if isinstance(op, Append):
            self.logs.setdefault(op.fence.number, []).append(op)
        elif isinstance(op, Seal):
            self.sealed[op.fence.number] = op

    def compare(self, flight: Flight | None) -> None:
        if flight is None:
            self.forget()
        found = self.stored.flight()
        assert found == flight
        assert self.stored.all_expire()
        needed = referenced(flight) if flight else None
        log = self.stored.log()
        expected = {needed.log: self.logs[needed.log]} if needed and needed.log in self.logs else {}
        assert {number: [(batch.index, batch.frames) for batch in batches] for number, batches in log.items()} == {
            number: [(op.index, op.frames) for op in ops] for number, ops in expected.items()
        }
        results = {number: self.sealed[number].result for number in (needed.results if needed else ())}
        assert self.stored.results(found) == results

    def clock_moved(self, now: int) -> None:
        self.stored.set_clock(now)
        if self.store.flight is None:
            self.data_lost()  # what its TTL does to garbage

    def data_lost(self) -> None:
        self.stored.forget()
        self.forget()

    def forget(self) -> None:
        """Without a record the next number may be one that has been before."""
        self.logs.clear()
        self.sealed.clear()

    def purged(self, there: bool) -> None:
        said = self.stored.run(Invocation("purge", ()))
        assert said == [b"purged", int(there)]
        self.compare(self.store.flight)

    def teardown(self) -> None:
        self.stored.forget()
        self.client.delete(self.stored.clock)


TestLedgerInLua = pytest.mark.timeout(600)(RedisMachine.TestCase)
TestLedgerInLua.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


@pytest.mark.soak
class TestLedgerInLuaForLong(RedisMachine.TestCase):
    settings = settings(max_examples=5_000, stateful_step_count=60, deadline=None)


# ── what the machine does not reach ─────────────────────────────────────────────────────────────────────────


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


def test_numbers_are_exact_far_beyond_32_bits(client: redis.Redis) -> None:
    stored, now = Stored(client, "exact"), 8_999_999_999_999  # the year 2255: 2^53 is not reached
    stored.set_clock(now)
    owned = stored.execute(claim("n1", direct=True))
    assert owned.fence.number == now * 1000  # type: ignore[union-attr]
    assert stored.flight().deadline == now + 60_000  # type: ignore[union-attr]
