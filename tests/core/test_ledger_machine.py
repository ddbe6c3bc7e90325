"""Random operations: the witness's laws, the table's own word, and two things that may not matter.

What may not matter: whether garbage has been collected yet, and what the clock is called.
"""

from dataclasses import replace

import pytest
from hypothesis import settings

from exploration.machine import FlightMachine
from exploration.words import claim
from soloflight.core.flight import Flight, Operation, Reply
from soloflight.core.ledger import TABLE, standing, step
from soloflight.core.standing import anchored, collect_at


class LedgerMachine(FlightMachine):
    """Beside the witness: which clause acted, and did it say what it may say?"""

    def __init__(self) -> None:
        super().__init__()
        self.before: Flight | None = None

    def executed(self, op: Operation, reply: Reply, flight: Flight | None) -> None:
        now = self.store.now
        before = self.before and anchored(self.before, now)
        state = standing(before, now)
        cell = TABLE[state][type(op)]
        clause = next(clause for clause in cell if clause.act(before, op, now))
        assert type(reply) in clause.replies
        after = standing(flight, now)
        assert after in (clause.to or (state,))
        assert flight is None or flight.seen <= now
        self.before = flight

    def clock_moved(self, now: int) -> None:
        self.before = self.store.flight

    def data_lost(self) -> None:
        self.before = None

    def purged(self, there: bool) -> None:
        self.before = self.store.flight


class GarbageMachine(FlightMachine):
    """A twin that never collects gives the same replies, as long as the clock goes forward."""

    def __init__(self) -> None:
        super().__init__()
        self.twin: Flight | None = None

    def step_back(self) -> None:
        """Not here: garbage can come to life again under a clock that steps back."""

    def purge(self) -> None:
        """Not here: a purge is no step."""

    def executed(self, op: Operation, reply: Reply, flight: Flight | None) -> None:
        taken = step(self.twin, op, self.store.now)
        assert taken.reply == reply
        self.twin = taken.flight
        if flight is not None and self.twin is not None:
            assert replace(self.twin, seen=0) == replace(flight, seen=0)
            assert collect_at(self.twin) == collect_at(flight)

    def data_lost(self) -> None:
        self.twin = None


class ShiftedMachine(FlightMachine):
    """The record as it were if the clock were a day behind: what is left of each time is the same."""

    BACK = 86_400_000

    def __init__(self) -> None:
        super().__init__()
        self.store.now += 10 * self.BACK

    def executed(self, op: Operation, reply: Reply, flight: Flight | None) -> None:
        if flight is None:
            return
        moved = anchored(flight, flight.seen - self.BACK)
        assert anchored(moved, moved.seen) is moved
        assert collect_at(moved) == collect_at(flight) - self.BACK
        for look in self.looks():
            here = step(flight, look, self.store.now).reply
            there = step(moved, look, self.store.now - self.BACK).reply
            assert here == there

    def looks(self) -> list[Operation]:
        """Operations that ask for what is left of each time."""
        numbers = (0, self._number(1))
        return [claim("?", "z", claim=False, watch_ms=0, follow=number) for number in numbers]


def tried(machine: type[FlightMachine], examples: int) -> type:
    """The machine as a test case. On failure it shrinks for minutes: that is not a hang."""
    case = machine.TestCase
    case.settings = settings(max_examples=examples, stateful_step_count=40, deadline=None)
    return pytest.mark.timeout(600)(case)


TestLedger = tried(LedgerMachine, 150)
TestGarbage = tried(GarbageMachine, 60)
TestShifted = tried(ShiftedMachine, 60)
