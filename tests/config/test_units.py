"""Durations and sizes: what is read, what is refused, and that what is written back is read as the same number."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soloflight.config.units import LARGEST, LONGEST_S, format_duration, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (0, 0.0),
        (65, 65.0),
        (0.25, 0.25),
        ("250ms", 0.25),
        ("9ms", 0.009),
        ("65s", 65.0),
        ("1.5s", 1.5),
        ("10m", 600.0),
        ("1h", 3600.0),
        ("1d", 86400.0),
        ("30", 30.0),
        (" 5 s ", 5.0),
        ("5S", 5.0),
        (LONGEST_S, float(LONGEST_S)),
    ],
)
def test_a_duration_is_read(written: object, seconds: float) -> None:
    assert parse_duration(written) == seconds


@pytest.mark.parametrize(
    "written",
    [
        -1,
        -0.001,
        math.nan,
        math.inf,
        True,
        None,
        [],
        "",
        "s",
        "-5s",
        "5 weeks",
        "1e3s",
        "5s5s",
        "٥s",
        "nan",
        LONGEST_S + 1,
    ],
)
def test_a_duration_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match=r"too long|number"):
        parse_duration(written)


@pytest.mark.parametrize(
    ("written", "size"),
    [
        (0, 0),
        (1024, 1024),
        (2.0, 2),
        ("8MiB", 8 << 20),
        ("1GiB", 1 << 30),
        ("64KB", 64_000),
        ("64kib", 64 << 10),
        ("1.5 MiB", 3 << 19),
        ("2TB", 2 * 10**12),
        ("7B", 7),
        ("512", 512),
    ],
)
def test_a_size_is_read(written: object, size: int) -> None:
    assert parse_size(written) == size


@pytest.mark.parametrize("written", [-1, 0.5, "0.5B", math.nan, False, None, "8 potatoes", "8M", "MiB", LARGEST + 1])
def test_a_size_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match="number"):
        parse_size(written)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0s"),
        (0.25, "250ms"),
        (1.0, "1s"),
        (1.5, "1.5s"),
        (60.0, "60s"),
        (65.0, "65s"),
        (120.0, "2m"),
        (3600.0, "1h"),
        (86400.0, "1d"),
        (1e-07, "0.0000001s"),
    ],
)
def test_a_duration_is_written_as_people_write_it(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0B"), (1000, "1000B"), (1 << 20, "1MiB"), (3 << 29, "1536MiB"), (1 << 40, "1TiB")]
)
def test_a_size_is_written_as_people_write_it(size: int, text: str) -> None:
    assert format_size(size) == text


@given(st.floats(min_value=0, max_value=LONGEST_S))
def test_a_written_duration_is_read_back_exactly(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


@given(st.integers(min_value=0, max_value=LARGEST))
def test_a_written_size_is_read_back_exactly(size: int) -> None:
    assert parse_size(format_size(size)) == size


@given(st.text() | st.floats() | st.integers() | st.booleans() | st.none())
def test_anything_else_is_a_value_error(value: object) -> None:
    for parse, most in ((parse_duration, LONGEST_S), (parse_size, LARGEST)):
        try:
            number = parse(value)
        except ValueError:
            continue
        assert 0 <= number <= most
