"""The admin listener: health, metrics, the status page, and an operator's hands. Who may ask is ``admin_guard``'s affair.

Errors are ``{"error": "…"}``. No answer may be kept by anybody (``Cache-Control: no-store``).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any

import orjson
from aiohttp import web

from soloflight.flow.oversight import Abort
from soloflight.web.admin_guard import guard, harden
from soloflight.web.desk import Desk
from soloflight.web.health import Condition
from soloflight.web.status import StatusPage

EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"
EVENTS_EVERY_S = 1.0
READER_S = 20.0
NAME = re.compile(r"[0-9a-f]{16,64}")
MAX_BODY = 16 * 1024
ABORTED = {Abort.DONE: 200, Abort.TOLD: 202, Abort.UNKNOWN: 404}


def admin_app(state: Condition, token: str, desk: Desk) -> web.Application:
    """The admin application. ``token`` "" = none is set."""
    admin = Admin(state, desk)
    app = web.Application(middlewares=[guard(token)], client_max_size=MAX_BODY)
    app.add_routes(
        [
            web.get("/", admin.page),
            web.get("/livez", admin.livez),
            web.get("/readyz", admin.readyz),
            web.get("/metrics", admin.metrics),
            web.get("/api/overview", admin.overview),
            web.get("/api/events", admin.events),
            web.get("/api/flights", admin.flights),
            web.get("/api/flights/{id}", admin.flight),
            web.delete("/api/flights/{id}", admin.abort),
            web.get("/api/stages", admin.stages),
            web.post("/api/purge", admin.purge),
        ]
    )
    app.on_response_prepare.append(harden)
    app.on_shutdown.append(admin.end)
    return app


class Admin:
    """The handlers, over one desk."""

    def __init__(self, state: Condition, desk: Desk) -> None:
        self._state = state
        self._desk = desk
        self._page = StatusPage()
        self._ending = asyncio.Event()

    def __repr__(self) -> str:
        return f"Admin({self._desk!r})"

    async def end(self, _: web.Application) -> None:
        """The listener closes: event streams end now."""
        self._ending.set()

    async def livez(self, _: web.Request) -> web.Response:
        """200 while the process runs."""
        return _json({"status": "alive"})

    async def readyz(self, _: web.Request) -> web.Response:
        """503 while draining; a degraded backend is named, and ready all the same."""
        degraded = self._state.degraded()
        status = "draining" if self._state.draining else "degraded" if degraded else "ok"
        body = {"status": status, "ready": not self._state.draining, "degraded": degraded or None}
        return _json(body, 503 if self._state.draining else 200)

    async def page(self, _: web.Request) -> web.Response:
        """The status page: one file, with what may run in it named by digest."""
        return web.Response(body=self._page.body, headers=self._page.headers)

    async def metrics(self, _: web.Request) -> web.Response:
        """For Prometheus; nothing at all where no observer exposes anything."""
        return web.Response(
            body=await self._desk.metrics(), headers={"Content-Type": EXPOSITION, "Cache-Control": "no-store"}
        )

    async def overview(self, _: web.Request) -> web.Response:
        """All that the page shows, once."""
        return _json(await self._desk.overview())

    async def events(self, request: web.Request) -> web.StreamResponse:
        """The same as server-sent events, one a second."""
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        answer = web.StreamResponse(headers=headers)
        await answer.prepare(request)
        event = b"retry: 1000\n\n"
        try:
            while not self._ending.is_set():
                event += b"data: " + _dumps(await self._desk.overview()) + b"\n\n"
                async with asyncio.timeout(READER_S):
                    await answer.write(event)
                event = b""
                await self._pause()
        except (ConnectionResetError, TimeoutError):
            pass  # the reader has left, or does not read
        return answer

    async def _pause(self) -> None:
        """Until the next event is due, or the listener closes."""
        try:
            async with asyncio.timeout(EVENTS_EVERY_S):
                await self._ending.wait()
        except TimeoutError:
            return

    async def flights(self, _: web.Request) -> web.Response:
        """Every live flight."""
        return _json({"flights": await self._desk.flights()})

    async def flight(self, request: web.Request) -> web.Response:
        """One live flight, or 404."""
        found = await self._desk.flight(request.match_info["id"])
        return _json(found) if found is not None else _error("no such flight runs here", 404)

    async def abort(self, request: web.Request) -> web.Response:
        """End a flight: 200 done, 202 its owner was told, 404 it does not run."""
        flight_id = request.match_info["id"]
        if not NAME.fullmatch(flight_id):
            return _error("that is no flight's id", 400)
        came = await self._desk.abort(flight_id)
        if came is Abort.UNKNOWN:
            return _error("no such flight runs here", 404)
        return _json({"flight": flight_id, "result": came.value}, ABORTED[came])

    async def stages(self, _: web.Request) -> web.Response:
        """Every stage with rules and counts."""
        return _json({"stages": await self._desk.stages()})

    async def purge(self, request: web.Request) -> web.Response:
        """``{"stage": NAME}`` or ``{"key": FINGERPRINT-OR-FLIGHT}``."""
        try:
            wish = orjson.loads(await request.read())
        except orjson.JSONDecodeError:
            wish = None
        fault = _purge_fault(wish)
        if fault:
            return _error(fault, 400)
        done = await self._desk.purge(**wish)
        return _json(done) if done is not None else _error("no such stage is configured", 404)


def _purge_fault(wish: Any) -> str:
    """What is wrong with the body of a purge, or ""."""
    if not isinstance(wish, Mapping) or len(wish) != 1 or not wish.keys() <= {"stage", "key"}:
        return 'the body must be {"stage": NAME} or {"key": FINGERPRINT or flight id}'
    name = next(iter(wish.values()))
    if not isinstance(name, str) or ("key" in wish and not NAME.fullmatch(name)):
        return "that is no name of a stage, fingerprint or flight"
    return ""


def _dumps(body: object) -> bytes:
    return orjson.dumps(body)


def _error(message: str, status: int) -> web.Response:
    return _json({"error": message}, status)


def _json(body: object, status: int = 200) -> web.Response:
    return web.Response(
        body=_dumps(body), status=status, content_type="application/json", headers={"Cache-Control": "no-store"}
    )
