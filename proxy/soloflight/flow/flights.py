"""This node's flights: one per key, however many clients. Who comes joins, replays, or brings a new flight into being.

Rule 1: a flight's work belongs to the node, never to a client's task.
Rule 2: nobody joins a flight that is being abandoned; who comes meanwhile waits for the verdict.
Rule 3: the answer is kept before the flight is unregistered, and both happen in one step of the loop.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from soloflight.core.answer import AnswerRules, Facts
from soloflight.core.errors import Code, Fault
from soloflight.core.fields import Outgoing
from soloflight.core.frames import NO_USAGE, End, Frame, Head, Usage
from soloflight.core.log import Log
from soloflight.core.request import Request
from soloflight.core.stage import Stage
from soloflight.flow.memory import Memory
from soloflight.flow.upstream import Upstream
from soloflight.ports import Role

if TYPE_CHECKING:
    from soloflight.flow.approach import Approach


@dataclass(frozen=True, slots=True)
class Call:
    """An admitted request that may share: what it asks for, and all that its owner would need.

    ``fresh_s`` as in core.control; ``retention_s`` how long a complete answer is kept (0: not at all); ``share`` False: it
    neither joins nor is joined; ``may_own`` False: it may not cause an upstream call (only-if-cached); ``session``: the key of
    its session's lock, "" where it takes none.
    """

    key: str
    request: Request
    stage: Stage
    path: str
    out: Outgoing
    body: bytes
    facts: Facts
    rules: AnswerRules
    upstream: Upstream
    fresh_s: float | None = None
    retention_s: float = 0.0
    payload: str = ""
    share: bool = True
    may_own: bool = True
    session: str = ""


class Reelect(Exception):
    """The flight ended at its gate, and for others than this listener: it asks anew."""


class GoAlone(Exception):
    """This request makes its own call, unshared; ``reason`` is the ``detail`` of its Cache-Status."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Sight:
    """Where a flight stands at a moment, for those who look on: ``owner`` is a node's id; what is not known here is None."""

    state: str
    owner: str
    attempt: int | None = None
    lease_left_s: float | None = None
    progress_age_s: float | None = None


class Mover(Protocol):
    """A listener, as far as its flight is concerned with it. ``call``: what it asked for."""

    call: Call | None
    committed: bool

    def refuse(self, fault: Fault) -> None:
        """It waits no longer."""

    def move(self, log: Log) -> None:
        """The flight goes on in ``log``."""


@dataclass(eq=False, slots=True)
class Flight:
    """One key's flight on this node, whoever owns it.

    ``sent_at``, ``first_at``, ``ended_at`` are seconds on the monotonic clock, 0.0 = not yet: when the upstream was called (or
    another node's call joined), its first byte was here, and the log's end. ``usage`` None: the answer came without its own.
    """

    call: Call
    log: Log
    born: float
    id: str = field(default_factory=lambda: secrets.token_hex(10))
    number: int = 0
    role: Role | None = None
    attempts: int = 0
    age_s: float = 0.0
    ttl_s: float = 0.0
    refresh: bool = False
    delivered: bool = False
    dropped: bool = False
    away: str = ""
    watchers: int = 0
    followers: int = 0
    sent_at: float = 0.0
    first_at: float = 0.0
    ended_at: float = 0.0
    usage: Usage | None = NO_USAGE
    sight: Callable[[], Sight] | None = None
    closing: asyncio.Future[None] | None = None
    decided: asyncio.Future[None] | None = None
    task: asyncio.Task[None] | None = None
    abandon_timer: asyncio.TimerHandle | None = None
    abandon_at: float = 0.0
    on_ring: Callable[[], None] | None = None
    abandon: Callable[[], Awaitable[bool]] | None = None
    fail: Callable[[Fault], Awaitable[bool]] | None = None
    approach: Approach | None = None
    turned_away: bool = False
    forms: object = None
    movers: set[Mover] = field(default_factory=set)

    def __repr__(self) -> str:
        role = self.role.value if self.role else "undecided"
        return f"Flight({self.id}, {self.call.stage.name}, {role}, {self.log!r})"

    @property
    def joinable(self) -> bool:
        """Whether a newcomer would get the whole answer from here."""
        return self.log.joinable and self.log.ended is None

    @property
    def awaited(self) -> bool:
        """Whether anybody could still be served by another attempt: who has sent nothing yet."""
        return any(not mover.committed for mover in self.movers)

    def decide(self, role: Role, flight_id: str, number: int) -> None:
        """The coordinator has said what this node is to the flight."""
        self.role, self.id, self.number = role, flight_id, number
        if self.decided is not None and not self.decided.done():
            self.decided.set_result(None)

    @property
    def calls(self) -> list[Call]:
        """What those ask for who listen here and may cause a call."""
        return list(self._waiting())

    def _waiting(self) -> Iterator[Call]:
        return (mover.call for mover in self.movers if mover.call is not None and mover.call.may_own)

    def part(self, mover: Mover) -> None:
        """A listener leaves; nobody waits at the gate any more for a session that was only its own."""
        self.movers.discard(mover)
        if self.approach is not None and mover.call is not None:
            session = mover.call.session
            if not any(call.session == session for call in self._waiting()):
                self.approach.drop(session)

    def refuse(self, session: str | None, fault: Fault) -> None:
        """Those who wait with ``session`` wait no longer; None: all of them."""
        for mover in list(self.movers):
            if mover.call is not None and mover.call.may_own and session in (None, mover.call.session):
                mover.refuse(fault)

    def begin(self, head: Head) -> None:
        """The answer's first byte is here: append its head."""
        self.first_at = time.monotonic()
        self.log.append(head)

    def end(self, *last: Frame, usage: Usage | None) -> None:
        """Append the frames that end the log."""
        self.ended_at, self.usage = time.monotonic(), usage
        self.log.append(*last)

    def upstream_s(self, since: float, until: float) -> float:
        """For how much of the time between ``since`` and ``until`` the upstream's first byte was waited for."""
        return max(0.0, min(self.first_at or until, until) - max(self.sent_at, since)) if self.sent_at else 0.0

    def finish(self, fault: Fault | None) -> None:
        """Append the End, once."""
        if self.log.ended is None:
            self.end(End(fault), usage=None if fault is None else NO_USAGE)
        if self.decided is not None and not self.decided.done():
            self.decided.set_result(None)

    def send_away(self, reason: str) -> None:
        """Its listeners go alone, for ``reason``: nothing was made for them here."""
        self.away = reason
        self.finish(Fault(Code.ABANDONED, "this request goes alone"))

    def restart(self, log: Log) -> None:
        """A new attempt took over: listeners that have sent nothing move to ``log`` at once, the others are cut."""
        old, self.log = self.log, log
        self.first_at = 0.0
        if old.ended is None:
            old.append(End(lost()))
        for mover in self.movers:
            mover.move(log)
        old.retire()


class Registry:
    """The flights that newcomers may find, by key."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._flights: dict[str, Flight] = {}
        self.all: set[Flight] = set()

    def __repr__(self) -> str:
        return f"Registry({len(self._flights)} keys, {len(self.all)} running)"

    def __len__(self) -> int:
        return len(self.all)

    def get(self, key: str) -> Flight | None:
        """The flight registered under ``key``."""
        return self._flights.get(key)

    def make(self, call: Call, now: float) -> Flight | None:
        """A new flight for ``call``, registered unless it does not share; None where memory for recording is used up."""
        if self._memory.full():
            return None
        flight = Flight(call, self.new_log(call.stage), now, decided=asyncio.get_running_loop().create_future())
        self.all.add(flight)
        if call.share:
            self._flights[call.key] = flight
        return flight

    def new_log(self, stage: Stage) -> Log:
        """An empty log charged to this process's memory."""
        later = asyncio.get_running_loop().call_soon
        return Log(stage.max_recording, self._memory.charge, later=later)

    def unregister(self, flight: Flight) -> None:
        """Newcomers do not find it any more; identity is checked, a successor under the same key stays."""
        if self._flights.get(flight.call.key) is flight:
            del self._flights[flight.call.key]

    def remove(self, flight: Flight) -> None:
        """The flight's task is over; idempotent."""
        self.unregister(flight)
        self.all.discard(flight)
        flight.log.retire()


def lost() -> Fault:
    """The fault of who has sent bytes of an attempt whose owner was lost."""
    return Fault(Code.OWNER_LOST, "the call that made this answer was lost")
