"""Health: alive while the process runs; ready unless it drains. Never asks the backend or the upstream (cases C63)."""

from __future__ import annotations

import time
from typing import Protocol

import orjson

from soloflight.web.wire import Client, http_date

HEALTH = "/_soloflight/"
HEALTH_PATHS = frozenset({"/_soloflight/health", "/_soloflight/livez", "/_soloflight/readyz"})


class Condition(Protocol):
    """What is told."""

    draining: bool

    def degraded(self) -> str:
        """Why the process works with less than it was configured for, or ""."""


def health_answer(path: str, state: Condition, client: Client) -> bytes:
    """The whole answer. Only ``livez`` is 200 while draining."""
    ready = not state.draining
    degraded = state.degraded()
    status = "draining" if state.draining else "degraded" if degraded else "ok"
    body = orjson.dumps({"status": status, "ready": ready, "degraded": degraded or None})
    code = b"200 OK" if ready or path.endswith("livez") else b"503 Service Unavailable"
    head = b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nCache-Control: no-store\r\nDate: %b\r\n" % (
        code,
        http_date(time.time()),
    )
    head += b"Content-Length: %d\r\n" % len(body)
    if not client.keep_alive:
        head += b"Connection: close\r\n"
    elif not client.http11:
        head += b"Connection: keep-alive\r\n"
    return head + b"\r\n" + (b"" if client.method == "HEAD" else body)
