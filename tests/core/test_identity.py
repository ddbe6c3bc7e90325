"""An answer as identity bytes: undone at any cut, checked at the end, and passed on as it came where it is no such coding."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soloflight.core.errors import Code, SoloflightError
from soloflight.core.frames import Head
from soloflight.core.identity import Identity

TEXT = b"data: hello\n\n" * 50
CODED = gzip.compress(TEXT)
KEPT = ((b"Content-Type", b"text/event-stream"), (b"X-A", b"1"))


def head(*codings: bytes, length: int | None = None) -> Head:
    fields = tuple((b"Content-Encoding", coding) for coding in codings)
    return Head(200, b"OK", (KEPT[0], *fields, KEPT[1]), length=length)


def read(identity: Identity, *pieces: bytes) -> bytes:
    """All that it gives out; every piece holds something."""
    out = [piece for data in pieces for piece in identity.feed(data)] + list(identity.finish())
    assert all(out)
    return b"".join(out)


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted(min(place, len(data)) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


@pytest.mark.parametrize("codings", [(), (b"identity",), (b"", b"Identity")])
def test_an_answer_without_coding_passes_as_it_is(codings: tuple[bytes, ...]) -> None:
    given_head = head(*codings, length=3)
    identity = Identity(given_head)
    assert read(identity, b"ab", b"", b"c") == b"abc"
    assert (identity.head, identity.unreadable) == (given_head, False)


@given(st.lists(st.integers(0, len(CODED)), max_size=5))
def test_a_coded_answer_is_undone_at_any_cut(places: list[int]) -> None:
    identity = Identity(head(b"GZip", length=len(CODED)))
    assert read(identity, *cut(CODED, places)) == TEXT
    assert (identity.head, identity.unreadable) == (Head(200, b"OK", KEPT), False)


def test_codings_of_several_fields_are_one_list() -> None:
    assert read(Identity(head(b"deflate", b"gzip")), gzip.compress(zlib.compress(TEXT))) == TEXT


def test_fields_that_speak_of_the_coded_bytes_go_with_the_coding() -> None:
    of_the_coded = tuple(
        (name, b"x")
        for name in (b"Content-Length", b"ETag", b"Content-MD5", b"Digest", b"Content-Digest", b"Repr-Digest")
    )
    coded = head(b"gzip")
    identity = Identity(replace(coded, fields=(*of_the_coded, *coded.fields), length=5))
    assert identity.head == Head(200, b"OK", KEPT)


def test_an_empty_answer_needs_no_coding() -> None:
    assert read(Identity(head(b"gzip"))) == b""


@pytest.mark.parametrize("coding", [b"aws-chunked", b"gzip, unheard-of", b"gzip," * 5])
def test_an_unknown_coding_is_passed_on_as_it_came(coding: bytes) -> None:
    given_head = head(coding, length=3)
    identity = Identity(given_head)
    assert read(identity, b"\x1f\x8b", b"x") == b"\x1f\x8bx"
    assert (identity.head, identity.unreadable) == (given_head, True)


@given(st.lists(st.integers(0, len(TEXT)), max_size=5))
def test_a_lie_is_passed_on_as_it_came_whole_and_in_order(places: list[int]) -> None:
    given_head = head(b"gzip", length=len(TEXT))
    identity = Identity(given_head)
    assert read(identity, *cut(TEXT, places)) == TEXT
    assert (identity.head, identity.unreadable) == (given_head, True)


def test_an_answer_that_ends_before_a_byte_of_it_could_be_read_is_passed_on_as_it_came() -> None:
    identity = Identity(head(b"gzip"))
    assert read(identity, CODED[:5], CODED[5:9]) == CODED[:9]
    assert identity.unreadable


def test_a_coding_that_breaks_behind_bytes_given_out_is_a_fault() -> None:
    identity = Identity(head(b"gzip"))
    given_out = b"".join(identity.feed(CODED[:-4]))
    assert given_out == TEXT
    with pytest.raises(SoloflightError) as caught:
        list(identity.feed(b"\0\0\0\0"))
    assert caught.value.fault.code is Code.UPSTREAM_INVALID
    assert not identity.unreadable


def test_a_coding_that_ends_too_early_behind_bytes_given_out_is_a_fault() -> None:
    identity = Identity(head(b"gzip"))
    assert b"".join(identity.feed(CODED[:-1])) == TEXT
    with pytest.raises(SoloflightError) as caught:
        list(identity.finish())
    assert caught.value.fault.code is Code.UPSTREAM_TRUNCATED


def test_what_is_held_back_until_the_coding_is_sure_has_a_bound() -> None:
    """A gzip head may hold a name without end: it is given up as a fault, not held for ever."""
    identity = Identity(head(b"gzip"))
    named = b"\x1f\x8b\x08\x08" + b"\0" * 6
    assert list(identity.feed(named + b"n" * (1 << 20))) == []
    with pytest.raises(SoloflightError):
        list(identity.finish())


def test_the_repr_tells_where_it_stands() -> None:
    assert repr(Identity(head())) == "Identity(None, unreadable=False)"
    assert repr(Identity(head(b"x"))) == "Identity(None, unreadable=True)"
