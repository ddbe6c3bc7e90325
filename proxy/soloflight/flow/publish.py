"""Live publishing of an owned flight, once somebody elsewhere wants it: first what is there, then each batch as it comes.

A flight that nobody else follows is never published (design section 4): its followers-to-be ring first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from soloflight.core.flight import Done, Gap
from soloflight.core.frames import Body, End, Frame, Head
from soloflight.core.log import Cursor, FellBehind, Log
from soloflight.flow.lease import Lease
from soloflight.flow.tasks import Tasks

BATCH_BYTES = 256 * 1024
SENDS = 3


class Publisher:
    """Reads the owner's log through a cursor of its own and appends batches at the coordinator, one in flight at a time.

    Batching follows from that: what comes while one append is on its way goes into the next. While the backend is away nothing
    is published; the first renewal that it answers tells of the watchers, which rings, and publishing goes on where it was.
    """

    def __init__(self, log: Log, lease: Lease, tasks: Tasks) -> None:
        self._log = log
        self._lease = lease
        self._tasks = tasks
        self._cursor: Cursor | None = None
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._queue: list[Frame] = []
        self._sending: tuple[Frame, ...] = ()
        self._index = 0
        self._over = False

    def __repr__(self) -> str:
        return f"Publisher(batches={self._index}, live={self.live}, over={self._over})"

    @property
    def live(self) -> bool:
        """Whether somebody elsewhere is being told."""
        return self._task is not None and not self._task.done()

    def ring(self) -> None:
        """Somebody elsewhere listens: go live, if not yet."""
        if self.live or self._over or not self._lease.held:
            return
        if self._cursor is None:
            if self._log.windowed:
                return
            self._cursor = self._log.attach(tap=True)
        self._task = self._tasks.spawn(self._run(), "publish")

    async def flush(self, last: Sequence[Frame]) -> None:
        """Publish what is left and ``last``, up to the End, so that followers have every byte at the seal.

        Who rings from now on is told by the seal alone: no batch may come behind it.
        """
        await self._stop()
        if self._cursor is not None and self._gather():
            self._queue += last
            while (self._sending or self._queue) and await self._append():
                pass

    async def close(self) -> None:
        """Stop publishing; idempotent."""
        await self._stop()
        if self._cursor is not None:
            self._cursor.detach()

    async def _stop(self) -> None:
        """Let the batch that is on its way arrive; its wait is bounded by the coordinator's command timeout."""
        self._over = True
        self._wake.set()
        if self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        assert self._cursor is not None
        while self._gather() and not self._over:
            if self._sending or self._queue:
                if not await self._append():
                    break
            else:
                self._wake.clear()
                self._cursor.wait(self._wake.set)
                await self._wake.wait()

    def _gather(self) -> bool:
        """Move what the log has into the queue; False where publishing is over (detached, or fallen out of the window)."""
        assert self._cursor is not None
        if not self._lease.held:
            return False
        try:
            self._queue += [_shared(frame) for frame in self._cursor.take() if not isinstance(frame, End)]
        except FellBehind:
            self._over = True
            return False
        return True

    async def _append(self) -> bool:
        """One batch on its way; re-sent as it was if the reply was lost. False: it can not go on, for now or for good."""
        if not self._sending:
            self._sending = self._batch()
        for _ in range(SENDS):
            reply = await self._lease.append(self._index + 1, self._sending)
            if isinstance(reply, Done):
                self._index += 1
                self._sending = ()
                return True
            if isinstance(reply, Gap):
                self._over = True
            if self._over or not self._lease.held:
                break
        return False

    def _batch(self) -> tuple[Frame, ...]:
        """Take the next batch from the queue."""
        count, size = 0, 0
        while count < len(self._queue) and size < BATCH_BYTES:
            frame = self._queue[count]
            count += 1
            size += len(frame.data) if isinstance(frame, Body) else 0
        batch = tuple(self._queue[:count])
        del self._queue[:count]
        return batch


def _shared(frame: Frame) -> Frame:
    """The frame as other nodes may see it: cookies are the owner's client's alone."""
    return frame.without(b"set-cookie") if isinstance(frame, Head) else frame
