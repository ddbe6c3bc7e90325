"""Live publishing of an owned flight, once somebody elsewhere wants it: first what is there, then each batch as it comes.

A flight that nobody else follows is never published (design section 4): its followers-to-be ring first.
"""

from __future__ import annotations

import asyncio

from soloflight.core.flight import Done, Gap
from soloflight.core.frames import Body, End, Frame
from soloflight.core.log import Cursor, FellBehind, Log
from soloflight.flow.lease import Lease
from soloflight.flow.tasks import Tasks

BATCH_BYTES = 256 * 1024


class Publisher:
    """Reads the owner's log through a cursor of its own and appends batches at the coordinator, one in flight at a time.

    Batching follows from that: what comes while one append is on its way goes into the next.
    """

    def __init__(self, log: Log, lease: Lease, tasks: Tasks) -> None:
        self._log = log
        self._lease = lease
        self._tasks = tasks
        self._cursor: Cursor | None = None
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._queue: list[Frame] = []
        self._index = 0
        self._stopping = False

    def __repr__(self) -> str:
        return f"Publisher(batches={self._index}, live={self._task is not None})"

    def ring(self) -> None:
        """Somebody elsewhere listens: go live, if not yet."""
        if self._task is None and not self._stopping and not self._log.windowed and self._lease.held:
            self._cursor = self._log.attach(tap=True)
            self._task = self._tasks.spawn(self._run(), "publish")

    async def flush(self, last: list[Body]) -> None:
        """Publish what is left and the frames that the seal holds back, so that followers have every byte at the seal."""
        if self._task is None:
            return
        await self._stop()
        if self._gather():
            self._queue += last
            while self._queue and await self._append():
                pass

    async def close(self) -> None:
        """Stop publishing; idempotent."""
        await self._stop()
        if self._cursor is not None:
            self._cursor.detach()

    async def _stop(self) -> None:
        """Let the batch that is on its way arrive; its wait is bounded by the coordinator's command timeout."""
        self._stopping = True
        self._wake.set()
        if self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        assert self._cursor is not None
        while not self._stopping and self._gather():
            if not self._queue:
                self._wake.clear()
                self._cursor.wait(self._wake.set)
                await self._wake.wait()
            elif not await self._append():
                break

    def _gather(self) -> bool:
        """Move what the log has into the queue; False where publishing is over (detached, or fallen out of the window)."""
        assert self._cursor is not None
        if not self._lease.held:
            return False
        try:
            self._queue += [frame for frame in self._cursor.take() if not isinstance(frame, End)]
        except FellBehind:
            return False
        return True

    async def _append(self) -> bool:
        """One batch on its way; re-sent as it was if the reply was lost."""
        batch, size = [], 0
        for frame in self._queue:
            batch.append(frame)
            size += len(frame.data) if isinstance(frame, Body) else 0
            if size >= BATCH_BYTES:
                break
        for _ in range(3):
            reply = await self._lease.append(self._index + 1, tuple(batch))
            if isinstance(reply, Done):
                self._index += 1
                del self._queue[: len(batch)]
                return True
            if not self._lease.held or isinstance(reply, Gap):
                break
        return False
