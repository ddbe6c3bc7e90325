"""The event-stream splitter: bytes in any cuts in, whole events out. WHATWG HTML section 9.2, on bytes.

Rule 1: a line ends at CR, LF or CRLF and nowhere else; NEL and U+2028 are text. Nothing here decodes.
Rule 2: the events, and which of them are oversize, do not depend on how the stream was cut.
Rule 3: memory is bounded by ``max_event`` whatever comes; a larger event passes unread and is counted.

What an event means is not decided here: that is for the answer rules.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_EVENT = 4 << 20
"""Default bound of one event's bytes."""

_BOM = b"\xef\xbb\xbf"
_CR = 0x0D
_NO_BYTE = -1
_EOL = b"\r\n"
_MAX_LINES = 1 << 16
"""Lines of one event; more of them make it oversize too, since each costs far more memory than its bytes."""
_PEEK = 4096
"""How far into an oversize event its ``event`` line is looked for; ``data`` follows it in every known API."""
_NEAR = 4096
"""How far the end of a short CRLF event is looked for."""

# Two line ends in a row. CRLF counts once: CR LF alone is no pair, CR LF CR LF is found at its inner LF CR.
_PAIR = re.compile(rb"\n[\r\n]|\r\r")
_TEXT = re.compile(rb"[^\r\n]")
_COMMENTS = re.compile(rb"(?::[^\r\n]*+[\r\n]++)++")


class Event(NamedTuple):
    """One dispatched event. ``end`` is the offset in the stream just behind its blank line.

    A blank line's CR ends the event; its LF is counted in ``end`` where both came in one feed, else see
    `Splitter.lf_may_follow`. ``oversize``: larger than the bound; ``data`` is withheld (empty), and ``name``
    is known only where it stood near the event's start.
    """

    name: bytes
    data: bytes
    end: int
    oversize: bool = False


class Splitter:
    """Splits one event stream. ``offset`` counts the bytes fed, ``oversize`` the events over the bound."""

    def __init__(self, max_event: int = MAX_EVENT) -> None:
        self._max_event = max_event
        self._bom: bytes | None = b""  # what came of a byte order mark; None once that is decided
        self._pending = bytearray()  # the event that has begun and not ended
        self._inside = False
        self._skipping = False  # inside an oversize event: nothing of it is held
        self._name = b""  # name of the event being skipped
        self._last = _NO_BYTE
        self.offset = 0
        self.oversize = 0

    def __repr__(self) -> str:
        state = "skipping" if self._skipping else "inside" if self._inside else "between"
        held = len(self._pending)
        return f"Splitter({state}, offset={self.offset}, pending={held}, oversize={self.oversize})"

    @property
    def at_boundary(self) -> bool:
        """The stream stands between events: an event written here is read as one of its own.

        True too behind whole comment lines, which belong to no event.
        """
        if self._inside:
            return _COMMENTS.fullmatch(self._pending) is not None
        return not self._bom

    @property
    def lf_may_follow(self) -> bool:
        """The last byte was a CR: an LF that comes next still belongs to that line end."""
        return self._last == _CR

    @property
    def pending(self) -> bytes:
        """A copy of what came of an event that has not ended; empty while an oversize one is skipped."""
        return bytes(self._pending)

    def feed(self, data: bytes) -> list[Event]:
        """Take the next bytes; returns the events that they ended, in order. One without ``data`` is none."""
        self.offset += len(data)
        if self._bom is not None:
            data = self._behind_bom(self._bom + data)
        if not data:
            return []
        events: list[Event] = []
        pos = self._resume(data, events) if self._inside else 0
        self._last = data[-1]
        size = len(data)
        base = self.offset - size
        lf_only = b"\r" not in data
        while pos < size:
            at = _one_line(data, pos, lf_only)
            if 0 < at <= pos + self._max_event:
                line = data[pos + 6 : at]
                pos = at + (2 if lf_only else 4)
                events.append(Event(b"", line, base + pos))
            else:
                pos = self._any_event(data, pos, lf_only, events)
        return events

    def _any_event(self, data: bytes, pos: int, lf_only: bool, events: list[Event]) -> int:
        """Pass the event or blank lines at ``pos``, whatever the line ends; returns the index behind, or the end."""
        if data[pos] in _EOL:  # blank lines between events mean nothing
            text = _TEXT.search(data, pos)
            return len(data) if text is None else text.start()
        at = _pair(data, pos, lf_only)
        if at < 0:
            self._inside = True
            self._grow(data[pos:])
            return len(data)
        end = _behind_pair(data, at)
        self._dispatch(data[pos:at], self.offset - len(data) + end, events)
        return end

    def _behind_bom(self, data: bytes) -> bytes:
        """Drop the byte order mark; hold on to what may still become one. Returns the bytes to go on with."""
        if len(data) < len(_BOM) and _BOM.startswith(data):
            self._bom = data
            return b""
        self._bom = None
        return data.removeprefix(_BOM)

    def _grow(self, data: bytes) -> None:
        """Hold more of the open event, or give up on it. Two bytes over may be the end of its last line."""
        if self._skipping:
            return
        self._pending += data
        if len(self._pending) > self._max_event + 2:
            self._name = self._name_of(self._pending)
            self._pending.clear()
            self._skipping = True

    def _resume(self, data: bytes, events: list[Event]) -> int:
        """Go on inside the open event; returns the index in ``data`` behind it, or the end."""
        joint = bytes((self._last,)) + data
        at = _pair(joint, 0, lf_only=b"\r" not in joint)
        if at < 0:
            self._grow(data)
            return len(data)
        # The pair is data[at - 1 : at + 1]; its first byte may be the last one of the feed before.
        end = _behind_pair(data, at - 1)
        at_end = self.offset - len(data) + end
        self._inside = False
        if self._skipping:
            self._skipping = False
            self._withhold(self._name, at_end, events)
        else:
            self._pending += data[:at]
            block = bytes(self._pending[:-1])
            self._pending.clear()
            self._dispatch(block, at_end, events)
        return end

    def _dispatch(self, block: bytes, end: int, events: list[Event]) -> None:
        """Read an event's lines (the blank one is off) and add the event, if it is one."""
        block = block.removesuffix(b"\r")  # of the last line's CRLF, whose LF began the pair
        if len(block) > self._max_event or _too_many_lines(block):
            self._withhold(self._name_of(block), end, events)
            return
        name, data = _fields(block)
        if data is not None:
            events.append(Event(name, data, end))

    def _withhold(self, name: bytes, end: int, events: list[Event]) -> None:
        self.oversize += 1
        events.append(Event(name, b"", end, oversize=True))

    def _name_of(self, block: bytes | bytearray) -> bytes:
        """The ``event`` field among the whole lines at the start of an oversize event."""
        head = bytes(block[: min(self._max_event, _PEEK)])
        whole = max(head.rfind(b"\n"), head.rfind(b"\r"))
        return _fields(head[: max(whole, 0)])[0]


def _too_many_lines(block: bytes) -> bool:
    return len(block) > _MAX_LINES and block.count(b"\n") + block.count(b"\r") > _MAX_LINES


def _fields(block: bytes) -> tuple[bytes, bytes | None]:
    """The ``event`` field and the ``data`` lines joined by LF, or None where there are none."""
    name = b""
    data: list[bytes] = []
    for line in block.splitlines():  # of bytes: at CR, LF and CRLF only
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ")
    return name, b"\n".join(data) if data else None


def _one_line(data: bytes, pos: int, lf_only: bool) -> int:
    """Where the line at ``pos`` ends if it is a ``data`` line, and all of its event, else -1.

    Nearly all events of OpenAI's streams are so; this is their short way. ``lf_only``: ``data`` has no CR.
    """
    if not data.startswith(b"data: ", pos):
        return -1
    if lf_only:
        at = data.find(b"\n", pos)
        return at if at > 0 and data.startswith(b"\n\n", at) else -1
    at = data.find(b"\r", pos, pos + _NEAR)  # bounded, so that a far CR is not looked for again and again
    return at if at > 0 and data.startswith(b"\r\n\r\n", at) and data.find(b"\n", pos, at) < 0 else -1


def _pair(data: bytes, pos: int, lf_only: bool) -> int:
    """Index of the first two line ends in a row at or behind ``pos``, or -1."""
    if lf_only:
        return data.find(b"\n\n", pos)
    match = _PAIR.search(data, pos)
    return -1 if match is None else match.start()


def _behind_pair(data: bytes, at: int) -> int:
    """Index behind the pair at ``at``, the LF of a CRLF at its end included."""
    end = at + 2
    return end + 1 if data[end - 1] == _CR and data[end : end + 1] == b"\n" else end
