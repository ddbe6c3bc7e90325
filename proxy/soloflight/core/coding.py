"""Content codings (RFC 9110 section 8.4): gzip, deflate, br and zstd, undone within a bound.

Rule 1: nothing materialises. Output comes in pieces of at most PIECE bytes, each made when it is asked for, and a
        decoder inside holds at most its window (zlib 32 KiB, brotli 16 MiB, zstd 8 MiB) and ZSTD_SLICE's yield.
Rule 2: each coding of a chain is held to the bound, so that a small result can not hide a large middle.
Rule 3: whole or wrong. A coded body that is cut, damaged, or followed by anything else is a fault, not a shorter body.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Protocol

import brotli  # type: ignore[import-untyped]
import zstandard

from soloflight.core.errors import Code, SoloflightError, fail

PIECE = 256 << 10
"""Longest piece of decoded bytes."""

MAX_CODINGS = 4
"""Longest chain that is undone."""

MAX_MEMBERS = 1 << 16
"""Most gzip members or zstd frames in one body: each costs a set-up, an empty one nothing else."""

INPUT_SLICE = 16 << 10
"""Bytes given to zlib at a time: what it leaves for the next piece is copied."""

ZSTD_SLICE = 64
"""Bytes given to zstd at a time: its binding has no output bound. A block takes 4 bytes or more and gives 128 KiB or
less (RFC 8878 section 3.1.1.2), so a slice gives 2 MiB or so at most."""

ZSTD_WINDOW = 8 << 20
"""Largest zstd window accepted, in bytes: RFC 9659 section 3 allows no larger one in HTTP."""


class Flaw(Enum):
    """What can be wrong with a coded body."""

    CORRUPT = "corrupt"
    TRUNCATED = "truncated"
    TOO_LARGE = "too large"


_REQUEST_FAULTS = {
    Flaw.CORRUPT: (Code.BAD_REQUEST, "The request body does not follow its Content-Encoding"),
    Flaw.TRUNCATED: (Code.BAD_REQUEST, "The coded request body ends too early"),
    Flaw.TOO_LARGE: (Code.BODY_TOO_LARGE, "The decoded request body is too large"),
}
_RESPONSE_FAULTS = {
    Flaw.CORRUPT: (Code.UPSTREAM_INVALID, "The upstream's answer does not follow its Content-Encoding"),
    Flaw.TRUNCATED: (Code.UPSTREAM_TRUNCATED, "The upstream's coded answer ended too early"),
    Flaw.TOO_LARGE: (Code.UPSTREAM_INVALID, "The upstream's decoded answer is too large"),
}


def read_codings(field: bytes | None) -> tuple[str, ...] | None:
    """The codings that a Content-Encoding value (of several fields, their list) names, in the order of application.

    Empty for none and for ``identity``. None where one is unknown, or too many are named: such a body can not be
    judged.
    """
    names = [name.strip().lower().decode("latin-1") for name in (field or b"").split(b",")]
    codings = tuple(name for name in names if name not in ("", "identity"))
    known = len(codings) <= MAX_CODINGS and all(coding in _CODINGS for coding in codings)
    return codings if known else None


def decode_body(content_encoding: bytes | None, body: bytes, limit: int) -> bytes | None:
    """A whole request body without its codings; None where they are unknown (``read_codings``).

    Raises ``body_too_large`` beyond ``limit`` decoded bytes, and ``bad_request`` where the body does not decode.
    """
    pieces = decoded_pieces(content_encoding, body, limit)
    return None if pieces is None else b"".join(pieces)


def decoded_pieces(content_encoding: bytes | None, body: bytes, limit: int) -> Iterator[bytes] | None:
    """``decode_body`` step by step, for who must not be held up by a large one: raises while it is iterated."""
    codings = read_codings(content_encoding)
    return None if codings is None else _whole(_Chain(codings, limit, _REQUEST_FAULTS), body)


def _whole(decoder: _Chain, body: bytes) -> Iterator[bytes]:
    yield from decoder.feed(body)
    decoder.finish()


class ResponseDecoder:
    """Undoes the codings of one answer as it comes. ``codings`` is what ``read_codings`` made of its field.

    Raises ``upstream_invalid`` for a damaged answer or one beyond ``limit`` decoded bytes, ``upstream_truncated`` for
    one that is cut.
    """

    def __init__(self, codings: Sequence[str], limit: int) -> None:
        self._chain = _Chain(codings, limit, _RESPONSE_FAULTS)

    def __repr__(self) -> str:
        return f"ResponseDecoder({self._chain})"

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Decoded pieces of ``data``, each made when it is asked for. Take them all before the next call."""
        return self._chain.feed(data)

    def finish(self) -> None:
        """The answer ended: raises unless it is whole. An answer of no bytes at all is."""
        self._chain.finish()


class _Broken(Exception):
    """A decoder can not go on with these bytes."""


class _Decoder(Protocol):
    """Undoes one coding."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Decoded bytes, bit by bit; raises _Broken or the library's own error."""

    @property
    def whole(self) -> bool:
        """Whether the coded bytes so far end where they may end."""


class _Chain:
    """Decoders one behind the other, each held to ``limit`` bytes of output; flaws become the door's faults."""

    def __init__(self, codings: Sequence[str], limit: int, faults: Mapping[Flaw, tuple[Code, str]]) -> None:
        self._codings = tuple(codings)
        self._limit = limit
        self._faults = faults
        self._decoders = [_CODINGS[coding]() for coding in reversed(codings)]
        self._totals = [0] * (len(codings) + 1)

    def __repr__(self) -> str:
        return f"{'+'.join(self._codings) or 'identity'}, {self._totals[0]} bytes in, {self._totals[-1]} out"

    def feed(self, data: bytes) -> Iterator[bytes]:
        self._totals[0] += len(data)
        if not self._decoders and self._totals[0] > self._limit:
            raise self._fault(Flaw.TOO_LARGE)
        return self._through(0, data)

    def finish(self) -> None:
        for decoder, total in zip(self._decoders, self._totals, strict=False):
            if total and not decoder.whole:
                raise self._fault(Flaw.TRUNCATED)

    def _through(self, position: int, data: bytes) -> Iterator[bytes]:
        if position == len(self._decoders):
            yield data
            return
        for piece in self._pieces(position, data):
            self._totals[position + 1] += len(piece)
            if self._totals[position + 1] > self._limit:
                raise self._fault(Flaw.TOO_LARGE)
            yield from self._through(position + 1, piece)

    def _pieces(self, position: int, data: bytes) -> Iterator[bytes]:
        try:
            for run in self._decoders[position].feed(data):
                for start in range(0, len(run), PIECE):
                    yield run[start : start + PIECE]
        except (_Broken, zlib.error, brotli.error, zstandard.ZstdError) as error:
            raise self._fault(Flaw.CORRUPT) from error

    def _fault(self, flaw: Flaw) -> SoloflightError:
        return fail(*self._faults[flaw])


class _Inflate:
    """zlib's three formats, by its ``wbits``: 31 gzip (RFC 1952, any number of members), 15 zlib, -15 raw deflate."""

    def __init__(self, wbits: int) -> None:
        self._wbits = wbits
        self._members = 1
        self._inflater = zlib.decompressobj(wbits)

    def feed(self, data: bytes) -> Iterator[bytes]:
        for start in range(0, len(data), INPUT_SLICE):
            yield from self._feed_slice(data[start : start + INPUT_SLICE])

    def _feed_slice(self, data: bytes) -> Iterator[bytes]:
        more = False
        while data or more:
            if self._inflater.eof:
                self._next_member()
            piece = self._inflater.decompress(data, PIECE)
            yield piece
            data = self._inflater.unused_data or self._inflater.unconsumed_tail
            more = len(piece) == PIECE and not self._inflater.eof  # all is read, not all is written

    def _next_member(self) -> None:
        self._members += 1
        if self._wbits != 31 or self._members > MAX_MEMBERS:
            raise _Broken
        self._inflater = zlib.decompressobj(self._wbits)

    @property
    def whole(self) -> bool:
        return self._inflater.eof


class _Deflate:
    """The ``deflate`` coding: the zlib format by RFC 9110 section 8.4.1.2, raw deflate by custom. Two bytes tell."""

    def __init__(self) -> None:
        self._start = b""
        self._inflate: _Inflate | None = None

    def feed(self, data: bytes) -> Iterator[bytes]:
        if self._inflate is None:
            data = self._start = self._start + data
            if len(data) < 2:
                return
            is_zlib = data[0] & 0x0F == 8 and int.from_bytes(data[:2]) % 31 == 0  # RFC 1950 section 2.2
            self._inflate = _Inflate(15 if is_zlib else -15)
            self._start = b""
        yield from self._inflate.feed(data)

    @property
    def whole(self) -> bool:
        return self._inflate is not None and self._inflate.whole


class _Brotli:
    """The ``br`` coding (RFC 7932)."""

    def __init__(self) -> None:
        self._decompressor = brotli.Decompressor()

    def feed(self, data: bytes) -> Iterator[bytes]:
        piece = self._decompressor.process(data, output_buffer_limit=PIECE)
        # It takes more data as soon as it has read all; only an empty piece tells that nothing is left to write.
        while piece or not self._decompressor.can_accept_more_data():
            yield piece
            piece = self._decompressor.process(b"", output_buffer_limit=PIECE)

    @property
    def whole(self) -> bool:
        return bool(self._decompressor.is_finished())


class _Zstd:
    """The ``zstd`` coding (RFC 8878): any number of frames."""

    def __init__(self) -> None:
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW)
        self._frame = self._decompressor.decompressobj()
        self._frames = 1

    def feed(self, data: bytes) -> Iterator[bytes]:
        for start in range(0, len(data), ZSTD_SLICE):
            rest = data[start : start + ZSTD_SLICE]
            while rest:
                if self._frame.eof:
                    self._next_frame()
                yield self._frame.decompress(rest)
                rest = self._frame.unused_data

    def _next_frame(self) -> None:
        self._frames += 1
        if self._frames > MAX_MEMBERS:
            raise _Broken
        self._frame = self._decompressor.decompressobj()

    @property
    def whole(self) -> bool:
        return self._frame.eof


_CODINGS: Mapping[str, Callable[[], _Decoder]] = {
    "gzip": lambda: _Inflate(31),
    "x-gzip": lambda: _Inflate(31),
    "deflate": _Deflate,
    "br": _Brotli,
    "zstd": _Zstd,
}
