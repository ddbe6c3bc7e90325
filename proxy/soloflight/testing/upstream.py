"""A scripted upstream: a raw TCP server that parses just enough HTTP/1.1 and answers to the byte as told.

For tests of the proxy and of plugins. It records what arrived and when, and how each client left; it frames
and corrects nothing. Only the standard library, so that no fault of an HTTP library can hide here.

By hand: ``python -m soloflight.testing.upstream --port 9000`` is a chat upstream that prints each request.
"""

from __future__ import annotations

import argparse
import asyncio
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Self

from soloflight.testing import chat
from soloflight.testing.exchange import Exchange, perform
from soloflight.testing.received import Received, read_head
from soloflight.testing.script import Answer, Script, json


class _Watched(asyncio.StreamReaderProtocol):
    """A stream's protocol that notes when and how the client left, whatever the script is doing."""

    def __init__(self, upstream: ScriptedUpstream) -> None:
        super().__init__(asyncio.StreamReader(limit=upstream.read_limit), upstream._serve)
        self.upstream = upstream
        self.number = 0
        self.left: str | None = None
        self.exchange: Exchange | None = None
        self.performing: asyncio.Task[None] | None = None
        self.transport: asyncio.BaseTransport | None = None

    def __repr__(self) -> str:
        return f"<_Watched {self.number} left={self.left} exchange={self.exchange!r}>"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.upstream._opened(self)
        super().connection_made(transport)

    def eof_received(self) -> bool | None:
        self._leave("fin")
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave("fin" if exc is None else "rst")
        super().connection_lost(exc)
        self.upstream._closed(self)

    def abort(self) -> None:
        """Drop the connection from this side."""
        self.exchange = None
        if isinstance(self.transport, asyncio.Transport):
            self.transport.abort()

    def _leave(self, how: str) -> None:
        """Note the departure, and end the script: a server stops work when its client is gone."""
        self.left = self.left or how
        if self.exchange is not None:
            self.exchange.client_left(how)
        if self.performing is not None:
            self.performing.cancel()
        self.upstream._touch()


class ScriptedUpstream:
    """Answers its n-th request with the n-th of ``answers``; the last one goes on for all that follow.

    An answer is a script (see ``soloflight.testing.script``) or a function of the ``Received`` request that
    gives one. ``async with ScriptedUpstream(sse(CH, FIN, DONE)) as upstream`` listens on ``upstream.port``;
    from sync code ``with upstream.in_thread()``. ``read_first=False``: scripts start at the head and read the
    body by ``ReadBody``. ``keep_bytes``: how much of each body is kept (length and SHA-256 are always known).
    A client that closes its sending side counts as gone: its script is ended.
    """

    def __init__(
        self,
        *answers: Answer,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        read_first: bool = True,
        keep_bytes: int = 64 << 20,
        read_limit: int = 1 << 16,
    ) -> None:
        self.host = host
        self.port = port
        self.tls = tls
        self.read_first = read_first
        self.keep_bytes = keep_bytes
        self.read_limit = read_limit
        self.requests: list[Received] = []
        self.open_max = 0
        self.connections = 0
        self.faults: list[Exception] = []
        self._answers = answers
        self._answered = 0
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self._open: set[_Watched] = set()

    def __repr__(self) -> str:
        return f"<ScriptedUpstream {self.url} calls={self.calls} open={self.open_now}>"

    @property
    def url(self) -> str:
        """The origin, without a path."""
        return f"{'https' if self.tls else 'http'}://{self.host}:{self.port}"

    @property
    def calls(self) -> int:
        """Requests whose head has arrived."""
        return len(self.requests)

    @property
    def open_now(self) -> int:
        """Connections open at this moment, idle ones included."""
        return len(self._open)

    def play(self, *answers: Answer) -> None:
        """From now on answer with ``answers``, from the first one. Records stay."""
        self._answers = answers
        self._answered = 0

    async def wait_until(self, holds: Callable[[], bool], within_s: float = 5.0) -> None:
        """Wait until ``holds()``, looked at after every event here; ``TimeoutError`` after ``within_s``."""
        async with asyncio.timeout(within_s):
            while not holds():
                await self._changed.wait()

    async def wait_calls(self, count: int, within_s: float = 5.0) -> None:
        """Wait until ``count`` requests have arrived in all."""
        await self.wait_until(lambda: self.calls >= count, within_s)

    async def start(self) -> None:
        """Listen; ``port`` then is the real one."""
        loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._server = await loop.create_server(
            lambda: _Watched(self), self.host, self.port, ssl=self.tls, backlog=4096
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening and break what is open. Raises the first fault that a script of the test had."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in list(self._serving):
            task.cancel()
        for watched in list(self._open):
            watched.abort()
        await self.wait_until(lambda: not self._serving and not self._open)
        if self.faults:
            raise self.faults[0]

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @contextmanager
    def in_thread(self) -> Iterator[Self]:
        """Serve from a loop in a thread of its own, for sync clients; ``asyncio.Event`` steps are its own."""
        started = threading.Event()
        stopping = threading.Event()

        async def live() -> None:
            async with self:
                started.set()
                await asyncio.get_running_loop().run_in_executor(None, stopping.wait)

        thread = threading.Thread(target=lambda: asyncio.run(live()), name="scripted-upstream")
        thread.start()
        try:
            if not started.wait(5):
                raise TimeoutError("the scripted upstream did not start")
            yield self
        finally:
            stopping.set()
            thread.join(10)

    def _touch(self) -> None:
        """Wake every waiter of ``wait_until``."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _opened(self, watched: _Watched) -> None:
        self._open.add(watched)
        self.connections += 1
        watched.number = self.connections
        self.open_max = max(self.open_max, self.open_now)

    def _closed(self, watched: _Watched) -> None:
        self._open.discard(watched)
        self._touch()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        watched = writer.transport.get_protocol()
        task = asyncio.current_task()
        assert isinstance(watched, _Watched)
        assert task is not None
        self._serving.add(task)
        try:
            while await self._exchange(watched, reader, writer):
                pass
            writer.close()
        except (asyncio.CancelledError, asyncio.IncompleteReadError, OSError):
            writer.transport.abort()  # the client left (the protocol has noted it), or stop()
        except Exception as fault:  # a test's script is wrong: stop() raises it
            self.faults.append(fault)
            writer.transport.abort()
        finally:
            self._serving.discard(task)
            self._touch()

    async def _exchange(self, watched: _Watched, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request. True: the connection stays open for the next."""
        raw_head = await read_head(reader)
        if raw_head is None:
            return False
        received = Received(len(self.requests) + 1, watched.number, raw_head, time.monotonic())
        exchange = watched.exchange = Exchange(received, reader, writer, self.keep_bytes)
        self.requests.append(received)
        self._touch()
        if watched.left:
            exchange.client_left(watched.left)
        if self.read_first:
            await exchange.read_body()
        if watched.left:
            return False
        watched.performing = asyncio.current_task()
        keep = await perform(exchange, self._next_answer(), self._touch)
        watched.performing = watched.exchange = None
        received.finished_at = time.monotonic()
        self._touch()
        if keep:
            await exchange.read_body()
        return keep

    def _next_answer(self) -> Answer:
        if not self._answers:
            return json({"error": {"message": "no script for this call"}}, status=500)
        place = min(self._answered, len(self._answers) - 1)
        self._answered += 1
        return self._answers[place]


async def _live(options: argparse.Namespace) -> None:
    def answer(received: Received) -> Script:
        sys.stdout.write(f"{received!r}\n")
        sys.stdout.flush()
        return chat.answer(received, events=options.events, pause_s=options.pause)

    async with ScriptedUpstream(answer, host=options.host, port=options.port) as upstream:
        sys.stdout.write(f"listening on {upstream.url}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


def main() -> None:
    """Serve a healthy chat upstream until interrupted."""
    parser = argparse.ArgumentParser(prog="python -m soloflight.testing.upstream", description=main.__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=9000, help="0: any free one")
    parser.add_argument("--events", type=int, default=20, help="content events of one answer")
    parser.add_argument("--pause", type=float, default=0.1, help="seconds after each of them")
    with suppress(KeyboardInterrupt):
        asyncio.run(_live(parser.parse_args()))


if __name__ == "__main__":
    main()
