"""How a record stands at a given moment: questions to a flight, and the corrections that time makes to it.

Rule 1: a time holds while ``now <= until`` and is past from the next millisecond on; zero is not set.
Rule 2: nothing here decides what an operation does; that is the table's business (``core.ledger``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from soloflight.core.flight import LIVE, Answer, Flight, Outcome, State

OPEN = LIVE | {State.RETRY}
"""Not ended: somebody works on the flight, or should."""

REMEMBERED_MS = 120_000
"""How long a lapsed or retryable attempt is remembered past its last date.

Its followers look at least once per ``follower_wait``; what they must find is the count of attempts.
"""


@dataclass(frozen=True, slots=True)
class Referenced:
    """What a record still needs of its key's stores: the log of one attempt (or None), and these results."""

    log: int | None
    results: tuple[int, ...]


def holds(until: int, now: int) -> bool:
    """Whether a time is set and not past."""
    return until != 0 and now <= until


def due(flight: Flight) -> int:
    """The last millisecond at which a live attempt has not lapsed: by lease, progress or deadline."""
    bounds = (flight.lease_until, flight.progress_until, flight.deadline)
    return min(bound for bound in bounds if bound)


def kept_answer(flight: Flight, now: int) -> Answer | None:
    """The answer, unless it has expired."""
    return flight.answer if flight.answer and holds(flight.answer.expires, now) else None


def told_outcome(flight: Flight, now: int) -> Outcome | None:
    """The un-kept outcome, while it is still told to those who waited."""
    return flight.outcome if flight.outcome and holds(flight.outcome.until, now) else None


def live_watchers(flight: Flight, now: int) -> dict[str, int]:
    """The nodes that count as watchers now."""
    return {node: until for node, until in flight.watchers.items() if holds(until, now)}


def collect_at(flight: Flight) -> int:
    """The time (ms, coordinator's clock) after which the record means nothing any more and may be dropped."""
    times = [flight.poisoned_until]
    if flight.answer:
        times.append(flight.answer.expires)
    if flight.outcome:
        times.append(flight.outcome.until)
    if flight.state in LIVE:
        times.append(flight.deadline + REMEMBERED_MS)
    if flight.state is State.RETRY:
        times.append(flight.retry_at + REMEMBERED_MS)
    return max(times)


def spent(flight: Flight, now: int) -> bool:
    """Whether the record is garbage: it counts as no record, whether or not somebody has dropped it yet."""
    return now > collect_at(flight)


def referenced(flight: Flight) -> Referenced:
    """Which log and which results are still needed. Everything else that was stored for the key is garbage.

    A log is needed while its attempt is live, and for gap repair while a final fault is told. After a seal
    the result stands for it.
    """
    answer, outcome, number = flight.answer, flight.outcome, flight.fence.number
    told = outcome is not None and outcome.fault is not None and outcome.number == number
    results = {answer.number} if answer else set()
    if outcome and outcome.fault is None:
        results.add(outcome.number)
    return Referenced(number if flight.state in LIVE or told else None, tuple(sorted(results)))


def anchored(flight: Flight, now: int) -> Flight:
    """The record on a clock that has stepped back: every time moves back by the step.

    Without it a lapsed lease would seem live for as long as the step was wide. Forward steps need no answer:
    they only make an early takeover, which is safe.
    """
    step = flight.seen - now
    if step <= 0:
        return flight

    def back(time: int) -> int:
        return max(1, time - step) if time else 0

    answer, outcome = flight.answer, flight.outcome
    return replace(
        flight,
        seen=now,
        lease_until=back(flight.lease_until),
        progress_until=back(flight.progress_until),
        deadline=back(flight.deadline),
        retry_at=back(flight.retry_at),
        poisoned_until=back(flight.poisoned_until),
        answer=answer and replace(answer, sealed=back(answer.sealed), expires=back(answer.expires)),
        outcome=outcome and replace(outcome, until=back(outcome.until)),
        watchers={node: back(until) for node, until in flight.watchers.items()},
    )


def ended(flight: Flight, state: State, now: int) -> Flight:
    """The record after its attempt: no bounds, no watchers. The fence stays: it tells what is re-sent."""
    return replace(
        flight,
        state=state,
        lease_until=0,
        progress_until=0,
        deadline=0,
        retry_at=0,
        watchers={},
        seen=now,
    )


def without_answer(flight: Flight, now: int) -> tuple[Flight | None, bool]:
    """The record after its answer was purged (None: nothing is left), and whether there was one to purge."""
    flight = anchored(flight, now)
    there = kept_answer(flight, now) is not None
    rest = replace(flight, answer=None, seen=now)
    return (None if spent(rest, now) else rest), there
