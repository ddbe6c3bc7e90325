"""The comparison: what a reader of aiohttp's documentation would write. ``python -m bench.textbook KIND PORT UPSTREAM``."""

from __future__ import annotations

import sys

import uvloop
from aiohttp import ClientSession, web

HOP = {"host", "content-length", "connection", "transfer-encoding"}


async def proxy(upstream: str) -> web.Application:
    """A reverse proxy: one ClientSession, bodies read whole."""
    app = web.Application(client_max_size=64 << 20)

    async def session(app: web.Application):  # type: ignore[no-untyped-def]
        async with ClientSession() as client:
            app["client"] = client
            yield

    async def handle(request: web.Request) -> web.Response:
        body = await request.read()
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP}
        url = upstream + request.path_qs
        async with request.app["client"].request(request.method, url, data=body, headers=headers) as answer:
            kind = answer.headers.get("Content-Type", "application/octet-stream")
            return web.Response(status=answer.status, body=await answer.read(), headers={"Content-Type": kind})

    app.cleanup_ctx.append(session)
    app.router.add_route("*", "/{path:.*}", handle)
    return app


async def memory(upstream: str) -> web.Application:
    """A server that answers a request body it has seen from a dict, and asks upstream for the first."""
    app = await proxy(upstream)
    answers: dict[bytes, bytes] = {}

    @web.middleware
    async def remembered(request: web.Request, handler):  # type: ignore[no-untyped-def]
        body = await request.read()
        if body not in answers:
            answer = await handler(request)
            answers[body] = answer.body
        return web.Response(body=answers[body], content_type="application/json")

    app.middlewares.append(remembered)
    return app


if __name__ == "__main__":
    uvloop.install()
    kind, port, upstream = sys.argv[1:4]
    make = {"proxy": proxy, "memory": memory}[kind]
    web.run_app(make(upstream), host="127.0.0.1", port=int(port), access_log=None, print=None)
