"""Who may use the admin listener (contract section 6): a token, else a loopback Host; and no other site's browser changes anything.

With a token, it is needed whatever the Host says: a Host is the client's word. Browsers give it as the password of HTTP Basic,
which they ask for and send along by themselves, the status page's event stream included. Probes of health are always let in.
"""

from __future__ import annotations

import hmac
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Awaitable, Callable
from ipaddress import ip_address

import orjson
from aiohttp import web
from aiohttp.typedefs import Middleware

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
PROBES = frozenset({"/livez", "/readyz"})
ASK = 'Basic realm="soloflight admin", charset="UTF-8"'
HARDENED = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def guard(token: str) -> Middleware:
    """The middleware; ``token`` "" = none is set."""

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        refusal = _refusal(request, token)
        return refusal if refusal is not None else await handler(request)

    return guarded


async def harden(_: web.Request, answer: web.StreamResponse) -> None:
    """Every answer: no browser guesses its type, tells others of it, or gives it to another site."""
    answer.headers.update(HARDENED)


def _refusal(request: web.Request, token: str) -> web.Response | None:
    if request.path in PROBES and request.method in SAFE_METHODS:
        return None
    if token:
        if not hmac.compare_digest(_given(request), token.encode()):
            return _refuse("this listener needs the admin token", 401, {"WWW-Authenticate": ASK})
    elif not _loopback(request.host):
        return _refuse("the Host must be a loopback name", 403)
    if request.method not in SAFE_METHODS and _cross_origin(request):
        return _refuse("cross-origin requests may not change anything", 403)
    return None


def _given(request: web.Request) -> bytes:
    """The token that the request carries: as Bearer, or as the password of Basic; b"" for none."""
    scheme, _, value = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return value.strip().encode("utf-8", "surrogateescape")
    if scheme.lower() == "basic":
        try:
            return b64decode(value.strip(), validate=True).partition(b":")[2]
        except (Base64Error, ValueError):
            return b""
    return b""


def _loopback(host: str) -> bool:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    name = name.strip("[]").lower()
    if name == "localhost":
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def _cross_origin(request: web.Request) -> bool:
    """Whether a browser sends this from another site (Fetch metadata, else Origin)."""
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = request.headers.get("Origin")
    return origin is not None and origin.partition("://")[2] != request.host


def _refuse(message: str, status: int, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(
        body=orjson.dumps({"error": message}),
        status=status,
        content_type="application/json",
        headers={"Cache-Control": "no-store", **(headers or {})},
    )
