"""What is written can be read; whatever else is read is Unreadable, and costs no more than its own bytes."""

from __future__ import annotations

import contextlib
import tracemalloc

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from soloflight.core.errors import Code, Fault
from soloflight.core.flight import Claim, NoticeKind
from soloflight.core.frames import Body, End, Frame, Head, Recording
from soloflight_redis.cipher import AesGcm, Cipher, Clear, context, make_cipher, stretched
from soloflight_redis.codec import (
    MAX_FIELDS,
    MAX_HEAD_BYTES,
    Unreadable,
    pack_fault,
    pack_frames,
    pack_result,
    unpack_fault,
    unpack_frames,
    unpack_result,
)
from soloflight_redis.notices import read_entry, read_notice
from soloflight_redis.operations import batch_context, reply

KEY = "0" * 40
SAFE = st.binary(max_size=40).map(lambda data: data.translate(None, b"\r\n\0"))
NAMES = st.text("abcXYZ09-_!~", min_size=1, max_size=20).map(str.encode)
COUNTS = st.integers(0, 1 << 40)

faults = st.builds(Fault, st.sampled_from(list(Code)), st.text(max_size=50), st.none() | COUNTS)
heads = st.builds(
    Head,
    st.integers(100, 999),
    SAFE,
    st.lists(st.tuples(NAMES, SAFE), max_size=8).map(tuple),
    st.none() | COUNTS,
    st.booleans(),
)
bodies = st.binary(min_size=1, max_size=60).map(Body)
frames: st.SearchStrategy[Frame] = heads | bodies | st.builds(End, st.none() | faults)
batches = st.lists(frames, min_size=1, max_size=6).map(tuple)
recordings = st.builds(
    lambda head, body: Recording(head, tuple(body), sum(map(len, body))),
    heads,
    st.lists(st.binary(min_size=1, max_size=60), max_size=6),
)


# ── there and back ──────────────────────────────────────────────────────────────────────────────────────────


@given(batches)
def test_a_batch_comes_back(batch: tuple[Frame, ...]) -> None:
    assert unpack_frames(pack_frames(batch)) == batch


@given(recordings)
def test_a_result_comes_back(result: Recording) -> None:
    assert unpack_result(pack_result(KEY, 7, result), KEY, 7) == result


@given(faults)
def test_a_fault_comes_back(fault: Fault) -> None:
    assert unpack_fault(pack_fault(fault)) == fault


# ── whatever bytes there are ────────────────────────────────────────────────────────────────────────────────


def read_everything(data: bytes) -> None:
    """Each reader gives a value that can be written again, or Unreadable."""
    try:
        result = unpack_result(data, KEY, 7)
        assert unpack_result(pack_result(KEY, 7, result), KEY, 7) == result
    except Unreadable:
        pass
    try:
        batch = unpack_frames(data)
        assert unpack_frames(pack_frames(batch)) == batch
    except Unreadable:
        pass
    with contextlib.suppress(Unreadable):
        assert pack_fault(unpack_fault(data))


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    read_everything(data)


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.binary() | st.text(),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=20,
)


@given(anything)
def test_any_msgpack(value: object) -> None:
    read_everything(msgpack.packb(value))


@given(recordings, st.data())
def test_mutated_results(result: Recording, data: st.DataObject) -> None:
    packed = bytearray(pack_result(KEY, 7, result))
    for _ in range(data.draw(st.integers(1, 4))):
        match data.draw(st.sampled_from(["flip", "cut", "insert"])):
            case "flip" if packed:
                packed[data.draw(st.integers(0, len(packed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
            case "cut":
                del packed[data.draw(st.integers(0, len(packed))) :]
            case _:
                at = data.draw(st.integers(0, len(packed)))
                packed[at:at] = data.draw(st.binary(max_size=4))
    read_everything(bytes(packed))


@pytest.mark.parametrize(
    "data",
    [
        b"\xdd\xff\xff\xff\xff",  # an array of 2^32 - 1
        b"\xc6\xff\xff\xff\xff",  # as many bytes
        b"\xdb\xff\xff\xff\xff",  # as much text
        b"\xdf\xff\xff\xff\xff",  # a map
        b"\xc9\xff\xff\xff\xff\x01",  # an extension
        b"\x95" * 100_000,  # nested without end
        b"\x91" * 1_000_000,
        b"\xd6\xff\x00\x00\x00\x00",  # a timestamp
    ],
)
def test_what_claims_to_be_large_allocates_little(data: bytes) -> None:
    tracemalloc.start()
    try:
        for read in (unpack_frames, unpack_fault, lambda data: unpack_result(data, KEY, 7)):
            with pytest.raises(Unreadable):
                read(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 32 * len(data) + 100_000


# ── what is refused ─────────────────────────────────────────────────────────────────────────────────────────

GOOD_HEAD: list[object] = [200, b"OK", [[b"a", b"b"]], None, True]


def head_with(at: int, value: object) -> bytes:
    head = list(GOOD_HEAD)
    head[at] = value
    return bytes(msgpack.packb([head]))


@pytest.mark.parametrize(
    "packed",
    [
        head_with(0, 99),
        head_with(0, 1000),
        head_with(0, True),
        head_with(0, "200"),
        head_with(0, 200.0),
        head_with(1, b"OK\r\nSet-Cookie: a=b"),
        head_with(1, "OK"),
        head_with(2, [[b"a", b"b\nc"]]),
        head_with(2, [[b"a", b"b\0"]]),
        head_with(2, [[b"a b", b"c"]]),
        head_with(2, [[b"a:", b"c"]]),
        head_with(2, [[b"", b"c"]]),
        head_with(2, [["a", b"c"]]),
        head_with(2, [[b"a", "c"]]),
        head_with(2, [[b"a"]]),
        head_with(2, [b"ab"]),
        head_with(2, {b"a": b"b"}),
        head_with(2, [[b"a", b"b"]] * (MAX_FIELDS + 1)),
        head_with(2, [[b"a", b"b" * (MAX_HEAD_BYTES + 1)]]),
        head_with(3, -1),
        head_with(3, b"1"),
        head_with(4, 1),
        head_with(4, None),
        msgpack.packb([GOOD_HEAD[:4]]),
        msgpack.packb([[*GOOD_HEAD, 1]]),
        msgpack.packb([]),
        msgpack.packb(None),
        msgpack.packb([b""]),
        msgpack.packb(["text"]),
        msgpack.packb([[["no_such_code", "text", None]]]),
        msgpack.packb([[["abandoned", b"text", None]]]),
        msgpack.packb([[["abandoned", "x" * 5_000, None]]]),
        msgpack.packb([[["abandoned", "text", -1]]]),
        msgpack.packb([[["abandoned", "text", True]]]),
        msgpack.packb([GOOD_HEAD]) + b"\0",
        msgpack.packb([GOOD_HEAD])[:-1],
    ],
)
def test_bad_batches_are_unreadable(packed: bytes) -> None:
    with pytest.raises(Unreadable):
        unpack_frames(packed)


def test_the_good_batch_beside_them_is_readable() -> None:
    assert unpack_frames(msgpack.packb([GOOD_HEAD])) == (Head(200, b"OK", ((b"a", b"b"),)),)


@pytest.mark.parametrize(
    "packed",
    [
        msgpack.packb(["other", 7, GOOD_HEAD, [b"x"], 1]),
        msgpack.packb([KEY, 8, GOOD_HEAD, [b"x"], 1]),
        msgpack.packb([KEY, 7, GOOD_HEAD, [b"x"], 2]),
        msgpack.packb([KEY, 7, GOOD_HEAD, [b"x"], True]),
        msgpack.packb([KEY, 7, GOOD_HEAD, [b"x", b""], 1]),
        msgpack.packb([KEY, 7, GOOD_HEAD, b"x", 1]),
        msgpack.packb([KEY, 7, GOOD_HEAD, ["x"], 1]),
        msgpack.packb([KEY, 7, GOOD_HEAD, [b"x"]]),
    ],
)
def test_bad_results_are_unreadable(packed: bytes) -> None:
    with pytest.raises(Unreadable):
        unpack_result(packed, KEY, 7)


# ── version byte and encryption ─────────────────────────────────────────────────────────────────────────────

CLEAR = Clear()
NEW = make_cipher("new", "old")
OLD = make_cipher("old")


@pytest.mark.parametrize("cipher", [CLEAR, NEW, OLD], ids=repr)
@given(data=st.binary(max_size=100), where=st.binary(max_size=20))
def test_what_is_locked_can_be_unlocked_in_its_place_only(cipher: Cipher, data: bytes, where: bytes) -> None:
    value = cipher.lock(data, where)
    assert cipher.unlock(value, where) == data
    if cipher is not CLEAR:
        with pytest.raises(Unreadable):
            cipher.unlock(value, where + b"x")


@pytest.mark.parametrize("cipher", [CLEAR, NEW], ids=repr)
@given(value=st.binary(max_size=60))
def test_any_value(cipher: Cipher, value: bytes) -> None:
    with contextlib.suppress(Unreadable):
        assert cipher.unlock(value, b"") == value[1:]


def test_every_changed_bit_is_noticed() -> None:
    value = NEW.lock(b"secret", b"here")
    assert b"secret" not in value
    for at in range(len(value)):
        for bit in range(8):
            changed = bytearray(value)
            changed[at] ^= 1 << bit
            with pytest.raises(Unreadable):
                NEW.unlock(bytes(changed), b"here")


def test_the_previous_key_is_still_read_and_no_more() -> None:
    assert NEW.unlock(OLD.lock(b"x", b""), b"") == b"x"
    with pytest.raises(Unreadable):
        OLD.unlock(NEW.lock(b"x", b""), b"")


def test_with_a_key_nothing_in_the_clear_is_believed_and_the_other_way_round() -> None:
    with pytest.raises(Unreadable):
        NEW.unlock(CLEAR.lock(b"x", b""), b"")
    with pytest.raises(Unreadable):
        CLEAR.unlock(NEW.lock(b"x", b""), b"")


def test_two_locks_of_one_value_differ() -> None:
    assert NEW.lock(b"x", b"") != NEW.lock(b"x", b"")


def test_any_text_makes_a_key_the_same_everywhere() -> None:
    assert stretched("key").hex() == "2fcf4d5f18722ed2d30af60f3bd23126e673c6e6179778e0a05323d5e371c58b"
    assert stretched("key") != stretched("Key")
    assert len(stretched("ключ " * 100)) == 32


def test_contexts_never_meet() -> None:
    assert context("a", "b") != context("ab", "") != context("a", "b", "")
    assert context("batch", "k", 1, 11) != context("batch", "k", 11, 1)


def test_no_cipher_shows_a_key() -> None:
    assert repr(NEW) == "AesGcm(keys=2)"
    assert isinstance(NEW, AesGcm)


# ── notices, log entries, replies of scripts ────────────────────────────────────────────────────────────────


@given(batches, st.integers(1, 1 << 52), st.integers(1, 1 << 40), st.sampled_from([CLEAR, OLD]))
def test_a_published_batch_comes_back(batch: tuple[Frame, ...], number: int, index: int, cipher: Cipher) -> None:
    locked = cipher.lock(pack_frames(batch), batch_context(KEY, number, index))
    notice = read_notice(KEY, b"C %d %d\n%s" % (number, index, locked), cipher)
    assert (notice.kind, notice.number, notice.index, notice.frames) == (NoticeKind.APPENDED, number, index, batch)


@given(st.binary(max_size=50) | st.binary(max_size=20).map(b"C 1 1\n".__add__))
def test_any_notice(said: bytes) -> None:
    for read in (read_notice, read_entry):
        with contextlib.suppress(Unreadable):
            read(KEY, said, CLEAR)


@given(st.lists(st.binary(max_size=8) | st.integers(0, 9) | st.none(), max_size=8))
def test_any_reply_of_a_script(said: list[object]) -> None:
    op = Claim("n", "a", "f", 1, 1, 0, 1, 1, 0, 0)
    for words in (said, [b"answered", *said], [b"owned", *said], [b"faulted", *said], [b"done", *said]):
        with contextlib.suppress(Unreadable):
            reply(op, words)
