"""One model, two executors: random walks of clients at a session lock, on ``core.session`` and on the scripts.

After each operation, which is executed twice, the reply, the notices and the stored record are the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import msgpack
import pytest
import redis

from harness.redis import RedisServer
from redis_world.stored import NAMES
from sessions.machine import ACTS, Clients
from soloflight.core import session
from soloflight.core.flight import Fence
from soloflight.core.session import Holder, SessionLock, SessionOperation, SessionTransition, Ticket
from soloflight_redis.codec import Unreadable
from soloflight_redis.scripts import build
from soloflight_redis.sessions import read_session_notice, session_invocation, session_reply

KEYS = itertools.count(1)


class Twin:
    """A session key in Redis, executed beside the model."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self.key = f"session-{next(KEYS)}"
        (self.name,) = NAMES.session(self.key)
        self.clock = f"clock:{self.key}"
        self.scripts = build(clock_key=self.clock)
        self.told = client.pubsub(ignore_subscribe_messages=True)
        self.told.psubscribe(f"{NAMES.root}node:*")
        self.told.get_message(timeout=1)

    def step(self, lock: SessionLock | None, op: SessionOperation, now: int) -> SessionTransition:
        """The model's step, and the script's, compared; twice."""
        if lock is None:
            self.client.delete(self.name)  # garbage was dropped: its TTL does that
        self.client.set(self.clock, now)
        done = session.step(lock, op, now)
        self.compare(op, done)
        self.compare(op, session.step(done.lock, op, now))
        return done

    def compare(self, op: SessionOperation, done: SessionTransition) -> None:
        call = session_invocation(op)
        script = self.scripts[call.script]
        said = self.client.execute_command("EVAL", script.source, 1, self.name, "tag", *call.arguments)
        assert said[0] == b"tag"
        assert session_reply(op, said[1:]) == done.reply
        assert self.notices() == list(done.notices)
        assert self.lock() == done.lock
        assert self.client.pttl(self.name) != -1

    def notices(self) -> list[tuple[str, session.SessionNotice]]:
        # A PING comes back behind all that was published before it.
        self.told.ping()
        found = []
        while (message := self.told.get_message(timeout=5)) is not None and message["type"] != "pong":
            key, notice = read_session_notice(message["data"])
            if key == self.key:
                found.append((message["channel"].decode().rpartition(":node:")[2], notice))
        return found

    def lock(self) -> SessionLock | None:
        """The stored record."""
        stored = self.client.get(self.name)
        if stored is None:
            return None
        number, seen, holder, queue = msgpack.unpackb(stored)
        held = None
        if holder:
            nonce, node, flight, lapse, of_number = holder
            held = Holder(Fence(of_number, nonce), node, flight, lapse)
        return SessionLock(number, seen, held, tuple(Ticket(*ticket) for ticket in queue))


@pytest.fixture(scope="module")
def client(redis_process: RedisServer) -> Iterator[redis.Redis]:
    with redis_process.client(decode_responses=False) as client:
        yield client


def walk(client: redis.Redis, seed: int, steps: int) -> None:
    random, twin, clients = Random(seed), Twin(client), Clients(session)
    world, do = clients.world, clients.world.do

    def both(op: SessionOperation) -> Any:
        """The witness's step, and the twin's on the same record."""
        twin.step(world.lock, op, world.now)
        return do(op)

    world.do = both  # type: ignore[method-assign]
    with twin.told:
        for _ in range(steps):
            name, arguments = random.choice(ACTS)
            getattr(clients, name)(*arguments)


@pytest.mark.parametrize("seed", range(30))
def test_the_scripts_do_what_the_model_does(client: redis.Redis, seed: int) -> None:
    walk(client, seed, 60)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_the_scripts_do_what_the_model_does_for_long(client: redis.Redis) -> None:
    for seed in range(1_000, 4_000):
        walk(client, seed, 100)


def test_what_no_script_says_is_unreadable() -> None:
    op: Any = session.Acquire("n", "a", "f", 1, 1, 1)
    for said in ([], [b"?"], [b"granted"], [b"granted", b"x", 1], [b"refused", 1], [b"refused", b"?"], [None], [[]]):
        with pytest.raises(Unreadable):
            session_reply(op, said)
    for message in (b"", b"s", b"sx n 0 k", b"st n x k", b"st n 0", b"st  0 k"):
        with pytest.raises(Unreadable):
            read_session_notice(message)


def test_a_lock_without_a_key_is_no_lock(client: redis.Redis) -> None:
    twin = Twin(client)
    with twin.told:
        lock = twin.step(None, session.Acquire("n1", "a", "f", 1_000, 600, 3), 1_800_000_000_000).lock
        assert lock is not None
        later = replace(lock, queue=())
        assert twin.step(later, session.Acquire("n2", "b", "f", 1_000, 600, 0), 1_800_000_000_500).lock == lock
