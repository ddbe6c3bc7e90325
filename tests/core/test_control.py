"""What clients ask of the proxy: every spelling, and every field that must not get through."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soloflight.core.control import MAX_AGE_S, MAX_ID, NONE_FRESH, Control, read_control
from soloflight.core.errors import Code, SoloflightError
from soloflight.core.request import Request

STAGE, SESSION, KEY = b"X-Soloflight-Stage", b"x-SOLOFLIGHT-session", b"Idempotency-Key"
NO_CACHE = Control(fresh_s=NONE_FRESH)


def asked(*fields: tuple[bytes, bytes]) -> Control:
    return read_control(Request("POST", "/v1/chat/completions", fields))


def cache_control(*values: bytes) -> Control:
    return asked(*((b"Cache-Control", value) for value in values))


def refused(*fields: tuple[bytes, bytes]) -> str:
    with pytest.raises(SoloflightError) as caught:
        asked(*fields)
    assert caught.value.fault.code is Code.BAD_REQUEST
    return caught.value.fault.message


def test_a_request_without_wishes_has_none() -> None:
    assert asked((b"Authorization", b"Bearer K"), (b"X-Soloflight-Other", b"1")) == Control()


def test_names_are_read_in_any_case_and_values_without_outer_space() -> None:
    control = asked((STAGE, b" evaluation\t"), (SESSION, b"s 1"), (KEY, b"\xc3\xa9"))
    assert control == Control(stage="evaluation", session=b"s 1", idempotency_key=b"\xc3\xa9")


def test_a_stage_that_is_not_ascii_is_a_name_that_no_stage_has() -> None:
    assert asked((STAGE, b"\xff")).stage == "�"


@pytest.mark.parametrize(("name", "limit"), [(STAGE, 64), (SESSION, MAX_ID), (KEY, MAX_ID)])
def test_a_control_field_is_given_once_and_neither_empty_nor_over_long(name: bytes, limit: int) -> None:
    asked((name, b"x" * limit))
    secret = b"sk-secret"
    for fields in (
        [(name, b"x" * (limit + 1))],
        [(name, b"")],
        [(name, b" \t ")],
        [(name, secret), (name.upper(), secret)],
    ):
        message = refused(*fields)
        assert message == f"{name.decode().title()} must be given once, with 1 to {limit} bytes"


@pytest.mark.parametrize(
    ("values", "control"),
    [
        ([b"no-store"], Control(no_store=True)),
        ([b"No-Store"], Control(no_store=True)),
        ([b"no-cache"], NO_CACHE),
        ([b"max-age=0"], NO_CACHE),
        ([b"max-age=00"], NO_CACHE),
        ([b"max-age=5"], Control(fresh_s=5.0)),
        ([b"MAX-AGE = 5"], Control(fresh_s=5.0)),
        ([b'max-age="5"'], Control(fresh_s=5.0)),
        ([b"max-age=0000000000000005"], Control(fresh_s=5.0)),
        ([b"max-age=" + b"9" * 400], Control(fresh_s=MAX_AGE_S)),
        ([b"max-age=9, max-age=5"], Control(fresh_s=5.0)),
        ([b"max-age=5", b"max-age=9"], Control(fresh_s=5.0)),
        ([b"max-age=5, no-cache"], NO_CACHE),
        ([b"no-cache, max-age=5"], NO_CACHE),
        ([b"only-if-cached"], Control(only_if_cached=True)),
        ([b"only-if-cached", b"max-age=5"], Control(only_if_cached=True, fresh_s=5.0)),
        ([b" ,, no-store ,, max-age=1,"], Control(no_store=True, fresh_s=1.0)),
        ([b""], Control()),
        ([b"no-transform, min-fresh=3, max-stale, private, no-storeX, xno-store"], Control()),
    ],
)
def test_cache_control(values: list[bytes], control: Control) -> None:
    assert cache_control(*values) == control


@pytest.mark.parametrize("argument", [b"", b"=", b"=x", b"=-1", b"=1.5", b"=+1", b"=1 2", b"=\xb2"])
def test_a_max_age_that_is_no_number_is_refused(argument: bytes) -> None:
    assert refused((b"cache-control", b"max-age" + argument)) == (
        "Cache-Control: max-age must be a whole number of seconds"
    )


@pytest.mark.parametrize(
    ("count", "retry"),
    [
        (b"0", False),
        (b"00", False),
        (b"1", True),
        (b"2", True),
        (b"00000000000001", True),
        (b"", False),
        (b"-1", False),
        (b"1.0", False),
        (b"true", False),
    ],
)
def test_a_retry_is_what_an_sdk_counts_as_one(count: bytes, retry: bool) -> None:
    assert asked((b"X-Stainless-Retry-Count", count)).retry is retry


@given(
    st.lists(st.tuples(st.sampled_from([STAGE, SESSION, KEY, b"Cache-Control"]), st.binary(max_size=80)), max_size=4)
)
def test_any_bytes_are_wishes_or_a_refusal(fields: list[tuple[bytes, bytes]]) -> None:
    try:
        control = asked(*fields)
    except SoloflightError as error:
        refusal: Code | None = error.fault.code
    else:
        refusal = None
        assert control.fresh_s is None or control.fresh_s == NONE_FRESH or 0 < control.fresh_s <= MAX_AGE_S
    assert refusal in (None, Code.BAD_REQUEST)
