"""Calls to one upstream, over aiohttp's connector and response parser; every error of theirs is mapped here, once.

``ClientSession`` is not used: it retries by itself, follows redirects, keeps cookies, re-quotes targets and re-encodes field
bytes (docs/decisions/0003). Rule: a request is written again only when it is proven that nobody processed it.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, cast

from aiohttp import ClientError, ClientPayloadError, ClientTimeout, ServerDisconnectedError, TCPConnector
from aiohttp.client_reqrep import ClientRequest
from aiohttp.connector import Connection
from aiohttp.http import HttpProcessingError, RawResponseMessage
from aiohttp.streams import StreamReader
from aiohttp.web_protocol import RequestPayloadError
from yarl import URL

from soloflight.core.errors import Code, Fault, SoloflightError
from soloflight.core.fields import BODYLESS, Outgoing, end_to_end
from soloflight.core.frames import Head
from soloflight.flow.link import Link, closed_by_peer
from soloflight.flow.tasks import Tasks

# Idle connections are kept for less than the 5 s after which uvicorn-like upstreams close theirs.
KEEPALIVE_S = 4.0
DNS_TTL_S = 30
QUEUE_S = 10.0
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


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where an upstream is and how it is reached. ``origin`` is scheme, host and port; ``limit`` 0 = no cap on connections."""

    origin: str
    connect_timeout_s: float = 5.0
    limit: int = 0
    tls: ssl.SSLContext | bool = True
    proxy: str | None = None
    read_limit: int = READ_BUFFER


class Upstream:
    """One configured upstream and its connections."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        # ``connect`` bounds the wait for a free connection under a configured cap, and the dialling; without a cap only dialling.
        connect_s = QUEUE_S + endpoint.connect_timeout_s if endpoint.limit else None
        self._timeout = ClientTimeout(
            total=None, connect=connect_s, sock_read=None, sock_connect=endpoint.connect_timeout_s, ceil_threshold=60
        )
        self._connector: TCPConnector | None = None
        self._template: ClientRequest | None = None
        self._uploads = Tasks("uploads")

    def __repr__(self) -> str:
        busy = len(self._connector._acquired) if self._connector is not None else 0
        return f"Upstream({self._endpoint.origin!r}, busy={busy})"

    def open(self) -> None:
        """Make the connector (inside a running loop). Nothing is dialled yet."""
        loop = asyncio.get_running_loop()
        self._connector = TCPConnector(
            limit=self._endpoint.limit,
            limit_per_host=0,
            keepalive_timeout=KEEPALIVE_S,
            ttl_dns_cache=DNS_TTL_S,
            enable_cleanup_closed=False,
            ssl=self._endpoint.tls,
        )
        self._connector._factory = cast(Any, partial(Link, loop=loop))
        proxy = URL(self._endpoint.proxy) if self._endpoint.proxy else None
        self._template = ClientRequest(
            "GET", URL(self._endpoint.origin), loop=loop, proxy=proxy, ssl=self._endpoint.tls
        )

    async def close(self) -> None:
        """Close every connection."""
        await self._uploads.close()
        if self._connector is not None:
            await self._connector.close()

    async def send(self, out: Outgoing, body: bytes | AsyncIterator[bytes]) -> Exchange:
        """Write one request and read the answer's head; the caller must ``release`` or ``abort`` the exchange.

        Raises UpstreamError. A kept connection that was closed before its peer took a byte is replaced by a new one, once;
        a body that is an iterator is never written twice.
        """
        exchange = await self._try(out, body)
        if exchange is None:
            exchange = await self._try(out, body, last=True)
        assert exchange is not None  # the last try raises instead
        return exchange

    async def _try(self, out: Outgoing, body: bytes | AsyncIterator[bytes], *, last: bool = False) -> Exchange | None:
        connection, link = await self._connect(fresh=last)
        reused = link.used > 0
        exchange = Exchange(connection, link, out)
        try:
            exchange.write(self._via_proxy(out), body, self._uploads)
            await exchange.read_head(self._endpoint.read_limit)
        except UpstreamError as error:
            exchange.abort()
            if exchange.upload_fault is not None:
                raise SoloflightError(exchange.upload_fault) from None
            unprocessed = isinstance(body, bytes) and (error.unprocessed or (reused and link.untouched))
            if unprocessed and not last:
                return None
            error.unprocessed = unprocessed
            raise
        except BaseException:
            exchange.abort()
            raise
        return exchange

    def _via_proxy(self, out: Outgoing) -> bytes:
        """The head; in absolute form where a plain-HTTP request goes through an outbound proxy (RFC 9112 section 3.2.2)."""
        head = out.head()
        if self._endpoint.proxy and self._endpoint.origin.startswith("http:"):
            method, _, rest = head.partition(b" ")
            return method + b" " + self._endpoint.origin.encode() + rest
        return head

    async def _connect(self, *, fresh: bool) -> tuple[Connection, Link]:
        """A kept connection that is still open, or (always, if ``fresh``) a new one."""
        assert self._connector is not None
        assert self._template is not None
        while True:
            try:
                connection = await self._connector.connect(self._template, [], self._timeout)
            except TimeoutError:
                if self._endpoint.limit and len(self._connector._acquired) >= self._endpoint.limit:
                    # Not marked as unprocessed: another try would only wait for as long again.
                    raise UpstreamError(Code.SATURATED, "no free connection to the upstream", retry_after_s=1) from None
                raise UpstreamError(
                    Code.UPSTREAM_UNREACHABLE, "connecting to the upstream timed out", unprocessed=True
                ) from None
            except (ClientError, OSError, ssl.SSLError) as error:
                text = f"could not connect to the upstream ({type(error).__name__})"
                raise UpstreamError(Code.UPSTREAM_UNREACHABLE, text, unprocessed=True) from error
            link = connection.protocol
            assert isinstance(link, Link)
            if link.used and (fresh or closed_by_peer(link.transport)):
                connection.close()
                continue
            return connection, link


class Exchange:
    """One request and its answer on one connection."""

    def __init__(self, connection: Connection, link: Link, out: Outgoing) -> None:
        self._connection: Connection | None = connection
        self._out = out
        self._payload: StreamReader | None = None
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

    def write(self, head: bytes, body: bytes | AsyncIterator[bytes], uploads: Tasks) -> None:
        """Write the request; an iterator body is pumped by a task while the answer may already come."""
        self.link.begin_request()
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

    async def read_head(self, read_limit: int) -> None:
        """Read the final head (interim 1xx answers are passed over). Raises UpstreamError."""
        self.link.set_response_params(
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
            while True:
                message, payload = await self.link.read()
                if not 100 <= message.code <= 199 or message.code == 101:
                    break
        except HttpProcessingError:
            raise UpstreamError(Code.UPSTREAM_INVALID, "the upstream's answer is not valid HTTP") from None
        except ServerDisconnectedError:
            raise UpstreamError(
                Code.UPSTREAM_UNREACHABLE, "the upstream closed the connection without an answer"
            ) from None
        except (ClientError, OSError) as error:
            text = f"the connection to the upstream broke ({type(error).__name__})"
            raise UpstreamError(Code.UPSTREAM_UNREACHABLE, text) from None
        self.message, self._payload = message, payload
        self.upgraded = message.code == 101
        if self.upgraded and self._out.upgrade is None:
            raise UpstreamError(Code.UPSTREAM_INVALID, "the upstream switched protocols unasked")
        self.head = _head(message, bodyless=self._out.method == "HEAD")

    def ended(self) -> bool:
        """Whether the body's last byte has been read already."""
        return self._payload is None or self._payload.at_eof()

    async def read(self) -> bytes:
        """The next body bytes, b"" at the proven end. Raises UpstreamError if the body broke off."""
        assert self._payload is not None
        try:
            return await self._payload.readany()
        except HttpProcessingError:
            raise UpstreamError(Code.UPSTREAM_INVALID, "the upstream's answer is not valid HTTP") from None
        except ClientPayloadError:
            raise UpstreamError(Code.UPSTREAM_TRUNCATED, "the upstream's answer broke off") from None
        except (ClientError, OSError):
            raise UpstreamError(Code.UPSTREAM_TRUNCATED, "the connection to the upstream broke") from None

    def release(self) -> None:
        """Give the connection back for another request, if the answer and the request body are through; else close it."""
        if self._connection is None:
            return
        unread = not self.ended() or (self._upload is not None and not self._upload.done())
        if unread or self.upgraded:
            self.abort()
            return
        self.link.end_answer()
        self._connection.release()
        self._connection = None

    def abort(self) -> None:
        """Close the connection at once: the upstream stops working for nobody."""
        if self._upload is not None and not self._upload.done():
            self._upload.cancel()
        if self._connection is not None:
            transport = self.link.transport
            self._connection.close()
            if transport is not None:
                transport.abort()
            self._connection = None


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
