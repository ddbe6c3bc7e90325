"""Calls to one upstream.

``ClientSession`` is not used: it retries by itself, follows redirects, keeps cookies, re-quotes targets and re-encodes field
bytes (docs/decisions/0003). Rule: a request is written again only when it is proven that nobody processed it.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator

from aiohttp import BasicAuth
from yarl import URL

from soloflight.core.errors import SoloflightError
from soloflight.core.fields import Outgoing
from soloflight.flow.exchange import Exchange, UpstreamError
from soloflight.flow.link import closed_by_peer
from soloflight.flow.patience import Patience, Patrol
from soloflight.flow.pool import Endpoint, Pool
from soloflight.flow.tasks import Tasks

__all__ = ["Endpoint", "Exchange", "Upstream", "UpstreamError"]


class Upstream:
    """One configured upstream and its connections."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._pool = Pool(endpoint)
        self._patrol = Patrol()
        self._to_proxy = proxy_authorization(endpoint.proxy or "")
        self._uploads = Tasks("uploads")

    def __repr__(self) -> str:
        return f"Upstream({self._pool!r})"

    def open(self) -> None:
        """Get ready (inside a running loop). Nothing is dialled yet."""
        self._pool.open()

    async def close(self) -> None:
        """Close every connection."""
        await self._uploads.close()
        await self._pool.close()

    def patience(self, limit_s: float, deadline: float = math.inf) -> Patience:
        """A bound on the upstream's silence, for one exchange; ``deadline`` is loop time."""
        return Patience(self._patrol, limit_s, deadline)

    async def send(self, out: Outgoing, body: bytes | AsyncIterator[bytes]) -> Exchange:
        """Write one request and read the answer's head; the caller must ``release`` or ``abort`` the exchange.

        Raises UpstreamError, and SoloflightError where the request's body broke off. A kept connection that was closed before
        its peer took a byte is replaced by a new one, once; a body that is an iterator is never written twice.
        """
        exchange = await self._try(out, body)
        if exchange is None:
            exchange = await self._try(out, body, last=True)
        assert exchange is not None  # the last try raises instead
        return exchange

    async def _try(self, out: Outgoing, body: bytes | AsyncIterator[bytes], *, last: bool = False) -> Exchange | None:
        exchange = await self._begin(out, body, fresh=last)
        reused = exchange.link.used > 0
        try:
            exchange.write(self._head_for(out), body, self._uploads, self._endpoint.read_limit)
            await exchange.read_head()
        except UpstreamError as error:
            exchange.abort()
            if exchange.upload_fault is not None:
                raise SoloflightError(exchange.upload_fault) from None
            unprocessed = isinstance(body, bytes) and (error.unprocessed or (reused and exchange.link.untouched))
            if unprocessed and not last:
                return None
            error.unprocessed = unprocessed
            raise
        except BaseException:
            exchange.abort()
            raise
        return exchange

    async def _begin(self, out: Outgoing, body: bytes | AsyncIterator[bytes], *, fresh: bool) -> Exchange:
        """A connection for one request. A body that can be written only once is not trusted to one that was just closed."""
        while True:
            exchange = Exchange(self._pool, await self._pool.take(fresh=fresh), out)
            link = exchange.link
            if isinstance(body, bytes) or not link.used or not closed_by_peer(link.transport):
                return exchange
            exchange.abort()

    def _head_for(self, out: Outgoing) -> bytes:
        """The head; in absolute form where a plain-HTTP request goes through an outbound proxy (RFC 9112 section 3.2.2).

        There it carries that proxy's credentials; in front of TLS aiohttp gives them with CONNECT.
        """
        if self._endpoint.proxy and self._endpoint.origin.startswith("http:"):
            line, _, fields = out.head.partition(b"\r\n")
            method, _, rest = line.partition(b" ")
            return method + b" " + self._endpoint.origin.encode() + rest + b"\r\n" + self._to_proxy + fields
        return out.head


def proxy_authorization(proxy: str) -> bytes:
    """The field line with the user and password of an outbound proxy's URL; empty where it has none."""
    url = URL(proxy)
    if url.user is None:
        return b""
    return b"Proxy-Authorization: " + BasicAuth(url.user, url.password or "", "utf-8").encode().encode() + b"\r\n"
