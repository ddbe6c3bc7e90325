"""Which trace and span a flight's call is: computed from what every node knows of it, so that no node has to tell another.

Ids are the first bytes of SHA-256 over a label and the parts, each ended by a NUL (no part can hold one). A flight's id has
80 random bits, so that what is derived from it is as spread as chance, and samplers may cut by it.
"""

from __future__ import annotations

from hashlib import sha256


def trace_id(flight: str) -> int:
    """128 bits: the trace of a flight whose owner came without one."""
    return _derived(16, "trace", flight)


def call_id(flight: str, attempt: int) -> int:
    """64 bits: the span of one attempt's upstream call."""
    return _derived(8, "call", flight, str(attempt))


def owner_id(flight: str, process: str) -> int:
    """64 bits: the span of the request for which this process owned the flight. ``process``: a word of its own."""
    return _derived(8, "owner", flight, process)


def _derived(size: int, *parts: str) -> int:
    digest = sha256("".join(f"{part}\0" for part in parts).encode()).digest()
    return int.from_bytes(digest[:size], "big") or 1  # all zero is no id (W3C Trace Context, section 3.2.2.3)
