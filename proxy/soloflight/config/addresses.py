"""Addresses: where to listen, which origin to call, which peers to trust. Pure parsing: nothing is dialled.

Each parser returns the value it accepts or raises ValueError, whose text says what was expected.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from urllib.parse import SplitResult, urlsplit

__all__ = [
    "Listen",
    "is_secret_name",
    "mask_url",
    "parse_admin_listen",
    "parse_http_proxy",
    "parse_listen",
    "parse_network",
    "parse_origin",
    "parse_redis_url",
    "parse_tcp_listen",
]

MASK = "<masked>"
"""Stands where a secret was; refused when it is read back."""

REDIS_SCHEMES = (
    "redis",
    "rediss",
    "unix",
    "redis+sentinel",
    "redis+cluster",
    "rediss+sentinel",
    "rediss+cluster",
)

_LISTEN = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[^\s:\[\]/@]+)):(?P<port>\d{1,5})", re.ASCII)
_SECRET_WORD = re.compile(r"auth|key|token|secret|cookie|passw|credential|signature", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Listen:
    """Where a listener binds: ``host`` and ``port`` (0: any free one), or the ``path`` of a unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it: loopback, or a unix socket."""
        if self.path or self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse_listen(text: str) -> Listen:
    """Read ``HOST:PORT``, ``[IPV6]:PORT`` or ``unix:PATH``."""
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        # 107 bytes is what Linux lets a socket's path be.
        if not path or "\0" in path or len(path.encode()) > 107:
            raise ValueError("unix:PATH with a path of at most 107 bytes")
        return Listen(path=path)
    try:
        return parse_tcp_listen(text)
    except ValueError as error:
        raise ValueError(f"{error} or unix:PATH") from None


def parse_admin_listen(text: str) -> Listen | None:
    """Read ``HOST:PORT`` or ``[IPV6]:PORT``; ``off`` is None."""
    try:
        return None if text == "off" else parse_tcp_listen(text)
    except ValueError as error:
        raise ValueError(f'{error} or "off"') from None


def parse_tcp_listen(text: str) -> Listen:
    """Read ``HOST:PORT`` or ``[IPV6]:PORT``."""
    found = _LISTEN.fullmatch(text)
    if found is None or int(found["port"]) > 65535 or (found["v6"] and not _is_v6(found["v6"])):
        raise ValueError("HOST:PORT, [IPV6]:PORT")
    return Listen(host=found["v6"] or found["host"], port=int(found["port"]))


def parse_origin(text: str) -> str:
    """Read an upstream: http or https, a host, and at most a path. Returns it without a final slash."""
    url = _split(text, "an http:// or https:// URL")
    if "@" in url.netloc:
        raise ValueError("a URL without a user or password (put credentials into headers)")
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ValueError("an http:// or https:// URL with a host")
    if "?" in text or "#" in text:
        raise ValueError("a URL without query and fragment")
    return text.rstrip("/")


def parse_http_proxy(text: str) -> str:
    """Read an outbound proxy: empty (none), ``env``, or a URL, which may carry a password."""
    if text in ("", "env"):
        return text
    url = _split(text, 'an http:// URL, "env" or ""')
    if url.scheme not in ("http", "https") or not url.hostname or url.path.strip("/") or url.query or url.fragment:
        raise ValueError('an http:// URL of a proxy, "env" or ""')
    return text


def parse_redis_url(text: str) -> str:
    """Read the URL of a Redis: a known scheme, then hosts (with commas) or a socket's path."""
    scheme, separator, rest = text.partition("://")
    if not separator or scheme not in REDIS_SCHEMES:
        raise ValueError(f"a URL that starts with {', '.join(f'{known}://' for known in REDIS_SCHEMES[:5])}")
    authority, slash, path = re.split(r"[?#]", rest, maxsplit=1)[0].partition("/")
    if scheme == "unix":
        if not slash or not path:
            raise ValueError("unix:// and the absolute path of a socket")
        return text
    hosts = authority.rpartition("@")[2].split(",")
    if not all(_is_redis_host(host) for host in hosts):
        raise ValueError("HOST or HOST:PORT after the scheme (Sentinel and Cluster: several, with commas)")
    return text


def parse_network(text: str) -> str:
    """Read an IP address or network (CIDR); returns it in its usual spelling."""
    try:
        return str(ip_network(text.strip(), strict=False))
    except ValueError:
        raise ValueError("an IP address or network like 10.0.0.0/8") from None


def mask_url(text: str, *, whole_query: bool = False) -> str:
    """``text`` without passwords: in front of an ``@``, and in query members whose name tells of a secret.

    ``whole_query`` hides every query and fragment, for text that may be no URL that we know.
    """
    scheme, separator, rest = text.partition("://") if "://" in text else ("", "", text)
    userinfo, at, rest = rest.rpartition("@")  # the last one: a password may hold any character, "?" too
    user, colon, _ = userinfo.partition(":")
    shown = f"{scheme}{separator}{f'{user}:{MASK}@' if colon else f'{MASK}@' if at else ''}"
    head, question, query = rest.partition("?")
    if whole_query:
        return f"{shown}{head.partition('#')[0]}{question}{MASK if query else ''}"
    return f"{shown}{head}{question}{'&'.join(_mask_member(member) for member in query.split('&'))}"


def is_secret_name(name: str) -> bool:
    """Whether a free-form name tells of a secret: ``api_key``, ``authToken``, ``db_password``."""
    return _SECRET_WORD.search(name) is not None


def _mask_member(member: str) -> str:
    name, equals, _ = member.partition("=")
    return f"{name}={MASK}" if equals and is_secret_name(name) else member


def _split(text: str, expected: str) -> SplitResult:
    """Split a URL; refuse bad ports, and what ``urlsplit`` would drop in silence."""
    if not text.isprintable() or " " in text:
        raise ValueError(expected)
    try:
        url = urlsplit(text)
        _ = url.port
    except ValueError:
        raise ValueError(expected) from None
    return url


def _is_v6(text: str) -> bool:
    try:
        return ip_address(text).version == 6
    except ValueError:
        return False


def _is_redis_host(text: str) -> bool:
    try:
        parse_tcp_listen(text if re.search(r":\d+$", text) and not text.endswith("]") else f"{text}:6379")
    except ValueError:
        return False
    return True
