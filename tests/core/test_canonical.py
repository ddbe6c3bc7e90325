"""Canonical JSON: one text per value, whichever way it was written, held against a reader that shares no code with it."""

from __future__ import annotations

import random
import sys

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bodies.json_texts import MODELS, Model, Reader, Unreadable, canonical, written
from soloflight.core.canonical import read_json


def text_of(raw: bytes) -> str | None:
    """The canonical text of ``raw``, or None where it is refused."""
    read = read_json(raw)
    return None if read is None else read.text().decode()


def reference(raw: bytes) -> str | None:
    try:
        return canonical(Reader(raw).read())
    except Unreadable:
        return None


def is_quick(raw: bytes) -> bool:
    read = read_json(raw)
    return read is not None and read.exact is None


@given(MODELS, st.integers())
@settings(max_examples=500)
def test_however_it_is_written_the_text_is_the_same(model: Model, seed: int) -> None:
    assert text_of(written(model, random.Random(seed)).encode()) == canonical(model)


@given(MODELS)
@settings(max_examples=500)
def test_both_readings_agree_wherever_both_apply(model: Model) -> None:
    raw = canonical(model).encode()
    slow = raw + b" "  # white space at the end can not come back from a round trip
    assert not is_quick(slow)
    assert text_of(raw) == text_of(slow) == canonical(model)
    if is_quick(raw):
        quick, exact = read_json(raw), read_json(slow)
        assert quick is not None
        assert exact is not None
        assert repr(quick.value) == repr(exact.value)


FRAGMENTS = (
    *(b"{ } [ ] , : null true false nul NaN Infinity -Infinity 0 -0 1 1.0 1e0 1E5 1e5 01 +1 .5 1. 1e 0x1 -".split()),
    *(b'" "a" "a": "b": "" \\ \\/ \\u0000 \\ud83d\\ude00 \\ud83d \\ude00 \\u00e9 \\x "\\u" /'.split()),
    *(b"9007199254740993 18446744073709551615 18446744073709551616 -9223372036854775809 1e400 0.10 1e16 1e+16".split()),
    *("é e\u0301 😀 \u2028 \x7f \x00".encode().split()),
    *(b" ", b"\t", b"\n", b"\r", b"\x0b", b"\x1f", b"\xa0", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\xff", b"\xc3"),
)


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=12).map(b"".join))
@settings(max_examples=3000)
def test_debris_is_read_as_the_reference_reads_it(raw: bytes) -> None:
    assert text_of(raw) == reference(raw)


@given(MODELS, st.integers(), st.integers(0, 10_000), st.sampled_from(FRAGMENTS), st.booleans())
@settings(max_examples=1500)
def test_a_damaged_text_is_read_as_the_reference_reads_it(
    model: Model, seed: int, place: int, fragment: bytes, replace: bool
) -> None:
    raw = written(model, random.Random(seed)).encode()
    at = place % (len(raw) + 1)
    raw = raw[:at] + fragment + raw[at + replace :]
    assert text_of(raw) == reference(raw)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"-0", "-0"),
        (b"-0.0", "-0.0"),
        (b"1E5", "1E5"),
        (b"0.10", "0.10"),
        (b"1e0", "1e0"),
        (b"1e16", "1e16"),
        (b"1e+16", "1e+16"),
        (b"18446744073709551615", "18446744073709551615"),
        (b"18446744073709551616", "18446744073709551616"),
        (b"18446744073709551617", "18446744073709551617"),
        (b"-9223372036854775809", "-9223372036854775809"),
        (b"1.00000000000000000001", "1.00000000000000000001"),
        (b"1e400", "1e400"),
        (b"-1e400", "-1e400"),
        (b"9" * 5000, "9" * 5000),
        (b'"\\u0000"', '"\\u0000"'),
        (b'"\\u00e9"', '"é"'),
        (b'"\\/"', '"/"'),
        (b'"\\ud83d\\ude00"', '"😀"'),
        (b'"\x7f"', '"\x7f"'),
        (b" [ ] ", "[]"),
        (b'"x"', '"x"'),
        (b"null", "null"),
        ('{"\U00010000":1,"\ufffd":2}'.encode(), '{"\ufffd":2,"\U00010000":1}'),  # by code point, not by UTF-16 unit
    ],
)
def test_values_that_a_round_trip_could_lose(raw: bytes, text: str) -> None:
    assert text_of(raw) == text
    assert text_of(raw + b"\n") == text


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b" ",
        b"{bad1",
        b'{"a":1,"a":1}',
        b'{"a":1,"a":2}',
        b'{"x":{"a":1,"\\u0061":2}}',
        b'{"a":NaN}',
        b"[Infinity]",
        b"[-Infinity]",
        b'"\\ud800"',
        b'{"\\udc00":1}',
        b'"\xed\xa0\x80"',
        b"\xef\xbb\xbf{}",
        "{}".encode("utf-16"),
        "{}".encode("utf-32-le"),
        b"\xff",
        b'"\xc0\x80"',
        b"[1,]",
        b'{"a":1,}',
        b"01",
        b"+1",
        b"1.",
        b"'a'",
        b'"a\nb"',
        b"{} {}",
        b"{}\0",
        b"[" * 200_000,
        b"[" * 1024 + b"]" * 1024,
        b'{"a":' * 5000 + b"1" + b"}" * 5000,
        b"\xc2\xa0{}",
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(raw: bytes) -> None:
    assert read_json(raw) is None


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_depth_has_one_bound_for_both_readings(opening: str) -> None:
    closing = "]" if opening == "[" else "}"
    depths = [200, 250, 253, 254, 255, 256, 300, 990, 1024, 1100]
    read = [text_of((opening * n + "1" + closing * n).encode()) is not None for n in depths]
    slow = [text_of((opening * n + " 1" + closing * n).encode()) is not None for n in depths]
    assert read == slow
    assert read[0], "200 levels are canonical"
    assert not any(read[5:])


def test_a_stack_that_is_nearly_full_refuses_and_never_overflows() -> None:
    def descend(levels: int) -> str | None:
        return text_of(b"[ " * 250 + b"]" * 250) if levels == 0 else descend(levels - 1)

    whole = "[" * 250 + "]" * 250
    read = {descend(levels) for levels in (0, 300, sys.getrecursionlimit() - 250, sys.getrecursionlimit() - 150)}
    assert read <= {None, whole}
    assert text_of(b"[ " * 250 + b"]" * 250) == whole


@given(MODELS)
@example({"a": "9" * 400})
def test_value_holds_plain_numbers_only(model: Model) -> None:
    read = read_json((canonical(model) + " ").encode())
    assert read is not None
    kinds = set()

    def visit(value: object) -> None:
        kinds.add(type(value))
        for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            visit(inner)

    visit(read.value)
    assert kinds <= {dict, list, str, int, float, bool, type(None)}


@pytest.mark.parametrize("space", [b"", b" "])
def test_numbers_beyond_float_are_infinite_in_value_and_exact_in_text(space: bytes) -> None:
    read = read_json(b'{"n":2,"seed":1e400,"big":' + b"9" * 5000 + b"}" + space)
    assert read is not None
    assert read.value == {"n": 2, "seed": float("inf"), "big": float("inf")}
    assert read.text() == b'{"big":' + b"9" * 5000 + b',"n":2,"seed":1e400}'


@pytest.mark.parametrize("space", [b"", b" "])
@pytest.mark.parametrize(
    ("raw", "ignored", "text"),
    [
        (b'{"user":"u","a":1.0}', ["user"], b'{"a":1.0}'),
        (b'{"user":"u","a":1}', ["a", "user"], b"{}"),
        (b'{"m":{"t":1,"k":-0},"a":1}', ["m.t"], b'{"a":1,"m":{"k":-0}}'),
        (b'{"m":{"t":1},"a":1}', ["m.t"], b'{"a":1,"m":{}}'),
        (b'{"m":{"t":1}}', ["m", "m.t"], b"{}"),
        (b'{"m":{"t":1}}', ["m.x", "t", "m.t.y", "x.y"], b'{"m":{"t":1}}'),
        (b'{"m":[{"t":1}]}', ["m.t"], b'{"m":[{"t":1}]}'),
        (b'[{"user":1}]', ["user"], b'[{"user":1}]'),
        (b'{"":{"":1},"a":2}', ["."], b'{"":{},"a":2}'),
    ],
)
def test_ignored_members_are_left_out(raw: bytes, ignored: list[str], text: bytes, space: bytes) -> None:
    read = read_json(raw + space)
    assert read is not None
    before = orjson.dumps(read.value)
    assert read.text(ignored) == text
    assert orjson.dumps(read.value) == before, "what facts are read from is untouched"
    assert read.text() == read_json(raw).text()  # type: ignore[union-attr]
