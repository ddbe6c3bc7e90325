"""A few clients at one session lock, and the books of what each may believe: a law is broken when a reply belies them.

Time: ``true`` only goes on; ``now`` is the coordinator's clock, which may step back. A lease is judged by true time: that is
all a client knows. Once the clock has stepped back, a record's times last longer than the books'; what is then no longer
certain is not judged (``exact``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from sessions.words import LEASE_MS, TICKET_MS

MAX_QUEUE = 3


class LawBroken(AssertionError):
    """The words say which."""


def law(holds: bool, words: str, *facts: object) -> None:
    if not holds:
        raise LawBroken(f"{words}: {facts}")


@dataclass
class Request:
    """One client's wish for the lock, as the books have it. ``first`` and ``last``: when its place can have been taken."""

    nonce: str
    first: int
    last: int
    ticket_until: int = -1
    fence: Any = None
    lease_until: int = -1


@dataclass
class World:
    """``session`` is ``core.session``, or a copy with a fault in it."""

    session: ModuleType
    now: int = 1_000_000
    true: int = 0
    lock: Any = None
    exact: bool = True
    forgotten: bool = False
    order: int = 0
    highest: int = 0
    woken: str = ""
    requests: dict[str, Request] = field(default_factory=dict)  # by nonce: live and forsaken ones
    holder: str = ""  # nonce of the last grant that was not given back
    fences: list[Any] = field(default_factory=list)
    last: Any = None

    # ── acts ────────────────────────────────────────────────────────────────────────────────────────────────

    def ask(self, nonce: str, max_queue: int = MAX_QUEUE) -> Any:
        s, self.order = self.session, self.order + 1
        request = self.requests.setdefault(nonce, Request(nonce, self.order, self.order))
        waited = self.true <= request.ticket_until
        live = self._live_holder(besides=nonce)
        reply, notices = self.do(s.Acquire(nonce, f"{nonce}'s", "f", LEASE_MS, TICKET_MS, max_queue))
        if isinstance(reply, s.Granted):
            self._granted(request, reply.fence)
        elif isinstance(reply, s.Queued):
            if not waited:
                request.last = self.order
            request.ticket_until = self.true + TICKET_MS
            law(len(self.lock.queue) <= MAX_QUEUE, "the queue is longer than its bound", self.lock)
            law(reply.recheck_ms >= 1, "asks again at once", reply)
        else:
            law(isinstance(reply, s.Busy), "an answer to nothing", reply)
            law(not waited or not self.exact, "a waiter is sent away", nonce)
            law(all(ticket.nonce != nonce for ticket in self.lock.queue), "who was sent away waits", nonce)
        if self.exact and live and not isinstance(reply, s.Granted) and not waited:
            told = [notice.nonce for _, notice in notices if notice.kind is s.SessionNoticeKind.CONTEST]
            law(told == [live.nonce], "a newcomer is not announced to the holder", notices)
        return reply

    def _granted(self, request: Request, fence: Any) -> None:
        if request.fence == fence:
            law(self.holder == request.nonce, "granted again what another holds", fence)
        else:
            other = self._live_holder(besides=request.nonce)
            law(other is None, "two hold the lock", request, other)
            mine = request.last if self.exact and self.true <= request.ticket_until else request.first
            for ahead in self.requests.values():
                waits = ahead.nonce != request.nonce and self.true <= ahead.ticket_until
                law(not waits or ahead.last > mine, "went ahead of one who waits", request, ahead)
            law(fence.number > self.highest or self.forgotten, "the number did not rise", fence)
            law(fence not in self.fences, "the same fence twice", fence)
            self.fences.append(fence)
        self.highest = max(self.highest, fence.number)
        self.holder, request.fence, request.ticket_until = request.nonce, fence, -1
        request.lease_until = self.true + LEASE_MS

    def hold(self, nonce: str, *, keep: bool = False) -> Any:
        s, request = self.session, self.requests[nonce]
        first = self.lock.queue[0].nonce if self.lock and self.lock.queue else None
        reply, notices = self.do(s.Hold(request.fence, LEASE_MS, keep))
        if isinstance(reply, s.Held):
            law(self.holder == nonce, "another's lease is renewed", nonce, self.holder)
            request.lease_until = self.true + LEASE_MS
            told = [notice.nonce for _, notice in notices if notice.kind is s.SessionNoticeKind.KEPT]
            law(not keep or not self.lock.queue or told == [self.lock.queue[0].nonce], "who waits is not told", first)
        else:
            alive = self.holder == nonce and self.true <= request.lease_until
            law(not alive, "a live holder is refused", request)
            law(isinstance(reply, s.Refused), "an answer to nothing", reply)
        return reply

    def release(self, nonce: str) -> None:
        request = self.requests[nonce]
        reply, _ = self.do(self.session.Release(request.fence))
        law(isinstance(reply, self.session.Done), "a release is refused", reply)
        self._gone(nonce)

    def withdraw(self, nonce: str) -> None:
        reply, _ = self.do(self.session.Withdraw(nonce))
        law(isinstance(reply, self.session.Done), "a withdrawal is refused", reply)
        self._gone(nonce)
        queue = self._record.queue if self._record else ()
        law(all(ticket.nonce != nonce for ticket in queue), "still waits", nonce)

    def _gone(self, nonce: str) -> None:
        self.requests.pop(nonce, None)
        if self.holder == nonce:
            self.holder = ""
            law(not self._record or not self._record.holder, "the lock was not given back", self._record)

    def again(self) -> None:
        """The last operation once more: the same class of reply, nothing changed but times."""
        if self.last is None:
            return
        op, reply, places = self.last
        again, _ = self.do(op)
        law(type(again) is type(reply), "executed twice, answered otherwise", op, reply, again)
        law(self._places() == places, "executed twice, done twice", op)

    def tick(self, ms: int) -> None:
        self.now += ms
        self.true += ms
        self.last = None

    def step_back(self, ms: int) -> None:
        self.now = max(1, self.now - ms)
        self.exact, self.last = False, None

    def collect(self) -> None:
        """Drop the record, if it is garbage."""
        self.last = None
        if self.lock is not None and self.session.spent(self.lock, self.now):
            self.lock, self.forgotten = None, self.forgotten or not self.exact

    # ── the lock, and what must hold at any time ────────────────────────────────────────────────────────────

    def do(self, op: Any) -> tuple[Any, Any]:
        s = self.session
        done = s.step(self.lock, op, self.now)
        self.lock = done.lock
        for node, notice in done.notices:
            law(node == f"{notice.nonce}'s", "told to a wrong node", node, notice)
            if notice.kind is s.SessionNoticeKind.TURN:
                law(self.lock.holder is None, "a turn at a lock that is held", notice)
                law(self.lock.queue[0].nonce == notice.nonce, "a turn for who is not the first", notice)
                self.woken = notice.nonce
        if self.lock is not None and self.lock.holder is None and self.lock.queue:
            law(self.woken == self.lock.queue[0].nonce, "the first at a free lock is not woken", self.lock)
        self._one_fence()
        self.last = (op, done.reply, self._places())
        return done.reply, done.notices

    @property
    def _record(self) -> Any:
        """The record, unless it is garbage."""
        return None if self.lock is None or self.session.spent(self.lock, self.now) else self.lock

    def _places(self) -> object:
        if self.lock is None:
            return None
        return self.lock.holder and self.lock.holder.fence, [ticket.nonce for ticket in self.lock.queue]

    def _one_fence(self) -> None:
        s = self.session
        valid = [
            fence
            for fence in self.fences
            if isinstance(s.step(self.lock, s.Hold(fence, LEASE_MS), self.now).reply, s.Held)
        ]
        law(len(valid) <= 1, "two fences are valid", valid)

    def _live_holder(self, besides: str) -> Request | None:
        request = self.requests.get(self.holder)
        return request if request and request.nonce != besides and self.true <= request.lease_until else None

    def check_liveness(self, nonce: str) -> None:
        """Everybody else is gone: who waits is granted within a lease and a ticket."""
        s, lock, now, spent_ms = self.session, self.lock, self.now, 0
        while True:
            done = s.step(lock, s.Acquire(nonce, f"{nonce}'s", "f", LEASE_MS, TICKET_MS, MAX_QUEUE), now)
            lock = done.lock
            if isinstance(done.reply, s.Granted):
                return
            law(isinstance(done.reply, s.Queued), "a waiter is sent away", done.reply)
            law(done.reply.recheck_ms >= 1, "asks again at once", done.reply)
            now += done.reply.recheck_ms
            spent_ms += done.reply.recheck_ms
            law(spent_ms <= max(LEASE_MS, TICKET_MS) + 2, "who waits is never granted", nonce, self.lock)
