"""What a claim of a key can meet: the clauses of ``Claim``, in the order in which the table asks them.

Rule 1: a newcomer (``follow`` 0) never gets an outcome that is not kept.
Rule 2: only ``begins`` and ``takes_over`` make an owner, and both make a new fence.
"""

from __future__ import annotations

from dataclasses import replace

from soloflight.core.errors import Code, Fault
from soloflight.core.flight import (
    Absent,
    Answered,
    Claim,
    Faulted,
    Fence,
    Flight,
    Joined,
    Mismatch,
    Notice,
    NoticeKind,
    Outcome,
    Owned,
    Stale,
    State,
    Wait,
)
from soloflight.core.standing import (
    OPEN,
    due,
    ended,
    holds,
    kept_answer,
    live_watchers,
    told_outcome,
)
from soloflight.core.transition import KEY, Transition, clause


def exhaustion(ttl_ms: int) -> Fault:
    """The fault of a flight whose every attempt lost its owner; the key stays poisoned for ``ttl_ms``."""
    return Fault(
        Code.ATTEMPTS_EXHAUSTED,
        "Every attempt at this request lost the process that made it.",
        retry_after_s=max(1, -(-ttl_ms // 1000)),
    )


@clause(Answered, Faulted)
def followed(flight: Flight, op: Claim, now: int) -> Transition | None:
    """The attempt that this node follows has ended: its outcome, kept or not."""
    outcome = told_outcome(flight, now)
    if outcome and outcome.number == op.follow:
        ttl_ms = outcome.until - now
        if outcome.fault:
            return Transition(flight, Faulted(outcome.number, outcome.flight, outcome.fault, ttl_ms))
        return Transition(flight, Answered(outcome.number, outcome.flight, outcome.size, 0, ttl_ms, kept=False))
    answer = kept_answer(flight, now)
    return _replay(flight, now) if answer and answer.number == op.follow else None


@clause(Mismatch)
def mismatched(flight: Flight, op: Claim, now: int) -> Transition | None:
    """The Idempotency-Key names another payload, whose flight has not ended or whose answer is kept."""
    same = not op.payload or not flight.payload or op.payload == flight.payload
    if same or not (flight.state in OPEN or kept_answer(flight, now)):
        return None
    return Transition(flight, Mismatch())


@clause(Answered)
def replayed(flight: Flight, op: Claim, now: int) -> Transition | None:
    """An answer is kept and as fresh as asked for: replay it, even while a refresh runs."""
    answer = kept_answer(flight, now)
    if answer and (op.fresh_ms is None or now - answer.sealed <= op.fresh_ms):
        return _replay(flight, now)
    return None


@clause(Owned)
def owned_again(flight: Flight, op: Claim, now: int) -> Transition | None:
    """The same claim again (its reply was lost): the same ownership."""
    return _owned(flight) if flight.fence.nonce == op.nonce else None


@clause(Joined)
def joined(flight: Flight, op: Claim, now: int) -> Transition | None:
    """The attempt has not lapsed: join it, count as a watcher if asked to, and ring its owner's node."""
    last = due(flight)
    if now > last:
        return None
    reply = Joined(flight.fence.number, flight.id, flight.owner, flight.state, flight.frames, last - now + 1)
    if not op.watch_ms:
        return Transition(flight, reply)
    watchers = live_watchers(flight, now) | {op.node: now + op.watch_ms}
    ring = ((flight.owner, Notice(NoticeKind.RING, flight.fence.number)),) if op.node != flight.owner else ()
    return Transition(replace(flight, watchers=watchers, seen=now), reply, ring)


@clause(Faulted)
def poisoned(flight: Flight, op: Claim, now: int) -> Transition | None:
    """Its attempts lost their owners once too often a short while ago: the same fault at once."""
    if not holds(flight.poisoned_until, now):
        return None
    ttl_ms = flight.poisoned_until - now
    return Transition(flight, Faulted(flight.fence.number, flight.id, exhaustion(ttl_ms), ttl_ms))


@clause(Wait)
def waits(flight: Flight, op: Claim, now: int) -> Transition | None:
    """The retry is not due yet: ask again then."""
    if now >= flight.retry_at:
        return None
    return Transition(flight, Wait(flight.fence.number, flight.retry_at - now))


@clause(Faulted, to=(State.FAILED,))
def exhausted(flight: Flight, op: Claim, now: int) -> Transition | None:
    """The last attempt lapsed: the flight fails for all who wait, the key is poisoned, the fence is void."""
    if flight.attempt < op.max_attempts:
        return None
    number, until = flight.fence.number, now + op.poison_ms
    fault = exhaustion(op.poison_ms)
    rest = replace(
        ended(flight, State.FAILED, now),
        fence=Fence(number, ""),
        poisoned_until=until if op.poison_ms else 0,
        outcome=Outcome(number, flight.id, until, 0, fault),
    )
    return Transition(
        rest, Faulted(number, flight.id, fault, op.poison_ms), ((KEY, Notice(NoticeKind.FAILED, number)),)
    )


@clause(Stale)
def stale(flight: Flight, op: Claim, now: int) -> Transition | None:
    """A look only: the attempt could be taken over."""
    return None if op.claim else Transition(flight, Stale(flight.fence.number))


@clause(Owned, to=(State.PENDING, State.RUNNING))
def takes_over(flight: Flight, op: Claim, now: int) -> Transition:
    """The attempt lapsed or its retry is due: the next attempt of the same flight, with a new fence."""
    taken = _attempt(flight, op, now, flight.id, flight.attempt + 1, op.payload or flight.payload)
    watchers = live_watchers(flight, now)
    watchers.pop(op.node, None)
    taken = replace(taken, watchers=watchers)
    return _owned(taken, Notice(NoticeKind.TAKEN, taken.fence.number))


@clause(Absent)
def absent(flight: Flight | None, op: Claim, now: int) -> Transition | None:
    """A look only: there is nothing to join or replay."""
    return None if op.claim else Transition(flight, Absent())


@clause(Owned, to=(State.PENDING, State.RUNNING))
def begins(flight: Flight | None, op: Claim, now: int) -> Transition:
    """Nothing stands in the way: attempt 1 of a new flight; a kept answer stays until the new seal."""
    kept = flight.payload if flight and kept_answer(flight, now) else ""
    return _owned(_attempt(flight, op, now, op.flight, 1, op.payload or kept))


def _replay(flight: Flight, now: int) -> Transition:
    answer = flight.answer
    assert answer
    age_ms, ttl_ms = now - answer.sealed, answer.expires - now
    return Transition(flight, Answered(answer.number, answer.flight, answer.size, age_ms, ttl_ms))


def _owned(flight: Flight, *notices: Notice) -> Transition:
    reply = Owned(flight.fence, flight.id, flight.attempt, flight.state)
    return Transition(flight, reply, tuple((KEY, notice) for notice in notices))


def _attempt(flight: Flight | None, op: Claim, now: int, flight_id: str, attempt: int, payload: str) -> Flight:
    """A fresh attempt over ``flight``. Even a garbage record's number counts: numbers only rise."""
    previous = flight.fence.number if flight else 0
    lease_ms = op.running_ms if op.direct else op.pending_ms
    return Flight(
        id=flight_id,
        state=State.RUNNING if op.direct else State.PENDING,
        fence=Fence(max(now * 1000, previous + 1), op.nonce),
        owner=op.node,
        attempt=attempt,
        lease_until=now + lease_ms,
        progress_until=now + op.first_byte_ms if op.direct and op.first_byte_ms else 0,
        deadline=now + op.deadline_ms,
        seen=now,
        payload=payload,
        answer=kept_answer(flight, now) if flight else None,
        outcome=told_outcome(flight, now) if flight else None,
    )
