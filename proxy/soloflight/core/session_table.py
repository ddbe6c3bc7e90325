"""Session locks in one process's memory: ``core.session.step`` over a dict. The caller gives the time and delivers notices.

Rule: records stand in the order of their last change, and every change looks at the oldest few: what is garbage goes at the
pace at which new work comes, and no single call pays for a flood.
"""

from __future__ import annotations

from itertools import islice

from soloflight.core.session import Notices, SessionLock, SessionOperation, SessionReply, spent, step

LOOKS = 4


class SessionTable:
    """All session locks of a process, by key."""

    def __init__(self) -> None:
        self._locks: dict[str, SessionLock] = {}

    def __repr__(self) -> str:
        held = sum(lock.holder is not None for lock in self._locks.values())
        waiting = sum(len(lock.queue) for lock in self._locks.values())
        return f"SessionTable(locks={len(self._locks)}, held={held}, waiting={waiting})"

    def __len__(self) -> int:
        return len(self._locks)

    def get(self, key: str) -> SessionLock | None:
        """The record stored under ``key``, garbage or not."""
        return self._locks.get(key)

    def execute(self, key: str, op: SessionOperation, now: int) -> tuple[SessionReply, Notices]:
        """One operation at ``now`` (ms): its reply, and notices as ``(node, notice)``."""
        before = self._locks.get(key)
        done = step(before, op, now)
        if done.lock is not None and done.lock is not before:
            self._locks.pop(key, None)
            self._locks[key] = done.lock
            self._collect(now)
        return done.reply, done.notices

    def _collect(self, now: int) -> None:
        for key in [key for key, lock in islice(self._locks.items(), LOOKS) if spent(lock, now)]:
            del self._locks[key]
