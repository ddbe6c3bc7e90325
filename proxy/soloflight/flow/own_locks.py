"""Session locks of this process alone: what is left of them while the backend is away."""

from __future__ import annotations

import asyncio

from soloflight.core.session import SessionOperation, SessionReply
from soloflight.core.session_table import SessionTable
from soloflight.ports import OnSession


class OwnLocks:
    """``SessionLocks`` over a table in memory. No operation fails, and no notice is lost."""

    def __init__(self, on_session: OnSession) -> None:
        self._table = SessionTable()
        self._on_session = on_session

    def __repr__(self) -> str:
        return f"OwnLocks({self._table!r})"

    async def session_step(self, key: str, op: SessionOperation) -> SessionReply:
        """Execute one operation; notices have been delivered when this returns."""
        now = int(asyncio.get_running_loop().time() * 1000) + 1
        reply, notices = self._table.execute(key, op, now)
        for _, notice in notices:
            self._on_session(key, notice)
        return reply
