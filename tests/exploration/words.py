"""Words for tests of the ledger: operations with everyday values, and one key with a clock."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from soloflight.core.errors import Code, Fault
from soloflight.core.flight import (
    Abandon,
    Append,
    Claim,
    Fail,
    Fence,
    Flight,
    Notice,
    Operation,
    Owned,
    Renew,
    Reply,
    Seal,
    Start,
)
from soloflight.core.frames import Body, Head, Recording
from soloflight.core.ledger import step

BEGIN = 1_000_000
HEAD = Head(200, b"OK", ((b"content-type", b"text/plain"),))
FAULT = Fault(Code.UPSTREAM_UNREACHABLE, "no")


def claim(nonce: str = "n1", node: str = "a", **more: Any) -> Claim:
    """A claim by ``node``: leases 1 s, deadline 60 s, 3 attempts, poison 5 s, watch 3 s."""
    asked = Claim(
        nonce=nonce,
        node=node,
        flight=f"flight-{nonce}",
        pending_ms=1_000,
        running_ms=1_000,
        first_byte_ms=0,
        deadline_ms=60_000,
        max_attempts=3,
        poison_ms=5_000,
        watch_ms=3_000,
    )
    return replace(asked, **more)


def recording(text: bytes = b"answer") -> Recording:
    return Recording(HEAD, (text,), len(text))


def start(fence: Fence, lease_ms: int = 1_000, first_byte_ms: int = 0) -> Start:
    return Start(fence, lease_ms, first_byte_ms)


def renew(fence: Fence, lease_ms: int = 1_000, progress: int = 0, progress_ms: int = 0) -> Renew:
    return Renew(fence, lease_ms, progress, progress_ms)


def append(fence: Fence, index: int, progress: int = 0, progress_ms: int = 0) -> Append:
    return Append(fence, index, (Body(b"%d" % index),), 1_000, progress or index, progress_ms)


def seal(fence: Fence, text: bytes = b"answer", retention_ms: int = 10_000, grace_ms: int = 2_000) -> Seal:
    return Seal(fence, recording(text), retention_ms, grace_ms)


def fail(fence: Fence, *, retry: bool = False, backoff_ms: int = 0) -> Fail:
    return Fail(fence, FAULT, retry, backoff_ms, max_attempts=3, grace_ms=2_000)


def abandon(fence: Fence, node: str = "a", *, force: bool = False) -> Abandon:
    return Abandon(fence, node, force)


class Table:
    """One key and its clock: ``do`` executes an operation and keeps what comes of it, `notices` too."""

    def __init__(self, now: int = BEGIN) -> None:
        self.now = now
        self.flight: Flight | None = None
        self.notices: list[tuple[str, Notice]] = []

    def do(self, op: Operation) -> Reply:
        taken = step(self.flight, op, self.now)
        self.flight = taken.flight
        self.notices = list(taken.notices)
        return taken.reply

    def own(self, nonce: str = "n1", node: str = "a", **more: Any) -> Fence:
        """Claim, expecting to become the owner; returns the fence."""
        reply = self.do(claim(nonce, node, **more))
        assert isinstance(reply, Owned), reply
        return reply.fence

    def run(self, nonce: str = "n1", node: str = "a", **more: Any) -> Fence:
        """Own directly in RUNNING."""
        return self.own(nonce, node, direct=True, **more)
