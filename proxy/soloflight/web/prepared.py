"""A kept answer as the bytes it will be replayed with: everything but the few fields that change from replay to replay."""

from __future__ import annotations

import time

from soloflight.flow.shelf import Replay
from soloflight.ports import Role
from soloflight.web.wire import Client, Framing, Marks, framing, head_bytes, marked

CODED_COPY_LIMIT = 64 * 1024
"""Larger bodies are framed anew for each replay rather than held twice."""

_PERSISTENT = Client("POST", http11=True, keep_alive=True)


class Prepared:
    """One answer, for clients that speak HTTP/1.1 and keep their connection."""

    __slots__ = ("_before", "_body", "_frame", "size", "upstream_id")

    def __init__(self, replay: Replay) -> None:
        recording = replay.recording
        self._frame: Framing = framing(recording.head, _PERSISTENT, known_size=recording.size)
        # The fields that change are the proxy's own: they are cut out of a head written by the one function that writes heads.
        age_s = time.monotonic() - replay.sealed  # for its Date, which stays; its Age is written anew each time
        fields, own = marked(recording.head, Marks(Role.REPLAY, "", replay.flight, age_s=age_s))
        fixed = [field for field in own if field[0] not in _CHANGING]
        status = next(value for name, value in own if name == b"Cache-Status")
        head = head_bytes(recording.head, fields, self._frame, _PERSISTENT, fixed)
        self._before = head[:-2] + b"Cache-Status: " + status.removesuffix(b"0")
        self.size = recording.size
        self.upstream_id = (recording.head.get(b"x-request-id") or b"").decode("latin-1")
        self._body = self._coded(recording.body) if recording.size <= CODED_COPY_LIMIT else None

    def __repr__(self) -> str:
        return f"Prepared({self.size} bytes)"

    def head(self, request_id: str, age_s: float, ttl_s: float) -> bytes:
        """The head of one replay."""
        return b"%b%d\r\nX-Soloflight-Request-Id: %b\r\nAge: %d\r\n\r\n" % (
            self._before,
            ttl_s,
            request_id.encode(),
            age_s,
        )

    def whole(self, request_id: str, age_s: float, ttl_s: float) -> bytes | None:
        """The whole answer, or None where the body is too large to be held ready."""
        if self._body is None:
            return None
        return self.head(request_id, age_s, ttl_s) + self._body

    def _coded(self, body: tuple[bytes, ...]) -> bytes:
        if not self._frame.chunked:
            return body[0] if len(body) == 1 else b"".join(body)
        return b"".join(map(self._frame.body, body)) + self._frame.end()


_CHANGING = frozenset({b"Cache-Status", b"X-Soloflight-Request-Id", b"Age"})


def prepared(replay: Replay) -> Prepared:
    """The prepared form of ``replay``, made once."""
    form = replay.form
    if not isinstance(form, Prepared):
        form = replay.form = Prepared(replay)
    return form
