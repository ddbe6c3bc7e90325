"""Where requests end in a connection's bytes, and how the current one began. No IO.

What is read here the parser reads alike, where it accepts the request at all; what could be read in two ways it refuses.
"""

from __future__ import annotations

from typing import NamedTuple

BLOCK_LIMIT = 64 * 1024
"""Longest request that is recognised when it comes again (web.recognise)."""
MAX_DIGITS = 18
"""Of a length; Python's ``int`` raises for thousands of them."""


class Begun(NamedTuple):
    """The bytes of a request's head, the length of its body, and the whole request, where that came in one block."""

    head: bytes
    length: int
    block: bytes


class Count:
    """Counts a connection's bytes off against the lengths that its requests announce."""

    __slots__ = ("_begun", "_message", "_owed")

    def __init__(self) -> None:
        # Bytes of the current request that are still to come: 0 between two requests, None where it can not be told any more.
        self._owed: int | None = 0
        self._begun: Begun | None = None
        self._message: object = None

    def __repr__(self) -> str:
        return f"Count(owed={self._owed})"

    @property
    def between(self) -> bool:
        """Whether the next byte begins another request."""
        return self._owed == 0

    def add(self, data: bytes, message: object, *, begins: bool) -> None:
        """``data`` has come, and the parser has read it; ``message`` is the last one it has made, None if there is none."""
        if self._owed is None:
            return
        if begins:
            self._begun = self._message = None
            end = data.find(b"\r\n\r\n")
            length = declared_length(data, end) if end >= 0 else None
            if length is None:
                self._owed = None
                return
            self._owed = end + 4 + length
            if message is not None and len(data) <= self._owed:
                block = data if self._owed == len(data) <= BLOCK_LIMIT else b""
                self._begun, self._message = Begun(data[:end], length, block), message
        self._owed -= len(data)
        if self._owed < 0:
            self._owed = None

    def take(self, message: object) -> Begun | None:
        """How the request began of which ``message`` was made, once. None: another one has begun before it was looked at."""
        begun, of = self._begun, self._message
        self._begun = self._message = None
        return begun if of is message else None


def is_whole(data: bytes) -> bool:
    """Whether ``data`` is exactly one request."""
    end = data.find(b"\r\n\r\n")
    length = declared_length(data, end) if end >= 0 else None
    return length is not None and end + 4 + length == len(data)


def declared_length(data: bytes, end: int) -> int | None:
    """Content-Length of the head that ends at ``end``; 0 if there is none, None where the framing is not that simple."""
    head = data[:end].lower()
    if b"\r\ntransfer-encoding:" in head or b"\r\nupgrade:" in head or head.startswith(b"\r\n"):
        return None
    at = head.find(b"\r\ncontent-length:")
    if at < 0:
        return 0
    value = head[at + 17 :].split(b"\r\n", 1)[0].strip()
    return int(value) if value.isdigit() and len(value) <= MAX_DIGITS else None
