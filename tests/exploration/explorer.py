"""Bounded exhaustive exploration: every order of a few clients' acts and of what can go wrong beside them.

From each state that is reached, safety is checked by every act (`world`, `clients`), and liveness by letting all
who are left act in turn while time passes: each must come to an end within ``ROUNDS``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from exploration.clients import Client, Phase, Plan
from exploration.world import Attempt, Executor, Store, Violation, Witness
from soloflight.core.flight import Flight

TICK_MS = 1_001
ROUND_MS = 300
ROUNDS = 20
STEP_BACK_MS = 30_000


@dataclass(frozen=True)
class Mishaps:
    """How often each may happen along one path."""

    lost_replies: int = 0
    skipped: int = 0
    crashes: int = 0
    ticks: int = 0
    losses: int = 0
    steps_back: int = 0
    leavings: int = 0


@dataclass(frozen=True)
class Scenario:
    name: str
    plan: Plan
    mishaps: Mishaps
    clients: int = 2
    answer_before: bool = False


SCENARIOS = (
    Scenario(
        "one answer",
        Plan(batches=2),
        Mishaps(lost_replies=1, skipped=1, crashes=1, ticks=2, losses=1, steps_back=1),
    ),
    Scenario(
        "direct",
        Plan(batches=1, direct=True),
        Mishaps(lost_replies=1, crashes=1, ticks=2, losses=1, steps_back=1),
    ),
    Scenario(
        "direct, three nodes",
        Plan(batches=1, direct=True),
        Mishaps(lost_replies=1, crashes=1, ticks=1, steps_back=1),
        clients=3,
    ),
    Scenario(
        "not kept",
        Plan(batches=1, direct=True, kept=False),
        Mishaps(lost_replies=1, crashes=1, ticks=1),
        clients=3,
    ),
    Scenario(
        "a retryable fault",
        Plan(batches=0, direct=True, faults=1, retry=True, backoff_ms=0),
        Mishaps(lost_replies=1, ticks=1, steps_back=1),
    ),
    Scenario(
        "retries with a backoff, to the last",
        Plan(batches=0, direct=True, faults=3, retry=True),
        Mishaps(lost_replies=1, crashes=1, ticks=2),
    ),
    Scenario(
        "a final fault",
        Plan(batches=1, direct=True, faults=1),
        Mishaps(lost_replies=1, crashes=1, ticks=1),
        clients=3,
    ),
    Scenario(
        "a refresh",
        Plan(batches=1, direct=True, fresh_ms=(-1, -1, None)),
        Mishaps(lost_replies=1, crashes=1, ticks=1, leavings=1),
        clients=3,
        answer_before=True,
    ),
    Scenario(
        "a refresh that is not kept",
        Plan(batches=1, direct=True, kept=False, fresh_ms=(-1, None, None)),
        Mishaps(ticks=1, crashes=1),
        answer_before=True,
    ),
    Scenario(
        "listeners leave",
        Plan(batches=1, watch_ms=800),
        Mishaps(lost_replies=1, ticks=1, losses=1, leavings=2),
        clients=3,
    ),
    Scenario(
        "an owner that only beats",
        Plan(batches=1, first_byte_ms=700, stuck=(0,)),
        Mishaps(lost_replies=1, ticks=2, steps_back=1),
    ),
    Scenario(
        "a deadline before the lease is over",
        Plan(batches=3, deadline_ms=700, direct=True, stuck=(0,)),
        Mishaps(lost_replies=1, ticks=2, steps_back=1),
    ),
    Scenario(
        "another payload",
        Plan(batches=0, direct=True, payloads=("x", "x", "y"), faults=1, retry=True),
        Mishaps(lost_replies=1, ticks=1, crashes=1),
        clients=3,
    ),
    Scenario(
        "poison",
        Plan(batches=0, direct=True, max_attempts=1),
        Mishaps(crashes=1, ticks=1, lost_replies=1, steps_back=1),
        clients=3,
    ),
    Scenario(
        "poison after two attempts",
        Plan(batches=1, direct=True, max_attempts=2),
        Mishaps(crashes=2, ticks=2, lost_replies=1, steps_back=1),
        clients=3,
    ),
)


@dataclass(frozen=True)
class Spot:
    """One state of the exploration."""

    store: Store
    clients: tuple[Client, ...]
    left: Mishaps

    def with_client(self, store: Store, client: Client, **spent: int) -> Spot:
        clients = tuple(client if old.index == client.index else old for old in self.clients)
        return Spot(store, clients, self._less(**spent))

    def _less(self, **spent: int) -> Mishaps:
        return replace(self.left, **{name: getattr(self.left, name) - count for name, count in spent.items()})

    def with_store(self, store: Store, **spent: int) -> Spot:
        return Spot(store, self.clients, self._less(**spent))

    def key(self) -> Any:
        """What tells this state from others: all of it, with times relative to now."""
        store = self.store
        return (
            flight_key(store.flight, store.now),
            tuple(store.log.items()),
            tuple(store.results.items()),
            witness_key(store.witness, store.true),
            self.clients,
            self.left,
        )


def flight_key(flight: Flight | None, zero: int) -> Any:
    """A hashable image of a record with every time relative to ``zero``."""
    if flight is None:
        return None
    answer, outcome = flight.answer, flight.outcome
    return (
        (flight.id, flight.fence, flight.state.value, flight.owner, flight.attempt),
        (flight.frames, flight.size, flight.progress, flight.payload),
        _shifted(zero, flight.lease_until, flight.progress_until, flight.deadline, flight.seen),
        _shifted(zero, flight.retry_at, flight.poisoned_until),
        answer and (answer.number, answer.nonce, _shifted(zero, answer.sealed, answer.expires)),
        outcome and (outcome.number, outcome.nonce, outcome.fault, outcome.until - zero),
        tuple((node, until - zero) for node, until in flight.watchers.items()),
    )


def witness_key(books: Witness, zero: int) -> Any:
    """The same of the witness's books."""
    return (
        _attempt_key(books.current, zero),
        _attempt_key(books.retrying, zero),
        _shifted(zero, books.retry_at, books.poisoned_until, books.sealed),
        (books.top, books.flights, tuple(books.accepted.items()), books.ended, books.payload),
        tuple((number, until and until - zero) for number, until in books.kept.items()),
        tuple((number, until and until - zero) for number, until in books.told.items()),
        tuple((node, number, until - zero) for node, (number, until) in books.watches.items()),
    )


def _attempt_key(attempt: Attempt | None, zero: int) -> Any:
    return attempt and (
        (attempt.fence, attempt.flight, attempt.id, attempt.number_in_flight),
        (attempt.progress, attempt.frames, attempt.running, attempt.payload),
        _shifted(zero, attempt.lease, attempt.progress_bound, attempt.deadline),
    )


def _shifted(zero: int, *times: int) -> tuple[int, ...]:
    return tuple([time and time - zero for time in times])


@dataclass(frozen=True)
class Report:
    """What an exploration saw. ``exhausted``: there are no more states; ``path`` leads to the violation."""

    scenario: str
    states: int
    depth: int
    exhausted: bool
    violation: str = ""
    path: tuple[str, ...] = ()


class Explorer:
    """One scenario under one executor."""

    def __init__(self, scenario: Scenario, executor: Executor) -> None:
        self.scenario = scenario
        self.executor = executor
        self._rounds: dict[Any, int] = {}
        self._doing: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Explorer({self.scenario.name!r})"

    def explore(self, max_states: int) -> Report:
        """Breadth first, to the first violation or the bound."""
        start = self._start()
        queue: deque[tuple[Spot, tuple[str, ...]]] = deque([(start, ())])
        seen = {start.key()}
        path: tuple[str, ...] = ()
        try:
            while queue and len(seen) < max_states:
                spot, path = queue.popleft()
                self._completes(spot)
                for name, follow in self._successors(spot):
                    key = follow.key()
                    if key not in seen:
                        seen.add(key)
                        queue.append((follow, (*path, name)))
        except Exception as fault:  # a law was broken, or a mutant has broken more than that
            text = str(fault) if isinstance(fault, Violation) else repr(fault)
            trail = (*path, *self._doing)
            return Report(self.scenario.name, len(seen), len(trail), False, text, trail)
        return Report(self.scenario.name, len(seen), len(path), not queue)

    def _start(self) -> Spot:
        store = Store(self.executor)
        plan = self.scenario.plan
        if self.scenario.answer_before:
            first = Client(2, replace(plan, fresh_ms=(None,) * 3, kept=True, faults=0, direct=True), claims=100)
            while first.moves:
                first = first.act(store)
            store.tick(1)
        clients = tuple(Client(index, plan) for index in range(self.scenario.clients))
        return Spot(store, clients, self.scenario.mishaps)

    def _successors(self, spot: Spot) -> Iterator[tuple[str, Spot]]:
        for client in spot.clients:
            if client.moves:
                yield from self._acts(spot, client)
        yield from self._events(spot)
        self._doing = ()

    def _acts(self, spot: Spot, client: Client) -> Iterator[tuple[str, Spot]]:
        left, name = spot.left, client.name
        self._doing = (f"{name} acts",)
        store = spot.store.clone()
        acted = client.act(store)
        yield f"{name} {client.phase.value}", spot.with_client(store, acted)
        if left.lost_replies and acted != client:
            yield f"{name} {client.phase.value}, reply lost", spot.with_client(store, client, lost_replies=1)
        if left.skipped and client.phase is Phase.OWNS and 1 <= client.done < client.plan.batches:
            yield f"{name} skips", spot.with_client(spot.store, client.skip(), skipped=1)
        if left.crashes:
            yield f"{name} crashes", spot.with_client(spot.store, replace(client, phase=Phase.GONE), crashes=1)
        if left.leavings and client.phase is not Phase.IDLE:
            self._doing = (f"{name} leaves",)
            store = spot.store.clone()
            yield f"{name} leaves", spot.with_client(store, client.leave(store), leavings=1)

    def _events(self, spot: Spot) -> Iterator[tuple[str, Spot]]:
        if spot.left.ticks:
            self._doing = ("tick",)
            store = spot.store.clone()
            store.tick(TICK_MS)
            yield "tick", spot.with_store(store, ticks=1)
        if spot.left.losses and spot.store.flight:
            store = spot.store.clone()
            store.lose_everything()
            yield "data loss", spot.with_store(store, losses=1)
        if spot.left.steps_back:
            store = spot.store.clone()
            store.step_back(STEP_BACK_MS)
            yield "clock steps back", spot.with_store(store, steps_back=1)

    def _completes(self, spot: Spot) -> None:
        """Fair completion: all who move act in turn, time passes; all must end. Known spots are not run again."""
        trail: list[Any] = []
        rest = 0
        self._doing = ("fair completion",)
        while any(client.moves for client in spot.clients):
            key = (spot.key()[:-1], spot.store.behind == 0)
            rest = self._rounds.get(key, 0)
            if len(trail) + rest > ROUNDS:
                raise Violation(f"no end within {ROUNDS} rounds: {spot.clients}, {spot.store.flight}")
            if rest:
                break
            trail.append(key)
            spot = self._round(spot)
        for count, key in enumerate(reversed(trail), start=1):
            self._rounds[key] = count + rest

    def _round(self, spot: Spot) -> Spot:
        store = spot.store.clone()
        clients = tuple(client.act(store) if client.moves else client for client in spot.clients)
        store.tick(ROUND_MS)
        return Spot(store, clients, spot.left)
