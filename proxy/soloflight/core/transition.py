"""What one step of the ledger gives back, and the clause: one row of its table.

Rule 1: a Transition holds new values only; the record that was given is never changed.
Rule 2: where an operation changed nothing, ``Transition.flight`` is the very object that was given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from soloflight.core.flight import Flight, Notice, Reply, State

KEY = ""
"""The address of a notice for everybody who subscribed to the key. Any other address is a node id."""

After: TypeAlias = State | None
"""Where a clause can leave the flight; None: no record is left."""


@dataclass(frozen=True, slots=True)
class Transition:
    """The record to store (None: delete it), the reply, and notices as ``(address, notice)`` in order."""

    flight: Flight | None
    reply: Reply
    notices: tuple[tuple[str, Notice], ...] = ()


# The table's key is the type of the operation and of the state: each act names its own, narrower types.
Act: TypeAlias = Callable[[Any, Any, int], Transition | None]


@dataclass(frozen=True, slots=True)
class Clause:
    """One thing that may happen. ``act`` answers None where its condition does not hold: ask the next one.

    ``replies`` and ``to`` say what ``act`` can answer, and in which states it can leave the flight (empty:
    where it is). The documentation is made from them; a test holds them against what is seen.
    """

    act: Act
    replies: tuple[type, ...]
    to: tuple[After, ...]

    @property
    def name(self) -> str:
        """The clause's name in the table."""
        return self.act.__name__.replace("_", " ")

    @property
    def when(self) -> str:
        """When it applies and what it does, in one sentence."""
        return (self.act.__doc__ or "").strip()


def clause(*replies: type, to: tuple[After, ...] = ()) -> Callable[[Act], Clause]:
    """Make a Clause of an act; its docstring says in one sentence when it applies and what it does."""

    def made(act: Act) -> Clause:
        return Clause(act, replies, to)

    return made
