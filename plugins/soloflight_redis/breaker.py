"""Whether Redis is worth asking: closed (ask), open (it is away: do not even try), half-open (one probe is on its way).

Pure: no clock, no IO. The backend trips it and probes.
"""

from __future__ import annotations

from enum import Enum


class Circuit(Enum):
    """The states of a breaker."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class Breaker:
    """One breaker. Each method tells whether it changed what callers see, so that a change is logged once."""

    def __init__(self) -> None:
        self.state = Circuit.CLOSED
        self.why = ""

    def __repr__(self) -> str:
        return f"Breaker({self.state.value}{', ' + self.why if self.why else ''})"

    @property
    def closed(self) -> bool:
        """Whether callers may ask."""
        return self.state is Circuit.CLOSED

    def trip(self, why: str) -> bool:
        """The backend did not answer, or the probe failed. True if it was closed until now."""
        changed = self.closed
        self.state, self.why = Circuit.OPEN, why
        return changed

    def probe(self) -> None:
        """One probe goes out; nobody else asks."""
        assert self.state is Circuit.OPEN
        self.state = Circuit.HALF_OPEN

    def recover(self) -> bool:
        """The backend answers. True if it was not closed until now."""
        changed = not self.closed
        self.state, self.why = Circuit.CLOSED, ""
        return changed
