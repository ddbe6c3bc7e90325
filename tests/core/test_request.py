"""A request is a value over raw bytes: names in any case, order and repetition kept."""

from __future__ import annotations

import pytest

from soloflight.core.request import Request

FIELDS = ((b"X-Multi", b"1"), (b"Host", b"a"), (b"x-multi", b"\xff"))


def test_fields_are_found_in_any_case_and_in_order() -> None:
    request = Request("GET", "/", FIELDS)
    assert (request.get(b"x-multi"), request.all(b"x-multi")) == (b"1", [b"1", b"\xff"])
    assert (request.get(b"x-none"), request.all(b"x-none")) == (None, [])


@pytest.mark.parametrize(
    ("target", "path"),
    [("/v1/models", "/v1/models"), ("/a?b=c", "/a"), ("/a?b?c", "/a"), ("/%3F?x", "/%3F"), ("/?", "/"), ("//a", "//a")],
)
def test_the_path_is_raw_and_ends_at_the_first_question_mark(target: str, path: str) -> None:
    assert Request("GET", target, ()).path == path


def test_equal_requests_are_one_key() -> None:
    assert {Request("GET", "/", FIELDS): 1}[Request("GET", "/", tuple(FIELDS))] == 1
    assert Request("GET", "/", FIELDS) != Request("GET", "/", FIELDS, trusted=True)
    assert Request("GET", "/", FIELDS) != Request("GET", "/", FIELDS, peer="10.0.0.1")
