"""Reading a client's request: its head as a value, its body within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import cast

from aiohttp import ClientError
from aiohttp.http import HttpProcessingError
from aiohttp.web_protocol import RequestPayloadError
from aiohttp.web_request import BaseRequest

from soloflight.core.errors import Code, fail
from soloflight.core.request import Request
from soloflight.web.connection import ClientGone, Connection
from soloflight.web.wire import Client

# aiohttp's parsers also take HTTP/0.9 (a request line that a bare LF ends) and HTTP/2.0 in HTTP/1's form.
VERSIONS = ((1, 1), (1, 0))
# CONNECT would make a tunnel of the upstream's connection; TRACE would show the client what the operator's fields hold.
UNSERVED = frozenset({"CONNECT", "TRACE"})
READY_LIMIT = 64 * 1024
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def connection_of(raw: BaseRequest) -> Connection:
    """The connection a request came on."""
    return cast(Connection, raw.protocol)


def read_request(raw: BaseRequest) -> Request:
    """The request as a value. Raises ``bad_request`` for a target that is not a path (contract section 1)."""
    if raw.version not in VERSIONS:
        raise fail(Code.BAD_REQUEST, "HTTP/1.1 and HTTP/1.0 are spoken here")
    if raw.method in UNSERVED:
        raise fail(Code.BAD_REQUEST, "this method is not passed on")
    connection = connection_of(raw)
    return Request(
        method=raw.method,
        target=read_target(raw._message.path),
        fields=raw.raw_headers,
        peer=connection.peer,
        trusted=connection.trusted_peer,
    )


def read_target(target: str) -> str:
    """Origin-form of a request target; an absolute form counts by its path alone (RFC 9112 section 3.2)."""
    if not target.startswith("/"):
        scheme, found, rest = target.partition("://")
        if not found or scheme.lower() not in ("http", "https"):
            raise fail(Code.BAD_REQUEST, "the request target must be a path")
        cut = min((rest.find(mark) for mark in "/?#" if mark in rest), default=len(rest))
        target = rest[cut:]
        if not target.startswith("/"):
            target = "/" + target
    if "#" in target:
        raise fail(Code.BAD_REQUEST, "the request target must not hold a fragment")
    return target


def client_of(raw: BaseRequest, *, draining: bool) -> Client:
    """What decides the framing of the answer."""
    http11 = raw.version >= (1, 1)
    understood = raw.version in VERSIONS and _plainly_framed(raw)
    return Client(raw.method, http11, raw.keep_alive and understood and not draining)


def _plainly_framed(raw: BaseRequest) -> bool:
    """Whether the transfer coding, if any, is ``chunked`` alone, and not in HTTP/1.0 (RFC 9112 section 6.1); parsers take more."""
    codings = raw.headers.getall("Transfer-Encoding", None)
    if codings is None:
        return True
    return len(codings) == 1 and codings[0].strip(" \t").lower() == "chunked" and raw.version >= (1, 1)


class BodyReader:
    """Reads one request body. ``limit`` in bytes; ``silence_s`` is the longest wait for the next byte."""

    def __init__(self, raw: BaseRequest, limit: int, silence_s: float) -> None:
        self._raw = raw
        self._limit = limit
        self._silence_s = silence_s
        self._read = 0
        self._ahead: list[bytes] = []
        length = raw.headers.get("Content-Length")
        self.length: int | None = int(length) if length is not None else None if raw.can_read_body else 0
        if not _plainly_framed(raw):
            raise fail(Code.BAD_REQUEST, "the request has an unknown transfer coding")
        if self.length is not None and self.length > limit:
            raise fail(Code.BODY_TOO_LARGE, f"the request body is larger than {limit} bytes")

    def __repr__(self) -> str:
        return f"BodyReader(read={self._read}, length={self.length})"

    def ready(self) -> bytes | None:
        """The whole body, if it is here already and not large; else None, and nothing is lost."""
        content = self._raw.content
        if self.length == 0:
            return b""
        if not content.is_eof() or content.total_bytes > min(READY_LIMIT, self._limit) or content.exception():
            return None
        return content.read_nowait(-1)

    async def whole(self, limit: int) -> bytes | None:
        """The whole body, or None where it is larger than ``limit``: then it can still be streamed from its first byte."""
        if self.length is not None and self.length > limit:
            return None
        size = 0
        async for data in self._chunks():
            self._ahead.append(data)
            size += len(data)
            if size > limit:
                return None
        parts, self._ahead = self._ahead, []
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def stream(self) -> AsyncIterator[bytes]:
        """All chunks, those read ahead first."""
        while self._ahead:
            yield self._ahead.pop(0)
        async for data in self._chunks():
            yield data

    async def _chunks(self) -> AsyncIterator[bytes]:
        content = self._raw.content
        if not content.at_eof():
            self._expected()
        while not content.at_eof():
            try:
                async with asyncio.timeout(self._silence_s):
                    data = await content.readany()
            except TimeoutError:
                raise fail(Code.REQUEST_TIMEOUT, "the request body stopped coming") from None
            except (ClientError, HttpProcessingError, RequestPayloadError, OSError):
                if connection_of(self._raw).transport is None:
                    raise ClientGone from None
                raise fail(Code.BAD_REQUEST, "the request body is not valid HTTP") from None
            if not data:
                return
            self._read += len(data)
            if self._read > self._limit:
                raise fail(Code.BODY_TOO_LARGE, f"the request body is larger than {self._limit} bytes")
            yield data

    def _expected(self) -> None:
        """Say 100 Continue only now that the body is wanted (RFC 9110 section 10.1.1)."""
        if self._read == 0 and self._raw.version >= (1, 1):
            expect = self._raw.headers.get("Expect", "")
            if expect.lower() == "100-continue":
                connection_of(self._raw).send(CONTINUE)
