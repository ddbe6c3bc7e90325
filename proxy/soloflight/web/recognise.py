"""Requests, and heads, that are byte for byte what went through the whole parser before: their verdicts, without parsing.

What was read once means the same again. A whole request gives its call; a head alone gives its plan, whatever the body. What
may differ between the two times is looked at each time: whether the answer is still kept and fresh enough, and whether the peer
is as trusted; a head's plan belongs to its peer, whose address goes upstream with it.
Rule 1: only on a connection that stands between two requests; a whole request only where the block read is exactly that.
Rule 2: everything that changes verdicts (a reload) makes a new Recogniser; everything that changes answers lives in Replays.
tests/web/test_recognise.py holds that it answers as the long way does.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TypeAlias

from soloflight.core.control import NONE_FRESH
from soloflight.core.memo import Memo
from soloflight.core.request import Request
from soloflight.flow.flights import Call
from soloflight.flow.plan import MEMO_HEAD, Plan
from soloflight.flow.replays import Replays
from soloflight.flow.shelf import Replay
from soloflight.web.begun import BLOCK_LIMIT
from soloflight.web.prepared import Prepared, prepared
from soloflight.web.wire import Client

TOTAL_LIMIT = 32 << 20
HEADS = 1024
# Measured: what is held for a call beside the block and a second copy of its bytes (body and fields): call, plan, key, heads.
HELD_BESIDE = 2500


Block: TypeAlias = tuple[bool, bytes]
"""A block, and whether its peer is trusted."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A whole request: what was made of it."""

    call: Call
    plan: Plan
    client: Client


@dataclass(frozen=True, slots=True)
class SeenHead:
    """A head, and how many bytes of body it announces."""

    request: Request
    plan: Plan
    client: Client
    length: int


class Recogniser:
    """The blocks and heads seen: bounded by bytes and by number, the oldest goes first. ``on`` False: it learns none."""

    def __init__(self, replays: Replays, *, on: bool = True) -> None:
        self._replays = replays
        self.on = on
        self._calls: OrderedDict[Block, Seen] = OrderedDict()
        self._heads: Memo[tuple[str, bool, bytes], SeenHead] = Memo(HEADS)
        self._size = 0

    def __repr__(self) -> str:
        return f"Recogniser({len(self._calls)} requests, {self._size} bytes, {self._heads!r})"

    def learn(self, block: Block, seen: Seen) -> None:
        """``block`` was admitted; its client speaks HTTP/1.1 and keeps its connection."""
        known = block in self._calls
        if known or not self.on or len(block[1]) > BLOCK_LIMIT or seen.call.fresh_s == NONE_FRESH:
            return
        self._calls[block] = seen
        self._size += _cost(block[1])
        while self._size > TOTAL_LIMIT:
            oldest, _ = self._calls.popitem(last=False)
            self._size -= _cost(oldest[1])

    def learn_head(self, head: bytes, seen: SeenHead) -> None:
        """This was made of ``head``."""
        if self.on and len(head) <= MEMO_HEAD:
            self._heads.put((seen.request.peer, seen.request.trusted, head), seen)

    def find(self, block: Block) -> Seen | None:
        """What was made of ``block``, if it was seen before."""
        return self._calls.get(block)

    def find_head(self, block: Block, *, peer: str) -> tuple[SeenHead, bytes] | None:
        """What was made of the head that ``block`` begins with, and what of its body is here, perhaps more than that."""
        trusted, data = block
        head, _, body = data.partition(b"\r\n\r\n")
        seen = self._heads.get((peer, trusted, head))
        return (seen, body) if seen is not None else None

    def replay(self, call: Call) -> tuple[Replay, Prepared] | None:
        """The answer for ``call``, if it is kept here and fresh enough."""
        replay = self._replays.get(call.stage, call.key, call.fresh_s)
        if replay is None or replay.payload != call.payload:
            return None
        return replay, prepared(replay)


def _cost(block: bytes) -> int:
    """About how many bytes an entry holds."""
    return 2 * len(block) + HELD_BESIDE
