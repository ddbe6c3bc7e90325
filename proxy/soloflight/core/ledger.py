"""The state machine of a flight: a table, and the step that reads it.

Rule 1: ``step`` is pure: no clock, no chance, no IO. ``now`` is given, in ms on the coordinator's clock, > 0.
Rule 2: whatever is re-sent is executed twice; the second time it gets the same class of reply.
Rule 3: the table is the law. A cell is asked clause by clause; the first whose condition holds answers, and
the last always does. Another executor (Lua) runs the same table; docs/state-machine.md is written from it.
"""

from __future__ import annotations

from collections.abc import Mapping

from soloflight.core.claim import (
    absent,
    begins,
    exhausted,
    followed,
    joined,
    mismatched,
    owned_again,
    poisoned,
    replayed,
    stale,
    takes_over,
    waits,
)
from soloflight.core.flight import (
    Abandon,
    Append,
    Claim,
    Fail,
    Flight,
    Leave,
    Operation,
    Renew,
    Seal,
    Start,
    State,
)
from soloflight.core.standing import (
    Referenced,
    anchored,
    collect_at,
    referenced,
    spent,
    without_answer,
)
from soloflight.core.tenure import (
    appended_before,
    appends,
    dropped_before,
    drops,
    expired,
    failed_before,
    fails,
    foreign,
    gap,
    gone,
    keeps,
    leaves,
    not_there,
    nothing_to_drop,
    renews,
    retried_before,
    retries,
    sealed_before,
    seals,
    stalled,
    started_before,
    starts,
    unfit,
)
from soloflight.core.transition import KEY, Clause, Transition

__all__ = [
    "KEY",
    "TABLE",
    "Referenced",
    "Transition",
    "collect_at",
    "referenced",
    "step",
    "without_answer",
]

Cell = tuple[Clause, ...]
Row = Mapping[type[Operation], Cell]

TABLE: Mapping[State | None, Row] = {
    None: {  # no record, or one that is garbage
        Claim: (absent, begins),
        Start: (gone,),
        Renew: (gone,),
        Append: (gone,),
        Seal: (gone,),
        Fail: (gone,),
        Abandon: (nothing_to_drop,),
        Leave: (not_there,),
    },
    State.PENDING: {
        Claim: (followed, mismatched, replayed, owned_again, joined, exhausted, stale, takes_over),
        Start: (foreign, expired, starts),
        Renew: (foreign, expired, stalled, renews),
        Append: (unfit,),
        Seal: (sealed_before, unfit),
        Fail: (failed_before, foreign, retries, fails),
        Abandon: (foreign, keeps, drops),
        Leave: (leaves, not_there),
    },
    State.RUNNING: {
        Claim: (followed, mismatched, replayed, owned_again, joined, exhausted, stale, takes_over),
        Start: (foreign, started_before),
        Renew: (foreign, expired, stalled, renews),
        Append: (foreign, appended_before, expired, gap, stalled, appends),
        Seal: (sealed_before, foreign, seals),
        Fail: (failed_before, foreign, retries, fails),
        Abandon: (foreign, keeps, drops),
        Leave: (leaves, not_there),
    },
    State.RETRY: {
        Claim: (followed, mismatched, replayed, waits, stale, takes_over),
        Start: (unfit,),
        Renew: (unfit,),
        Append: (unfit,),
        Seal: (sealed_before, unfit),
        Fail: (failed_before, foreign, retried_before),
        Abandon: (foreign, keeps, drops),
        Leave: (leaves, not_there),
    },
    State.COMPLETE: {
        Claim: (followed, mismatched, replayed, absent, begins),
        Start: (unfit,),
        Renew: (unfit,),
        Append: (unfit,),
        Seal: (sealed_before, unfit),
        Fail: (failed_before, unfit),
        Abandon: (unfit,),
        Leave: (not_there,),
    },
    State.FAILED: {  # also a refresh that was dropped, while the answer before it is kept
        Claim: (followed, mismatched, replayed, poisoned, absent, begins),
        Start: (unfit,),
        Renew: (unfit,),
        Append: (unfit,),
        Seal: (sealed_before, unfit),
        Fail: (failed_before, unfit),
        Abandon: (foreign, dropped_before, unfit),
        Leave: (not_there,),
    },
}


def standing(flight: Flight | None, now: int) -> State | None:
    """The table's row for a record: its state, or None where there is none or it is garbage."""
    return None if flight is None or spent(flight, now) else flight.state


def step(flight: Flight | None, op: Operation, now: int) -> Transition:
    """Execute ``op`` on the record of its key at ``now`` (ms).

    A record last written under a later clock is re-anchored first, and written back so whatever the reply is.
    """
    if flight is not None:
        flight = anchored(flight, now)
    cell = TABLE[standing(flight, now)][type(op)]
    return next(found for clause in cell if (found := clause.act(flight, op, now)) is not None)
