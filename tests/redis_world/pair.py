"""One flight key twice: in ``core.ledger``, and in Redis by the scripts. Whatever is done to one is done to both, and compared."""

from __future__ import annotations

import itertools
from random import Random
from typing import Any

import redis

from exploration.words import BEGIN, FAULT, claim, recording
from redis_world.stored import Stored
from soloflight.core.flight import (
    Abandon,
    Append,
    Done,
    Fail,
    Fence,
    Flight,
    Leave,
    Operation,
    Owned,
    Renew,
    Reply,
    Seal,
    Start,
)
from soloflight.core.frames import Body
from soloflight.core.ledger import collect_at, referenced, step, without_answer
from soloflight_redis.operations import Invocation

KEYS = itertools.count(1)

LEASE_MS = 1_000
TICKS = (1, 301, 301, 400, 999, 1_000, 1_001, 1_001, 1_001, 2_500, 70_000, 200_000)
STEPS_BACK = (1, 500, 10_000)
BOUNDS = (0, 400, 1_500)


class Pair:
    """The key, its clock, and what has been granted there. Each act draws what it leaves open from ``random``."""

    def __init__(self, client: redis.Redis) -> None:
        self.stored = Stored(client, f"pair-{next(KEYS)}")
        self.now = BEGIN
        self.flight: Flight | None = None
        self.owners: list[tuple[Fence, str]] = []
        self.logs: dict[int, list[Append]] = {}
        self.sealed: dict[int, Seal] = {}
        self.claims = 0
        self.stored.set_clock(self.now)

    def __repr__(self) -> str:
        return f"Pair({self.flight}, now={self.now})"

    # ── both ────────────────────────────────────────────────────────────────────────────────────────────────────

    def execute(self, op: Operation) -> Reply:
        """Twice, as if the first reply had been lost."""
        reply = self._once(op)
        self._once(op)
        return reply

    def _once(self, op: Operation) -> Reply:
        taken = step(self.flight, op, self.now)
        self.flight = taken.flight
        assert self.stored.execute(op) == taken.reply
        if isinstance(taken.reply, Done) and not taken.reply.duplicate:
            if isinstance(op, Append):
                self.logs.setdefault(op.fence.number, []).append(op)
            elif isinstance(op, Seal):
                self.sealed[op.fence.number] = op
        self.compare()
        return taken.reply

    def compare(self) -> None:
        """The record, the watchers, the log, the results."""
        if self.flight is None:
            self.logs.clear()  # without a record the next number may be one that has been before
            self.sealed.clear()
        found = self.stored.flight()
        assert found == self.flight
        assert self.stored.all_expire()
        needed = referenced(self.flight) if self.flight else None
        expected = {needed.log: self.logs[needed.log]} if needed and needed.log in self.logs else {}
        assert {
            number: [(batch.index, batch.frames) for batch in log] for number, log in self.stored.log().items()
        } == {number: [(op.index, op.frames) for op in ops] for number, ops in expected.items()}
        results = {number: self.sealed[number].result for number in (needed.results if needed else ())}
        assert self.stored.results(found) == results

    # ── acts ────────────────────────────────────────────────────────────────────────────────────────────────────

    def tick(self, random: Random) -> None:
        self.move(random.choice(TICKS))

    def step_back(self, random: Random) -> None:
        self.move(-random.choice(STEPS_BACK))

    def move(self, ms: int) -> None:
        """Forward, or back."""
        self.now += ms
        self.stored.set_clock(self.now)
        if self.flight is not None and self.now > collect_at(self.flight):
            self.lose()  # what its TTL does to garbage

    def lose(self, random: Random | None = None) -> None:
        self.flight = None
        self.stored.forget()
        self.compare()

    def purge(self, random: Random) -> None:
        there = False
        if self.flight is not None:
            self.flight, there = without_answer(self.flight, self.now)
        assert self.stored.run(Invocation("purge", ())) == [b"purged", int(there)]
        self.compare()

    def claim(self, random: Random) -> None:
        self.claims += random.random() < 0.8
        node = random.choice("abc")
        asked = claim(
            f"n{self.claims}",
            node,
            claim=random.random() < 0.7,
            direct=random.random() < 0.7,
            follow=self._fence(random).number if self.owners and random.random() < 0.4 else 0,
            fresh_ms=random.choice((None, None, -1, -1, 0, 400, 1_000)),
            payload=random.choice(("", "", "x", "y")),
            watch_ms=random.choice((0, 300, 300, 3_000)),
            pending_ms=random.choice((0, 400, LEASE_MS)),
            running_ms=random.choice((0, 400, LEASE_MS, LEASE_MS)),
            first_byte_ms=random.choice(BOUNDS),
            deadline_ms=random.choice((900, 60_000)),
            max_attempts=random.choice((1, 2, 3, 3)),
        )
        reply = self.execute(asked)
        if isinstance(reply, Owned):
            self.owners.append((reply.fence, node))

    def start(self, random: Random) -> None:
        self._own(random, lambda fence, node: Start(fence, LEASE_MS, random.choice(BOUNDS)))

    def renew(self, random: Random) -> None:
        progress, bound = random.randint(0, 4), random.choice(BOUNDS)
        self._own(random, lambda fence, node: Renew(fence, random.choice((0, 400, LEASE_MS)), progress, bound))

    def append(self, random: Random) -> None:
        index = max(1, (self.flight.frames if self.flight else 0) + random.choice((1, 1, 1, 1, 0, -1, 2)))
        progress, bound = random.randint(0, 4), random.choice(BOUNDS)

        def made(fence: Fence, node: str) -> Append:
            return Append(fence, index, (Body(f"{fence.nonce}.{index}".encode()),), LEASE_MS, progress, bound)

        self._own(random, made)

    def seal(self, random: Random) -> None:
        retention_ms, grace_ms = random.choice((0, 1_500, 30_000)), random.choice((0, 700, 2_000))
        self._own(random, lambda fence, node: Seal(fence, recording(fence.nonce.encode()), retention_ms, grace_ms))

    def fail(self, random: Random) -> None:
        retry, backoff_ms = random.random() < 0.5, random.choice((0, 400))
        attempts, grace_ms = random.randint(1, 3), random.choice((700, 5_000))
        self._own(random, lambda fence, node: Fail(fence, FAULT, retry, backoff_ms, attempts, grace_ms))

    def abandon(self, random: Random) -> None:
        force = random.random() < 0.3
        self._own(random, lambda fence, node: Abandon(fence, node, force))

    def leave(self, random: Random) -> None:
        if self.owners:
            self.execute(Leave(random.choice("abc"), self._fence(random).number))

    def _own(self, random: Random, make: Any) -> None:
        """What an owner does: mostly the last one; else one of those before, or one with half a fence."""
        if not self.owners:
            return
        fence, node = self.owners[-1]
        if random.random() < 0.25:
            fence, node = random.choice(self.owners[-4:])
        if random.random() < 0.05:
            fence = Fence(fence.number, "another") if random.random() < 0.5 else Fence(fence.number + 1, fence.nonce)
        self.execute(make(fence, node))

    def _fence(self, random: Random) -> Fence:
        return random.choice(self.owners[-3:])[0]


ACTS = {
    "claim": 26,
    "tick": 14,
    "append": 14,
    "seal": 8,
    "fail": 6,
    "renew": 11,
    "abandon": 9,
    "start": 5,
    "leave": 3,
    "step_back": 1,
    "purge": 2,
    "lose": 1,
}
"""Every act, by how often it is taken in a hundred."""


def walk(client: redis.Redis, seed: int, steps: int) -> None:
    """Some random acts at a fresh key."""
    random, pair = Random(seed), Pair(client)
    for name in random.choices(list(ACTS), list(ACTS.values()), k=steps):
        getattr(pair, name)(random)
