"""The ports of the flow: what it asks of a coordinator, of an API's rules, and of observers. Protocols and events only.

A plugin implements these; nothing here imports one. ``soloflight.testing.conformance`` is the law of a coordinator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from soloflight.core.answer import AnswerRules, Facts
from soloflight.core.flight import Notice, Operation, Reply
from soloflight.core.frames import Frame, Recording
from soloflight.core.session import SessionNotice, SessionOperation, SessionReply
from soloflight.events import (
    BackendAsked,
    CallEnded,
    Closes,
    Event,
    Exposes,
    FlightEnded,
    Gauges,
    Observer,
    RequestEnded,
    Role,
    SessionWaited,
    TakenOver,
    WantsTrace,
    WriteRefused,
)

__all__ = [
    "AnswerRules",
    "BackendAsked",
    "BackendError",
    "Batch",
    "CallEnded",
    "Closes",
    "Coordinator",
    "Event",
    "Exposes",
    "Fingerprinter",
    "Fleet",
    "FlightEnded",
    "Gauges",
    "Observer",
    "OnSession",
    "OnWord",
    "RequestEnded",
    "Role",
    "SessionLocks",
    "SessionWaited",
    "Subscription",
    "TakenOver",
    "WantsTrace",
    "WriteRefused",
]


class BackendError(Exception):
    """The coordinator could not answer within its bound. The operation may or may not have been executed."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One published batch of a flight's log: ``index`` from 1."""

    index: int
    frames: tuple[Frame, ...]


class Subscription(Protocol):
    """A live interest in one key's notices."""

    async def close(self) -> None:
        """End it; idempotent."""


OnSession: TypeAlias = Callable[[str, SessionNotice], None]
"""Called with the key of a session lock and a notice for one of this node's nonces there."""


class SessionLocks(Protocol):
    """Where sessions are locked. Keys are opaque strings (``core.session.session_key``), apart from those of flights.

    Notices are addressed to nodes: they reach the ``on_session`` that a coordinator was opened with, and nobody subscribes.
    They are hints. One may be lost, so that who waits asks again by itself after ``Queued.recheck_ms``.
    """

    async def session_step(self, key: str, op: SessionOperation) -> SessionReply:
        """Execute one operation of ``core.session`` atomically. Raises BackendError."""


OnWord: TypeAlias = Callable[[str], None]
"""Called with every word that a node of the fleet tells; "" means that words may have been missed."""


class Fleet(Protocol):
    """What the nodes of one coordinator tell each other beside flights: an operator's words (``flow.oversight`` says which).

    A word is a hint to those who listen now. A mark stays: who comes later asks for it.
    """

    def hear(self, on_word: OnWord) -> None:
        """Tell ``on_word`` every word, one's own too. To be called before ``open``."""

    async def tell(self, word: str) -> None:
        """Say ``word`` (not empty, at most 512 characters) to every open node, this one included. Raises BackendError."""

    async def mark(self, name: str) -> None:
        """Remember this moment under ``name``, in place of an earlier one. Raises BackendError."""

    async def marks(self) -> Mapping[str, int]:
        """How many ms ago each mark was made. Raises BackendError."""


class Coordinator(SessionLocks, Fleet, Protocol):
    """Where flights are owned, joined and sealed. Keys are opaque strings (a flight key, safe in any key space)."""

    @property
    def shared(self) -> bool:
        """Whether other processes can see this coordinator (False: remote followers can not exist)."""

    @property
    def up(self) -> bool:
        """Whether the last contact succeeded."""

    async def open(self, node: str, on_ring: Callable[[str], None], on_session: OnSession | None = None) -> None:
        """Start. ``node`` is this process's id; ``on_ring(key)`` is called when another node joined a flight owned here,
        ``on_session(key, notice)`` for every notice of session locks to this node."""

    async def close(self) -> None:
        """Stop; every resource is given back within a bound."""

    async def step(self, key: str, op: Operation) -> Reply:
        """Execute one operation of the ledger atomically. Raises BackendError."""

    async def result(self, key: str, number: int) -> Recording | None:
        """The sealed result of attempt ``number``, or None where it is gone or unreadable. Raises BackendError."""

    async def log(self, key: str, number: int, after: int) -> list[Batch]:
        """Published batches of attempt ``number`` with index > ``after``, contiguous, oldest first. Raises BackendError."""

    async def subscribe(self, key: str, listener: Callable[[Notice], None]) -> Subscription:
        """Deliver notices of ``key``; once this returns, no later notice is missed unless ``on_gap`` semantics apply:
        after a lost connection the listener gets a Notice of kind RETRY with number 0, meaning "look again"."""

    async def scope_key(self) -> bytes:
        """The fleet's secret for credential scopes (at least 32 random bytes), made on first use."""

    async def purge(self, key: str) -> bool:
        """Forget the kept answer of ``key``; True if there was one. Raises BackendError."""


class Fingerprinter(Protocol):
    """What may be shared, and what a body says."""

    def shareable(self, method: str, path: str) -> bool:
        """Whether requests with this method and raw path (no query) may share flights by default."""

    def facts(self, path: str, value: Mapping[str, object] | None) -> Facts:
        """Read the facts from a parsed JSON object (numbers may be numeric or literal text), form fields, or None."""
