"""Durations and sizes: what a person may write, the number it means, and how it is written back.

Durations are seconds (float), sizes bytes (int). Nothing here knows which setting it reads.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction

__all__ = ["format_duration", "format_size", "parse_duration", "parse_size"]

# Exact fractions: "9ms" is the float nearest to 0.009, not 9 * 0.001.
SECONDS = {
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "m": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86400),
}
BYTES = {
    "b": Fraction(1),
    "kb": Fraction(10**3),
    "mb": Fraction(10**6),
    "gb": Fraction(10**9),
    "tb": Fraction(10**12),
    "kib": Fraction(1 << 10),
    "mib": Fraction(1 << 20),
    "gib": Fraction(1 << 30),
    "tib": Fraction(1 << 40),
}
LONGEST_S = 3650 * 86400  # far over any use; below it timers and the lives of Redis keys stay in range
LARGEST = 1 << 50

_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.ASCII)


def parse_duration(value: object) -> float:
    """Seconds from a number of seconds, or text like ``"250ms"``, ``"65s"``, ``"10m"``, ``"1h"``, ``"1d"``.

    Raises ValueError for anything else: negative, not finite, over ten years, an unknown unit.
    """
    seconds = _quantity(value, SECONDS, "s")
    if seconds > LONGEST_S:
        raise ValueError("too long")
    return float(seconds)


def parse_size(value: object) -> int:
    """Bytes from a whole number of bytes, or text like ``"8MiB"``, ``"64KB"``; KB is 1000 bytes, KiB is 1024.

    Raises ValueError for anything else: negative, a fraction of a byte, over 1 PiB, an unknown unit.
    """
    size = _quantity(value, BYTES, "b")
    if size > LARGEST or size.denominator != 1:
        raise ValueError("not a number of bytes")
    return int(size)


def format_duration(seconds: float) -> str:
    """Short text that ``parse_duration`` reads back as exactly ``seconds``."""
    for unit in ("d", "h", "m"):
        if seconds and seconds % SECONDS[unit] == 0 and seconds != SECONDS["m"]:
            return f"{int(seconds / SECONDS[unit])}{unit}"
    if 0 < seconds < 1 and parse_duration(text := f"{round(seconds * 1000)}ms") == seconds:
        return text
    plain = format(Decimal(repr(seconds)), "f")
    return f"{plain.rstrip('0').rstrip('.') if '.' in plain else plain}s"


def format_size(size: int) -> str:
    """Short text that ``parse_size`` reads back as exactly ``size``."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size and size % BYTES[unit.lower()] == 0:
            return f"{int(size / BYTES[unit.lower()])}{unit}"
    return f"{size}B"


def _quantity(value: object, units: Mapping[str, Fraction], default_unit: str) -> Fraction:
    """``value`` in the unit of factor 1, exact and not negative."""
    if isinstance(value, str):
        found = _QUANTITY.fullmatch(value.strip().lower())
        if found is None or (found[2] or default_unit) not in units:
            raise ValueError("not a number with a known unit")
        return Fraction(found[1]) * units[found[2] or default_unit]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ValueError("not a finite number from 0 up")
    return Fraction(value)
