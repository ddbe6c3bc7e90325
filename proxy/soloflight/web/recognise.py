"""Requests that are byte for byte one that went through the whole parser before: answered from local replays at once.

Such a request means what the first one meant, so its verdict (plan and call) is known without parsing. What may differ between
the two is looked at each time: whether the answer is still kept and fresh enough, and whether the peer is as trusted.
Rule 1: only on a connection that stands between two requests, and only where the block read is exactly one request.
Rule 2: everything that changes verdicts (a reload) makes a new Recogniser; everything that changes answers lives in Replays.
tests/web/test_recognise.py holds that it answers as the long way does.
"""

from __future__ import annotations

from soloflight.core.control import NONE_FRESH
from soloflight.flow.flights import Call
from soloflight.flow.replays import Replay, Replays
from soloflight.web.prepared import Prepared, prepared

TOTAL_LIMIT = 32 << 20
# Measured: what is held for a call beside the block and a second copy of its bytes (body and fields): call, plan, key, heads.
HELD_BESIDE = 2500


class Recogniser:
    """The blocks seen, each with its call. Bounded by bytes; the oldest goes first. ``on`` False: it learns none."""

    def __init__(self, replays: Replays, *, on: bool = True) -> None:
        self._replays = replays
        self._on = on
        self._calls: dict[tuple[bool, bytes], Call] = {}
        self._size = 0

    def __repr__(self) -> str:
        return f"Recogniser({len(self._calls)} requests, {self._size} bytes)"

    def learn(self, block: bytes, call: Call, *, trusted: bool) -> None:
        """``block``, from a peer of this trust, was admitted as ``call``."""
        key = (trusted, block)
        if not self._on or call.fresh_s == NONE_FRESH or key in self._calls:
            return
        self._calls[key] = call
        self._size += _cost(block)
        while self._size > TOTAL_LIMIT:
            oldest = next(iter(self._calls))
            del self._calls[oldest]
            self._size -= _cost(oldest[1])

    def find(self, block: bytes, *, trusted: bool) -> tuple[Call, Replay, Prepared] | None:
        """The call and the answer for ``block``, if it was seen before and its answer is kept here and fresh enough."""
        call = self._calls.get((trusted, block))
        if call is None:
            return None
        replay = self._replays.get(call.stage, call.key, call.fresh_s)
        if replay is None or replay.payload != call.payload:
            return None
        return call, replay, prepared(replay)


def _cost(block: bytes) -> int:
    """About how many bytes an entry holds."""
    return 2 * len(block) + HELD_BESIDE
