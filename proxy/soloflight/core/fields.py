"""Header fields on their way through: what stops at the proxy, what goes on, what is added. Pure, over raw bytes.

Rule 1: hop-by-hop fields and those that ``Connection`` names stop here, in both directions (RFC 9110 section 7.6.1).
Rule 2: ``Connection`` can not remove end-to-end fields the message needs (Host, Authorization, Content-Length, …).
Rule 3: everything else keeps its order, number, case and bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from ipaddress import ip_address

from soloflight.core.frames import Field, Head
from soloflight.core.request import Request

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"proxy-authenticate",
        b"proxy-authorization",
    }
)
CREDENTIAL_FORMS = frozenset(
    {b"authorization", b"api-key", b"x-api-key", b"x-goog-api-key", b"ocp-apim-subscription-key"}
)
# A client that names one of these in Connection would otherwise change what the message means (hop-by-hop abuse).
NEVER_NOMINATED = CREDENTIAL_FORMS | {
    b"cache-control",
    b"content-encoding",
    b"content-length",
    b"content-type",
    b"cookie",
    b"expect",
    b"forwarded",
    b"host",
    b"idempotency-key",
    b"set-cookie",
    b"via",
}
CLIENT_ADDRESS = frozenset(
    {b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"x-forwarded-port", b"x-real-ip"}
)
CONTROL_PREFIX = b"x-soloflight-"
QUOTA_PREFIXES = (b"x-ratelimit-", b"anthropic-ratelimit-")
BODYLESS = frozenset({204, 304})
_FRAMING = frozenset({b"content-length", b"host", b"expect"})


def nominated(fields: Iterable[Field]) -> frozenset[bytes]:
    """Names that the message's ``Connection`` fields declare hop-by-hop, lower case, abuse left out."""
    names: set[bytes] = set()
    for name, value in fields:
        if name.lower() == b"connection":
            names.update(token.strip().lower() for token in value.split(b","))
    return frozenset(names - NEVER_NOMINATED)


def end_to_end(fields: Sequence[Field]) -> list[Field]:
    """The fields that go on to the next hop."""
    named = nominated(fields)
    stop = HOP_BY_HOP | named if named else HOP_BY_HOP
    return [field for field in fields if field[0].lower() not in stop]


@dataclass(frozen=True, slots=True)
class Forwarding:
    """How requests are written for one upstream.

    ``origin_host`` is the Host value; ``base_path`` the upstream URL's own path, without a final slash; ``headers`` the
    operator's fields, which replace the client's of the same name — and, if one of them is a credential, every credential
    form the client sent. ``forwarded`` is ``off``, ``x-forwarded`` or ``rfc7239``.
    """

    origin_host: bytes
    base_path: str
    headers: tuple[Field, ...] = ()
    forwarded: str = "off"

    @property
    def replaced(self) -> frozenset[bytes]:
        """Lower-case names of client fields that the operator's headers replace."""
        names = frozenset(name.lower() for name, _ in self.headers)
        return names | CREDENTIAL_FORMS if names & CREDENTIAL_FORMS else names


@dataclass(frozen=True)
class Outgoing:
    """One request as it will be written upstream. ``length`` None: chunked; ``upgrade``: a websocket handshake."""

    method: str
    target: str
    fields: tuple[Field, ...]
    length: int | None = 0
    upgrade: bytes | None = None

    def of_length(self, length: int) -> Outgoing:
        """The same with another body."""
        return Outgoing(self.method, self.target, self.fields, length, self.upgrade)

    @cached_property
    def head(self) -> bytes:
        """The request head, ready to write. Field bytes are the client's own."""
        lines = [f"{self.method} {self.target} HTTP/1.1".encode("utf-8", "surrogateescape")]
        lines += [name + b": " + value for name, value in self.fields]
        if self.upgrade is not None:
            lines += [b"Connection: Upgrade", b"Upgrade: " + self.upgrade]
        elif self.length is None:
            lines.append(b"Transfer-Encoding: chunked")
        elif self.length or self.method not in ("GET", "HEAD", "OPTIONS", "TRACE", "DELETE"):
            lines.append(b"Content-Length: %d" % self.length)
        lines.append(b"\r\n")
        return b"\r\n".join(lines)


def outgoing(
    request: Request,
    to: Forwarding,
    *,
    length: int | None,
    identity: bool = False,
    upgrade: bytes | None = None,
    withhold: frozenset[bytes] = frozenset(),
) -> Outgoing:
    """Build the upstream request. ``identity`` asks for an uncoded answer (shared work); ``withhold`` names client fields
    (lower case) that carried the proxy's own client key and must not leave it."""
    dropped = to.replaced | withhold | CLIENT_ADDRESS | _FRAMING
    if identity:
        dropped |= {b"accept-encoding"}
    fields: list[Field] = [(b"Host", to.origin_host)]
    via: list[bytes] = []
    for name, value in end_to_end(request.fields):
        lower = name.lower()
        if lower == b"via":
            via.append(value)
        elif lower not in dropped and not lower.startswith(CONTROL_PREFIX):
            fields.append((name, value))
    fields += to.headers
    if identity:
        fields.append((b"Accept-Encoding", b"identity"))
    via.append(b"1.1 soloflight")
    fields.append((b"Via", b", ".join(via)))
    fields += _client_address(request, to.forwarded)
    return Outgoing(request.method, to.base_path + request.target, tuple(fields), length, upgrade)


def _client_address(request: Request, how: str) -> list[Field]:
    """What the upstream is told of the client; a claim of an untrusted peer about itself is dropped."""
    if how == "off":
        return []
    host = request.get(b"host") or b""
    peer = request.peer.encode() or b"unknown"
    if how == "x-forwarded":
        earlier = request.all(b"x-forwarded-for") if request.trusted else []
        proto = (request.get(b"x-forwarded-proto") if request.trusted else None) or b"http"
        return [
            (b"X-Forwarded-For", b", ".join([*earlier, peer])),
            (b"X-Forwarded-Proto", proto),
            (b"X-Forwarded-Host", (request.get(b"x-forwarded-host") if request.trusted else None) or host),
        ]
    earlier = request.all(b"forwarded") if request.trusted else []
    node = b'"[%s]"' % peer if b":" in peer else peer
    quoted = host.translate(None, b'"\\')  # neither can stand in a host, and both would end the quotes
    return [(b"Forwarded", b", ".join([*earlier, b'for=%b;host="%b";proto=http' % (node, quoted)]))]


def is_trusted(peer: str, networks: Sequence[object]) -> bool:
    """Whether ``peer`` (an IP address, or "" for a Unix socket) lies in one of ``networks`` (ipaddress networks)."""
    if not peer:
        return True
    address = ip_address(peer)
    return any(address in network for network in networks)  # type: ignore[operator]  # ip networks of either version


def shared_fields(head: Head, *, owner: bool, replay: bool) -> list[Field]:
    """The upstream's fields as one kind of listener gets them.

    ``Set-Cookie`` goes to the owner alone; a replay carries no stale quota: no ``x-ratelimit-*``, and no ``retry-after`` on 2xx.
    """
    if owner:
        return list(head.fields)
    kept: list[Field] = []
    for name, value in head.fields:
        lower = name.lower()
        if lower == b"set-cookie":
            continue
        if replay and (
            lower.startswith(QUOTA_PREFIXES)
            or (lower in (b"retry-after", b"retry-after-ms") and 200 <= head.status < 300)
        ):
            continue
        kept.append((name, value))
    return kept
