"""What becomes of a request, as values: a plan by its head alone, the terms of a stage for it, or that it goes alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from soloflight.core.control import Control
from soloflight.core.fields import Forwarding, Outgoing, outgoing
from soloflight.core.fingerprint import KeyMaker, Kind
from soloflight.core.request import Request
from soloflight.core.stage import Stage
from soloflight.flow.upstream import Upstream

if TYPE_CHECKING:
    from soloflight.flow.admit import Admission

MEMO_HEAD = 4 * 1024
"""Heads up to this size are remembered."""
OUTS = 4
"""So many upstream requests, and terms, are remembered with a plan."""


@dataclass(frozen=True, slots=True)
class Target:
    """One upstream, how requests are written for it, and what tells it apart for the whole fleet."""

    name: str
    upstream: Upstream
    forwarding: Forwarding
    identity: str


@dataclass(frozen=True, slots=True)
class Alone:
    """The request makes a call of its own. ``reason`` is the detail of its Cache-Status ("method": no detail).

    ``session`` is the key of its session's lock, "" where it takes none.
    """

    stage: Stage
    target: Target
    reason: str
    session: str = ""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a head means in one stage, for bodies of one kind: all of a call that its body does not change. ``rules`` made it."""

    rules: Admission
    keys: KeyMaker
    session: str
    out: Outgoing


@dataclass(eq=False, frozen=True, slots=True)
class Plan:
    """What the head alone decides. ``alone`` is set where the body can not change that; else it must be read next.

    ``withhold`` names the fields (lower case) that carried the proxy's own client key; ``upgrade`` is the protocol that a
    websocket handshake asks for; ``coded`` says that the body has a content coding; ``remembered``: the same head finds it again.
    """

    request: Request
    control: Control
    withhold: frozenset[bytes]
    alone: Alone | None = None
    upgrade: bytes | None = None
    coded: bool = False
    remembered: bool = False
    _outs: dict[tuple[str, int | None], Outgoing] = field(default_factory=dict)
    _terms: dict[tuple[str, Kind], Terms] = field(default_factory=dict)

    def out(self, alone: Alone, length: int | None) -> Outgoing:
        """The upstream request for a call of its own; ``length`` of the body, None if not known. The last few are remembered."""
        key = (alone.target.name, length)
        out = self._outs.get(key)
        if out is None:
            if len(self._outs) >= OUTS:
                self._outs.clear()
            out = self._outs[key] = outgoing(
                self.request, alone.target.forwarding, length=length, upgrade=self.upgrade, withhold=self.withhold
            )
        return out
