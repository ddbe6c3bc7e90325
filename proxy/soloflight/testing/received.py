"""What the scripted upstream records of a request, and the little HTTP/1.1 reading that takes.

Lenient by intent: it must be able to record what a faulty proxy sends, so it judges nothing but framing.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from dataclasses import dataclass, field

MAX_HEAD_BYTES = 1 << 20
PIECE_BYTES = 1 << 16


@dataclass(slots=True)
class Received:
    """One request. Times are ``time.monotonic()`` seconds.

    ``head`` is raw, with the blank line. ``sent``: (time, bytes) of each write of the answer. ``left``:
    ``"fin"`` or ``"rst"`` if the client left before the answer was through; later it stays None.
    """

    number: int
    connection: int
    head: bytes
    arrived_at: float
    body_length: int = 0
    body_complete: bool = False
    sent: list[tuple[float, int]] = field(default_factory=list)
    finished_at: float | None = None
    left: str | None = None
    left_at: float | None = None
    kept: bytearray = field(default_factory=bytearray)
    raw_kept: bytearray = field(default_factory=bytearray)
    digest: hashlib._Hash = field(default_factory=hashlib.sha256)

    def __repr__(self) -> str:
        return f"<Received {self.number} {self.method} {self.target} body={self.body_length} left={self.left}>"

    @property
    def request_line(self) -> bytes:
        """The first line, without its end."""
        return self.head.partition(b"\r\n")[0]

    @property
    def method(self) -> str:
        """The method, as sent."""
        return self.request_line.split(b" ")[0].decode("latin-1")

    @property
    def target(self) -> str:
        """The request target, byte for byte (as latin-1)."""
        return self.request_line.split(b" ")[1].decode("latin-1")

    @property
    def fields(self) -> list[tuple[bytes, bytes]]:
        """(name as sent, value without outer white space), in order."""
        lines = self.head.split(b"\r\n")[1:-2]
        pairs = (line.partition(b":") for line in lines)
        return [(name, value.strip(b" \t")) for name, _, value in pairs]

    @property
    def body(self) -> bytes:
        """The body, decoded of chunks, as far as it was kept."""
        return bytes(self.kept)

    @property
    def raw_body(self) -> bytes:
        """The body as it came, chunk framing included, as far as it was kept."""
        return bytes(self.raw_kept)

    @property
    def body_sha256(self) -> str:
        """Digest of the whole decoded body, kept or not."""
        return self.digest.hexdigest()

    def all(self, name: bytes) -> list[bytes]:
        """All values of field ``name`` (lower case)."""
        return [value for key, value in self.fields if key.lower() == name]

    def field(self, name: bytes) -> bytes:
        """First value of field ``name`` (lower case), or ``b""``."""
        return next(iter(self.all(name)), b"")

    def note_leaving(self, how: str) -> None:
        """The client left by ``how``: the first word counts."""
        if self.left is None:
            self.left = how
            self.left_at = time.monotonic()


async def read_head(reader: asyncio.StreamReader) -> bytes | None:
    """The next request head with its blank line; None if the connection ended or the head has no end."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        try:
            head += await reader.readuntil(b"\r\n")
        except asyncio.IncompleteReadError:
            return None
        except asyncio.LimitOverrunError as over:
            head += await reader.readexactly(over.consumed)
        if len(head) > MAX_HEAD_BYTES:
            return None
        if head == b"\r\n":
            head = b""
    return head


class BodyReader:
    """Reads one request body in pieces as it arrives, by its chunks or its length, into ``received``.

    A body that ends early raises ``asyncio.IncompleteReadError``, with ``body_complete`` still False.
    """

    def __init__(self, received: Received, reader: asyncio.StreamReader, keep_bytes: int) -> None:
        self.received = received
        self._reader = reader
        self._keep_bytes = keep_bytes
        self._chunked = b"chunked" in received.field(b"transfer-encoding").lower()
        self._left = 0 if self._chunked else int(received.field(b"content-length") or 0)
        self._chunks = 0
        received.body_complete = not self._chunked and self._left == 0

    def __repr__(self) -> str:
        return f"<BodyReader read={self.received.body_length} complete={self.received.body_complete}>"

    async def read(self, size: int | None = None) -> None:
        """Read ``size`` further bytes, or to the end."""
        goal = None if size is None else self.received.body_length + size
        while not self.received.body_complete:
            if goal is not None and self.received.body_length >= goal:
                return
            if self._chunked and not self._left:
                await self._chunk_line()
            else:
                await self._data(PIECE_BYTES if goal is None else goal - self.received.body_length)

    async def _data(self, limit: int) -> None:
        data = await self._reader.read(min(self._left, limit, PIECE_BYTES))
        if not data:
            raise asyncio.IncompleteReadError(b"", self._left)
        received = self.received
        received.digest.update(data)
        received.body_length += len(data)
        if received.body_length <= self._keep_bytes:
            received.kept += data
        self._keep_raw(data)
        self._left -= len(data)
        received.body_complete = not self._chunked and not self._left

    async def _chunk_line(self) -> None:
        if self._chunks:
            self._keep_raw(await self._reader.readexactly(2))
        line = await self._reader.readuntil(b"\r\n")
        self._keep_raw(line)
        self._chunks += 1
        self._left = int(line.split(b";")[0], 16)
        if self._left == 0:
            while line != b"\r\n":
                line = await self._reader.readuntil(b"\r\n")
                self._keep_raw(line)
            self.received.body_complete = True

    def _keep_raw(self, data: bytes) -> None:
        if len(self.received.raw_kept) < self._keep_bytes:
            self.received.raw_kept += data
