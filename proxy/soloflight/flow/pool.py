"""Connections to one origin: aiohttp's connector dials (DNS, TLS, outbound proxies), kept connections wait here.

The connector's own pool is passed by: asking it costs as much as a small request, and it can not be told to try a fresh one.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from aiohttp import ClientError, ClientTimeout, TCPConnector
from aiohttp.client_reqrep import ClientRequest
from aiohttp.connector import Connection
from yarl import URL

from soloflight.core.errors import Code
from soloflight.flow.exchange import READ_BUFFER, UpstreamError
from soloflight.flow.link import Link

# Idle connections are kept for less than the 5 s after which uvicorn-like upstreams close theirs.
KEEPALIVE_S = 4.0
DNS_TTL_S = 30
QUEUE_S = 10.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where an upstream is and how it is reached. ``origin`` is scheme, host and port; ``limit`` 0 = no cap on connections."""

    origin: str
    connect_timeout_s: float = 5.0
    limit: int = 0
    tls: ssl.SSLContext | bool = True
    proxy: str | None = field(default=None, repr=False)  # it may hold a password
    read_limit: int = READ_BUFFER


class Pool:
    """Connections of one Endpoint, busy and idle; the idle one that was used last goes first."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._timeout = ClientTimeout(
            total=None, connect=None, sock_read=None, sock_connect=endpoint.connect_timeout_s, ceil_threshold=60
        )
        self._slots = asyncio.Semaphore(endpoint.limit) if endpoint.limit else None
        self._connector: TCPConnector | None = None
        self._template: ClientRequest | None = None
        self._idle: list[tuple[Connection, float]] = []
        self._sweeper: asyncio.TimerHandle | None = None
        self.busy = 0

    def __repr__(self) -> str:
        return f"Pool({self._endpoint.origin!r}, busy={self.busy}, idle={len(self._idle)})"

    def open(self) -> None:
        """Make the connector (inside a running loop). Nothing is dialled yet."""
        loop = asyncio.get_running_loop()
        tls = self._endpoint.tls
        self._connector = TCPConnector(
            limit=0, limit_per_host=0, force_close=True, ttl_dns_cache=DNS_TTL_S, enable_cleanup_closed=False, ssl=tls
        )
        self._connector._factory = cast(Any, partial(Link, loop=loop))
        proxy = URL(self._endpoint.proxy) if self._endpoint.proxy else None
        self._template = ClientRequest("GET", URL(self._endpoint.origin), loop=loop, proxy=proxy, ssl=tls)

    async def close(self) -> None:
        """Close every connection."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection, _ in self._idle:
            connection.close()
        self._idle.clear()
        if self._connector is not None:
            await self._connector.close()

    async def take(self, *, fresh: bool) -> Connection:
        """A kept connection that is still open, or (always, if ``fresh``) a new one. Give each back by ``put`` or ``drop``.

        Raises UpstreamError. Under a configured cap the wait for a place is bounded, and ends with its waiter.
        """
        if self._slots is not None:
            try:
                async with asyncio.timeout(QUEUE_S):
                    await self._slots.acquire()
            except TimeoutError:
                # Not marked as unprocessed: another try would only wait for as long again.
                raise UpstreamError(Code.SATURATED, "no free connection to the upstream", retry_after_s=1) from None
        self.busy += 1
        try:
            connection = None if fresh else self._kept()
            return connection if connection is not None else await self._dial()
        except BaseException:
            self._left()
            raise

    def put(self, connection: Connection) -> None:
        """The connection is fit for another request."""
        self._left()
        link = connection.protocol
        if link is None or link.should_close or not link.is_connected() or self._connector is None:
            connection.close()
            return
        loop = asyncio.get_running_loop()
        self._idle.append((connection, loop.time()))
        if self._sweeper is None:
            self._sweeper = loop.call_later(KEEPALIVE_S, self._sweep)

    def drop(self, connection: Connection) -> None:
        """Close the connection at once."""
        self._left()
        transport = connection.transport
        connection.close()
        if transport is not None:
            transport.abort()

    def _kept(self) -> Connection | None:
        oldest = asyncio.get_running_loop().time() - KEEPALIVE_S
        while self._idle:
            connection, since = self._idle.pop()
            link = connection.protocol
            if link is not None and since > oldest and link.is_connected() and not link.should_close:
                return connection
            connection.close()
        return None

    async def _dial(self) -> Connection:
        assert self._connector is not None
        assert self._template is not None
        try:
            return await self._connector.connect(self._template, [], self._timeout)
        except TimeoutError:
            text = "connecting to the upstream timed out"
        except (ClientError, OSError, ssl.SSLError) as error:
            text = f"could not connect to the upstream ({type(error).__name__})"
        raise UpstreamError(Code.UPSTREAM_UNREACHABLE, text, unprocessed=True)

    def _left(self) -> None:
        self.busy -= 1
        if self._slots is not None:
            self._slots.release()

    def _sweep(self) -> None:
        """Close what has been idle for too long; the list is in the order of last use."""
        loop = asyncio.get_running_loop()
        oldest = loop.time() - KEEPALIVE_S
        old = [entry for entry in self._idle if entry[1] <= oldest]
        self._idle = [entry for entry in self._idle if entry[1] > oldest]
        for connection, _ in old:
            connection.close()
        self._sweeper = loop.call_later(KEEPALIVE_S / 2, self._sweep) if self._idle else None
