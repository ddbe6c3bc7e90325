"""The memo of read bodies: the same bytes under the same type, within its bounds."""

from __future__ import annotations

import json
import tracemalloc

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bodies.forms import field, file, form
from bodies.keys import BODY0
from soloflight.core.fingerprint import Kind, read_body
from soloflight.core.memo import ENTRY_COST, BodyMemo, Memo

JSON = b"application/json"


def test_a_repeated_body_is_the_same_document() -> None:
    memo = BodyMemo()
    first = memo.read(JSON, BODY0)
    assert memo.read(JSON, bytes(bytearray(BODY0))) is first
    assert first == read_body(JSON, BODY0)
    assert (len(memo), memo.hits) == (1, 1)


def test_the_type_counts_and_nothing_moves_between_type_and_body() -> None:
    memo = BodyMemo()
    pairs = [
        (None, BODY0),
        (b"", BODY0),
        (JSON, BODY0),
        (b"text/plain", BODY0),
        (b"a", b"bc"),
        (b"ab", b"c"),
        (None, b""),
    ]
    documents = [memo.read(type_field, body) for type_field, body in pairs]
    assert len(set(map(id, documents))) == len(pairs)
    assert documents == [read_body(type_field, body) for type_field, body in pairs]
    assert memo.hits == 0


def test_digests_are_kept_by_ignored_fields() -> None:
    document = BodyMemo().read(JSON, b'{"user":"u","a":1.50}')
    plain, less = document.digest(), document.digest(("user",))
    assert document.digest() is plain
    assert document.digest(("user",)) is less != plain
    assert less == read_body(JSON, b'{"user":"v", "a":1.50}').digest(("user",))


def test_the_least_recently_used_goes_first() -> None:
    memo = BodyMemo(max_entries=2)
    one, _two = memo.read(None, b"1"), memo.read(None, b"2")
    assert memo.read(None, b"1") is one
    memo.read(None, b"3")
    assert memo.read(None, b"1") is one, "2 was the one to go"
    assert len(memo) == 2
    hits = memo.hits
    memo.read(None, b"2")
    assert memo.hits == hits


@pytest.mark.parametrize("bounds", [{"max_entries": 0}, {"max_bytes": ENTRY_COST - 1}])
def test_a_memo_without_room_still_reads(bounds: dict[str, int]) -> None:
    memo = BodyMemo(**bounds)
    assert memo.read(JSON, BODY0) == memo.read(JSON, BODY0)
    assert (len(memo), memo.size, memo.hits) == (0, 0, 0)


@given(
    st.lists(
        st.tuples(st.sampled_from([JSON, None, b"text/plain"]), st.binary(max_size=3) | st.just(BODY0)), max_size=40
    )
)
@settings(max_examples=50)
def test_its_books_balance(reads: list[tuple[bytes | None, bytes]]) -> None:
    memo = BodyMemo(max_entries=5, max_bytes=4 * ENTRY_COST)
    for type_field, body in reads:
        assert memo.read(type_field, body) == read_body(type_field, body)
        assert len(memo) <= 5
        assert memo.size <= 4 * ENTRY_COST
        assert (memo.size == 0) == (len(memo) == 0)
        assert memo.size >= len(memo) * ENTRY_COST


VALUES = {
    "text": {"messages": [{"role": "user", "content": "hello " * 20}] * 300},
    "numbers": {"input": list(range(30_000)), "x": [i / 7 for i in range(10_000)]},
    "emoji": {"x": "a" * 100_000 + "😀"},
    "latin": {"x": ["é" * 1000] * 100},
    "empty lists": {"x": [[[] for _ in range(10)] for _ in range(2000)]},
    "empty objects": {"x": [{"a": {}} for _ in range(10_000)]},
    "names": [{str(i): {}} for i in range(10_000)],
    "short strings": {"x": [f"a{i % 100}" for i in range(20_000)]},
}


@pytest.mark.parametrize("quick", [True, False], ids=["compact", "spaced"])
@pytest.mark.parametrize("value", VALUES.values(), ids=list(VALUES))
def test_what_an_entry_holds_is_charged(value: object, quick: bool) -> None:
    held_and_charged(JSON, orjson.dumps(value) if quick else json.dumps(value).encode())


@pytest.mark.parametrize("count", [1, 1000])
def test_what_a_form_holds_is_charged(count: int) -> None:
    parts = [field(f"name{n}", "é" * 20) for n in range(count)] + [file("file", "f.wav", b"\0" * 1_000_000)]
    memo = held_and_charged(b"multipart/form-data; boundary=b", form(b"b", *parts))
    assert memo.read(b"multipart/form-data; boundary=b", form(b"b", *parts)).kind is Kind.MULTIPART
    if count == 1:
        assert memo.size < 10_000, "an upload's content is not held"


def test_what_is_keyed_on_its_bytes_costs_one_entry() -> None:
    assert held_and_charged(b"audio/wav", b"\0" * 1_000_000).size == ENTRY_COST


def held_and_charged(type_field: bytes, body: bytes) -> BodyMemo:
    memo = BodyMemo(max_bytes=1 << 40)
    BodyMemo().read(type_field, body).digest()  # what is made once per process is not the memo's
    tracemalloc.start()
    try:
        memo.read(type_field, body).digest()
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held <= memo.size
    return memo


def test_it_says_what_it_holds() -> None:
    memo = BodyMemo(max_entries=3, max_bytes=10_000)
    memo.read(None, b"x")
    memo.read(None, b"x")
    assert repr(memo) == "BodyMemo(1/3 bodies, 1000/10000 bytes, 1 hits)"


def test_verdicts_are_kept_until_newer_ones_need_the_room() -> None:
    memo: Memo[str, int] = Memo(2)
    for key, value in (("a", 1), ("b", 2), ("c", 3)):
        memo.put(key, value)
    assert (memo.get("a"), memo.get("b"), memo.get("c")) == (None, 2, 3)
    assert repr(memo) == "Memo(2/2)"
