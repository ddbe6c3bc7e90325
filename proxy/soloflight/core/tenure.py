"""What an owner may do with its attempt, and how a follower leaves: the clauses of all that is not a claim.

Rule 1: every clause that writes stands behind ``foreign`` in the table: the fence is compared in both parts.
Rule 2: a lapsed attempt that nobody took over is still its owner's, until its deadline.
Rule 3: the terminal writes are accepted past the deadline too, as long as nobody took over.
"""

from __future__ import annotations

from dataclasses import replace

from soloflight.core.flight import (
    Abandon,
    Answer,
    Append,
    Done,
    Dropped,
    Fail,
    Fence,
    Flight,
    Gap,
    Kept,
    Leave,
    Notice,
    NoticeKind,
    Operation,
    Outcome,
    Refusal,
    Refused,
    Renew,
    Retrying,
    Seal,
    Start,
    State,
)
from soloflight.core.frames import Body
from soloflight.core.standing import ended, holds, live_watchers, spent
from soloflight.core.transition import KEY, Transition, clause

# ── refusals ────────────────────────────────────────────────────────────────────────────────────────────────


@clause(Refused)
def gone(flight: Flight | None, op: Operation, now: int) -> Transition:
    """There is no such flight: data loss, dropped, or long over."""
    return Transition(flight, Refused(Refusal.GONE))


@clause(Refused)
def foreign(flight: Flight, op: Start | Renew | Append | Seal | Fail | Abandon, now: int) -> Transition | None:
    """The fence is another attempt's."""
    return None if flight.fence == op.fence else Transition(flight, Refused(Refusal.FENCED))


@clause(Refused)
def unfit(flight: Flight, op: Operation, now: int) -> Transition:
    """The attempt has ended, or has not come so far."""
    return Transition(flight, Refused(Refusal.FENCED))


@clause(Refused)
def expired(flight: Flight, op: Start | Renew | Append, now: int) -> Transition | None:
    """The attempt is past its hard deadline."""
    return None if now <= flight.deadline else Transition(flight, Refused(Refusal.EXPIRED))


@clause(Refused)
def stalled(flight: Flight, op: Renew | Append, now: int) -> Transition | None:
    """Past the progress deadline without one more upstream byte: to beat is not to work."""
    if op.progress > flight.progress or not flight.progress_until or holds(flight.progress_until, now):
        return None
    return Transition(flight, Refused(Refusal.STALLED))


# ── start, renew, append ────────────────────────────────────────────────────────────────────────────────────


@clause(Done, to=(State.RUNNING,))
def starts(flight: Flight, op: Start, now: int) -> Transition:
    """The upstream is about to be called."""
    started = replace(
        flight,
        state=State.RUNNING,
        lease_until=now + op.lease_ms,
        progress_until=now + op.first_byte_ms if op.first_byte_ms else 0,
        seen=now,
    )
    return _told(started, Done(), NoticeKind.STARTED)


@clause(Done)
def started_before(flight: Flight, op: Start, now: int) -> Transition:
    """Running already: the same start again, or a direct claim."""
    return Transition(flight, Done(duplicate=True))


@clause(Done)
def renews(flight: Flight, op: Renew, now: int) -> Transition:
    """The lease is extended; the progress deadline only by progress."""
    return Transition(_renewed(flight, op, now), Done(watchers=len(live_watchers(flight, now))))


@clause(Done)
def appended_before(flight: Flight, op: Append, now: int) -> Transition | None:
    """This batch is stored already."""
    if op.index > flight.frames:
        return None
    return Transition(flight, Done(duplicate=True, watchers=len(live_watchers(flight, now))))


@clause(Gap)
def gap(flight: Flight, op: Append, now: int) -> Transition | None:
    """A batch before this one is missing."""
    return None if op.index == flight.frames + 1 else Transition(flight, Gap(flight.frames))


@clause(Done)
def appends(flight: Flight, op: Append, now: int) -> Transition:
    """The next batch: stored, told to all subscribers, and a renewal."""
    size = flight.size + sum(len(frame.data) for frame in op.frames if isinstance(frame, Body))
    longer = replace(_renewed(flight, op, now), frames=op.index, size=size)
    notice = Notice(NoticeKind.APPENDED, flight.fence.number, op.index, op.frames)
    return Transition(longer, Done(watchers=len(live_watchers(flight, now))), ((KEY, notice),))


# ── seal, fail ──────────────────────────────────────────────────────────────────────────────────────────────


@clause(Done, to=(State.COMPLETE,))
def seals(flight: Flight, op: Seal, now: int) -> Transition:
    """The result: kept for its retention, or only told to those who wait; then what was kept before stays."""
    number, nonce, size = flight.fence.number, flight.fence.nonce, op.result.size
    sealed = ended(flight, State.COMPLETE, now)
    if op.retention_ms:
        answer = Answer(number, flight.id, now, now + op.retention_ms, size, nonce)
        sealed = replace(sealed, answer=answer)
    else:
        outcome = Outcome(number, flight.id, now + op.grace_ms, size, None, nonce)
        sealed = replace(sealed, outcome=outcome)
    return _told(sealed, Done(), NoticeKind.SEALED, size)


@clause(Done)
def sealed_before(flight: Flight, op: Seal, now: int) -> Transition | None:
    """Sealed already, by this very attempt, whoever claimed the key since."""
    outcome = flight.outcome
    told = outcome is not None and outcome.fault is None and _made(outcome, op.fence)
    return Transition(flight, Done(duplicate=True)) if told or _made(flight.answer, op.fence) else None


@clause(Retrying, to=(State.RETRY,))
def retries(flight: Flight, op: Fail, now: int) -> Transition | None:
    """Proven unprocessed, and attempts are left: whoever waits may claim at the end of the backoff."""
    if not op.retry or flight.attempt >= op.max_attempts:
        return None
    waiting = replace(
        ended(flight, State.RETRY, now), retry_at=now + op.backoff_ms, watchers=live_watchers(flight, now)
    )
    return _told(waiting, Retrying(), NoticeKind.RETRY)


@clause(Retrying)
def retried_before(flight: Flight, op: Fail, now: int) -> Transition:
    """The same retryable failure again."""
    return Transition(flight, Retrying(duplicate=True))


@clause(Done, to=(State.FAILED,))
def fails(flight: Flight, op: Fail, now: int) -> Transition:
    """The fault is told to those who wait and forgotten for newcomers; an answer that is kept stays."""
    number, nonce = flight.fence.number, flight.fence.nonce
    outcome = Outcome(number, flight.id, now + op.grace_ms, 0, op.fault, nonce)
    failed = replace(ended(flight, State.FAILED, now), outcome=outcome)
    return _told(failed, Done(), NoticeKind.FAILED)


@clause(Done)
def failed_before(flight: Flight, op: Fail, now: int) -> Transition | None:
    """Failed already, by this very attempt, whoever claimed the key since."""
    outcome = flight.outcome
    told = outcome is not None and outcome.fault is not None and _made(outcome, op.fence)
    return Transition(flight, Done(duplicate=True)) if told else None


# ── abandon, leave ──────────────────────────────────────────────────────────────────────────────────────────


@clause(Kept)
def keeps(flight: Flight, op: Abandon, now: int) -> Transition | None:
    """Other nodes watch: the owner goes on."""
    watchers = live_watchers(flight, now)
    watchers.pop(op.node, None)
    if op.force or not watchers:
        return None
    rest = replace(flight, watchers=watchers, seen=now) if watchers != flight.watchers else flight
    return Transition(rest, Kept(len(watchers)))


@clause(Dropped, to=(None, State.FAILED))
def drops(flight: Flight, op: Abandon, now: int) -> Transition:
    """Nobody watches, or by force: the attempt is gone and nobody can join it; an older answer stays."""
    rest = ended(flight, State.FAILED, now)
    notice = Notice(NoticeKind.ABANDONED, flight.fence.number)
    return Transition(None if spent(rest, now) else rest, Dropped(), ((KEY, notice),))


@clause(Dropped)
def dropped_before(flight: Flight, op: Abandon, now: int) -> Transition | None:
    """Dropped already, by this very attempt; what was kept before it is still there."""
    return None if _made(flight.outcome, op.fence) else Transition(flight, Dropped())


@clause(Dropped)
def nothing_to_drop(flight: Flight | None, op: Abandon, now: int) -> Transition:
    """There is no such flight, so nobody can join it: as good as dropped."""
    return Transition(flight, Dropped())


@clause(Done)
def leaves(flight: Flight, op: Leave, now: int) -> Transition | None:
    """The node no longer counts as a watcher of the attempt it followed."""
    if op.number != flight.fence.number or op.node not in flight.watchers:
        return None
    watchers = {node: until for node, until in flight.watchers.items() if node != op.node}
    return Transition(replace(flight, watchers=watchers, seen=now), Done())


@clause(Done)
def not_there(flight: Flight | None, op: Leave, now: int) -> Transition:
    """The node does not watch this attempt: nothing to leave."""
    return Transition(flight, Done(duplicate=True))


def _made(end: Answer | Outcome | None, fence: Fence) -> bool:
    """Whether this answer or outcome is the work of the attempt with this fence, in both parts."""
    return end is not None and end.number == fence.number and end.nonce == fence.nonce


def _renewed(flight: Flight, op: Renew | Append, now: int) -> Flight:
    renewed = replace(flight, lease_until=now + op.lease_ms, seen=now)
    if op.progress <= flight.progress:
        return renewed
    bound = now + op.progress_ms if op.progress_ms else 0
    return replace(renewed, progress=op.progress, progress_until=bound)


def _told(flight: Flight, reply: Done | Retrying, kind: NoticeKind, index: int = 0) -> Transition:
    return Transition(flight, reply, ((KEY, Notice(kind, flight.fence.number, index)),))
