"""Tokens of a flight's answer. Its owner knows them from its judge; who followed it by notices alone reads the log once."""

from __future__ import annotations

from soloflight.core.frames import NO_USAGE, Usage
from soloflight.flow.flights import Flight

READ_LIMIT = 1 << 20
"""Larger answers are not read again only to be counted: their usage counts as not told."""


def usage_of(flight: Flight) -> Usage:
    """What the answer of ``flight`` cost; nothing while it has not ended, or where it does not tell."""
    if flight.usage is None:
        flight.usage = _read(flight)
    return flight.usage


def _read(flight: Flight) -> Usage:
    call, recording = flight.call, flight.log.recording()
    if recording is None or recording.size > READ_LIMIT:
        return NO_USAGE
    judge = call.rules.judge(call.path, call.facts, recording.head, keep_incomplete=True)
    for data in recording.body:
        judge.feed(data)
    return judge.end(transport_whole=True).usage
