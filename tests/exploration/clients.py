"""What a node does at a key, as far as the coordinator can see it: an idle client, an owner, a follower.

Each act is one operation, whose reply may be lost: then the operation was executed, the client knows nothing of
it, and does the same again. A client's body is made of one attempt's batches and of no other's (I4).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from exploration.words import FAULT, HEAD, claim
from exploration.world import Store, law
from soloflight.core.flight import (
    Abandon,
    Answered,
    Append,
    Dropped,
    Fail,
    Faulted,
    Fence,
    Gap,
    Joined,
    Kept,
    Leave,
    Mismatch,
    Operation,
    Owned,
    Refused,
    Renew,
    Reply,
    Retrying,
    Seal,
    Start,
    State,
    Wait,
)
from soloflight.core.frames import Body, Recording

LEASE_MS = 1_000
GRACE_MS = 2_000
POISON_MS = 5_000
BACKOFF_MS = 500
RETENTION_MS = 30_000


class Phase(Enum):
    IDLE = "idle"
    OWNS = "owns"
    FOLLOWS = "follows"
    DONE = "done"  # has a whole answer
    FAULT = "fault"  # has a fault
    CUT = "cut"  # had bytes of an attempt that is no more
    DETACHED = "detached"  # was refused: serves its own client on, and writes no more
    GONE = "gone"  # crashed, or its client left


MOVING = frozenset({Phase.IDLE, Phase.OWNS, Phase.FOLLOWS})


@dataclass(frozen=True)
class Plan:
    """What the owners of a scenario do.

    batches       how many each publishes before its seal
    direct        claims run at once
    kept          the seal is kept
    faults        attempts up to this one end with a fault instead; it is retryable if ``retry``
    first_byte_ms the progress bound; a ``stuck`` client owns, beats, and never comes to work
    fresh_ms      for each client: what it accepts
    backoff_ms    of a retryable fault
    payloads      for each client: the digest it claims with
    """

    batches: int = 2
    direct: bool = False
    kept: bool = True
    faults: int = 0
    retry: bool = False
    first_byte_ms: int = 0
    stuck: tuple[int, ...] = ()
    fresh_ms: tuple[int | None, ...] = (None, None, None)
    max_attempts: int = 3
    backoff_ms: int = BACKOFF_MS
    payloads: tuple[str, ...] = ("", "", "")
    deadline_ms: int = 60_000
    watch_ms: int = 3_000


@dataclass(frozen=True)
class Client:
    """One node. ``done`` counts its steps as an owner; ``got`` are the batches it has delivered."""

    index: int
    plan: Plan
    phase: Phase = Phase.IDLE
    claims: int = 0
    fence: Fence | None = None
    attempt: int = 0
    done: int = 0
    follow: int = 0
    flight: str = ""
    got: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return "abc"[self.index]

    @property
    def moves(self) -> bool:
        return self.phase in MOVING

    @property
    def stuck(self) -> bool:
        return self.index in self.plan.stuck

    # ── acts: each executes one operation and gives the client that knows its reply ─────────────────────

    def act(self, store: Store) -> Client:
        """The next thing this client does of its own accord."""
        match self.phase:
            case Phase.IDLE:
                return self.claim(store)
            case Phase.FOLLOWS:
                return self.look(store)
            case _:
                return self.beat(store) if self.stuck else self.work(store)

    def claim(self, store: Store) -> Client:
        return self._heard(store, store.execute(self._asked(claims=True)))

    def look(self, store: Store) -> Client:
        return self._heard(store, store.execute(self._asked(claims=False)))

    def work(self, store: Store) -> Client:
        assert self.fence
        reply = store.execute(self._next_work(self.fence))
        match reply:
            case Refused():
                return replace(self, phase=Phase.DETACHED)
            case Gap():
                return replace(self, done=reply.frames + 1)
        if self.done <= self.plan.batches:
            return replace(self, done=self.done + 1)
        if isinstance(reply, Retrying):
            return replace(self, phase=Phase.IDLE, claims=self.claims + 1)
        if self.attempt <= self.plan.faults:
            return replace(self, phase=Phase.FAULT)
        return replace(self, phase=Phase.DONE, got=self._batches(self.fence))

    def beat(self, store: Store) -> Client:
        """Renew without progress."""
        assert self.fence
        if self.done == 0:
            return self.work(store)
        reply = store.execute(Renew(self.fence, LEASE_MS, 0, self.plan.first_byte_ms))
        return replace(self, phase=Phase.DETACHED) if isinstance(reply, Refused) else self

    def leave(self, store: Store) -> Client:
        """The node's last listener left."""
        if self.phase is Phase.FOLLOWS:
            store.execute(Leave(self.name, self.follow))
            return replace(self, phase=Phase.GONE)
        assert self.fence
        reply = store.execute(Abandon(self.fence, self.name))
        law(isinstance(reply, Kept | Dropped | Refused), "no reply to an abandon", reply)
        return self if isinstance(reply, Kept) else replace(self, phase=Phase.GONE)

    def skip(self) -> Client:
        """A batch is forgotten."""
        return replace(self, done=self.done + 1)

    # ── what it sends ───────────────────────────────────────────────────────────────────────────────────

    def _asked(self, *, claims: bool) -> Operation:
        nonce = f"{self.name}{self.claims}"
        return claim(
            nonce if claims else f"{nonce}?",
            self.name,
            pending_ms=LEASE_MS,
            running_ms=LEASE_MS,
            first_byte_ms=self.plan.first_byte_ms,
            deadline_ms=self.plan.deadline_ms,
            payload=self.plan.payloads[self.index],
            max_attempts=self.plan.max_attempts,
            poison_ms=POISON_MS,
            watch_ms=self.plan.watch_ms,
            claim=claims,
            direct=self.plan.direct,
            follow=self.follow,
            fresh_ms=self.plan.fresh_ms[self.index],
        )

    def _next_work(self, fence: Fence) -> Operation:
        plan = self.plan
        if self.done == 0:
            return Start(fence, LEASE_MS, plan.first_byte_ms)
        if self.done <= plan.batches:
            batch = Body(f"{fence.nonce}.{self.done}".encode())
            return Append(fence, self.done, (batch,), LEASE_MS, self.done, plan.first_byte_ms)
        if self.attempt <= plan.faults:
            return Fail(fence, FAULT, plan.retry, plan.backoff_ms, plan.max_attempts, GRACE_MS)
        body = tuple(text.encode() for text in self._batches(fence))
        result = Recording(HEAD, body, sum(map(len, body)))
        return Seal(fence, result, RETENTION_MS if plan.kept else 0, GRACE_MS)

    def _batches(self, fence: Fence) -> tuple[str, ...]:
        return tuple(f"{fence.nonce}.{index}" for index in range(1, self.plan.batches + 1))

    # ── what it hears ───────────────────────────────────────────────────────────────────────────────────

    def _heard(self, store: Store, reply: Reply) -> Client:
        match reply:
            case Owned():
                return self._owns(reply)
            case Joined():
                return self._reads(store, reply)
            case Answered():
                return self._replays(store, reply)
            case Faulted():
                return replace(self, phase=Phase.FAULT)
            case Wait():
                return self if not self.got else replace(self, phase=Phase.CUT)
            case Mismatch():
                return replace(self, phase=Phase.FAULT)
        if self.got:
            return replace(self, phase=Phase.CUT)
        return replace(self, phase=Phase.IDLE, claims=self.claims + 1)

    def _owns(self, reply: Owned) -> Client:
        running = reply.state is State.RUNNING
        return replace(self, phase=Phase.OWNS, fence=reply.fence, attempt=reply.attempt, done=int(running), got=())

    def _reads(self, store: Store, reply: Joined) -> Client:
        if self.got and (reply.number, reply.flight) != (self.follow, self.flight):
            return replace(self, phase=Phase.CUT)
        log = store.log.get(reply.number, ())
        law(log[: len(self.got)] == self.got, "I4 the log is not the one that was read", log, self.got)
        law(len({batch.partition(".")[0] for batch in log}) <= 1, "I2 a log of two attempts", log)
        numbers = [int(batch.partition(".")[2]) for batch in log]
        law(numbers == list(range(1, len(log) + 1)), "I2 a log with a hole", log)
        return replace(self, phase=Phase.FOLLOWS, follow=reply.number, flight=reply.flight, got=log)

    def _replays(self, store: Store, reply: Answered) -> Client:
        result = store.results.get(reply.number)
        law(result is not None, "I3 an answer without its result", reply)
        assert result is not None
        if self.got and (reply.number, reply.flight) != (self.follow, self.flight):
            return replace(self, phase=Phase.CUT)
        law(result[: len(self.got)] == self.got, "I4 the result is not what was read", result, self.got)
        law(len(result) == self.plan.batches, "I3 a result with a part missing", result)
        return replace(self, phase=Phase.DONE, got=result)
