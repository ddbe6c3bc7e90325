"""What a client asks of the proxy: ``X-Soloflight-*``, ``Idempotency-Key``, the request's ``Cache-Control`` (contract section 4).

Pure parsing; a malformed field is a ``bad_request`` before anything reaches the upstream. Values are never echoed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from soloflight.core.errors import Code, fail
from soloflight.core.request import Request

MAX_ID = 512
NONE_FRESH = -1.0
"""``fresh_s`` of a request that accepts no finished answer."""
MAX_AGE_S = 2.0**31
"""More than this is this much (RFC 9111 section 1.2.2)."""


@dataclass(frozen=True, slots=True)
class Control:
    """A request's wishes. ``fresh_s``: accept an answer at most this old; None any; NONE_FRESH none."""

    stage: str | None = None
    session: bytes | None = None
    idempotency_key: bytes | None = None
    no_store: bool = False
    fresh_s: float | None = None
    only_if_cached: bool = False
    retry: bool = False


def read_control(request: Request) -> Control:
    """Read the control fields of ``request``. Raises ``bad_request``."""
    no_store, fresh_s, only_if_cached = _cache_control(request)
    stage = _single(request, b"x-soloflight-stage", 64)
    retries = request.get(b"x-stainless-retry-count") or b"0"
    return Control(
        stage=stage.decode("ascii", "replace") if stage is not None else None,
        session=_single(request, b"x-soloflight-session", MAX_ID),
        idempotency_key=_single(request, b"idempotency-key", MAX_ID),
        no_store=no_store,
        fresh_s=fresh_s,
        only_if_cached=only_if_cached,
        retry=retries.isdigit() and bool(retries.strip(b"0")),
    )


def _single(request: Request, name: bytes, limit: int) -> bytes | None:
    """The one value of a control field: not repeated, not empty, not over-long."""
    values = request.all(name)
    if not values:
        return None
    value = values[0].strip()
    if len(values) > 1 or not value or len(value) > limit:
        label = name.decode().title()
        raise fail(Code.BAD_REQUEST, f"{label} must be given once, with 1 to {limit} bytes")
    return value


def _cache_control(request: Request) -> tuple[bool, float | None, bool]:
    """(no-store, fresh_s, only-if-cached) from all ``Cache-Control`` fields, any case and spacing (RFC 9111 section 5.2.1)."""
    no_store, only_if_cached, fresh_s = False, False, None
    for name, argument in _directives(request):
        if name == b"no-store":
            no_store = True
        elif name == b"no-cache":
            fresh_s = NONE_FRESH
        elif name == b"only-if-cached":
            only_if_cached = True
        elif name == b"max-age":
            if not argument.isdigit():
                raise fail(Code.BAD_REQUEST, "Cache-Control: max-age must be a whole number of seconds")
            age = min(float(argument), MAX_AGE_S)
            limit = age if age else NONE_FRESH
            fresh_s = limit if fresh_s is None else min(fresh_s, limit)
    return no_store, fresh_s, only_if_cached


def _directives(request: Request) -> Iterator[tuple[bytes, bytes]]:
    for value in request.all(b"cache-control"):
        for directive in value.split(b","):
            name, _, argument = directive.partition(b"=")
            yield name.strip().lower(), argument.strip().strip(b'"')
