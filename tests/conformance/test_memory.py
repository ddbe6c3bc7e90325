"""The memory coordinator keeps the law."""

from collections.abc import Sequence

from soloflight.ports import Coordinator
from soloflight.testing.conformance import CoordinatorConformance, SessionLockConformance
from soloflight_memory import MemoryCoordinator


class MemoryNodes:
    now = 1_000_000

    async def make_nodes(self, count: int) -> Sequence[Coordinator]:
        first = MemoryCoordinator(1 << 20, clock=lambda: self.now)
        return [first, *(first.node() for _ in range(count - 1))]

    async def advance(self, ms: int) -> None:
        self.now += ms


class TestMemory(MemoryNodes, CoordinatorConformance):
    pass


class TestMemorySessionLock(MemoryNodes, SessionLockConformance):
    pass
