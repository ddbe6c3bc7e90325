"""The memory coordinator: ``core.ledger.step`` over a dict, with callbacks for those who listen.

One process, no network. It has no privilege over a stranger's backend: it is found by entry point and
sees hookimpl, hookspecs, ports and core.
"""

from __future__ import annotations

from typing import Any

from soloflight import hookimpl
from soloflight_memory.coordinator import MemoryCoordinator

__all__ = ["MemoryCoordinator", "soloflight_coordinator"]


@hookimpl
def soloflight_coordinator(name: str, settings: Any) -> MemoryCoordinator | None:
    """The coordinator for ``backend = "memory"``; its results are bounded by ``server.max_memory``."""
    return MemoryCoordinator(settings.server.max_memory) if name == "memory" else None
