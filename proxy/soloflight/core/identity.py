"""An upstream's answer as identity bytes: what is shared is never coded (contract section 5).

An answer whose coding is unknown, or turns out to be a lie at the first bytes, is passed on as it came, head and all, and is
marked unreadable: it is never guessed at and never kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from soloflight.core.coding import ResponseDecoder, read_codings
from soloflight.core.errors import SoloflightError
from soloflight.core.frames import Head

MAX_DECODED = 16 << 30
"""No answer is decoded beyond this many bytes; memory is held by the log's window long before."""
_UNSURE_LIMIT = 1 << 20
# Fields that speak of the coded bytes (RFC 9110 section 8.8.3 for a strong ETag, RFC 9530 for the digests).
_OF_THE_CODED = frozenset(
    {b"content-encoding", b"content-length", b"content-md5", b"etag", b"digest", b"content-digest", b"repr-digest"}
)


class Identity:
    """Undoes an answer's content codings as it passes. ``head`` is final once the first piece was given out."""

    def __init__(self, head: Head) -> None:
        field = b", ".join(value for name, value in head.fields if name.lower() == b"content-encoding")
        codings = read_codings(field)
        self._coded_head = head
        self._unsure = b""
        self._sure = False
        self._decoder = ResponseDecoder(codings, MAX_DECODED) if codings else None
        self.unreadable = codings is None
        self.head = head if self._decoder is None else _decoded_head(head)

    def __repr__(self) -> str:
        return f"Identity({self._decoder!r}, unreadable={self.unreadable})"

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Non-empty pieces of identity bytes. Raises SoloflightError where the coding breaks behind bytes given out."""
        if self._decoder is None:
            if data:
                yield data
            return
        if not self._sure:
            self._unsure += data
            self._sure = len(self._unsure) > _UNSURE_LIMIT
        try:
            for piece in self._decoder.feed(data):
                self._sure, self._unsure = True, b""
                yield piece
        except SoloflightError:
            if self._sure:
                raise
            yield from self._give_up()

    def finish(self) -> Iterator[bytes]:
        """The answer's transport ended: checks that the coding did, too. Raises SoloflightError."""
        if self._decoder is None:
            return
        try:
            self._decoder.finish()
        except SoloflightError:
            if self._sure:
                raise
            yield from self._give_up()

    def _give_up(self) -> Iterator[bytes]:
        self._decoder, self.unreadable, self.head = None, True, self._coded_head
        raw, self._unsure = self._unsure, b""
        yield raw


def _decoded_head(head: Head) -> Head:
    fields = tuple(field for field in head.fields if field[0].lower() not in _OF_THE_CODED)
    return replace(head, fields=fields, length=None)
