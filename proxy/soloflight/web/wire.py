"""Bytes of answers: heads, framing, errors. No connection is written here; of the world it takes only the time of day."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus

import orjson

from soloflight.core.errors import Code, Fault
from soloflight.core.fields import BODYLESS, shared_fields
from soloflight.core.frames import Field, Head
from soloflight.ports import Role

CHUNK_END = b"0\r\n\r\n"
RETRY_AFTER_S = 1


@dataclass(frozen=True, slots=True)
class Client:
    """What of the request decides the framing of its answer."""

    method: str
    http11: bool
    keep_alive: bool

    def when(self, *, leaving: bool) -> Client:
        """The same, but told to close where the process is ``leaving``."""
        return replace(self, keep_alive=False) if leaving and self.keep_alive else self


@dataclass(frozen=True, slots=True)
class Framing:
    """How a body is written: ``chunked``, with a length (``length``), to the close, or not at all (``empty``)."""

    chunked: bool = False
    length: int | None = None
    empty: bool = False

    @property
    def until_close(self) -> bool:
        """Only the close of the connection ends the body."""
        return not self.chunked and not self.empty and self.length is None

    def body(self, data: bytes) -> bytes:
        """``data`` as it is written."""
        return b"%x\r\n%b\r\n" % (len(data), data) if self.chunked else data

    def end(self) -> bytes:
        """What ends a whole body."""
        return CHUNK_END if self.chunked else b""


def framing(head: Head, client: Client, *, known_size: int | None = None) -> Framing:
    """Framing of an answer to ``client`` (RFC 9112 section 6.3). ``known_size``: the whole body is there already.

    A body that only the close ended upstream is passed on the same way, so that a cut stays a cut; a replay of one knows its size.
    """
    if client.method == "HEAD" or head.status in BODYLESS or head.status < 200:
        return Framing(empty=True)
    if head.length is not None:
        return Framing(length=head.length)
    if not head.delimited:
        return Framing(length=known_size)
    return Framing(chunked=client.http11, length=None if client.http11 else known_size)


def head_bytes(head: Head, fields: Iterable[Field], frame: Framing, client: Client, own: Sequence[Field]) -> bytes:
    """Status line and fields; ``fields`` are the upstream's for this listener, ``own`` ours."""
    lines = [b"HTTP/1.1 %d %b" % (head.status, head.reason)]
    drop_length = (frame.chunked or frame.until_close or head.status == 204 or head.status < 200) and not frame.empty
    drop_length = drop_length or head.status == 204
    for name, value in fields:
        if drop_length and name.lower() == b"content-length":
            continue
        lines.append(name + b": " + value)
    if frame.chunked:
        lines.append(b"Transfer-Encoding: chunked")
    elif frame.length is not None and head.length is None:
        lines.append(b"Content-Length: %d" % frame.length)
    lines += [name + b": " + value for name, value in own]
    if frame.until_close or not client.keep_alive:
        lines.append(b"Connection: close")
    elif not client.http11:
        lines.append(b"Connection: keep-alive")
    lines.append(b"\r\n")
    return b"\r\n".join(lines)


@dataclass(frozen=True, slots=True)
class Marks:
    """What the proxy says of an answer in its own fields (contract section 5)."""

    role: Role
    request_id: str
    flight: str = ""
    reason: str = ""
    age_s: float = 0.0
    ttl_s: float = 0.0
    refresh: bool = False

    def cache_status(self) -> bytes:
        """This hop's Cache-Status member (RFC 9211)."""
        if self.role is Role.OWNER:
            return b"soloflight; fwd=request" if self.refresh else b"soloflight; fwd=miss"
        if self.role is Role.FOLLOWER:
            return b"soloflight; fwd=miss; collapsed"
        if self.role is Role.REPLAY:
            return b"soloflight; hit; ttl=%d" % int(self.ttl_s)
        if self.reason == "method":
            return b"soloflight; fwd=method"
        return b"soloflight; fwd=bypass; detail=" + self.reason.encode()


def marked(head: Head, marks: Marks) -> tuple[list[Field], list[Field]]:
    """(the upstream's fields for this listener, our own fields). An answer that came without ``Date`` gets the one it came at."""
    fields = shared_fields(head, owner=marks.role in (Role.OWNER, Role.BYPASS), replay=marks.role is Role.REPLAY)
    streamed = is_event_stream(head)
    status = marks.cache_status()
    kept: list[Field] = []
    dated = False
    for name, value in fields:
        lower = name.lower()
        dated = dated or lower == b"date"
        if lower == b"cache-status":
            status = value + b", " + status
        elif (
            lower.startswith(b"x-soloflight-")
            or (lower == b"age" and marks.role is Role.REPLAY)
            or (streamed and lower == b"x-accel-buffering" and marks.role is not Role.BYPASS)
        ):
            continue
        else:
            kept.append((name, value))
    own: list[Field] = [
        (b"Cache-Status", status),
        (b"X-Soloflight-Role", marks.role.value.encode()),
        (b"X-Soloflight-Request-Id", marks.request_id.encode()),
    ]
    if marks.flight:
        own.append((b"X-Soloflight-Flight", marks.flight.encode()))
    if marks.role is Role.REPLAY:
        own.append((b"Age", b"%d" % int(marks.age_s)))
    if streamed and marks.role is not Role.BYPASS:
        own.append((b"X-Accel-Buffering", b"no"))
    if not dated:  # RFC 9110 section 6.6.1
        own.append((b"Date", http_date(time.time() - marks.age_s)))
    return kept, own


def http_date(at_s: float) -> bytes:
    """A time (seconds since the epoch) as the value of ``Date``."""
    return _date(int(at_s))


@lru_cache(maxsize=64)
def _date(second: int) -> bytes:
    return formatdate(second, usegmt=True).encode()


def is_event_stream(head: Head) -> bool:
    """Whether the answer's type is ``text/event-stream``."""
    value = head.get(b"content-type")
    return value is not None and value.partition(b";")[0].strip().lower() == b"text/event-stream"


def error_answer(fault: Fault, request_id: str, *, keep_alive: bool, flight: str = "", empty: bool = False) -> bytes:
    """A whole answer for a fault, OpenAI-shaped so that SDKs raise the right class (contract section 5).

    ``empty``: the request was HEAD. A 503 always says when to come again.
    """
    code = fault.code
    retry_after_s = RETRY_AFTER_S if fault.retry_after_s is None and code.status == 503 else fault.retry_after_s
    body = error_body(fault)
    lines = [
        f"HTTP/1.1 {code.status} {HTTPStatus(code.status).phrase}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        f"Date: {http_date(time.time()).decode()}",
        f'Proxy-Status: soloflight; error={code.proxy_status}; details="{code.code}"',
        "Cache-Control: no-store",
    ]
    if code is Code.UNAUTHORIZED:
        lines.append('WWW-Authenticate: Bearer realm="soloflight"')
    if request_id:
        lines.append(f"X-Soloflight-Request-Id: {request_id}")
    if flight:
        lines.append(f"X-Soloflight-Flight: {flight}")
    if retry_after_s is not None:
        lines.append(f"Retry-After: {retry_after_s}")
    if code.should_retry is not None:
        lines.append(f"x-should-retry: {'true' if code.should_retry else 'false'}")
    if not keep_alive:
        lines.append("Connection: close")
    head = "\r\n".join([*lines, "\r\n"]).encode("latin-1")
    return head if empty else head + body


def error_body(fault: Fault) -> bytes:
    """The JSON form of a fault."""
    return orjson.dumps(
        {"error": {"message": fault.message, "type": "soloflight_error", "code": fault.code.code, "param": None}}
    )


_EVENT_ENDS = (b"\n\n", b"\r\r", b"\n\r\n", b"\r\r\n", b"\n\r")


def between_events(tail: bytes) -> bool:
    """Whether an event stream whose last bytes are ``tail`` stands at an event boundary (WHATWG HTML section 9.2)."""
    return tail.endswith(_EVENT_ENDS)
