"""The admin listener: health. A request must name a loopback Host or carry the token (DNS rebinding, contract section 6)."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from ipaddress import ip_address

import orjson
from aiohttp import web
from aiohttp.typedefs import Middleware

from soloflight.web.health import Condition

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def admin_app(state: Condition, token: str) -> web.Application:
    """The admin application. ``token`` "" = none is set."""

    async def livez(_: web.Request) -> web.Response:
        return _json({"status": "alive"})

    async def readyz(_: web.Request) -> web.Response:
        degraded = state.degraded()
        status = "draining" if state.draining else "degraded" if degraded else "ok"
        body = {"status": status, "ready": not state.draining, "degraded": degraded or None}
        return _json(body, 503 if state.draining else 200)

    app = web.Application(middlewares=[_guard(token)])
    app.add_routes([web.get("/livez", livez), web.get("/readyz", readyz)])
    return app


def _guard(token: str) -> Middleware:
    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        allowed = bool(token) and hmac.compare_digest(given.encode(), token.encode())
        if not allowed and (token or not _loopback(request.host)) and request.path not in ("/livez", "/readyz"):
            return _json({"error": "this listener needs the admin token"}, 401)
        if not allowed and not token and not _loopback(request.host):
            return _json({"error": "the Host must be a loopback name"}, 403)
        if request.method not in SAFE_METHODS and _cross_origin(request):
            return _json({"error": "cross-origin requests may not change anything"}, 403)
        return await handler(request)

    return guard


def _json(body: object, status: int = 200) -> web.Response:
    return web.Response(
        body=orjson.dumps(body), status=status, content_type="application/json", headers={"Cache-Control": "no-store"}
    )


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
