"""A desk that shows what a test wants, served by the real admin application."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from harness.ports import free_port
from soloflight.core.stage import Stage, Stages
from soloflight.flow.oversight import Abort
from soloflight.web.admin import admin_app
from soloflight.web.handlers import State
from soloflight.web.tally import Prices, Tally

NODE, OTHER = "0123456789abcdef", "fedcba9876543210"


def flight(number: int, **more: Any) -> dict[str, Any]:
    """One row of ``/api/flights``."""
    return {
        "id": f"{number:020x}",
        "key": f"{number:048x}",
        "stage": "default",
        "state": "running",
        "role": "owner",
        "node": NODE,
        "owner": NODE,
        "attempt": 1,
        "age_s": number / 10,
        "lease_left_s": 4.0,
        "progress_age_s": 0.5,
        "frames": number,
        "bytes": 100 * number,
        "listeners": 3,
        "followers": 2,
        "watchers": 0,
        "model": "m",
        "path": "/v1/chat/completions",
        **more,
    }


class ShownDesk:
    """``web.desk.Desk``: ``rows`` are its flights; what it is told to do is kept in ``done``."""

    def __init__(self, rows: list[dict[str, Any]] | None = None, tally: Tally | None = None) -> None:
        self.rows = rows or []
        self.tally = tally or Tally(Prices(()))
        self.done: list[object] = []

    async def overview(self) -> dict[str, Any]:
        return {
            "version": "0.0.0",
            "nodes": [NODE],
            "uptime_s": 61.0,
            "status": "ok",
            "degraded": None,
            "backend": {"name": "memory", "up": True},
            "flights_total": len(self.rows),
            "flights": self.rows,
            "stages": await self.stages(),
            "errors": list(self.tally.errors),
        }

    async def flights(self) -> list[dict[str, Any]]:
        return self.rows

    async def flight(self, flight_id: str) -> dict[str, Any] | None:
        return next((row for row in self.rows if row["id"] == flight_id), None)

    async def abort(self, flight_id: str) -> Abort:
        self.done.append(("abort", flight_id))
        before = len(self.rows)
        self.rows = [row for row in self.rows if row["id"] != flight_id]
        return Abort.DONE if len(self.rows) < before else Abort.UNKNOWN

    async def stages(self) -> list[dict[str, Any]]:
        held = {"flights": len(self.rows), "followers": 2 * len(self.rows), "local_bytes": 0}
        stages = Stages([Stage("evaluation")])
        return [{"name": one.name, "rules": {}, "counts": {**held, **self.tally.told(one.name)}} for one in stages]

    async def purge(self, *, key: str | None = None, stage: str | None = None) -> dict[str, Any] | None:
        if stage == "unknown":
            return None
        self.done.append(("purge", key, stage))
        return {"local": 1, "kept": True, "told": True}

    async def metrics(self) -> bytes:
        return b"# HELP nothing\n"


@asynccontextmanager
async def served(desk: ShownDesk, token: str = "", port: int | None = None) -> AsyncIterator[str]:
    """The admin application over ``desk``, listening; yields its origin."""
    runner = web.AppRunner(admin_app(State(), token, desk), access_log=None, shutdown_timeout=1)
    await runner.setup()
    port = port or free_port()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()
