"""Random walks through ``world``: one that hypothesis shrinks, and a plain quick one for the hunt of planted faults."""

from __future__ import annotations

from random import Random
from types import ModuleType
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sessions.words import LEASE_MS, TICKET_MS
from sessions.world import MAX_QUEUE, World
from soloflight.core import session as genuine

CLIENTS = "abcd"
TIMES = (1, TICKET_MS // 3, TICKET_MS, TICKET_MS + 1, LEASE_MS, LEASE_MS + 1, 100_000)


class Clients:
    """Clients a to d, each with one request at a time; a new one after it gave the old one up."""

    def __init__(self, module: ModuleType) -> None:
        self.world = World(module)
        self.count = 0
        self.nonces: dict[str, str] = {}

    def nonce(self, client: str) -> str:
        if client not in self.nonces:
            self.count += 1
            self.nonces[client] = f"{client}{self.count}"
        return self.nonces[client]

    def ask(self, client: str, max_queue: int) -> None:
        self.world.ask(self.nonce(client), max_queue)

    def hold(self, keep: bool) -> None:
        """The holder renews, its client alive or not: its node does it."""
        if self.world.holder:
            self.world.hold(self.world.holder, keep=keep)

    def release(self) -> None:
        holder = self.world.holder
        if holder:
            self.world.release(holder)
            self.nonces = {client: nonce for client, nonce in self.nonces.items() if nonce != holder}

    def hold_late(self, client: str) -> None:
        """Renew what was granted once, whoever holds the lock now."""
        request = self.world.requests.get(self.nonces.get(client, ""))
        if request is not None and request.fence is not None:
            self.world.hold(request.nonce)

    def release_late(self, client: str) -> None:
        request = self.world.requests.get(self.nonces.get(client, ""))
        if request is not None and request.fence is not None:
            self.world.release(request.nonce)
            del self.nonces[client]

    def withdraw(self, client: str) -> None:
        self.world.withdraw(self.nonce(client))
        del self.nonces[client]

    def vanish(self, client: str) -> None:
        """The client is dead: what it had lapses."""
        self.nonces.pop(client, None)

    def again(self) -> None:
        self.world.again()

    def tick(self, ms: int) -> None:
        self.world.tick(ms)

    def step_back(self, ms: int) -> None:
        self.world.step_back(ms)

    def collect(self) -> None:
        self.world.collect()

    def check_liveness(self) -> None:
        for request in list(self.world.requests.values()):
            if self.world.true <= request.ticket_until:
                self.world.check_liveness(request.nonce)


ACTS: list[tuple[str, tuple[Any, ...]]] = [
    *[("ask", (client, MAX_QUEUE)) for client in CLIENTS * 3],
    *[("ask", (client, most)) for client in CLIENTS for most in (1, 0)],
    *[("tick", (ms,)) for ms in TIMES],
    *[(name, (client,)) for name in ("withdraw", "vanish", "hold_late", "release_late") for client in CLIENTS],
    *[("hold", (keep,)) for keep in (True, False)] * 2,
    *[("release", ())] * 6,
    *[("again", ())] * 4,
    *[("step_back", (ms,)) for ms in (1, 700, 50_000)],
    ("collect", ()),
]


def walk(module: ModuleType, random: Random, steps: int) -> None:
    """Some random acts; raises LawBroken where a law is broken."""
    clients = Clients(module)
    for _ in range(steps):
        name, arguments = random.choice(ACTS)
        getattr(clients, name)(*arguments)
        clients.check_liveness()


class SessionMachine(RuleBasedStateMachine):
    """The same walk, for hypothesis."""

    def __init__(self) -> None:
        super().__init__()
        self.clients = Clients(genuine)

    @rule(act=st.sampled_from(ACTS))
    def act(self, act: tuple[str, tuple[Any, ...]]) -> None:
        name, arguments = act
        getattr(self.clients, name)(*arguments)

    @invariant()
    def who_waits_is_granted_once_others_are_gone(self) -> None:
        self.clients.check_liveness()
