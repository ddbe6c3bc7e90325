"""Which servers a URL names, and how a connection to one of them is made and checked. redis-py does the rest.

    redis://[USER:PASSWORD@]HOST[:6379][/DB]      rediss:// the same with TLS      unix:///PATH[?db=N]
    redis+sentinel://[USER:PASSWORD@]HOST[:26379],HOST,…/SERVICE[/DB]
    redis+cluster://[USER:PASSWORD@]HOST[:6379],HOST,…

rediss+sentinel and rediss+cluster are the same with TLS. Query members are redis-py's own names (``ssl_ca_certs``,
``ssl_certfile``, ``ssl_keyfile``, …); ``sentinel_username`` and ``sentinel_password`` are for the Sentinels themselves.

Rule: the library never retries. What is sent again is sent by us, once, and it is safe to execute twice.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit

from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection, parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError

OLDEST = (6, 2)
OLDEST_SHARDED = (7, 0)  # SPUBLISH

_POOL_OPTIONS = {"max_connections", "timeout", "retry_on_timeout", "retry_on_error", "socket_timeout", "protocol"}


Peer: TypeAlias = tuple[object, ...]


class Kind(Enum):
    """How servers are found; the value is the mode that a data node of it reports in HELLO."""

    SINGLE = "single"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


class Unusable(RedisError):
    """A server that answers, but is not what the URL says or what is needed."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a URL names. ``shown`` is the address without secrets; ``options`` are redis-py's connection arguments."""

    kind: Kind
    shown: str
    hosts: tuple[tuple[str, int], ...] = ()
    service: str = ""
    connection_class: type[AbstractConnection] = Connection
    options: dict[str, Any] = field(default_factory=dict, repr=False)
    sentinel_options: dict[str, Any] = field(default_factory=dict, repr=False)


def read_url(url: str) -> Target:
    """Read ``redis.url``. Raises ValueError with what is wrong, never quoting a password."""
    scheme, _, rest = url.partition("://")
    transport, _, kind = scheme.partition("+")
    if not kind:
        return _single(url)
    if transport not in ("redis", "rediss") or kind not in ("sentinel", "cluster"):
        raise ValueError(f"unknown scheme {scheme}://")
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    user, at, hosts = authority.rpartition("@")
    # redis-py reads user, password and query; the first host stands for all.
    parts = urlsplit(f"{transport}://{user}{at}{hosts.split(',')[0]}{rest[len(authority) :]}")
    segments = [unquote(segment) for segment in parts.path.split("/") if segment]
    service = segments.pop(0) if kind == "sentinel" and segments else ""
    if kind == "sentinel" and not service:
        raise ValueError("redis+sentinel:// needs the name of the service: redis+sentinel://HOST,HOST/SERVICE")
    options = _options(parts._replace(path="").geturl(), "/".join(segments))
    if kind == "cluster" and options.pop("db", 0):
        raise ValueError("a cluster has one database, 0")
    sentinel_options = {
        name: options.pop(f"sentinel_{name}") for name in ("username", "password") if f"sentinel_{name}" in options
    }
    for name in ("host", "port"):
        options.pop(name, None)
    target = Target(
        Kind(kind),
        f"{scheme}://{hosts}{'/' + service if service else ''}",
        tuple(_host(host, 26379 if kind == "sentinel" else 6379) for host in hosts.split(",")),
        service,
        options.pop("connection_class", Connection),
        options,
        sentinel_options,
    )
    return _tried(target)


def _single(url: str) -> Target:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        shown = f"unix://{parts.path}"
        options = _options(url, "")
    else:
        shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        options = _options(url, parts.path.strip("/"))
    connection_class = options.pop("connection_class", Connection)
    return _tried(Target(Kind.SINGLE, shown, connection_class=connection_class, options=options))


def _options(url: str, db: str) -> dict[str, Any]:
    """redis-py's connection arguments of a URL, without those that are ours to set."""
    if db and not db.isdigit():
        raise ValueError(f"a database is a number, not {db!r}")
    options = {name: value for name, value in parse_url(url).items() if name not in _POOL_OPTIONS}
    if db:
        options["db"] = int(db)
    return options


def _host(text: str, port: int) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    return parts.hostname or "", parts.port or port


def _tried(target: Target) -> Target:
    """Make one connection without opening it: redis-py says which options it does not know."""
    try:
        target.connection_class(**_bounded(target.options, 1.0))
    except (TypeError, ValueError, RedisError) as error:
        unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        raise ValueError(f"unknown option {unknown[1]}" if unknown else str(error)) from None
    return target


def _bounded(options: dict[str, Any], bound_s: float) -> dict[str, Any]:
    return {
        **options,
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": None,  # replies are waited for by the wire, pushes for ever
        "socket_connect_timeout": bound_s,
        "protocol": 2,
        "driver_info": None,
        "decode_responses": False,
    }


# ── making connections ──────────────────────────────────────────────────────────────────────────────────────


class Dialer:
    """Makes open, checked connections to the servers of a target; each within ``bound_s``."""

    def __init__(self, target: Target, bound_s: float) -> None:
        self.target = target
        self._bound_s = bound_s
        self._options = _bounded(target.options, bound_s)
        self._sentinel: Sentinel | None = None
        self._make = self._maker()

    def __repr__(self) -> str:
        return f"Dialer({self.target.shown})"

    def _maker(self) -> Callable[[], AbstractConnection]:
        target = self.target
        if target.kind is not Kind.SENTINEL:
            return lambda: target.connection_class(**self._options)
        # A Sentinel that is silent must leave time to ask the others.
        patience = {"socket_timeout": self._bound_s / 3, "socket_connect_timeout": self._bound_s / 3}
        tls = issubclass(target.connection_class, SSLConnection)
        ours = {name: value for name, value in target.options.items() if tls and name.startswith("ssl_")}
        asking = {**target.sentinel_options, **patience, **ours, "ssl": tls, "retry": Retry(NoBackoff(), 0)}
        self._sentinel = Sentinel(list(target.hosts), sentinel_kwargs=asking)  # type: ignore[no-untyped-call]
        pool = SentinelConnectionPool(  # type: ignore[no-untyped-call]
            target.service, self._sentinel, ssl=tls, **self._options
        )
        return pool.make_connection

    async def dial(self) -> AbstractConnection:
        """A connection to the server, or to the present master. Raises RedisError or OSError."""
        return await self._opened(self._make())

    async def dial_node(self, host: str, port: int) -> AbstractConnection:
        """A connection to one node of a cluster. Raises RedisError or OSError."""
        options = {**self._options, "host": host, "port": port}
        return await self._opened(self.target.connection_class(**options))

    async def close(self) -> None:
        """Give back what asking the Sentinels has opened."""
        if self._sentinel is not None:
            await self._sentinel.aclose()

    async def _opened(self, connection: AbstractConnection) -> AbstractConnection:
        try:
            async with asyncio.timeout(self._bound_s):
                await connection.connect()  # type: ignore[no-untyped-call]
                await connection.send_command("HELLO")
                _check(await connection.read_response(), self.target.kind)
            return connection
        except BaseException:
            await hang_up(connection)
            raise


def _check(said: Any, kind: Kind) -> None:
    """Is this server what it should be? ``said`` is its reply to HELLO. Raises Unusable."""
    facts = dict(zip(said[::2], said[1::2], strict=False)) if isinstance(said, list) else dict(said)
    version, mode = _fact(facts, b"version"), _fact(facts, b"mode")
    oldest = OLDEST_SHARDED if kind is Kind.CLUSTER else OLDEST
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < oldest:
        raise Unusable(f"it is version {version}; {oldest[0]}.{oldest[1]} or newer is needed")
    if mode == "cluster" and kind is not Kind.CLUSTER:
        raise Unusable("it is a node of a cluster: use redis+cluster://")
    if mode == "sentinel":
        raise Unusable("it is a Sentinel: use redis+sentinel://")
    if mode != "cluster" and kind is Kind.CLUSTER:
        raise Unusable("it is not a node of a cluster: use redis://")
    if _fact(facts, b"role") in ("replica", "slave") and kind is not Kind.CLUSTER:
        raise Unusable("it is a replica, which takes no writes")


def _fact(facts: dict[Any, Any], name: bytes) -> str:
    value = facts.get(name, b"")
    return value.decode("ascii", "replace") if isinstance(value, bytes) else str(value)


async def hang_up(connection: AbstractConnection) -> None:
    """Close at once: nothing that is still unsent, and no farewell of TLS, is worth waiting for."""
    writer = connection._writer  # redis-py closes in good order only, which a silent server can delay for minutes
    if writer is not None:
        writer.transport.abort()
    await connection.disconnect(nowait=True)


def peer(connection: AbstractConnection) -> Peer:
    """Which server a connection goes to."""
    return (getattr(connection, "host", None), getattr(connection, "port", None), connection.getpeername())


def explained(error: BaseException) -> str:
    """What went wrong, in a few words for one line of a log. Addresses yes, secrets never."""
    cause = error.__context__ if isinstance(error.__context__, ssl.SSLError) else error.__cause__
    if isinstance(error, AuthenticationError):
        return "wrong user or password"
    if isinstance(error, NoPermissionError):
        return f"the user may not do what is needed: {error}"
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {cause.verify_message}"
    if isinstance(cause, ssl.SSLError):
        return f"TLS failed: {cause.reason or cause}"
    if isinstance(error, ResponseError) and "unknown command" in str(error):
        return "it is older than version 6.2, which is needed"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return " ".join(str(error).split()) or type(error).__name__
