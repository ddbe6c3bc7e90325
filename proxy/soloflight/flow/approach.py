"""A flight on its way through the gate: it waits at the locks of all sessions that ask for it, and goes with the first it gets.

Rule 1: whoever listens waits for its own session's lock. It inherits neither another's queue nor another's refusal.
Rule 2: its places are kept whichever node owns the flight meanwhile; the node that is through first takes it over.
Rule 3: at most one lock is held, and a slot only together with it. Both are given back before the answer's last byte.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from soloflight.core.errors import Fault, SoloflightError
from soloflight.core.stage import Stage
from soloflight.flow.gate import Gate, Passage
from soloflight.flow.tasks import Tasks

if TYPE_CHECKING:
    from soloflight.flow.flights import Call


class Approach:
    """One flight's wishes, by session. ``call`` is the one that it is through with, None before.

    ``on_refused(session, fault)``: who waits with that session waits no longer; None = whoever waits. ``on_through`` is the
    follower's: it asks the owner, which is still at its gate, to stand back.
    """

    def __init__(
        self,
        gate: Gate,
        stage: Stage,
        flight: str,
        tasks: Tasks,
        on_contest: Callable[[], Awaitable[bool]],
        on_refused: Callable[[str | None, Fault], None],
    ) -> None:
        self.call: Call | None = None
        self.on_through: Callable[[], None] | None = None
        self._gate = gate
        self._stage = stage
        self._flight = flight
        self._tasks = tasks
        self._on_contest = on_contest
        self._on_refused = on_refused
        self._bids: dict[str, asyncio.Task[None]] = {}
        self._ahead: Passage | None = None
        self._fault: Fault | None = None
        self._owning = False
        self._rung = False
        self._left = False
        self._news = asyncio.Event()

    def __repr__(self) -> str:
        return f"Approach({self._flight}, waiting={len(self._bids)}, ahead={self._ahead!r}, through={self.call is not None})"

    # ── wishes ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def want(self, call: Call) -> None:
        """Wait with ``call``, too; nothing where its session waits already, or one has its lock."""
        if call.session in self._bids or self._ahead is not None or self._left:
            return
        self._fault = None
        passage = self._gate.passage(self._stage, call.session, self._flight, self._on_contest)
        self._bids[call.session] = self._tasks.spawn(self._bid(call, passage), "gate")

    def drop(self, session: str) -> None:
        """Nobody waits with that session any more."""
        if self._ahead is None:
            self._cancel([session])

    async def _bid(self, call: Call, passage: Passage) -> None:
        try:
            await passage.sit()
            if self._ahead is None:
                self._ahead = passage
                self._cancel([session for session in self._bids if session != call.session])
                await passage.stand()
                self.call = call
        except SoloflightError as refused:
            self._refused(call, passage, refused.fault)
        finally:
            if self._bids.get(call.session) is asyncio.current_task():
                del self._bids[call.session]
            if self.call is not call:
                self._ahead = None if self._ahead is passage else self._ahead
                await passage.leave()
            self._news.set()
        if self.call is call and self.on_through is not None:
            self.on_through()

    def _refused(self, call: Call, passage: Passage, fault: Fault) -> None:
        """A wait in a queue has an end. Apart from that a follower goes on: its owner may get what this node did not."""
        if self._ahead not in (None, passage):
            return  # another one is ahead, for all
        everybody = self._ahead is passage
        if not self._owning and (everybody or self._stage.session != "queue"):
            return
        self._on_refused(None if everybody else call.session, fault)
        if self._owning and (everybody or len(self._bids) == 1):
            self._fault = fault

    def _cancel(self, sessions: Iterable[str]) -> None:
        for session in sessions:
            if (bid := self._bids.pop(session, None)) is not None:
                bid.cancel()

    # ── the way through ─────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def open(self) -> bool:
        """Whether it still waits."""
        return self.call is None and not self._left

    def ring(self) -> None:
        """Another node asks for the flight, because it is through."""
        self._rung = True
        self._news.set()

    async def enter(self, calls: Iterable[Call]) -> bool:
        """The owner's: wait until one of ``calls`` is through. False: another node asks for the flight before that.

        Raises SoloflightError where everybody was refused.
        """
        self._owning, self._rung = True, False
        try:
            for call in calls:
                self.want(call)
            while self.call is None and self._fault is None and not self._rung:
                self._news.clear()
                await self._news.wait()
        finally:
            self._owning = False
        if self.call is None and self._fault is not None:
            raise SoloflightError(self._fault)
        return self.call is not None

    async def leave(self) -> None:
        """Give everything back; idempotent. When it returns, the next job of the session can run."""
        self._left = True
        bids = list(self._bids.values())
        self._cancel(list(self._bids))
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            await ahead.leave()
        if bids:
            await asyncio.wait(bids)
