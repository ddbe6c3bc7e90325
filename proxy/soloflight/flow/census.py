"""What a node's flights look like from outside: read only, made on demand, nothing is kept for it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from soloflight.flow.flights import Flight, Sight
from soloflight.flow.node import Node
from soloflight.ports import Role

MODEL_SHOWN = 64
"""Characters of a model's name: it is the client's word."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One flight. Times are seconds; ``listeners`` are clients of this node, ``watchers`` other nodes; None: not known here.

    ``role`` is this node's part: owner, follower, replay, or "" while the coordinator has not said.
    """

    id: str
    key: str
    stage: str
    state: str
    role: str
    node: str
    owner: str
    attempt: int | None
    age_s: float
    lease_left_s: float | None
    progress_age_s: float | None
    frames: int
    bytes: int
    listeners: int
    followers: int
    watchers: int
    model: str
    path: str


def flights(node: Node) -> list[Seen]:
    """Every flight that runs on this node, oldest first."""
    now = time.monotonic()
    return [_seen(flight, node.id, now) for flight in sorted(node.flights.all, key=lambda flight: flight.born)]


def flight(node: Node, flight_id: str) -> Seen | None:
    """The flight of that id, if it runs here."""
    found = next((one for one in node.flights.all if one.id == flight_id), None)
    return _seen(found, node.id, time.monotonic()) if found is not None else None


def live(node: Node, stages: Iterable[str]) -> tuple[dict[str, int], dict[str, int]]:
    """(flights, clients that follow another request's flight) by stage; every one of ``stages`` is there."""
    running = dict.fromkeys(stages, 0)
    following = dict.fromkeys(running, 0)
    for one in node.flights.all:
        stage = one.call.stage.name
        running[stage] = running.get(stage, 0) + 1
        following[stage] = following.get(stage, 0) + _followers(one)
    return running, following


def _followers(flight: Flight) -> int:
    """Where another node owns the flight everybody here follows it, the first one too."""
    return flight.log.listeners if flight.role is Role.FOLLOWER else flight.followers


def _seen(flight: Flight, node: str, now: float) -> Seen:
    sight = flight.sight() if flight.sight is not None else Sight("claiming" if flight.role is None else "ending", "")
    call, log = flight.call, flight.log
    return Seen(
        id=flight.id,
        key=call.key,
        stage=call.stage.name,
        state=sight.state,
        role=flight.role.value if flight.role is not None else "",
        node=node,
        owner=sight.owner,
        attempt=sight.attempt,
        age_s=now - flight.born,
        lease_left_s=sight.lease_left_s,
        progress_age_s=sight.progress_age_s,
        frames=log.frames,
        bytes=log.size,
        listeners=log.listeners,
        followers=_followers(flight),
        watchers=flight.watchers,
        model=(call.facts.model or "")[:MODEL_SHOWN],
        path=call.path,
    )
