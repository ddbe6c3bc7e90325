"""Operations as the arguments of their scripts, and the scripts' replies as replies of the ledger.

Rule: the words and their order are those of the comment at the head of each script.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from soloflight.core.claim import exhaustion
from soloflight.core.flight import (
    Abandon,
    Absent,
    Answered,
    Append,
    Claim,
    Done,
    Dropped,
    Fail,
    Faulted,
    Fence,
    Gap,
    Joined,
    Kept,
    Leave,
    Mismatch,
    Operation,
    Owned,
    Refusal,
    Refused,
    Renew,
    Reply,
    Retrying,
    Seal,
    Stale,
    Start,
    State,
    Wait,
)
from soloflight.core.frames import Body
from soloflight_redis.cipher import Cipher, context
from soloflight_redis.codec import Unreadable, pack_fault, pack_frames, pack_result, unpack_fault

Argument: TypeAlias = str | bytes | int

INLINE_BYTES = 64 << 10
"""A stored result of at most this many bytes comes with the reply that promises it, and so does a log to a look."""


LARGE_BYTES = 128 << 10
"""A command or reply that may be larger than this takes the lane for large ones."""


@dataclass(frozen=True, slots=True)
class Invocation:
    """One call of a script: its name, its arguments behind the tag, and whether they or its reply may be large."""

    script: str
    arguments: tuple[Argument, ...]
    large: bool = False


def invocation(key: str, op: Operation, cipher: Cipher) -> Invocation:
    """How ``op`` is executed on ``key``."""
    return _OUT[type(op)](key, op, cipher)


def _claim(key: str, op: Claim, cipher: Cipher) -> Invocation:
    return Invocation(
        "claim",
        (
            op.nonce,
            op.node,
            op.flight,
            op.pending_ms,
            op.running_ms,
            op.first_byte_ms,
            op.deadline_ms,
            op.max_attempts,
            op.poison_ms,
            op.watch_ms,
            int(op.claim),
            int(op.direct),
            op.follow,
            "" if op.fresh_ms is None else op.fresh_ms,
            op.payload,
            pack_fault(exhaustion(op.poison_ms)),
            INLINE_BYTES,
        ),
    )


def _start(key: str, op: Start, cipher: Cipher) -> Invocation:
    return Invocation("start", (op.fence.number, op.fence.nonce, op.lease_ms, op.first_byte_ms))


def _renew(key: str, op: Renew, cipher: Cipher) -> Invocation:
    return Invocation("renew", (op.fence.number, op.fence.nonce, op.lease_ms, op.progress, op.progress_ms))


def _append(key: str, op: Append, cipher: Cipher) -> Invocation:
    number, nonce = op.fence.number, op.fence.nonce
    size = sum(len(frame.data) for frame in op.frames if isinstance(frame, Body))
    batch = cipher.lock(pack_frames(op.frames), batch_context(key, number, op.index))
    arguments = (number, nonce, op.index, op.lease_ms, op.progress, op.progress_ms, size, batch)
    return Invocation("append", arguments, len(batch) > LARGE_BYTES)


def _seal(key: str, op: Seal, cipher: Cipher) -> Invocation:
    number = op.fence.number
    result = cipher.lock(pack_result(key, number, op.result), result_context(key, number))
    arguments = (number, op.fence.nonce, op.retention_ms, op.grace_ms, op.result.size, result)
    return Invocation("seal", arguments, len(result) > LARGE_BYTES)


def seal_without_result(op: Seal) -> Invocation:
    """The seal of a result that Redis did not take: told, not kept; who has not all of its bytes finds it gone."""
    return Invocation("seal", (op.fence.number, op.fence.nonce, 0, op.grace_ms, op.result.size, b""))


def _fail(key: str, op: Fail, cipher: Cipher) -> Invocation:
    fence, fault = op.fence, pack_fault(op.fault)
    return Invocation(
        "fail", (fence.number, fence.nonce, int(op.retry), op.backoff_ms, op.max_attempts, op.grace_ms, fault)
    )


def _abandon(key: str, op: Abandon, cipher: Cipher) -> Invocation:
    return Invocation("abandon", (op.fence.number, op.fence.nonce, op.node, int(op.force)))


def _leave(key: str, op: Leave, cipher: Cipher) -> Invocation:
    return Invocation("leave", (op.node, op.number))


# The type of the operation chooses the function: each takes its own.
_OUT: dict[type[Operation], Callable[[str, Any, Cipher], Invocation]] = {
    Claim: _claim,
    Start: _start,
    Renew: _renew,
    Append: _append,
    Seal: _seal,
    Fail: _fail,
    Abandon: _abandon,
    Leave: _leave,
}


def result_context(key: str, number: int) -> bytes:
    """Where a result belongs."""
    return context("result", key, number)


def batch_context(key: str, number: int, index: int) -> bytes:
    """Where a batch belongs."""
    return context("batch", key, number, index)


# ── replies ─────────────────────────────────────────────────────────────────────────────────────────────────


def reply(op: Operation, said: Sequence[Any]) -> Reply:
    """The reply to ``op`` in a script's words (without the tag). Raises Unreadable."""
    try:
        return _IN[said[0]](op, said)
    except (KeyError, IndexError, ValueError, TypeError):
        raise Unreadable("a reply that no script gives") from None


def _text(value: object) -> str:
    if not isinstance(value, bytes):
        raise TypeError("not a text")
    return value.decode()


def _owned(op: Operation, said: Sequence[Any]) -> Reply:
    assert isinstance(op, Claim)
    return Owned(Fence(int(said[1]), op.nonce), _text(said[2]), int(said[3]), State(_text(said[4])))


def _joined(op: Operation, said: Sequence[Any]) -> Reply:
    return Joined(
        int(said[1]), _text(said[2]), _text(said[3]), State(_text(said[4])), int(said[5]), due_ms=int(said[6])
    )


def _answered(op: Operation, said: Sequence[Any]) -> Reply:
    number, size, age_ms, ttl_ms, kept = (int(said[at]) for at in (1, 3, 4, 5, 6))
    return Answered(number, _text(said[2]), size, age_ms, ttl_ms, kept=bool(kept))


def _poisoned(op: Operation, said: Sequence[Any]) -> Reply:
    ttl_ms = int(said[3])
    return Faulted(int(said[1]), _text(said[2]), exhaustion(ttl_ms), ttl_ms)


_IN: dict[bytes, Callable[[Operation, Sequence[Any]], Reply]] = {
    b"owned": _owned,
    b"joined": _joined,
    b"answered": _answered,
    b"faulted": lambda op, said: Faulted(int(said[1]), _text(said[2]), unpack_fault(said[4]), int(said[3])),
    b"poisoned": _poisoned,
    b"wait": lambda op, said: Wait(int(said[1]), int(said[2])),
    b"stale": lambda op, said: Stale(int(said[1])),
    b"absent": lambda op, said: Absent(),
    b"mismatch": lambda op, said: Mismatch(),
    b"done": lambda op, said: Done(duplicate=bool(int(said[1])), watchers=int(said[2])),
    b"retrying": lambda op, said: Retrying(duplicate=bool(int(said[1]))),
    b"gap": lambda op, said: Gap(int(said[1])),
    b"refused": lambda op, said: Refused(Refusal(_text(said[1]))),
    b"kept": lambda op, said: Kept(int(said[1])),
    b"dropped": lambda op, said: Dropped(),
}


def came_along(said: Sequence[Any]) -> Sequence[Any]:
    """What came with an ``answered`` (its stored result) or a ``joined`` (the first entries of its log)."""
    return said[7:]
