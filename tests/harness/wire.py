"""An HTTP/1.1 response exactly as it came, and an event stream as the specification reads it. No IO.

Written apart from the product and from any HTTP library, so that it sees what they would gloss over: the
exact head, each chunk, the final zero chunk or its absence, and how the connection ended.
"""

import re
import time
from dataclasses import dataclass, field
from typing import Self

BODYLESS = {204, 304}


@dataclass
class Response:
    """What one response was. ``ended`` is how its bytes stopped, which is not always its end:

    ``"complete"`` by its framing, ``"fin"`` the peer closed, ``"rst"`` it reset, ``None`` not yet.
    """

    method: str = "GET"
    raw_head: bytes = b""
    informational: list[bytes] = field(default_factory=list)  # raw heads of 1xx before it
    framing: str | None = None  # "chunked", "length", "close" or "none"
    raw_body: bytearray = field(default_factory=bytearray)  # as on the wire
    chunks: list[bytes] = field(default_factory=list)  # chunked: the data of each
    kept: bytearray = field(default_factory=bytearray)  # the body, decoded of chunks
    arrivals: list[tuple[float, int]] = field(default_factory=list)  # (monotonic s, body length then)
    last_chunk_seen: bool = False
    ended: str | None = None

    @property
    def status_line(self) -> bytes:
        return self.raw_head.partition(b"\r\n")[0]

    @property
    def status(self) -> int:
        return int(self.status_line.split(b" ")[1])

    @property
    def reason(self) -> bytes:
        return self.status_line.split(b" ", 2)[2]

    @property
    def fields(self) -> list[tuple[bytes, bytes]]:
        """(name as sent, value without outer white space), in order."""
        pairs = (line.partition(b":") for line in self.raw_head.split(b"\r\n")[1:-2])
        return [(name, value.strip(b" \t")) for name, _, value in pairs]

    def all(self, name: str) -> list[str]:
        """All values of field ``name``, as latin-1."""
        wanted = name.lower().encode()
        return [value.decode("latin-1") for key, value in self.fields if key.lower() == wanted]

    def get(self, name: str) -> str | None:
        """First value of field ``name``."""
        return next(iter(self.all(name)), None)

    @property
    def role(self) -> str | None:
        """``X-Soloflight-Role``: owner, follower, replay or bypass."""
        return self.get("X-Soloflight-Role")

    @property
    def body(self) -> bytes:
        return bytes(self.kept)

    @property
    def complete(self) -> bool:
        """Whole by its framing; a close-delimited one by FIN (which proves little)."""
        return self.ended == "complete" or (self.framing == "close" and self.ended == "fin")

    @property
    def events(self) -> list["Event"]:
        return parse_events(self.body)

    def arrival_s(self, length: int) -> float:
        """When the first ``length`` body bytes were there."""
        return next(at for at, total in self.arrivals if total >= length)


class ResponseParser:
    """Feed it bytes, then the way the connection ended; ``response`` fills, ``rest`` came after it."""

    def __init__(self, method: str = "GET") -> None:
        self.response = Response(method)
        self.rest = b""
        self._pending = b""
        self._length = 0
        self._in_chunk = 0
        self._state = self._read_head

    @property
    def done(self) -> bool:
        return self.response.ended is not None

    def feed(self, data: bytes, at_s: float | None = None) -> Self:
        self._pending += data
        before = len(self.response.kept)
        while not self.done and self._state():
            pass
        if self.done:
            self.rest += self._pending
            self._pending = b""
        if len(self.response.kept) > before:
            at_s = time.monotonic() if at_s is None else at_s
            self.response.arrivals.append((at_s, len(self.response.kept)))
        return self

    def end(self, how: str) -> Self:
        """The connection ended by ``"fin"`` or ``"rst"``."""
        if not self.done:
            self.response.ended = how
        return self

    def _take(self, size: int) -> bytes:
        data, self._pending = self._pending[:size], self._pending[size:]
        return data

    def _read_head(self) -> bool:
        head, blank, self._pending = self._pending.partition(b"\r\n\r\n")
        if not blank:
            self._pending = head
            return False
        response = self.response
        response.raw_head = head + blank
        if 100 <= response.status < 200 and response.status != 101:
            response.informational.append(response.raw_head)
            response.raw_head = b""
            return True
        coding, length = response.get("Transfer-Encoding"), response.get("Content-Length")
        if response.method == "HEAD" or response.status in BODYLESS or response.status == 101:
            response.framing, response.ended = "none", "complete"
        elif coding is not None:
            response.framing, self._state = "chunked", self._read_chunk_line
        elif length is not None:
            response.framing, self._length, self._state = "length", int(length), self._read_counted
        else:
            response.framing, self._state = "close", self._read_all
        return True

    def _keep(self, data: bytes) -> None:
        self.response.raw_body += data
        self.response.kept += data

    def _read_all(self) -> bool:
        self._keep(self._take(len(self._pending)))
        return False

    def _read_counted(self) -> bool:
        self._keep(self._take(self._length - len(self.response.kept)))
        if len(self.response.kept) == self._length:
            self.response.ended = "complete"
        return False

    def _read_chunk_line(self) -> bool:
        if b"\r\n" not in self._pending:
            return False
        line = self._take(self._pending.index(b"\r\n") + 2)
        self.response.raw_body += line
        self._in_chunk = int(line.split(b";")[0], 16)
        if self._in_chunk:
            self.response.chunks.append(b"")
            self._state = self._read_chunk
        else:
            self._state = self._read_trailer
        return True

    def _read_chunk(self) -> bool:
        if not self._pending:
            return False
        if self._in_chunk:
            data = self._take(self._in_chunk)
            self._in_chunk -= len(data)
            self._keep(data)
            self.response.chunks[-1] += data
            return True
        if len(self._pending) < 2:
            return False
        end = self._take(2)
        assert end == b"\r\n", f"a chunk must end with CRLF, not {end!r}"
        self.response.raw_body += end
        self._state = self._read_chunk_line
        return True

    def _read_trailer(self) -> bool:
        if b"\r\n" not in self._pending:
            return False
        line = self._take(self._pending.index(b"\r\n") + 2)
        self.response.raw_body += line
        if line == b"\r\n":
            self.response.last_chunk_seen = True
            self.response.ended = "complete"
        return True


@dataclass(frozen=True)
class Event:
    """One dispatched event: WHATWG HTML section 9.2.6."""

    data: str
    type: str = "message"
    id: str = ""


def parse_events(stream: bytes) -> list[Event]:
    """The events that a browser would dispatch for the whole of ``stream``; an unfinished last one is none.

    Lines end at CRLF, LF or CR, and nowhere else. Bytes that are not UTF-8 become U+FFFD, as there.
    """
    events, data, kind, last_id = [], [], "", ""
    text = stream.decode("utf-8", "replace").removeprefix("\ufeff")
    for line in re.split("\r\n|\n|\r", text)[:-1]:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if line == "":
            if data:
                events.append(Event("\n".join(data), kind or "message", last_id))
            data, kind = [], ""
        elif name == "data":
            data.append(value)
        elif name == "event":
            kind = value
        elif name == "id" and "\0" not in value:
            last_id = value
    return events
