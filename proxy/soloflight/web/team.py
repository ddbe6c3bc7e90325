"""Several workers, one admin listener: each serves its own desk on a private Unix socket, and one of them asks all of them.

The sockets stand in a directory that only this user can enter. A worker that does not answer in time is left out: its
flights and counts are missing until it does. What an operator says reaches the others as a fleet's word, like other nodes.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import orjson
from aiohttp import ClientError, ClientSession, ClientTimeout, UnixConnector

from soloflight.flow.oversight import Abort
from soloflight.flow.tasks import Tasks
from soloflight.web.desk import FLIGHTS_SHOWN, Desk, Json
from soloflight.web.merging import merged_metrics, merged_overviews, merged_stages, oldest_first

T = TypeVar("T")
log = logging.getLogger("soloflight.team")

ANSWER_S = 2.0


@dataclass(frozen=True, slots=True)
class Team:
    """This worker among its siblings: number ``index`` of ``size``, whose sockets stand in ``folder``.

    The folder is the supervisor's, whose process id is ``supervisor``, and goes with it.
    """

    index: int
    size: int
    folder: Path
    supervisor: int

    @property
    def socket(self) -> Path:
        """Where this worker's own desk is served."""
        return self._socket(self.index)

    @property
    def siblings(self) -> list[Path]:
        """Where the others' are."""
        return [self._socket(index) for index in range(self.size) if index != self.index]

    def leave(self) -> None:
        """This worker ends; where the supervisor was killed, the last one takes the folder along."""
        with suppress(OSError):
            self.socket.unlink()
            if os.getppid() != self.supervisor:
                os.rmdir(self.folder)

    def _socket(self, index: int) -> Path:
        return self.folder / f"worker-{index}.sock"


class Sibling:
    """Another worker's desk, as it is asked over its socket. Every method gives None where it does not answer."""

    def __init__(self, socket: Path) -> None:
        self._session = ClientSession(
            "http://localhost", connector=UnixConnector(str(socket)), timeout=ClientTimeout(total=ANSWER_S)
        )
        self._socket = socket

    def __repr__(self) -> str:
        return f"Sibling({self._socket.name})"

    async def close(self) -> None:
        """Give its connections back."""
        await self._session.close()

    async def get(self, path: str) -> bytes | None:
        """The body of ``path``; None also for what it does not have."""
        status, body = await self._ask("GET", path)
        return body if status == 200 else None

    async def json(self, path: str) -> Json | None:
        """The object at ``path``."""
        body = await self.get(path)
        found: Json | None = orjson.loads(body) if body is not None else None
        return found

    async def abort(self, flight_id: str) -> Abort:
        """End a flight there."""
        status, _ = await self._ask("DELETE", f"/api/flights/{flight_id}")
        return {200: Abort.DONE, 202: Abort.TOLD}.get(status, Abort.UNKNOWN)

    async def _ask(self, method: str, path: str) -> tuple[int, bytes]:
        try:
            async with self._session.request(method, path) as answer:
                return answer.status, await answer.read()
        except (ClientError, OSError, TimeoutError) as error:
            log.debug("%s did not answer: %s", self._socket.name, type(error).__name__)
            return 0, b""


class TeamDesk:
    """``web.desk.Desk`` for all workers: ``own`` is this one's."""

    def __init__(self, own: Desk, siblings: Sequence[Sibling]) -> None:
        self._own = own
        self._siblings = siblings
        self._asking = Tasks("team")

    def __repr__(self) -> str:
        return f"TeamDesk({self._own!r}, {len(self._siblings)} siblings)"

    async def close(self) -> None:
        """Ask nobody any more."""
        await self._asking.close()
        for sibling in self._siblings:
            await sibling.close()

    async def overview(self) -> Json:
        views = [await self._own.overview(), *await self._all(lambda sibling: sibling.json("/api/overview"))]
        return merged_overviews(views, FLIGHTS_SHOWN)

    async def flights(self) -> list[Json]:
        others = await self._all(lambda sibling: sibling.json("/api/flights"))
        return oldest_first([await self._own.flights(), *(told["flights"] for told in others)])

    async def flight(self, flight_id: str) -> Json | None:
        own = await self._own.flight(flight_id)
        others = await self._all(lambda sibling: sibling.json(f"/api/flights/{flight_id}"))
        seen = [*([own] if own is not None else []), *others]
        return next((row for row in seen if row["role"] == "owner"), seen[0] if seen else None)

    async def abort(self, flight_id: str) -> Abort:
        own = await self._own.flight(flight_id)
        if own is not None and own["role"] == "owner":
            return await self._own.abort(flight_id)
        came = {await sibling.abort(flight_id) for sibling in self._siblings}
        return next((one for one in (Abort.DONE, Abort.TOLD) if one in came), Abort.UNKNOWN)

    async def stages(self) -> list[Json]:
        others = await self._all(lambda sibling: sibling.json("/api/stages"))
        return merged_stages([await self._own.stages(), *(told["stages"] for told in others)])

    async def purge(self, *, key: str | None = None, stage: str | None = None) -> Json | None:
        return await self._own.purge(key=key, stage=stage)

    async def metrics(self) -> bytes:
        return merged_metrics([await self._own.metrics(), *await self._all(lambda sibling: sibling.get("/metrics"))])

    async def _all(self, ask: Callable[[Sibling], Awaitable[T | None]]) -> list[T]:
        """What the siblings answer, in their order, all asked at once; each is bounded by ``ANSWER_S``."""

        async def asked(sibling: Sibling) -> T | None:
            return await ask(sibling)

        asking = [self._asking.spawn(asked(sibling), f"ask {sibling!r}") for sibling in self._siblings]
        if asking:
            await asyncio.wait(asking)
        answers = [task.result() for task in asking]
        return [answer for answer in answers if answer is not None]
