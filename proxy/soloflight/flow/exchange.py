"""One request and its answer on one connection, over aiohttp's response parser; every error of it is mapped here, once."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Protocol

from aiohttp import ClientError, ClientPayloadError, ServerDisconnectedError
from aiohttp.connector import Connection
from aiohttp.http import HttpProcessingError, RawResponseMessage
from aiohttp.streams import StreamReader
from aiohttp.web_protocol import RequestPayloadError

from soloflight.core.errors import Code, Fault, SoloflightError
from soloflight.core.fields import BODYLESS, Outgoing, end_to_end
from soloflight.core.frames import Head
from soloflight.flow.link import Link
from soloflight.flow.tasks import Tasks

HEAD_LIMIT = 256 * 1024
READ_BUFFER = 256 * 1024
ONE_WRITE = 64 * 1024
CONTROL = re.compile("[\0-\x08\n-\x1f\x7f]")


class UpstreamError(Exception):
    """A call that gave no (whole) answer. ``unprocessed``: it is proven that the upstream did not process the request."""

    def __init__(
        self, code: Code, message: str, *, unprocessed: bool = False, retry_after_s: int | None = None
    ) -> None:
        super().__init__(message)
        self.fault = Fault(code, message, retry_after_s)
        self.unprocessed = unprocessed


class _UpstreamGone(Exception):
    """The upstream does not take the rest of a request body."""


class Home(Protocol):
    """Where a connection goes when its exchange is over."""

    def put(self, connection: Connection) -> None:
        """It is fit for another request."""

    def drop(self, connection: Connection) -> None:
        """It is not."""


class Exchange:
    """One request and its answer on one connection."""

    def __init__(self, home: Home, connection: Connection, out: Outgoing) -> None:
        link = connection.protocol
        assert isinstance(link, Link)
        self._home = home
        self._connection: Connection | None = connection
        self._out = out
        self._payload: StreamReader | None = None
        self._rest: bytes | None = None
        self._upload: asyncio.Task[None] | None = None
        self.link = link
        self.head = Head(0, b"", ())
        self.upgraded = False
        self.upload_fault: Fault | None = None
        self.message: RawResponseMessage | None = None

    def __repr__(self) -> str:
        state = "open" if self._connection is not None else "done"
        return f"Exchange({self._out.method}, status={self.head.status}, {state})"

    async def __aenter__(self) -> Exchange:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.release()
        else:
            self.abort()

    def write(self, head: bytes, body: bytes | AsyncIterator[bytes], uploads: Tasks, read_limit: int) -> None:
        """Write the request; an iterator body is pumped by a task while the answer may already come.

        Of the answer, ``read_limit`` bytes are read ahead.
        """
        self.link.begin_request(
            skip_payload=self._out.method == "HEAD",
            read_until_eof=True,
            auto_decompress=False,
            read_timeout=None,
            read_bufsize=read_limit,
            max_line_size=HEAD_LIMIT,
            max_field_size=HEAD_LIMIT,
            max_headers=512,
        )
        try:
            if isinstance(body, bytes) and len(body) <= ONE_WRITE:
                self.link.write(head + body)
                return
            self.link.write(head)
            if isinstance(body, bytes):
                self.link.write(body)
                return
        except OSError:
            text = "the upstream closed the connection"
            raise UpstreamError(Code.UPSTREAM_UNREACHABLE, text, unprocessed=True) from None
        self._upload = uploads.spawn(self._pump(body), "upload")

    async def _pump(self, body: AsyncIterator[bytes]) -> None:
        """Stream a request body. If it breaks off, so does the upstream connection: half an upload never looks whole."""
        chunked = self._out.length is None
        try:
            async for data in body:
                await self._write_body(b"%x\r\n%b\r\n" % (len(data), data) if chunked else data)
            if chunked:
                await self._write_body(b"0\r\n\r\n")
        except _UpstreamGone:
            return  # it stopped reading: its answer, if any, tells why
        except SoloflightError as error:
            self.upload_fault = error.fault
            self.abort()
        except (ClientError, OSError, RequestPayloadError):
            self.upload_fault = Fault(Code.BAD_REQUEST, "the request body broke off")
            self.abort()

    async def _write_body(self, data: bytes) -> None:
        try:
            self.link.write(data)
            await self.link.drain()
        except (ClientError, OSError):
            raise _UpstreamGone from None

    async def read_head(self) -> None:
        """Read the final head (interim 1xx answers are passed over). Raises UpstreamError."""
        if (plain := await self.link.first()) is not None:
            self.head, self._rest = plain[0], plain[1] or None
            return
        try:
            while True:
                message, payload = await self.link.read()
                if not 100 <= message.code <= 199 or message.code == 101:
                    break
        except HttpProcessingError as error:
            raise _broken(error, Code.UPSTREAM_INVALID, "the upstream's answer is not valid HTTP") from None
        except ServerDisconnectedError as error:
            text = "the upstream closed the connection without an answer"
            raise _broken(error, Code.UPSTREAM_UNREACHABLE, text) from None
        except (ClientError, OSError) as error:
            text = f"the connection to the upstream broke ({type(error).__name__})"
            raise _broken(error, Code.UPSTREAM_UNREACHABLE, text) from None
        self.message, self._payload = message, payload
        self.upgraded = message.code == 101
        if self.upgraded and self._out.upgrade is None:
            raise UpstreamError(Code.UPSTREAM_INVALID, "the upstream switched protocols unasked")
        self.head = _head(message, bodyless=self._out.method == "HEAD")

    def ended(self) -> bool:
        """Whether the body's last byte has been read already."""
        return self._rest is None and (self._payload is None or self._payload.at_eof())

    async def read(self) -> bytes:
        """The next body bytes, b"" at the proven end; not to be called once it has ``ended``.

        Raises UpstreamError if the body broke off.
        """
        if self._rest is not None:
            data, self._rest = self._rest, None
            return data
        assert self._payload is not None
        try:
            return await self._payload.readany()
        except HttpProcessingError as error:
            raise _broken(error, Code.UPSTREAM_INVALID, "the upstream's answer is not valid HTTP") from None
        except ClientPayloadError as error:
            raise _broken(error, Code.UPSTREAM_TRUNCATED, "the upstream's answer broke off") from None
        except (ClientError, OSError) as error:
            raise _broken(error, Code.UPSTREAM_TRUNCATED, "the connection to the upstream broke") from None

    def release(self) -> None:
        """Give the connection back for another request, if the answer and the request body are through; else close it."""
        if self._connection is None:
            return
        unread = not self.ended() or (self._upload is not None and not self._upload.done())
        if unread or self.upgraded:
            self.abort()
            return
        self.link.end_answer()
        self._home.put(self._connection)
        self._connection = None

    def abort(self) -> None:
        """Close the connection at once: the upstream stops working for nobody."""
        if self._upload is not None and not self._upload.done():
            self._upload.cancel()
        if self._connection is not None:
            self._home.drop(self._connection)
            self._connection = None


def _broken(error: BaseException, code: Code, message: str) -> UpstreamError:
    """``error`` as the rest of the proxy knows it.

    aiohttp keeps ``error`` where it was raised; with its traceback, which leads back here, only the collector would free all that.
    """
    error.__traceback__ = None
    return UpstreamError(code, message)


def _head(message: RawResponseMessage, *, bodyless: bool) -> Head:
    """The frame for a parsed head. Raises UpstreamError where two readings are possible."""
    if not message.reason.isprintable() and CONTROL.search(message.reason):
        raise UpstreamError(Code.UPSTREAM_INVALID, "the upstream's answer has control characters in its reason")
    codings = [value for name, value in message.raw_headers if name.lower() == b"transfer-encoding"]
    if codings and [coding.strip().lower() for coding in codings] != [b"chunked"]:
        raise UpstreamError(Code.UPSTREAM_INVALID, "the upstream's answer has an unknown transfer coding")
    lengths = [value for name, value in message.raw_headers if name.lower() == b"content-length"]
    if len(lengths) > 1 or (lengths and codings):
        raise UpstreamError(Code.UPSTREAM_INVALID, "the upstream's answer has two lengths")
    length = int(lengths[0]) if lengths else None
    empty = bodyless or message.code in BODYLESS
    return Head(
        status=message.code,
        reason=message.reason.encode("utf-8", "surrogateescape"),
        fields=tuple(end_to_end(message.raw_headers)),
        length=length,
        delimited=empty or bool(codings) or length is not None,
    )
