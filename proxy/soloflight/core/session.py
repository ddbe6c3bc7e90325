"""The session lock: at most one heavy job per session, and a queue of tickets in the order of their arrival.

Values and one pure function; a coordinator (memory, Redis) executes it. Unlike a flight, which shares equal work, the lock
keeps other work out. Only the owner of a flight takes it, so that who holds it never waits for a flight.

Rule 1: ``step`` is pure. ``now`` is given, in ms on the coordinator's clock, > 0; a time holds while ``now <= until``.
Rule 2: whatever is re-sent is executed twice; the second time it gets the same class of reply and changes nothing.
Rule 3: a ticket whose lease is over is nobody's. A holder whose lease is over gives way as soon as somebody waits.
Rule 4: a fence is compared for equality of both parts; its number only rises.
Rule 5: whenever the lock is free and somebody waits, the first of them has been woken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from hashlib import sha256
from typing import Any, TypeAlias

from soloflight.core.fingerprint import KEY_BYTES, encode
from soloflight.core.flight import Done, Fence, Refusal, Refused

REMEMBERED_MS = 60_000
"""How long a lock that nobody holds or waits for is remembered past its last date: its number goes on rising, and
a holder that was late finds its place."""


def session_key(scope: str, session: bytes) -> str:
    """The key of a session's lock: safe in any key space, whatever bytes the id has; scopes never meet (contract section 4)."""
    item = (b"soloflight session key", b"1", scope.encode("utf-8", "surrogatepass"), session)
    return sha256(encode(item)).digest()[:KEY_BYTES].hex()


# ── the record ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds the lock, for which flight (opaque), and until when unless it is renewed."""

    fence: Fence
    node: str
    flight: str
    until: int


@dataclass(frozen=True, slots=True)
class Ticket:
    """A place in the queue, kept until ``until`` unless its waiter asks again."""

    nonce: str
    node: str
    until: int


@dataclass(frozen=True, slots=True)
class SessionLock:
    """The record stored under one session key. ``number`` is the last fence's; the queue's first is the next to go."""

    number: int
    seen: int
    holder: Holder | None = None
    queue: tuple[Ticket, ...] = ()


# ── operations ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Acquire:
    """Ask for the lock, or again for what was asked: it renews the ticket, or finds the grant whose reply was lost.

    nonce        fresh 128-bit hex of this request for the lock
    node         who asks (node id); notices for the nonce go there
    flight       what the lock is for; kept for those who look on
    lease_ms     how long a grant holds unless it is renewed
    ticket_ms    how long a place in the queue holds unless it is asked for again
    max_queue    take a place only while fewer than this many wait; 0: never wait
    """

    nonce: str
    node: str
    flight: str
    lease_ms: int
    ticket_ms: int
    max_queue: int


@dataclass(frozen=True, slots=True)
class Hold:
    """Extend the holder's lease. ``keep``: and tell the first who waits that the holder does not give way to it."""

    fence: Fence
    lease_ms: int
    keep: bool = False


@dataclass(frozen=True, slots=True)
class Release:
    """Give the lock back. Another's grant is never touched: to find one is to have been released before."""

    fence: Fence


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Take back a request for the lock, whatever became of it: a place in the queue, or a grant whose reply was lost."""

    nonce: str


SessionOperation: TypeAlias = Acquire | Hold | Release | Withdraw


# ── replies ─────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Granted:
    """The asker holds the lock; ``waiting``: how many wait behind it."""

    fence: Fence
    waiting: int


@dataclass(frozen=True, slots=True)
class Queued:
    """The asker waits behind ``rank`` others; with no notice before, ask again in ``recheck_ms``."""

    rank: int
    recheck_ms: int


@dataclass(frozen=True, slots=True)
class Busy:
    """The lock is not to be had, and ``waiting`` others wait for it already; asking again before ``retry_ms`` is in vain,
    unless it is given back."""

    retry_ms: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Held:
    """The lease was extended; ``waiting``: how many wait for the lock."""

    waiting: int


SessionReply: TypeAlias = Granted | Queued | Busy | Held | Done | Refused


# ── notices ─────────────────────────────────────────────────────────────────────────────────────────────────


class SessionNoticeKind(Enum):
    """What a node is told of one nonce of its own. A notice is a hint; the record is the truth."""

    TURN = "t"  # to the first who waits: the lock is free, ask again
    CONTEST = "c"  # to the holder: somebody asks for the lock; whoever works for nobody gives way
    KEPT = "k"  # to the first who waits: the holder has been asked, and does not give way


@dataclass(frozen=True, slots=True)
class SessionNotice:
    """One notice for ``nonce``. ``waiting`` (CONTEST only): how many wait, whoever asked without waiting aside."""

    kind: SessionNoticeKind
    nonce: str
    waiting: int = 0


Notices: TypeAlias = tuple[tuple[str, SessionNotice], ...]


@dataclass(frozen=True, slots=True)
class SessionTransition:
    """The record to store (the very object that was given, or None as given, where nothing changed), the reply, and
    notices as ``(node, notice)``."""

    lock: SessionLock | None
    reply: SessionReply
    notices: Notices = ()


# ── the step ────────────────────────────────────────────────────────────────────────────────────────────────


def step(lock: SessionLock | None, op: SessionOperation, now: int) -> SessionTransition:
    """Execute ``op`` on the record of its key at ``now`` (ms). A clock that stepped back is answered first."""
    if lock is not None:
        lock = anchored(lock, now)
    before = lock if lock is not None and not spent(lock, now) else SessionLock(lock.number if lock else 0, now)
    done = _ACTS[type(op)](_settled(before, now), op, now)
    after = done.lock
    assert after is not None
    if after == before:
        return replace(done, lock=lock)
    notices = (*done.notices, *_turn(before, after))
    return SessionTransition(replace(after, seen=now), done.reply, notices)


def _settled(lock: SessionLock, now: int) -> SessionLock:
    """Rule 3."""
    queue = tuple([ticket for ticket in lock.queue if now <= ticket.until])
    holder = lock.holder if _is_held(lock, now) or not queue else None
    return replace(lock, holder=holder, queue=queue)


def _turn(before: SessionLock, after: SessionLock) -> Notices:
    """Rule 5: who comes to be the first at a free lock is woken, once."""
    if after.holder is not None or not after.queue:
        return ()
    first = after.queue[0]
    if before.holder is None and before.queue[0].nonce == first.nonce:
        return ()
    return ((first.node, SessionNotice(SessionNoticeKind.TURN, first.nonce)),)


def _acquire(lock: SessionLock, op: Acquire, now: int) -> SessionTransition:
    holder = lock.holder
    if holder is not None and holder.fence.nonce == op.nonce:
        again = replace(holder, until=now + op.lease_ms)
        return SessionTransition(replace(lock, holder=again), Granted(holder.fence, len(lock.queue)))
    if not _is_held(lock, now) and (not lock.queue or lock.queue[0].nonce == op.nonce):
        return _grant(lock, op, now)
    return _wait(lock, op, now)


def _grant(lock: SessionLock, op: Acquire, now: int) -> SessionTransition:
    fence = Fence(max(now * 1000, lock.number + 1), op.nonce)
    holder = Holder(fence, op.node, op.flight, now + op.lease_ms)
    rest = replace(lock, number=fence.number, holder=holder, queue=lock.queue[1:])
    return SessionTransition(rest, Granted(fence, len(rest.queue)))


def _wait(lock: SessionLock, op: Acquire, now: int) -> SessionTransition:
    """A place in the queue, kept or taken. The holder hears of who comes new, and again from the first."""
    ticket = Ticket(op.nonce, op.node, now + op.ticket_ms)
    rank = next((at for at, other in enumerate(lock.queue) if other.nonce == op.nonce), None)
    look_ms = (lock.holder or lock.queue[0]).until - now + 1  # when what stands in the way may have lapsed
    if rank is not None:
        queue = (*lock.queue[:rank], ticket, *lock.queue[rank + 1 :])
    elif len(lock.queue) < op.max_queue:
        queue = (*lock.queue, ticket)
    else:
        return SessionTransition(lock, Busy(look_ms, len(lock.queue)), _contest(lock))
    reply = Queued(len(lock.queue) if rank is None else rank, min(look_ms, max(1, op.ticket_ms // 3)))
    lock = replace(lock, queue=queue)
    told = _contest(lock) if rank is None or rank == 0 else ()
    return SessionTransition(lock, reply, told)


def _contest(lock: SessionLock) -> Notices:
    holder = lock.holder
    if holder is None:
        return ()
    notice = SessionNotice(SessionNoticeKind.CONTEST, holder.fence.nonce, len(lock.queue))
    return ((holder.node, notice),)


def _hold(lock: SessionLock, op: Hold, now: int) -> SessionTransition:
    holder = lock.holder
    if holder is None or holder.fence != op.fence:
        return SessionTransition(lock, Refused(Refusal.FENCED))
    rest = replace(lock, holder=replace(holder, until=now + op.lease_ms))
    notices: Notices = ()
    if op.keep and lock.queue:
        first = lock.queue[0]
        notices = ((first.node, SessionNotice(SessionNoticeKind.KEPT, first.nonce)),)
    return SessionTransition(rest, Held(len(lock.queue)), notices)


def _release(lock: SessionLock, op: Release, now: int) -> SessionTransition:
    if lock.holder is None or lock.holder.fence != op.fence:
        return SessionTransition(lock, Done(duplicate=True))
    return SessionTransition(replace(lock, holder=None), Done())


def _withdraw(lock: SessionLock, op: Withdraw, now: int) -> SessionTransition:
    if lock.holder is not None and lock.holder.fence.nonce == op.nonce:
        return SessionTransition(replace(lock, holder=None), Done())
    queue = tuple([ticket for ticket in lock.queue if ticket.nonce != op.nonce])
    gone = len(queue) < len(lock.queue)
    return SessionTransition(replace(lock, queue=queue), Done(duplicate=not gone))


_ACTS: Mapping[type[SessionOperation], Callable[[SessionLock, Any, int], SessionTransition]] = {
    Acquire: _acquire,
    Hold: _hold,
    Release: _release,
    Withdraw: _withdraw,
}


# ── time ────────────────────────────────────────────────────────────────────────────────────────────────────


def _is_held(lock: SessionLock, now: int) -> bool:
    return lock.holder is not None and now <= lock.holder.until


def collect_at(lock: SessionLock) -> int:
    """The time (ms, coordinator's clock) after which the record means nothing any more and may be dropped."""
    times = [lock.seen, *(ticket.until for ticket in lock.queue)]
    if lock.holder is not None:
        times.append(lock.holder.until)
    return max(times) + REMEMBERED_MS


def spent(lock: SessionLock, now: int) -> bool:
    """Whether the record is garbage: it counts as no record, whether or not somebody has dropped it yet."""
    return now > collect_at(lock)


def anchored(lock: SessionLock, now: int) -> SessionLock:
    """The record on a clock that has stepped back: every time moves back by the step, or a lapsed lease would seem
    live for as long as the step was wide."""
    back = lock.seen - now
    if back <= 0:
        return lock
    holder = lock.holder and replace(lock.holder, until=max(1, lock.holder.until - back))
    queue = tuple([replace(ticket, until=max(1, ticket.until - back)) for ticket in lock.queue])
    return replace(lock, seen=now, holder=holder, queue=queue)
