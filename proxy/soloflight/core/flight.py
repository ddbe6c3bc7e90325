"""The words of the state machine: states, operations, replies, notices, and the record they act on.

Only values live here. ``core.ledger.step`` says what each operation does; a coordinator (memory, Redis) executes it.

Rule 1: all times are milliseconds (int) on the coordinator's clock; clients act only on *remaining* milliseconds from replies.
Rule 2: every operation may be executed twice (a lost reply is re-sent) with the same outcome.
Rule 3: a fence is compared for equality of both parts, by every operation of an owner.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from soloflight.core.errors import Fault
from soloflight.core.frames import Frame, Recording


class State(Enum):
    """Where a flight stands. The diagram in docs/state-machine.md is generated from the ledger's table."""

    PENDING = "P"  # claimed; the upstream has not been called: a takeover is free
    RUNNING = "R"  # the upstream may be working: a takeover can cost one more call
    RETRY = "Q"  # failed in a way that proves the request unprocessed; claimable at retry_at
    COMPLETE = "D"  # sealed with a result
    FAILED = "X"  # sealed with a fault


LIVE = frozenset({State.PENDING, State.RUNNING})


@dataclass(frozen=True, slots=True)
class Fence:
    """Which attempt writes: ``number`` rises with every claim of a key, ``nonce`` is 128 random bits (hex), made by the claimer."""

    number: int
    nonce: str


@dataclass(frozen=True, slots=True)
class Answer:
    """A sealed result that may be replayed until ``expires``; survives a refresh that fails. ``size`` is in body bytes.

    ``nonce`` completes the fence of the attempt that sealed it: it tells a re-sent seal, even behind a new claim.
    """

    number: int
    flight: str
    sealed: int
    expires: int
    size: int
    nonce: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of an attempt that is not kept: only for those who already wait, until ``until``. ``fault`` None = a result.

    ``nonce`` as in Answer; empty where not the owner but a claim ended the attempt.
    """

    number: int
    flight: str
    until: int
    size: int
    fault: Fault | None
    nonce: str = ""


@dataclass(frozen=True, slots=True)
class Flight:
    """The record stored under one flight key. Zero stands for "not set" in every time field."""

    id: str
    state: State
    fence: Fence
    owner: str
    attempt: int
    lease_until: int
    progress_until: int
    deadline: int
    seen: int
    frames: int = 0
    size: int = 0
    progress: int = 0
    retry_at: int = 0
    poisoned_until: int = 0
    payload: str = ""
    answer: Answer | None = None
    outcome: Outcome | None = None
    watchers: dict[str, int] = field(default_factory=dict)


# ── operations ──────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Claim:
    """Ask for a key: its answer, a seat among its followers, or the owner's lease.

    nonce          fresh 128-bit hex of this claim; the same nonce again gets the same ownership (lost reply)
    node           who asks (node id)
    flight         id for the flight, used only if this claim begins a new one
    claim          False: look only, never become owner (Absent / Stale instead of Owned)
    direct         become RUNNING at once (nothing to wait for in PENDING)
    follow         number of the attempt this node already follows (0: none): its outcome is told even if not kept
    fresh_ms       accept an answer sealed at most this long ago; None: any that has not expired; -1: none (refresh)
    payload        digest of the payload where an Idempotency-Key names the operation, else ""
    watch_ms       how long this node counts as a watcher if it joins; 0: joins nothing, only looks
    """

    nonce: str
    node: str
    flight: str
    pending_ms: int
    running_ms: int
    first_byte_ms: int
    deadline_ms: int
    max_attempts: int
    poison_ms: int
    watch_ms: int
    claim: bool = True
    direct: bool = False
    follow: int = 0
    fresh_ms: int | None = None
    payload: str = ""


@dataclass(frozen=True, slots=True)
class Start:
    """PENDING → RUNNING: the upstream is about to be called. ``first_byte_ms`` 0 = no progress bound."""

    fence: Fence
    lease_ms: int
    first_byte_ms: int


@dataclass(frozen=True, slots=True)
class Renew:
    """Extend the lease. ``progress`` counts upstream bytes seen; only a larger count moves the progress deadline.

    ``progress_ms`` is the bound for the next byte (0 = none). Refused as Stalled past the progress deadline.
    """

    fence: Fence
    lease_ms: int
    progress: int
    progress_ms: int


@dataclass(frozen=True, slots=True)
class Append:
    """Publish one batch of frames to remote followers: ``index`` counts batches from 1; renews the lease as well.

    ``progress`` as in Renew.
    """

    fence: Fence
    index: int
    frames: tuple[Frame, ...]
    lease_ms: int
    progress: int
    progress_ms: int


@dataclass(frozen=True, slots=True)
class Seal:
    """The terminal write with a result. ``retention_ms`` 0: not kept, only told to those who wait, for ``grace_ms``."""

    fence: Fence
    result: Recording
    retention_ms: int
    grace_ms: int


@dataclass(frozen=True, slots=True)
class Fail:
    """The terminal write with a fault. ``retry``: proven unprocessed, so another attempt may follow after ``backoff_ms``."""

    fence: Fence
    fault: Fault
    retry: bool
    backoff_ms: int
    max_attempts: int
    grace_ms: int


@dataclass(frozen=True, slots=True)
class Abandon:
    """Nobody on this node listens any more. ``force``: drop the flight even if other nodes watch."""

    fence: Fence
    node: str
    force: bool = False


@dataclass(frozen=True, slots=True)
class Leave:
    """A following node has no listener left for the attempt it follows."""

    node: str
    number: int


Operation: TypeAlias = Claim | Start | Renew | Append | Seal | Fail | Abandon | Leave


# ── replies ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Owned:
    """The claimer owns the flight; ``state`` is PENDING, or RUNNING for a direct claim."""

    fence: Fence
    flight: str
    attempt: int
    state: State


@dataclass(frozen=True, slots=True)
class Joined:
    """A live attempt exists. ``due_ms``: remaining time until it would count as lapsed; ``frames``: batches published so far."""

    number: int
    flight: str
    owner: str
    state: State
    frames: int
    due_ms: int


@dataclass(frozen=True, slots=True)
class Answered:
    """A result exists: read it with ``Coordinator.result(key, number)``. ``kept`` False: only for those who followed it."""

    number: int
    flight: str
    size: int
    age_ms: int
    ttl_ms: int
    kept: bool = True


@dataclass(frozen=True, slots=True)
class Faulted:
    """The followed attempt ended with this fault, or the key is poisoned for ``ttl_ms``."""

    number: int
    flight: str
    fault: Fault
    ttl_ms: int


@dataclass(frozen=True, slots=True)
class Wait:
    """A retry is due in ``wait_ms``; claim again then."""

    number: int
    wait_ms: int


@dataclass(frozen=True, slots=True)
class Stale:
    """A look found a lapsed attempt that a claim could take over."""

    number: int


@dataclass(frozen=True, slots=True)
class Absent:
    """A look found nothing to join or replay."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The Idempotency-Key is in use for another payload (422)."""


@dataclass(frozen=True, slots=True)
class Done:
    """Accepted. ``duplicate``: it had been executed before; ``watchers``: live watching nodes (Renew, Append)."""

    duplicate: bool = False
    watchers: int = 0


@dataclass(frozen=True, slots=True)
class Retrying:
    """A retryable Fail was accepted: the flight waits in RETRY."""

    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Gap:
    """An Append skipped batches; ``frames`` is the last index stored."""

    frames: int


class Refusal(Enum):
    """Why an owner's operation was not accepted. Every one of these is counted as a fenced write."""

    FENCED = "fenced"  # another attempt holds the key, or this one is sealed
    GONE = "gone"  # no record: data loss, or dropped
    EXPIRED = "expired"  # past the attempt's hard deadline
    STALLED = "stalled"  # past the progress deadline without a new upstream byte


@dataclass(frozen=True, slots=True)
class Refused:
    """The operation changed nothing."""

    refusal: Refusal


@dataclass(frozen=True, slots=True)
class Kept:
    """Abandon found other watchers: the owner goes on."""

    watchers: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """Abandon removed the attempt: the owner cancels its upstream call. Nobody can have joined in between."""


Reply: TypeAlias = (
    Owned
    | Joined
    | Answered
    | Faulted
    | Wait
    | Stale
    | Absent
    | Mismatch
    | Done
    | Retrying
    | Gap
    | Refused
    | Kept
    | Dropped
)


# ── notices ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class NoticeKind(Enum):
    """What subscribers of a key are told. A notice is a hint; the record is the truth."""

    RING = "r"  # to the owner's node: a node joined, publish live
    STARTED = "S"
    APPENDED = "C"
    SEALED = "D"
    FAILED = "X"
    RETRY = "Q"
    TAKEN = "T"  # a new attempt took over
    ABANDONED = "A"


@dataclass(frozen=True, slots=True)
class Notice:
    """One wake-up. APPENDED carries its batch; ``index`` is the batch's index there, the result's size for SEALED."""

    kind: NoticeKind
    number: int
    index: int = 0
    frames: tuple[Frame, ...] = ()
