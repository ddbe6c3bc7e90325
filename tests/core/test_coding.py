"""Content codings: whole or wrong, within a bound, piece by piece. Cases C78 and C79 at this level."""

from __future__ import annotations

import gzip
import random
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import brotli  # type: ignore[import-untyped]
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from soloflight.core import coding
from soloflight.core.coding import MAX_MEMBERS, PIECE, ResponseDecoder, decode_body, read_codings
from soloflight.core.errors import Code, SoloflightError

AMPLE = 1 << 30
SAMPLE = bytes(range(256)) * 40 + b"tail"


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


def checked_zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


def streamed_zstd(data: bytes) -> bytes:
    packer = zstandard.ZstdCompressor().compressobj()
    return packer.compress(data) + packer.flush()


ENCODERS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "x-gzip": ("x-gzip", gzip.compress),
    "zlib": ("deflate", zlib.compress),
    "raw deflate": ("deflate", raw_deflate),
    "br": ("br", brotli.compress),
    "zstd": ("zstd", checked_zstd),
    "zstd of unknown size": ("zstd", streamed_zstd),
}
EACH = pytest.mark.parametrize(("name", "encode"), ENCODERS.values(), ids=list(ENCODERS))


def decoded(name: str, coded: bytes, limit: int = AMPLE) -> bytes | Code:
    """What ``decode_body`` makes of it: bytes, or the code of its fault."""
    try:
        body = decode_body(name.encode(), coded, limit)
    except SoloflightError as error:
        return error.fault.code
    assert body is not None
    return body


def streamed(name: str, pieces: list[bytes], limit: int = AMPLE) -> bytes | Code:
    """The same through a ResponseDecoder, fed bit by bit."""
    codings = read_codings(name.encode())
    assert codings is not None
    decoder = ResponseDecoder(codings, limit)
    try:
        body = b"".join(piece for data in pieces for piece in decoder.feed(data))
        decoder.finish()
    except SoloflightError as error:
        return error.fault.code
    return body


@contextmanager
def memory_below(size: int) -> Iterator[None]:
    """Python's own memory, which is where decoded pieces are, stays below ``size`` bytes."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < size
    finally:
        tracemalloc.stop()


@EACH
@given(data=st.binary(max_size=300) | st.just(SAMPLE), cuts=st.lists(st.integers(0, 400), max_size=4))
@settings(max_examples=60)
def test_what_was_coded_comes_out_however_it_is_cut(
    name: str, encode: Callable[[bytes], bytes], data: bytes, cuts: list[int]
) -> None:
    coded = encode(data)
    edges = [0, *sorted(min(cut, len(coded)) for cut in cuts), len(coded)]
    pieces = [coded[start:end] for start, end in pairwise(edges)]
    assert decoded(name, coded) == data
    assert streamed(name, pieces) == data


@EACH
def test_every_byte_is_decoded_as_soon_as_it_is_there(name: str, encode: Callable[[bytes], bytes]) -> None:
    coded = encode(SAMPLE)
    assert streamed(name, [coded[at : at + 1] for at in range(len(coded))]) == SAMPLE


@EACH
@pytest.mark.parametrize("size", [PIECE - 1, PIECE, PIECE + 1, 3 * PIECE])
def test_sizes_around_a_piece(name: str, encode: Callable[[bytes], bytes], size: int) -> None:
    for data in (b"\0" * size, random.Random(size).randbytes(size)):
        assert decoded(name, encode(data)) == data
        assert decoded(name, encode(data) + b"\0") is Code.BAD_REQUEST


def test_what_is_read_but_not_yet_written_is_not_lost() -> None:
    """Raw deflate has nothing behind its last symbol: zlib can have read it all with a run still to write."""
    for more in range(300):
        data = b"\0" * (PIECE + more)
        assert decoded("deflate", raw_deflate(data)) == data


@EACH
def test_every_cut_is_a_fault(name: str, encode: Callable[[bytes], bytes]) -> None:
    coded = encode(b"some text, some text, some more text")
    for end in range(1, len(coded)):
        assert decoded(name, coded[:end]) is Code.BAD_REQUEST
        assert streamed(name, [coded[:end]]) is Code.UPSTREAM_TRUNCATED


@EACH
@pytest.mark.parametrize("trail", [b"\0", b"x", b"\0" * 1000, b"\x1f\x8b", b"garbage behind"])
def test_what_follows_is_a_fault(name: str, encode: Callable[[bytes], bytes], trail: bytes) -> None:
    coded = encode(SAMPLE)
    assert decoded(name, coded + trail) is Code.BAD_REQUEST
    assert streamed(name, [coded + trail]) in (Code.UPSTREAM_INVALID, Code.UPSTREAM_TRUNCATED)
    assert streamed(name, [coded, trail]) in (Code.UPSTREAM_INVALID, Code.UPSTREAM_TRUNCATED)


@pytest.mark.parametrize("name", ["gzip", "zlib", "zstd"])
def test_damage_never_goes_unseen(name: str) -> None:
    """Where the format has a checksum: whatever byte is changed, the result is the same bytes or a fault."""
    coding_name, encode = ENCODERS[name]
    coded = encode(SAMPLE)
    for at in range(len(coded)):
        for value in (coded[at] ^ 0x01, coded[at] ^ 0x80, 0xFF):
            assert decoded(coding_name, coded[:at] + bytes([value]) + coded[at + 1 :]) in (SAMPLE, Code.BAD_REQUEST)


@EACH
@given(debris=st.binary(max_size=60))
def test_no_debris_gets_past_as_another_error(name: str, encode: Callable[[bytes], bytes], debris: bytes) -> None:
    decoded(name, debris)
    decoded(name, encode(SAMPLE)[:20] + debris)
    streamed(name, [debris[:9], debris[9:]])


@EACH
def test_the_limit_is_exact(name: str, encode: Callable[[bytes], bytes]) -> None:
    coded = encode(SAMPLE)
    assert decoded(name, coded, len(SAMPLE)) == SAMPLE
    assert decoded(name, coded, len(SAMPLE) - 1) is Code.BODY_TOO_LARGE
    assert streamed(name, [coded], len(SAMPLE) - 1) is Code.UPSTREAM_INVALID


def test_identity_has_the_same_limit() -> None:
    for field in (None, b"", b"identity", b" Identity , ,"):
        assert decode_body(field, b"abc", 3) == b"abc"
        with pytest.raises(SoloflightError, match="too large"):
            decode_body(field, b"abcd", 3)
    assert streamed("identity", [b"ab", b"", b"c"], 3) == b"abc"
    assert streamed("identity", [b"ab", b"cd"], 3) is Code.UPSTREAM_INVALID


@EACH
def test_no_bytes_at_all_are_an_empty_body(name: str, encode: Callable[[bytes], bytes]) -> None:
    assert decoded(name, b"") == b""
    assert streamed(name, []) == b""
    assert decoded(f"{name}, gzip", gzip.compress(b"")) == b""
    assert decoded(name, encode(b"")) == b""


@pytest.mark.parametrize(
    ("field", "codings"),
    [
        (None, ()),
        (b"", ()),
        (b"identity", ()),
        (b"GZip", ("gzip",)),
        (b"deflate , x-gzip,,identity,br", ("deflate", "x-gzip", "br")),
        (b"zstd, zstd, zstd, zstd", ("zstd",) * 4),
        (b"gzip, gzip, gzip, gzip, gzip", None),
        (b"compress", None),
        (b"aes128gcm, gzip", None),
        (b"gzip;q=1", None),
        (b"\xff", None),
    ],
)
def test_codings_of_a_field(field: bytes | None, codings: tuple[str, ...] | None) -> None:
    assert read_codings(field) == codings
    if codings is None:
        assert decode_body(field, b"whatever", AMPLE) is None


def test_a_chain_is_undone_from_its_end() -> None:
    coded = gzip.compress(brotli.compress(checked_zstd(zlib.compress(SAMPLE))))
    assert decoded("deflate, zstd, br, gzip", coded) == SAMPLE
    assert streamed("deflate,zstd,br,gzip", [coded[:30], coded[30:]]) == SAMPLE
    assert decoded("gzip, br, zstd, deflate", coded) is Code.BAD_REQUEST


def test_a_cut_inside_a_chain_is_seen() -> None:
    inner = gzip.compress(SAMPLE)
    assert decoded("gzip, br", brotli.compress(inner[:-1])) is Code.BAD_REQUEST
    assert streamed("gzip, br", [brotli.compress(inner[:-1])]) is Code.UPSTREAM_TRUNCATED
    assert streamed("gzip, br", [brotli.compress(inner)[:-1]]) is Code.UPSTREAM_TRUNCATED


def test_members_and_frames_follow_each_other() -> None:
    skipped = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"hello"
    member, frame = gzip.compress(SAMPLE), checked_zstd(SAMPLE)
    assert decoded("gzip", member + gzip.compress(b"") + member) == SAMPLE * 2
    assert decoded("zstd", skipped + frame + skipped + streamed_zstd(SAMPLE)) == SAMPLE * 2
    assert streamed("gzip", [member, member]) == SAMPLE * 2
    assert streamed("zstd", [frame[:-1], frame[-1:] + frame]) == SAMPLE * 2
    assert decoded("deflate", zlib.compress(b"a") * 2) is Code.BAD_REQUEST
    assert decoded("deflate", raw_deflate(b"a") * 2) is Code.BAD_REQUEST
    assert decoded("br", brotli.compress(b"a") * 2) is Code.BAD_REQUEST


@pytest.mark.parametrize(("name", "encode"), [("gzip", gzip.compress), ("zstd", checked_zstd)])
def test_members_are_counted(name: str, encode: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_MEMBERS >= 1 << 16
    monkeypatch.setattr(coding, "MAX_MEMBERS", 100)
    assert decoded(name, encode(b"a") * 100) == b"a" * 100
    assert decoded(name, encode(b"a") * 101) is Code.BAD_REQUEST


def test_a_zstd_window_beyond_rfc_9659_is_refused() -> None:
    def with_window(log: int) -> bytes:
        parameters = zstandard.ZstdCompressionParameters(window_log=log, write_content_size=0)
        packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
        return packer.compress(b"a") + packer.flush()

    assert decoded("zstd", with_window(23)) == b"a"
    assert decoded("zstd", with_window(24)) is Code.BAD_REQUEST


ZEROS = b"\0" * (1 << 20)


def packed_zeros(name: str, size_mib: int) -> bytes:
    """``size_mib`` MiB of zeros in one coding, made without holding them."""
    packer: zlib._Compress | zstandard.ZstdCompressionObj
    if name == "br":
        squeezer = brotli.Compressor(quality=1)
        return b"".join(squeezer.process(ZEROS) for _ in range(size_mib)) + bytes(squeezer.finish())
    packer = zstandard.ZstdCompressor(level=19).compressobj() if name == "zstd" else zlib.compressobj(9, wbits=31)
    return b"".join(packer.compress(ZEROS) for _ in range(size_mib)) + packer.flush()


BOMBS = {
    "gzip": ("gzip", lambda: packed_zeros("gzip", 256)),
    "br": ("br", lambda: packed_zeros("br", 256)),
    "zstd": ("zstd", lambda: packed_zeros("zstd", 256)),
    "gzip of gzip": ("gzip, gzip", lambda: gzip.compress(packed_zeros("gzip", 256))),
    "zstd of gzip": ("gzip, zstd", lambda: zstandard.compress(packed_zeros("gzip", 256))),
    "br of zstd": ("zstd, br", lambda: brotli.compress(packed_zeros("zstd", 256))),
}


@pytest.mark.parametrize(("name", "make"), BOMBS.values(), ids=list(BOMBS))
def test_c78_a_bomb_in_a_request_costs_no_more_than_the_limit(name: str, make: Callable[[], bytes]) -> None:
    bomb = make()
    with memory_below((4 << 20) + (8 << 20)):
        assert decoded(name, bomb, 4 << 20) is Code.BODY_TOO_LARGE


def test_c78_a_small_result_can_not_hide_a_large_middle() -> None:
    # Skippable frames: any size, no output.
    skipped = b"\x50\x2a\x4d\x18" + (64 << 20).to_bytes(4, "little") + b"\0" * (64 << 20)
    bomb = gzip.compress(skipped + checked_zstd(b"tiny"))
    assert decoded("zstd, gzip", bomb) == b"tiny"
    with memory_below(8 << 20):
        assert decoded("zstd, gzip", bomb, 1 << 20) is Code.BODY_TOO_LARGE


@pytest.mark.parametrize(("name", "make"), BOMBS.values(), ids=list(BOMBS))
def test_c79_a_bomb_in_an_answer_comes_in_pieces(name: str, make: Callable[[], bytes]) -> None:
    bomb = make()
    codings = read_codings(name.encode())
    assert codings is not None
    decoder = ResponseDecoder(codings, AMPLE)
    with memory_below(8 << 20):
        pieces = decoder.feed(bomb)
        sizes = [len(next(pieces)) for _ in range(20)]
    assert max(sizes) <= PIECE
    assert sum(sizes) <= 20 * PIECE
    assert sum(map(len, pieces)) + sum(sizes) == 256 << 20
    decoder.finish()


def test_a_flushed_event_is_there_at_once() -> None:
    packer = zlib.compressobj(wbits=31)
    decoder = ResponseDecoder(("gzip",), AMPLE)
    for event in (b"data: 1\n\n", b"data: 2\n\n"):
        assert b"".join(decoder.feed(packer.compress(event) + packer.flush(zlib.Z_SYNC_FLUSH))) == event
    assert b"".join(decoder.feed(packer.flush())) == b""
    decoder.finish()


def test_faults_name_no_bytes_and_decoders_say_where_they_are() -> None:
    decoder = ResponseDecoder(("br", "gzip"), AMPLE)
    assert repr(decoder) == "ResponseDecoder(br+gzip, 0 bytes in, 0 out)"
    assert repr(ResponseDecoder((), 1)) == "ResponseDecoder(identity, 0 bytes in, 0 out)"
    with pytest.raises(SoloflightError) as caught:
        list(decoder.feed(b"secret prompt"))
    assert "secret" not in str(caught.value)
    assert repr(decoder) == "ResponseDecoder(br+gzip, 13 bytes in, 0 out)"
