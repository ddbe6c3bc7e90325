"""The law of a coordinator, as tests: what ``ports.Coordinator`` promises, whatever stands behind it.

    class TestMine(CoordinatorConformance):
        async def make_nodes(self, count):
            return [MyCoordinator(self.clock) for _ in range(count)]

        async def advance(self, ms):
            self.clock.move(ms)

Run by pytest with ``asyncio_mode = auto``. Each test has fresh keys; it opens the nodes that it is given and
closes them again. Nothing sleeps: time is moved by ``advance``, notices are waited for.

The laws, by their names in the documentation: I1 one accepted result per flight, I2 a log is 1..n of one
attempt, I3 a sealed result is the owner's own bytes, I5 a stale owner's writes are refused, I6 numbers rise,
I7 what is executed twice is done once, I8 the owner of the accepted result is never told that it was fenced.
Session locks have a suite of their own, ``SessionLockConformance``, which a subclass is given the same way.
(I4, that no client sees bytes of two attempts, is the flow's to keep; here ``log`` and ``result`` keep it.)
"""

from __future__ import annotations

from soloflight.testing.laws_claim import ClaimLaws
from soloflight.testing.laws_ending import EndingLaws
from soloflight.testing.laws_fleet import FleetLaws
from soloflight.testing.laws_notice import NoticeLaws
from soloflight.testing.laws_session import SessionLockConformance
from soloflight.testing.laws_tenure import TenureLaws

__all__ = ["CoordinatorConformance", "SessionLockConformance"]


class CoordinatorConformance(ClaimLaws, TenureLaws, EndingLaws, NoticeLaws, FleetLaws):
    """All laws. A subclass named ``Test…`` gives ``make_nodes`` and ``advance``."""
