"""Operations on session locks as the arguments of their scripts, and the scripts' replies and notices, read back.

Rule: the words and their order are those of the comment at the head of each script.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from soloflight.core.flight import Done, Fence, Refusal, Refused
from soloflight.core.session import (
    Acquire,
    Busy,
    Granted,
    Held,
    Hold,
    Queued,
    Release,
    SessionNotice,
    SessionNoticeKind,
    SessionOperation,
    SessionReply,
    Withdraw,
)
from soloflight_redis.codec import Unreadable
from soloflight_redis.operations import Invocation

SESSION = b"s"
"""What a message about a session lock begins with, on a node's channel."""

_NOTICE = re.compile(rb"s([tck]) (\S{1,128}) (\d{1,9}) (.+)", re.DOTALL)


def session_invocation(op: SessionOperation) -> Invocation:
    """How ``op`` is executed."""
    match op:
        case Acquire():
            words = (op.nonce, op.node, op.flight, op.lease_ms, op.ticket_ms, op.max_queue)
            return Invocation("acquire", words)
        case Hold():
            return Invocation("hold", (op.fence.number, op.fence.nonce, op.lease_ms, int(op.keep)))
        case Release():
            return Invocation("release", (op.fence.number, op.fence.nonce))
        case Withdraw():
            return Invocation("withdraw", (op.nonce,))


def session_reply(op: SessionOperation, said: Sequence[Any]) -> SessionReply:
    """The reply to ``op`` in a script's words (without the tag). Raises Unreadable."""
    try:
        return _IN[said[0]](op, said)
    except (KeyError, IndexError, ValueError, TypeError, AttributeError):
        raise Unreadable("a reply that no script gives") from None


_IN: dict[bytes, Callable[[Any, Sequence[Any]], SessionReply]] = {
    b"granted": lambda op, said: Granted(Fence(int(said[1]), op.nonce), int(said[2])),
    b"queued": lambda op, said: Queued(int(said[1]), int(said[2])),
    b"busy": lambda op, said: Busy(int(said[1]), int(said[2])),
    b"held": lambda op, said: Held(int(said[1])),
    b"done": lambda op, said: Done(duplicate=bool(int(said[1]))),
    b"refused": lambda op, said: Refused(Refusal(said[1].decode())),
}


def read_session_notice(said: bytes) -> tuple[str, SessionNotice]:
    """A message about a session lock: its key, and the notice. Raises Unreadable."""
    found = _NOTICE.fullmatch(said)
    if found is None:
        raise Unreadable("a session's notice that is none")
    kind, nonce, waiting, key = found.groups()
    notice = SessionNotice(SessionNoticeKind(kind.decode()), nonce.decode("ascii", "replace"), int(waiting))
    return key.decode("utf-8", "replace"), notice
