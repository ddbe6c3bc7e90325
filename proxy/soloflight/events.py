"""What observers are told: one frozen value for each thing that happened. No value in here holds a credential or a prompt.

Rule 1: fields that end in ``_s`` are seconds. ``outcome``, ``reason`` and ``op`` are words of closed sets, fit for labels;
        ids, paths and models are not: clients and upstreams make them.
Rule 2: an event is told after what it tells of, on the loop that did it. Whoever takes it must not block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol, TypeAlias

from soloflight.core.errors import Code
from soloflight.core.frames import NO_USAGE, Usage
from soloflight.core.trace import Trace


class Role(Enum):
    """How a request was answered."""

    OWNER = "owner"
    FOLLOWER = "follower"
    REPLAY = "replay"
    BYPASS = "bypass"
    NONE = "none"  # answered by the proxy itself before any role was taken


class RequestEnded(NamedTuple):
    """One answered request. A tuple, unlike the others: each replay makes one, and a frozen dataclass takes three times as long.

    code        the proxy's own error, if that was the answer, or cut it
    reason      why it was not shared (the detail of its Cache-Status), or "client_gone"
    overhead_s  of ``first_byte_s`` what was not spent waiting for the upstream's first byte
    lag_s       followers: from the moment the answer's last byte was here until it was written; None for everybody else
    usage       tokens of the answer, as far as it told; ``model`` is the one that the request named
    attempt     which attempt of the flight made the answer, as in CallEnded; 0 where no coordinator numbered it
    trace       the client's trace context, where an observer asked for it (``WantsTrace``)
    """

    request_id: str
    stage: str
    role: Role
    status: int
    flight: str = ""
    reason: str = ""
    code: Code | None = None
    sent: int = 0
    first_byte_s: float = 0.0
    duration_s: float = 0.0
    overhead_s: float = 0.0
    cut: bool = False
    usage: Usage = NO_USAGE
    upstream_id: str = ""
    method: str = ""
    path: str = ""
    peer: str = ""
    model: str | None = None
    lag_s: float | None = None
    attempt: int = 0
    trace: Trace | None = None


@dataclass(frozen=True, slots=True)
class CallEnded:
    """One upstream call for a flight that this node owned. ``outcome``: complete | error (its own) | fault | abandoned.

    A request that goes alone makes a call, too; its RequestEnded (role BYPASS) tells of it.
    ``attempt``: the coordinator's number for it, the same on every node (0: there was none to number it); ``trace``: the trace
    context of the request for which the call was made.
    """

    stage: str
    flight: str
    outcome: str
    duration_s: float
    status: int = 0
    code: Code | None = None
    attempt: int = 0
    trace: Trace | None = None


@dataclass(frozen=True, slots=True)
class FlightEnded:
    """A flight that this node owned has ended. ``outcome`` as in CallEnded; ``kept``: "kept" or a Reason value."""

    stage: str
    flight: str
    outcome: str
    kept: str
    status: int
    attempts: int
    size: int
    duration_s: float
    usage: Usage = NO_USAGE
    code: Code | None = None


@dataclass(frozen=True, slots=True)
class TakenOver:
    """This node began another attempt of a flight. ``reason``: retry (its own was not processed) | lapsed (another's)."""

    stage: str
    flight: str
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class WriteRefused:
    """The coordinator refused an owner's write: another attempt speaks for the key (``refusal``: a Refusal value)."""

    stage: str
    flight: str
    refusal: str


@dataclass(frozen=True, slots=True)
class SessionWaited:
    """A request waited for its session's lock. ``outcome``: granted | busy (409) | late (the wait was over) | left."""

    stage: str
    outcome: str
    wait_s: float


@dataclass(frozen=True, slots=True)
class BackendAsked:
    """One command to the coordinator. ``op``: its name in the port or the ledger; ``answered`` False: BackendError."""

    op: str
    took_s: float
    answered: bool


Event: TypeAlias = RequestEnded | CallEnded | FlightEnded | TakenOver | WriteRefused | SessionWaited | BackendAsked


class Observer(Protocol):
    """Sees every event. Must not block; what it raises is logged once and never reaches a client."""

    def on_event(self, event: Event) -> None:
        """Take one event."""


class WantsTrace(Protocol):
    """What an observer may be besides: one to whom RequestEnded shall tell the client's trace context."""

    @property
    def wants_trace(self) -> bool:
        """Asked once, when the process starts."""


class Closes(Protocol):
    """What an observer may be besides: one that has something to give back when the process ends."""

    async def close(self) -> None:
        """Called after the last event, once. Given a few seconds; what it raises is logged."""


@dataclass(frozen=True, slots=True)
class Gauges:
    """What one process holds at a moment; the mappings are by stage and have every configured one."""

    flights: Mapping[str, int] = field(default_factory=dict)
    followers: Mapping[str, int] = field(default_factory=dict)
    local_bytes: Mapping[str, int] = field(default_factory=dict)
    backend_up: bool = True


class Exposes(Protocol):
    """What an observer may be besides: one that ``/metrics`` on the admin listener serves; several are served in a row."""

    def exposition(self, now: Gauges) -> bytes:
        """All it has counted and ``now``, in the Prometheus text format, version 0.0.4."""
