"""What a scripted upstream does with one request, as data: steps, and builders of common answers. No IO here.

A script is an iterable (or async iterable, or generator) of steps, played in order::

    [head(200, "Content-Type: text/event-stream", "Transfer-Encoding: chunked"),
     chunk(CH), 0.02, chunk(FIN), an_asyncio_event, chunk(DONE), LAST_CHUNK]

``bytes`` are written as they are, a number is a pause in seconds, an ``asyncio.Event`` is waited for, and the
rest are the names below. A script that ends without an ``Ending`` leaves the connection open for the next
request. Whoever writes the script writes the framing too: nothing is added, nothing is corrected.
"""

from __future__ import annotations

import asyncio
import json as json_text
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from soloflight.testing.exchange import Exchange
    from soloflight.testing.received import Received


class Ending(Enum):
    """How a script leaves the connection, when not open for the next request."""

    CLOSE = "close"  # FIN
    RESET = "reset"  # RST; throws away what the peer has not read yet: pause before it
    HANG = "hang"  # neither write nor close until the client leaves


CLOSE, RESET, HANG = Ending.CLOSE, Ending.RESET, Ending.HANG


@dataclass(frozen=True, slots=True)
class ReadBody:
    """Read the request's body, up to ``size`` further bytes (None: to its end).

    Of use with ``ScriptedUpstream(read_first=False)``; otherwise the body is there before the script starts.
    """

    size: int | None = None


Step: TypeAlias = "bytes | float | asyncio.Event | ReadBody | Ending | Callable[[Exchange], Awaitable[None]]"
Script: TypeAlias = "bytes | Iterable[Step] | AsyncIterable[Step]"
Answer: TypeAlias = "Script | Callable[[Received], Script]"

LAST_CHUNK = b"0\r\n\r\n"


def head(status: int, *fields: str | bytes, reason: str | None = None, version: str = "HTTP/1.1") -> bytes:
    """Status line and fields (``"Name: value"``, text as latin-1), with the blank line."""
    words = HTTPStatus(status).phrase if reason is None else reason
    lines = [f"{version} {status} {words}".encode("latin-1")]
    lines += [field.encode("latin-1") if isinstance(field, str) else field for field in fields]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """``data`` as one chunk of the chunked transfer coding (RFC 9112 section 7.1)."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def raw(data: bytes, *fields: str | bytes, status: int = 200, type: str = "application/octet-stream") -> bytes:
    """A whole answer with ``Content-Length``; ``fields`` come after Content-Type and Content-Length."""
    return head(status, f"Content-Type: {type}", f"Content-Length: {len(data)}", *fields) + data


def json(value: Any, *fields: str | bytes, status: int = 200) -> bytes:
    """A whole JSON answer with ``Content-Length``."""
    return raw(json_text.dumps(value).encode(), *fields, status=status, type="application/json")


def chunked(
    *steps: Step,
    fields: Iterable[str | bytes] = (),
    status: int = 200,
    type: str = "application/octet-stream",
    last: bool = True,
) -> list[Step]:
    """A chunked answer: each ``bytes`` step goes out as one chunk; other steps are played between them.

    Without ``last`` the final zero chunk is missing; follow up with ``CLOSE`` or ``RESET`` for a cut answer.
    """
    opening = head(status, f"Content-Type: {type}", "Transfer-Encoding: chunked", *fields)
    framed: list[Step] = [chunk(step) if isinstance(step, bytes) else step for step in steps]
    ending = [step for step in framed if isinstance(step, Ending)]
    framed = [step for step in framed if not isinstance(step, Ending)]
    return [opening, *framed, *([LAST_CHUNK] if last else []), *ending]


def sse(*steps: Step, fields: Iterable[str | bytes] = (), status: int = 200, last: bool = True) -> list[Step]:
    """An event stream, chunked: each ``bytes`` step is one network chunk (not by need one event)."""
    return chunked(*steps, fields=fields, status=status, type="text/event-stream", last=last)
