"""One request being answered: the connection as a script sees it, and the playing of a script on it."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from contextlib import aclosing

from soloflight.testing.received import BodyReader, Received
from soloflight.testing.script import CLOSE, Answer, Ending, ReadBody, Script, Step


class Exchange:
    """One request being answered: what a callable step gets. ``received`` is the record of the request."""

    def __init__(
        self, received: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, keep_bytes: int
    ) -> None:
        self.received = received
        self.reader = reader
        self.writer = writer
        self._ended_here = False
        self._body = BodyReader(received, reader, keep_bytes)
        self._continue_sent = False

    def __repr__(self) -> str:
        return f"<Exchange of {self.received!r}>"

    async def write(self, data: bytes) -> None:
        """Write ``data`` as it is, and wait until the socket took it (back-pressure counts)."""
        self.writer.write(data)
        self.received.sent.append((time.monotonic(), len(data)))
        await self.writer.drain()

    async def read_body(self, size: int | None = None) -> None:
        """Read ``size`` further body bytes (None: to the end), after ``100 Continue`` if the client asked."""
        if self.received.field(b"expect").lower() == b"100-continue" and not self._continue_sent:
            self._continue_sent = True
            self.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await self._body.read(size)

    def end(self, how: Ending = CLOSE) -> None:
        """Close the connection with FIN, or break it with RST."""
        self._ended_here = True
        if how is Ending.RESET:
            sock = self.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.writer.transport.abort()
        else:
            self.writer.close()

    def client_left(self, how: str) -> None:
        """The connection ended; an end that this side made is no departure."""
        if not self._ended_here:
            self.received.note_leaving(how)


async def perform(exchange: Exchange, answer: Answer, after_step: Callable[[], None]) -> bool:
    """Play ``answer``; True if it leaves the connection open for the next request."""
    script = answer(exchange.received) if callable(answer) else answer
    async with aclosing(_steps(script)) as steps:
        async for step in steps:
            if isinstance(step, Ending):
                if step is Ending.HANG:
                    await asyncio.Event().wait()
                exchange.end(step)
                return False
            await _take(step, exchange)
            after_step()
    return True


async def _steps(script: Script) -> AsyncGenerator[Step, None]:
    if isinstance(script, bytes):
        yield script
    elif isinstance(script, AsyncGenerator):
        async with aclosing(script):
            async for step in script:
                yield step
    elif isinstance(script, AsyncIterable):
        async for step in script:
            yield step
    else:
        for step in script:
            yield step


async def _take(step: Step, exchange: Exchange) -> None:
    if isinstance(step, bytes):
        await exchange.write(step)
    elif isinstance(step, (int, float)):
        await asyncio.sleep(step)
    elif isinstance(step, asyncio.Event):
        await step.wait()
    elif isinstance(step, ReadBody):
        await exchange.read_body(step.size)
    elif callable(step):
        await step(exchange)
    else:
        raise TypeError(f"not a step of a script: {step!r}")
