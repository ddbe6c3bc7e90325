"""How long this machine stood still: what is taken off where a test bounds the time that something took from above.

A shared machine may not run for a second, and then all that was due comes at once. That is not the product's time. What the
product itself takes, also on a busy machine, counts in full: a thread that only sleeps is hardly ever late.
"""

import threading
import time
from functools import cache

TICK_S = 0.02
NOTICED_S = 0.08
"""A thread that wakes so much too late was kept from running; less is what any machine does."""


class Stalls:
    """A thread that sleeps and looks at the clock. ``found``: (from, to) of each time in which it was not run."""

    def __init__(self) -> None:
        self.found: list[tuple[float, float]] = []
        self._awake_at = time.monotonic()
        threading.Thread(target=self._run, name="stalls", daemon=True).start()

    def __repr__(self) -> str:
        return f"<Stalls {len(self.found)}, {sum(end - begin for begin, end in self.found):.2f} s>"

    def _run(self) -> None:
        while True:
            time.sleep(TICK_S)
            late, now = self._late()
            if late is not None:
                self.found.append(late)
            self._awake_at = now

    def _late(self) -> tuple[tuple[float, float] | None, float]:
        """The stall that goes on or has just ended, if there is one, and now."""
        now = time.monotonic()
        due = self._awake_at + TICK_S
        return ((due, now) if now - due > NOTICED_S else None), now

    def between(self, begun: float, ended: float) -> float:
        """How many of these seconds the machine stood still."""
        late, _ = self._late()
        stalls = [*self.found, *([late] if late is not None else [])]
        return sum(max(0.0, min(end, ended) - max(begin, begun)) for begin, end in stalls)


@cache
def _stalls() -> Stalls:
    return Stalls()


def watch() -> None:
    """Begin to look; ``lasted`` knows of nothing before."""
    _stalls()


def between(begun: float, ended: float) -> float:
    """Seconds of these for which the machine stood still."""
    return _stalls().between(begun, ended)


def lasted(begun: float, ended: float | None = None) -> float:
    """Seconds from ``begun`` to ``ended`` (else now, both monotonic), without those in which the machine stood still."""
    ended = time.monotonic() if ended is None else ended
    return ended - begun - between(begun, ended)
