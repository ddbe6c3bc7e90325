"""Words for tests of the session lock: operations with everyday values, and one lock with a clock."""

from __future__ import annotations

from typing import Any

from soloflight.core.flight import Fence
from soloflight.core.session import (
    Acquire,
    Granted,
    SessionLock,
    SessionNotice,
    SessionNoticeKind,
    SessionOperation,
    SessionReply,
    step,
)

BEGIN = 1_000_000
LEASE_MS = 1_000
TICKET_MS = 600


def acquire(nonce: str, node: str = "", **more: Any) -> Acquire:
    """Ask from node ``NONCE's node``: lease 1 s, ticket 0.6 s, at most 10 in the queue."""
    asked: dict[str, Any] = {"flight": f"flight-{nonce}", "lease_ms": LEASE_MS, "ticket_ms": TICKET_MS, "max_queue": 10}
    return Acquire(nonce, node or f"{nonce}'s", **{**asked, **more})


def turn(nonce: str) -> tuple[str, SessionNotice]:
    return f"{nonce}'s", SessionNotice(SessionNoticeKind.TURN, nonce)


def contest(nonce: str, waiting: int) -> tuple[str, SessionNotice]:
    return f"{nonce}'s", SessionNotice(SessionNoticeKind.CONTEST, nonce, waiting)


def kept(nonce: str) -> tuple[str, SessionNotice]:
    return f"{nonce}'s", SessionNotice(SessionNoticeKind.KEPT, nonce)


class Door:
    """One session lock and its clock: ``do`` executes an operation and keeps what comes of it, notices too."""

    def __init__(self) -> None:
        self.now = BEGIN
        self.lock: SessionLock | None = None
        self.notices: list[tuple[str, SessionNotice]] = []

    def do(self, op: SessionOperation) -> SessionReply:
        done = step(self.lock, op, self.now)
        self.lock = done.lock
        self.notices = list(done.notices)
        return done.reply

    def take(self, nonce: str, **more: Any) -> Fence:
        """Acquire, expecting the lock."""
        reply = self.do(acquire(nonce, **more))
        assert isinstance(reply, Granted), reply
        return reply.fence

    @property
    def queue(self) -> list[str]:
        """The nonces that wait, first come first."""
        return [ticket.nonce for ticket in self.lock.queue] if self.lock else []
