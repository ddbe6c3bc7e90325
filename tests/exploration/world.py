"""A record with its log and results, and a witness that knows what really happened.

The witness never asks the ledger. It keeps its own books of every attempt, in true time, which never steps
back; what the ledger answers is held against them, operation by operation. Names I1…I8 are the laws'.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, replace

from soloflight.core.errors import Code
from soloflight.core.flight import (
    Abandon,
    Absent,
    Answered,
    Append,
    Claim,
    Done,
    Dropped,
    Fail,
    Faulted,
    Fence,
    Flight,
    Joined,
    Kept,
    Leave,
    Mismatch,
    NoticeKind,
    Operation,
    Owned,
    Refusal,
    Refused,
    Renew,
    Reply,
    Retrying,
    Seal,
    Stale,
    Start,
    State,
    Wait,
)
from soloflight.core.ledger import Referenced, Transition

BEGIN = 1_000_000


@dataclass(frozen=True)
class Executor:
    """The functions under trial: the ledger's own, or a mutant's."""

    step: Callable[[Flight | None, Operation, int], Transition]
    collect_at: Callable[[Flight], int]
    referenced: Callable[[Flight], Referenced]


class Violation(Exception):
    """A law was broken."""


def law(holds: bool, text: str, *seen: object) -> None:
    if not holds:
        raise Violation(f"{text}: {', '.join(map(str, seen))}")


@dataclass(frozen=True)
class Attempt:
    """The witness's book of one attempt. Bounds are in true time; 0 is none. ``flight`` counts the key's flights."""

    fence: Fence
    flight: int
    id: str
    number_in_flight: int
    lease: int
    progress_bound: int
    deadline: int
    progress: int = 0
    frames: int = 0
    payload: str = ""
    running: bool = False

    @property
    def due(self) -> int:
        return min(bound for bound in (self.lease, self.progress_bound, self.deadline) if bound)


@dataclass
class Witness:
    """What really happened at the key, since its data were last lost.

    current    the attempt that may write; None when it ended, was dropped, or never was
    retrying   the attempt that waits for its retry, and when that is due
    top        the highest number since there was no record
    flights    how many have begun
    accepted   flight → fence of the attempt whose result was accepted
    ended      fences of attempts that ended by their own word
    kept       the kept answer: number → until; ``sealed`` then, ``payload`` is its operation's
    told       un-kept outcomes: number → until; only the last is promised
    watches    node → number it follows, until
    """

    current: Attempt | None = None
    retrying: Attempt | None = None
    retry_at: int = 0
    poisoned_until: int = 0
    top: int = 0
    flights: int = 0
    accepted: dict[int, Fence] = field(default_factory=dict)
    ended: frozenset[Fence] = frozenset()
    kept: dict[int, int] = field(default_factory=dict)
    sealed: int = 0
    payload: str = ""
    told: dict[int, int] = field(default_factory=dict)
    watches: dict[str, tuple[int, int]] = field(default_factory=dict)

    def clone(self) -> Witness:
        other = copy(self)
        other.accepted, other.kept = dict(self.accepted), dict(self.kept)
        other.told, other.watches = dict(self.told), dict(self.watches)
        return other

    def tell(self, number: int, until: int) -> None:
        """The outcome of ``number`` is promised to its followers; the one before it is not any more."""
        self.told.pop(number, None)
        self.told = dict.fromkeys(self.told, 0) | {number: until}


class Store:
    """One key under trial, at ``now`` on the server's clock; ``behind`` is how far that clock has stepped back."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.now = BEGIN
        self.behind = 0
        self.flight: Flight | None = None
        self.log: dict[int, tuple[str, ...]] = {}
        self.results: dict[int, tuple[str, ...]] = {}
        self.witness = Witness()

    def clone(self) -> Store:
        other = copy(self)
        other.log, other.results = dict(self.log), dict(self.results)
        other.witness = self.witness.clone()
        return other

    @property
    def true(self) -> int:
        """True time: it only goes forward."""
        return self.now + self.behind

    def execute(self, op: Operation) -> Reply:
        """Execute ``op`` twice, as if its reply had been lost once, and hold all that is seen against the books."""
        taken = self.executor.step(self.flight, op, self.now)
        self._twice(op, taken)
        Trial(self, op).judge(taken.reply)
        self.flight = taken.flight
        if isinstance(taken.reply, Done) and not taken.reply.duplicate:
            self._store(op)
        if self.flight is None:
            self._no_record()
        self._collect_garbage()
        self._whole()
        return taken.reply

    def tick(self, ms: int) -> None:
        self.now += ms
        if self.flight is not None and self.now > self.executor.collect_at(self.flight):
            current = self.witness.current
            law(current is None or self.true > current.due, "a live attempt was collected", current)
            self.flight = None
            self._no_record()
            self._collect_garbage()

    def step_back(self, ms: int) -> None:
        self.now -= ms
        self.behind += ms

    def purge(self, purge: Callable[[Flight, int], tuple[Flight | None, bool]]) -> bool:
        """Forget the kept answer by ``purge``; True if there was one."""
        assert self.flight
        self.flight, there = purge(self.flight, self.now)
        kept = any(self.true <= until for until in self.witness.kept.values())
        law(there or not kept, "a kept answer was not purged", self.witness.kept)
        self.witness.kept = {}
        if self.flight is None:
            self._no_record()
        self._collect_garbage()
        return there

    def lose_everything(self) -> None:
        self.flight = None
        self.log, self.results = {}, {}
        self.witness = Witness()

    def _no_record(self) -> None:
        """There is no record: nothing is live, kept or told, and numbers may begin anew."""
        books = self.witness
        promised = max((*books.kept.values(), *books.told.values(), books.poisoned_until))
        law(self.true > promised, "the record is gone before its time", books)
        self.witness = Witness(flights=books.flights)

    def _twice(self, op: Operation, taken: Transition) -> None:
        again = self.executor.step(taken.flight, op, self.now)
        law(type(again.reply) is type(taken.reply), "I7 re-executed, another reply", op, taken.reply, again.reply)
        law(again.flight == taken.flight, "I7 re-executed, another state", op, taken.flight, again.flight)
        told_again = [notice for _, notice in again.notices if notice.kind is not NoticeKind.RING]
        law(not told_again, "I7 re-executed, told again", op, told_again)

    def _store(self, op: Operation) -> None:
        if isinstance(op, Append):
            (frame,) = op.frames
            number = op.fence.number
            self.log[number] = (*self.log.get(number, ()), frame.data.decode())
        elif isinstance(op, Seal):
            self.results[op.fence.number] = tuple(data.decode() for data in op.result.body)

    def _collect_garbage(self) -> None:
        needed = self.executor.referenced(self.flight) if self.flight else Referenced(None, ())
        self.log = {number: log for number, log in self.log.items() if number == needed.log}
        self.results = {number: result for number, result in self.results.items() if number in needed.results}

    def _whole(self) -> None:
        """The record, its log and its results belong together (I2, I3)."""
        flight, current = self.flight, self.witness.current
        if flight is None or current is None:
            return
        law(flight.fence == current.fence, "the record is another attempt's", flight, current)
        law(flight.frames == len(self.log.get(current.fence.number, ())), "I2 log and count differ", flight)
        if flight.answer:
            law(flight.answer.number in self.results, "I3 an answer without its result", flight)


class Trial:
    """One operation before the witness: does the reply agree with the books? Then the books are kept up."""

    def __init__(self, store: Store, op: Operation) -> None:
        self.store = store
        self.op = op
        self.books = store.witness
        self.true = store.true
        self.exact = store.behind == 0

    def judge(self, reply: Reply) -> None:
        """Find the judge of this reply."""
        match self.op:
            case Claim():
                self._claimed(self.op, reply)
            case Leave():
                law(isinstance(reply, Done), "a node may always leave", reply)
                watch = self.books.watches.get(self.op.node)
                if watch and watch[0] == self.op.number:
                    del self.books.watches[self.op.node]
            case _:
                self._owner_s(self.op, reply)

    # ── claims ──────────────────────────────────────────────────────────────────────────────────────

    def _claimed(self, op: Claim, reply: Reply) -> None:
        self._promised(op, reply)
        match reply:
            case Owned():
                self._owned(op, reply)
            case Joined():
                self._joined(op, reply)
            case Answered():
                self._answered(op, reply)
            case Faulted():
                self._faulted(op, reply)
            case Absent():
                law(not op.claim, "a claim found nothing to own", op)
                law(self.books.current is None, "a live attempt was not seen", self.books.current)
            case Stale():
                law(not op.claim, "a claim did not take over", op)
            case Wait():
                law(self.true < self.books.retry_at or not self.exact, "waits for a retry that is due", op)
            case _:
                law(isinstance(reply, Mismatch), "no reply to a claim", op, reply)

    def _promised(self, op: Claim, reply: Reply) -> None:
        """A follower is told how its attempt ended; another payload is refused; any answer will do if it is kept."""
        if self.true <= self.books.told.get(op.follow, 0):
            told = isinstance(reply, Answered | Faulted) and reply.number == op.follow
            law(told, "a follower was not told the outcome", op, reply)
        elif self._conflicts(op):
            law(isinstance(reply, Mismatch), "another payload was not refused", op, reply)
        elif isinstance(reply, Mismatch):
            law(not self.exact, "a payload that fits was refused", op)
        elif op.fresh_ms is None and any(self.true <= until for until in self.books.kept.values()):
            law(isinstance(reply, Answered), "an answer is kept and was not given", op, reply)

    def _conflicts(self, op: Claim) -> bool:
        """Whether the claim's payload is another one than that of the open flight, or of the kept answer."""
        stored = self._payload()
        followed = self.true <= self.books.kept.get(op.follow, 0)
        return bool(op.payload and stored and op.payload != stored and not followed)

    def _payload(self) -> str:
        """The payload of the open flight, or else of the kept answer."""
        books = self.books
        running = books.current or books.retrying
        if running:
            return running.payload
        return books.payload if any(self.true <= until for until in books.kept.values()) else ""

    def _owned(self, op: Claim, reply: Owned) -> None:
        books, current = self.books, self.books.current
        law(reply.fence.nonce == op.nonce, "owned by another's nonce", op, reply)
        if current and current.fence == reply.fence:
            return
        law(op.claim, "a look owns", op)
        if current:
            law(current.fence.nonce != op.nonce, "owned twice by one claim", op)
            law(self.true > current.due, "a live attempt was taken over", current, self.true)
        self._continues(op, reply)
        law(reply.fence.number > books.top, "I6 the number did not rise", reply, books.top)
        law(self.true >= books.retry_at, "a retry before its time", reply)
        law(self.true > books.poisoned_until, "owned while poisoned", reply)
        books.current = Attempt(
            reply.fence,
            books.flights,
            reply.flight,
            reply.attempt,
            lease=self.true + (op.running_ms if op.direct else op.pending_ms),
            progress_bound=self.true + op.first_byte_ms if op.direct and op.first_byte_ms else 0,
            deadline=self.true + op.deadline_ms,
            payload=op.payload or self._payload(),
            running=reply.state is State.RUNNING,
        )
        books.top, books.retry_at, books.retrying = reply.fence.number, 0, None

    def _continues(self, op: Claim, reply: Owned) -> None:
        """A lapsed or retryable attempt is followed by the next one of its flight, all else by a new flight."""
        before = self.books.current or self.books.retrying
        if before is None:
            law(reply.attempt == 1, "a takeover of nothing", reply)
            self.books.flights += 1
        else:
            next_one = (before.id, before.number_in_flight + 1)
            law((reply.flight, reply.attempt) == next_one, "a takeover that is no next attempt", reply, before)
            left = reply.attempt <= op.max_attempts or self.books.retrying
            law(bool(left), "more attempts than may be", op, reply)

    def _joined(self, op: Claim, reply: Joined) -> None:
        current = self.books.current
        law(current is not None and current.fence.number == reply.number, "joined what is not live", reply)
        assert current
        law(reply.frames == current.frames, "joined with another count of frames", reply, current)
        law(self.true <= current.due or not self.exact, "joined what has lapsed", current, self.true)
        law(reply.due_ms >= 1, "joined what is due", reply)
        if op.watch_ms:
            self.books.watches[op.node] = (reply.number, self.true + op.watch_ms)

    def _answered(self, op: Claim, reply: Answered) -> None:
        if reply.kept:
            law(reply.number in self.books.kept, "an answer that is not kept", reply)
            fresh = op.fresh_ms is None or reply.age_ms <= op.fresh_ms or op.follow == reply.number
            law(fresh, "an answer that is too old", op, reply)
            law(reply.age_ms == self.true - self.books.sealed or not self.exact, "a wrong age", reply)
        else:
            law(op.follow == reply.number, "an un-kept result for a newcomer", op, reply)
            law(reply.number in self.books.told, "a result that never was", reply)

    def _faulted(self, op: Claim, reply: Faulted) -> None:
        books = self.books
        if reply.fault.code is not Code.ATTEMPTS_EXHAUSTED:
            law(op.follow == reply.number, "another's fault for a newcomer", op, reply)
            law(reply.number in books.told, "a fault that never was", reply)
            return
        current = books.current
        if current:
            law(current.number_in_flight >= op.max_attempts, "exhausted too early", current)
            law(self.true > current.due, "exhausted while live", current)
            books.current, books.poisoned_until = None, self.true + op.poison_ms
            books.tell(reply.number, books.poisoned_until)
        else:
            law(self.true <= books.poisoned_until or not self.exact, "poisoned too long", reply)

    # ── the owner's operations ──────────────────────────────────────────────────────────────────────

    def _owner_s(self, op: Start | Renew | Append | Seal | Fail | Abandon, reply: Reply) -> None:
        current = self.books.current
        mine = current is not None and current.fence == op.fence
        match reply:
            case Refused(Refusal.FENCED):
                early = mine and not current.running and isinstance(op, Append | Seal)
                law(not mine or early, "the owner was fenced", op, current)
                law(not self._last_word(op), "I8 the owner of the accepted result was fenced", op)
            case Refused(Refusal.GONE):
                law(not mine, "the owner's record is gone", op)
            case Refused(Refusal.EXPIRED):
                law(not mine or self.true > current.deadline, "expired too early", op, current)
            case Refused(Refusal.STALLED):
                late = mine and 0 < current.progress_bound < self.true
                law(late and op.progress <= current.progress, "stalled too early", op, current)
            case Done(duplicate=True) | Retrying(duplicate=True):
                law(mine or op.fence in self.books.ended, "a duplicate of nothing", op)
            case Dropped() | Kept() if not mine:
                self._dropped_again(op, reply)
            case _:
                law(mine, "I5 a stale owner's operation was accepted", op, reply, current)
                self._accepted(op, reply, current)

    def _last_word(self, op: Operation) -> bool:
        """Whether ``op`` seals again what was accepted, while its result is still kept or told."""
        books = self.books
        if not isinstance(op, Seal) or op.fence not in books.accepted.values():
            return False
        return self.true <= max(books.kept.get(op.fence.number, 0), books.told.get(op.fence.number, 0))

    def _dropped_again(self, op: Abandon, reply: Reply) -> None:
        """An attempt that waits for its retry may be dropped; one that is gone is as good as dropped."""
        retrying = self.books.retrying
        waits = retrying is not None and retrying.fence == op.fence
        law(isinstance(reply, Dropped) or waits, "I5 a stale owner keeps a flight", op, reply)
        if waits and isinstance(reply, Dropped):
            self.books.retrying, self.books.retry_at = None, 0

    def _accepted(self, op: Operation, reply: Reply, current: Attempt) -> None:
        match op:
            case Start():
                first = self.true + op.first_byte_ms if op.first_byte_ms else 0
                self._renewed(replace(current, progress_bound=first, running=True), op.lease_ms)
            case Renew():
                self._progressed(op, current)
            case Append() if isinstance(reply, Done):
                law(op.index == current.frames + 1, "I2 a batch was skipped or stored twice", op, current)
                self._progressed(op, replace(current, frames=op.index))
            case Seal():
                self._sealed(op, current)
            case Fail():
                self._failed(op, reply, current)
            case Abandon():
                self._abandoned(op, reply, current)

    def _renewed(self, current: Attempt, lease_ms: int) -> None:
        law(self.true <= current.deadline or not self.exact, "accepted past the deadline", current)
        self.books.current = replace(current, lease=self.true + lease_ms)

    def _progressed(self, op: Renew | Append, current: Attempt) -> None:
        if op.progress > current.progress:
            bound = self.true + op.progress_ms if op.progress_ms else 0
            current = replace(current, progress=op.progress, progress_bound=bound)
        else:
            late = 0 < current.progress_bound < self.true
            law(not late or not self.exact, "a beat without progress was accepted", op, current)
        self._renewed(current, op.lease_ms)

    def _sealed(self, op: Seal, current: Attempt) -> None:
        books = self.books
        law(current.flight not in books.accepted, "I1 a second result of one flight", op, current)
        books.accepted[current.flight] = current.fence
        number = current.fence.number
        if op.retention_ms:
            books.kept = {number: self.true + op.retention_ms}
            books.sealed, books.payload = self.true, current.payload
        else:
            books.tell(number, self.true + op.grace_ms)
        self._ended(current)

    def _failed(self, op: Fail, reply: Reply, current: Attempt) -> None:
        if isinstance(reply, Retrying):
            law(op.retry and current.number_in_flight < op.max_attempts, "retried too often", op, current)
            self.books.retry_at, self.books.retrying = self.true + op.backoff_ms, current
        else:
            self.books.tell(current.fence.number, self.true + op.grace_ms)
        self._ended(current)

    def _ended(self, current: Attempt) -> None:
        self.books.ended |= {current.fence}
        self.books.current = None

    def _abandoned(self, op: Abandon, reply: Reply, current: Attempt) -> None:
        number = current.fence.number
        self.books.watches.pop(op.node, None)
        others = [
            node for node, (watched, until) in self.books.watches.items() if watched == number and self.true <= until
        ]
        if isinstance(reply, Kept):
            law(reply.watchers >= len(others), "fewer watchers than there are", reply, others)
            some = any(self.true <= until for _, until in self.books.watches.values())
            law(some or not self.exact, "kept for nobody", op)
            return
        law(op.force or not others, "dropped under its followers", op, others)
        self.books.current = None
