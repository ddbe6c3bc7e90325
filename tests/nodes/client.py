"""A client without a connection: it reads a listener's frames as a door would, and keeps what came."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Self

from soloflight.core.errors import Code
from soloflight.core.frames import Body, End, Frame, Head
from soloflight.core.log import FellBehind
from soloflight.flow.listen import Listener
from soloflight.ports import Role

PATIENCE_S = 5.0


class Client:
    """Reads one listener. ``commits`` False: a door that has not been able to send a byte yet.

    ``pushed``: it takes frames in the call that appends them, as a door does whose client takes bytes.
    """

    def __init__(self, listener: Listener, *, commits: bool = True, pushed: bool = False) -> None:
        self.listener = listener
        self.commits = commits
        self.push = self._push if pushed else None
        self.over = False
        self.head: Head | None = None
        self.heads = 0
        self.pieces: list[bytes] = []
        self.end: End | None = None
        self.fell_behind = False

    def __repr__(self) -> str:
        return f"Client({self.listener!r}, {len(self.body)} bytes, end={self.end})"

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    @property
    def role(self) -> Role | None:
        return self.listener.role

    @property
    def flight(self) -> str:
        return self.listener.flight_id

    @property
    def whole(self) -> bool:
        """The answer came to its proven end."""
        return self.end is not None and self.end.fault is None

    @property
    def code(self) -> Code | None:
        """The fault that the answer ended with."""
        return self.end.fault.code if self.end is not None and self.end.fault is not None else None

    async def step(self) -> None:
        """Take the next frames, whatever they are."""
        try:
            frames = await self.listener.next(self.push)
        except FellBehind:
            self.fell_behind = True
            return
        self.over = not frames
        self._take(frames)

    def _push(self, frames: list[Frame]) -> bool:
        self._take(frames)
        return True

    def _take(self, frames: list[Frame]) -> None:
        for frame in frames:
            if isinstance(frame, Head):
                self.head = frame
                self.heads += 1
                self.pieces.clear()
            elif isinstance(frame, Body):
                if self.commits and not self.listener.committed:
                    self.listener.commit()
                self.pieces.append(frame.data)
            else:
                self.end = frame

    async def until(self, holds: Callable[[], object]) -> Self:
        """Read until ``holds()``, the end, or out of the window; fails after ``PATIENCE_S``."""
        async with asyncio.timeout(PATIENCE_S):
            while not holds() and self.end is None and not self.fell_behind and not self.over:
                await self.step()
        return self

    async def until_bytes(self, count: int) -> Self:
        return await self.until(lambda: len(self.body) >= count)

    async def read(self) -> Self:
        """Read to the end and leave."""
        await self.until(lambda: False)
        self.leave()
        return self

    def leave(self) -> None:
        self.listener.close()
