"""A client's connection: aiohttp's request handler with the bounds, errors and raw writes that a proxy needs.

Pinned to the aiohttp releases that setup.cfg allows; what is relied on is held by tests/web/test_connection.py.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Any, cast

from aiohttp.web_protocol import RequestHandler, RequestPayloadError, _ErrInfo
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import StreamResponse
from aiohttp.web_server import Server

from soloflight.core.errors import Code, Fault
from soloflight.core.fields import is_trusted
from soloflight.web.begun import Begun, Count
from soloflight.web.sockets import outstanding, reset_on_close, unsent
from soloflight.web.wire import error_answer

log = logging.getLogger("soloflight.web")

MAX_LINE = 64 * 1024
MAX_FIELD = 128 * 1024
MAX_FIELDS = 256
KEEPALIVE_S = 75.0
LINGER_S = 5.0
READ_BUFFER = 256 * 1024
FLUSH_S = 2.0
AIOHTTP = (3, 14)
"""The release line whose insides are held by tests; only there a request is answered without its parser."""


class ClientGone(ConnectionError):
    """The client has closed its connection, or takes no bytes."""


class Sent:
    """What a handler returns once it has written the answer itself: aiohttp's connection loop asks it for no more than this."""

    __slots__ = ("keep_alive",)

    def __init__(self, *, keep_alive: bool) -> None:
        self.keep_alive = keep_alive

    async def prepare(self, request: BaseRequest) -> None:
        """The head is out already."""

    async def write_eof(self, data: bytes = b"") -> None:
        """The end is out already."""


def sent(*, keep_alive: bool) -> StreamResponse:
    """``Sent`` as the type that aiohttp names."""
    return cast(StreamResponse, _KEPT if keep_alive else _CLOSED)


_KEPT, _CLOSED = Sent(keep_alive=True), Sent(keep_alive=False)


class Door(Server):
    """Makes a Connection for each client of one listener."""

    def __init__(
        self,
        handler: Callable[[BaseRequest], Any],
        *,
        header_timeout_s: float,
        trusted: Sequence[object],
    ) -> None:
        super().__init__(
            handler,
            handler_cancellation=True,
            keepalive_timeout=KEEPALIVE_S,
            tcp_keepalive=True,
            access_log=None,
            logger=log,
            max_line_size=MAX_LINE,
            max_field_size=MAX_FIELD,
            max_headers=MAX_FIELDS,
            lingering_time=LINGER_S,
            read_bufsize=READ_BUFFER,
            auto_decompress=False,
        )
        self.header_timeout_s = header_timeout_s
        self.trusted = trusted
        self.leaving = False
        self.short_way: Callable[[bytes, Connection], bool] | None = None

    def __call__(self) -> RequestHandler:
        return Connection(self, loop=self._loop, **self._kwargs)


class Connection(RequestHandler):
    """One client connection. ``peer`` is its address ("" for a Unix socket)."""

    __slots__ = (
        "_count", "_door", "_gone", "_head_timer", "_held", "_more", "on_writable", "peer", "relay", "trusted_peer",
    )  # fmt: skip

    def __init__(self, manager: Door, **settings: Any) -> None:
        super().__init__(manager, **settings)
        self._door = manager
        self._head_timer: asyncio.TimerHandle | None = None
        self._count = Count()
        self._gone: Callable[[], None] | None = None
        self._more: Callable[[bytes], None] | None = None
        self._held = b""
        self.peer = ""
        self.trusted_peer = False
        self.relay: Callable[[bytes], None] | None = None
        self.on_writable: Callable[[], None] | None = None

    # ── bounds on the request head ──────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        peername = transport.get_extra_info("peername")
        if isinstance(peername, tuple):
            self.peer = str(peername[0]).removeprefix("::ffff:")
        self.trusted_peer = is_trusted(self.peer, self._door.trusted)
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        if self.relay is not None:
            self.relay(data)
            return
        if data and self._count.between:  # it begins another request
            if self._gone is not None:
                (self._more or self._hold)(data)
                return
            if not self._messages and self._short(data):
                return
        self.take_long(data)

    def take_long(self, data: bytes) -> None:
        """Let aiohttp parse it."""
        begins = self._count.between
        super().data_received(data)
        if self._messages and isinstance(self._messages[-1][0], _ErrInfo):
            self._spoil()
        if not data:  # aiohttp resumes its own parser this way; nothing came from the client
            return
        self._count.add(data, self._messages[-1][0] if self._messages else None, begins=begins)
        if self._messages and self._gone is None:
            self._gone = nobody  # aiohttp's own loop looks after its handler
        if self._gone is None and not self._messages:
            self._await_head()
        elif self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _spoil(self) -> None:
        """The parser refused bytes of a body: tell who reads it (aiohttp does not always), and wait for no more of it."""
        if len(self._messages) > 1:
            body = self._messages[-2][1]
        elif self._current_request is not None:
            body = self._current_request.content
        else:
            return
        if not body.is_eof():
            self._lingering_time = 0.0
            if body.exception() is None:
                body.set_exception(RequestPayloadError("the request body is not valid HTTP"))

    # ── requests that aiohttp's parser does not see ─────────────────────────────────────────────────────────────────

    def _short(self, data: bytes) -> bool:
        """Offer a block that begins between two requests to the short way (web.short); False: it takes the long one."""
        short_way, transport = self._door.short_way, self.transport
        if short_way is None or transport is None or self._close or self._force_close or self._paused:
            return False
        if transport.is_closing():  # its client has left; aiohttp is told of it next
            return False
        if not short_way(data, self):
            return False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
        return True

    def _process_keepalive(self) -> None:
        if self._gone is not None:  # not idle, whatever aiohttp's loop waits for
            self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
        super()._process_keepalive()

    def occupy(self, gone: Callable[[], None] | None, more: Callable[[bytes], None] | None = None) -> None:
        """A request is being answered here; ``gone`` is called once if the connection is lost before ``vacate``.

        ``more`` takes the rest of it; else what comes is behind it, and waits. ``gone`` None: it is not, so far.
        """
        self._gone = gone
        self._more = more

    def answered(self) -> None:
        """The answer to a request that aiohttp parsed is out, and the connection stays: what came behind it is next."""
        self._gone = None
        self.go_on()

    def go_on(self) -> None:
        """What came behind a request is next, unless that is still being answered."""
        if self._gone is None and self._held and self.transport is not None:
            held, self._held = self._held, b""
            self._resume_transport_reading()
            self.data_received(held)

    def vacate(self, *, keep_alive: bool) -> None:
        """The answer to a request that took the short way is out."""
        if keep_alive:
            self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
            self.answered()
            return
        self._gone = None
        if self.transport is not None:
            self.force_close()  # what was written leaves first

    def _hold(self, data: bytes) -> None:
        """Keep what came behind a request that is still being answered, not without end."""
        self._held += data
        if len(self._held) >= READ_BUFFER:
            self._pause_transport_reading()

    def begun(self, raw: BaseRequest) -> Begun | None:
        """How this request began, once; None where that is not known."""
        return self._count.take(raw._message)

    def _await_head(self) -> None:
        """A head has begun, or must begin: it has to be whole in time (slow loris)."""
        if self._head_timer is None:
            self._head_timer = self._loop.call_later(self._door.header_timeout_s, self._head_late)

    def _head_late(self) -> None:
        self._head_timer = None
        if self._current_request is None and not self._messages:
            self.force_close()

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        super().connection_lost(exc)
        gone, self._gone = self._gone, None
        if gone is not None:
            gone()
        if self.on_writable is not None:
            self.on_writable()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.on_writable is not None:
            self.on_writable()

    @property
    def leaving(self) -> bool:
        """Whether the process drains: the next answer is the connection's last."""
        return self._door.leaving

    # ── errors ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def handle_error(
        self, request: BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> StreamResponse:
        """Answer what the parser refused, or what a handler failed at, in the API's error form, and close."""
        if self.transport is None or request.writer.output_size > 0:
            raise ClientGone
        if status == 400:
            log.info("refused a malformed request from %s: %s", self.peer or "a local client", type(exc).__name__)
            fault = Fault(Code.BAD_REQUEST, "the request is not valid HTTP")
            if type(exc).__name__ == "LineTooLong":
                fault = Fault(Code.HEADERS_TOO_LARGE, "the request head is too large")
        else:
            log.error("a handler failed: %s", type(exc).__name__, exc_info=exc)
            fault = Fault(Code.INTERNAL, "the proxy failed to answer this request")
        self.transport.write(error_answer(fault, "", keep_alive=False))
        return sent(keep_alive=False)

    # ── raw writes ──────────────────────────────────────────────────────────────────────────────────────────────────

    def send(self, data: bytes) -> None:
        """Write raw bytes of an answer. Raises ClientGone."""
        transport = self.transport
        if transport is None or transport.is_closing():
            raise ClientGone
        transport.write(data)

    @property
    def write_paused(self) -> bool:
        """Whether the transport's buffer is over its high-water mark."""
        return self._paused

    async def drain(self, write_timeout_s: float) -> None:
        """Wait until the client has taken enough; one that takes no byte for ``write_timeout_s`` is cut. Raises ClientGone."""
        while self._paused:
            transport = self.transport
            if transport is None:
                raise ClientGone
            before = outstanding(transport)
            if not await self._writable(write_timeout_s) and outstanding(transport) >= before:
                self._drain_waiter = None  # nobody waits for it any more, nor hears what becomes of it
                await self.reset()
                raise ClientGone
        if self.transport is None:
            raise ClientGone

    async def _writable(self, timeout_s: float) -> bool:
        """Wait until the transport takes more, or is lost (True), at most ``timeout_s``.

        aiohttp's own wait serves once only: a timeout leaves its future cancelled.
        """
        waiter = self._drain_waiter
        if waiter is None:
            waiter = self._drain_waiter = self._loop.create_future()
        try:
            done, _ = await asyncio.wait([waiter], timeout=timeout_s)
        except asyncio.CancelledError:
            self._drain_waiter = None
            if waiter.done():
                waiter.exception()  # asked for: else asyncio tells of it in the log
            raise
        if done and waiter.exception() is not None:
            raise ClientGone
        return bool(done) or self.transport is None

    def take_tail(self) -> bytes:
        """Bytes that came behind an upgrade request's head; reading, held for them, goes on."""
        tail, self._message_tail = self._message_tail, b""
        if self._buffer_paused:
            self._resume_reading_for_buffer()
        return tail

    async def reset(self) -> None:
        """End the connection so that no client can take it for a clean end: RST, after what was written has left.

        A linger of zero discards what the kernel has not sent, so its queue is waited for first, but not for long.
        """
        transport = self.transport
        if transport is None:
            return
        until = self._loop.time() + FLUSH_S
        sock: socket.socket | None = transport.get_extra_info("socket")
        while self._loop.time() < until and not transport.is_closing():
            if not transport.get_write_buffer_size() and unsent(sock) == 0:
                break
            await asyncio.sleep(0.005)
        self.abort()

    def abort(self) -> None:
        """RST now, whatever has not left yet."""
        transport = self.transport
        if transport is None:
            return
        sock: socket.socket | None = transport.get_extra_info("socket")
        if sock is not None and sock.fileno() >= 0 and sock.family != socket.AF_UNIX:
            reset_on_close(sock)
        self._force_close = True
        transport.abort()


def nobody() -> None:
    """Nobody of ours is to be told that the client is gone."""


def known_inside(version: str) -> bool:
    """Whether this version of aiohttp is of the line that this module was held against."""
    return version.split(".")[:2] == [str(number) for number in AIOHTTP]
