"""Random operations on one key, by hypothesis; whoever has another executor of the ledger can run them beside it.

A subclass overrides ``executed``, ``clock_moved`` and ``data_lost`` to do the same elsewhere and compare.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from exploration.mutants import genuine
from exploration.words import FAULT, claim, recording
from exploration.world import Store
from soloflight.core.flight import (
    Abandon,
    Append,
    Claim,
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
from soloflight.core.ledger import without_answer

NODES = st.sampled_from("abc")
LEASES = st.sampled_from([0, 400, 1_000])
BOUNDS = st.sampled_from([0, 0, 400, 1_500])
"""Bounds of progress, of which 0 is none."""
RECENT = st.integers(0, 3)


class FlightMachine(RuleBasedStateMachine):
    """Every reply is held against the witness (`exploration.world`); every operation is executed twice."""

    def __init__(self) -> None:
        super().__init__()
        self.store = Store(genuine())
        self.owners: list[tuple[Fence, str]] = []
        self.claims = 0
        self.last: Claim | None = None

    # ── for another executor ────────────────────────────────────────────────────────────────────────────

    def executed(self, op: Operation, reply: Reply, flight: Flight | None) -> None:
        """``op`` was executed: this was its reply, and this is the record that it left."""

    def clock_moved(self, now: int) -> None:
        """It is ``now``, forward or back. What is garbage now has been dropped here."""

    def data_lost(self) -> None:
        """All that was stored under the key is gone, by a loss of data."""

    def purged(self, there: bool) -> None:
        """The kept answer was purged; ``there``: there was one."""

    # ── rules ───────────────────────────────────────────────────────────────────────────────────────────

    def execute(self, op: Operation) -> Reply:
        reply = self.store.execute(op)
        self.executed(op, reply, self.store.flight)
        return reply

    @initialize()
    def begin(self) -> None:
        self.clock_moved(self.store.now)

    @rule(ms=st.sampled_from([1, 50, 399, 400, 401, 1_001, 2_500, 70_000, 200_000]))
    def tick(self, ms: int) -> None:
        self.store.tick(ms)
        self.clock_moved(self.store.now)

    @rule(ms=st.sampled_from([1, 500, 10_000]))
    def step_back(self, ms: int) -> None:
        self.store.step_back(ms)
        self.clock_moved(self.store.now)

    @precondition(lambda self: self.store.flight is not None)
    @rule()
    def lose(self) -> None:
        self.store.lose_everything()
        self.data_lost()

    @precondition(lambda self: self.store.flight is not None)
    @rule()
    def purge(self) -> None:
        self.purged(self.store.purge(without_answer))

    @rule(
        node=NODES,
        claims=st.sampled_from([True, True, False]),
        direct=st.booleans(),
        follow=st.integers(0, 2),
        fresh_ms=st.sampled_from([None, None, -1, 0, 500]),
        payload=st.sampled_from(["", "", "x", "y"]),
        watch_ms=st.sampled_from([0, 300, 3_000]),
        lease_ms=LEASES,
        first_byte_ms=BOUNDS,
        deadline_ms=st.sampled_from([900, 60_000]),
        max_attempts=st.integers(1, 3),
    )
    def claim(self, node: str, claims: bool, follow: int, lease_ms: int, **more: object) -> None:
        self.claims += 1
        self._ask(
            claim(
                f"n{self.claims}",
                node,
                claim=claims,
                follow=self._number(follow),
                pending_ms=lease_ms,
                running_ms=lease_ms,
                **more,
            )
        )

    @precondition(lambda self: self.last)
    @rule()
    def claim_again(self) -> None:
        """The last claim is sent once more, however late."""
        self._ask(self.last)

    @precondition(lambda self: self.owners)
    @rule(which=RECENT, lease_ms=LEASES, first_byte_ms=BOUNDS)
    def start(self, which: int, lease_ms: int, first_byte_ms: int) -> None:
        self.execute(Start(self._fence(which), lease_ms, first_byte_ms))

    @precondition(lambda self: self.owners)
    @rule(which=RECENT, lease_ms=LEASES, progress=st.integers(0, 4), progress_ms=BOUNDS)
    def renew(self, which: int, lease_ms: int, progress: int, progress_ms: int) -> None:
        self.execute(Renew(self._fence(which), lease_ms, progress, progress_ms))

    @precondition(lambda self: self.owners)
    @rule(
        which=RECENT,
        ahead=st.sampled_from([1, 1, 1, 0, -1, 2]),
        lease_ms=LEASES,
        progress=st.integers(0, 4),
        progress_ms=BOUNDS,
    )
    def append(self, which: int, ahead: int, lease_ms: int, progress: int, progress_ms: int) -> None:
        fence = self._fence(which)
        index = max(1, (self.store.flight.frames if self.store.flight else 0) + ahead)
        frames = (Body(f"{fence.nonce}.{index}".encode()),)
        self.execute(Append(fence, index, frames, lease_ms, progress, progress_ms))

    @precondition(lambda self: self.owners)
    @rule(which=RECENT, retention_ms=st.sampled_from([0, 1_500, 30_000]), grace_ms=st.sampled_from([0, 700]))
    def seal(self, which: int, retention_ms: int, grace_ms: int) -> None:
        fence = self._fence(which)
        self.execute(Seal(fence, recording(fence.nonce.encode()), retention_ms, grace_ms))

    @precondition(lambda self: self.owners)
    @rule(which=RECENT, retry=st.booleans(), backoff_ms=st.sampled_from([0, 400]), max_attempts=st.integers(1, 3))
    def fail(self, which: int, retry: bool, backoff_ms: int, max_attempts: int) -> None:
        self.execute(Fail(self._fence(which), FAULT, retry, backoff_ms, max_attempts, grace_ms=700))

    @precondition(lambda self: self.owners)
    @rule(which=RECENT, force=st.booleans())
    def abandon(self, which: int, force: bool) -> None:
        fence, node = self.owners[-1 - which % len(self.owners)]
        self.execute(Abandon(fence, node, force))

    @precondition(lambda self: self.owners)
    @rule(which=RECENT, node=NODES)
    def leave(self, which: int, node: str) -> None:
        self.execute(Leave(node, self._fence(which).number))

    def _ask(self, asked: Claim) -> None:
        self.last = asked
        reply = self.execute(asked)
        if isinstance(reply, Owned) and (reply.fence, asked.node) not in self.owners:
            self.owners.append((reply.fence, asked.node))

    def _fence(self, which: int) -> Fence:
        return self.owners[-1 - which % len(self.owners)][0]

    def _number(self, follow: int) -> int:
        """0 for none, else the number of a recent attempt."""
        return self._fence(follow - 1).number if follow and self.owners else 0
