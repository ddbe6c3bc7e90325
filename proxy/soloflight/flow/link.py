"""One connection to an upstream: aiohttp's response protocol, plus what a proxy must know that a client need not.

What is added: proof of whether the peer took a byte of a request (from the kernel), and a raw relay once a connection was
upgraded. Pinned to the aiohttp releases that setup.cfg allows; ``tests/flow/test_link.py`` holds what is relied on.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias

from aiohttp import ClientPayloadError
from aiohttp.client_proto import ResponseHandler

from soloflight.core.frames import Head
from soloflight.core.plain import read_plain

Plain: TypeAlias = tuple[Head, bytes]

# Linux struct tcp_info (include/uapi/linux/tcp.h): tcpi_bytes_acked, a u64, stands at offset 120 since 4.1.
_TCP_INFO_SIZE = 232
_BYTES_ACKED = struct.Struct("=Q")
_BYTES_ACKED_AT = 120
# What is read of a connection that broke while it was written to: bounded, an error answer fits.
READ_PIECE = 64 * 1024
LAST_READS = 4


def bytes_acked(transport: asyncio.BaseTransport | None) -> int | None:
    """How many bytes the peer's kernel has acknowledged on this connection, or None where the system can not tell."""
    sock: socket.socket | None = transport.get_extra_info("socket") if transport is not None else None
    if sock is None or sock.family == socket.AF_UNIX or not hasattr(socket, "TCP_INFO"):
        return None
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_SIZE)
    except (OSError, ValueError):
        return None
    if len(info) < _BYTES_ACKED_AT + _BYTES_ACKED.size:
        return None
    return int(_BYTES_ACKED.unpack_from(info, _BYTES_ACKED_AT)[0])


def closed_by_peer(transport: asyncio.BaseTransport | None) -> bool:
    """Whether an idle connection has something to read that the loop has not seen yet: a FIN, a RST, or stray bytes."""
    sock: socket.socket | None = transport.get_extra_info("socket") if transport is not None else None
    if sock is None or sock.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLIN)
    return bool(poll.poll(0))


class Link(ResponseHandler):
    """A pooled upstream connection. ``used`` counts the requests written to it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.used = 0
        self.relay: Callable[[bytes], None] | None = None
        self.on_lost: Callable[[], None] | None = None
        self.on_writable: Callable[[], None] | None = None
        self._tls = False
        self._written = 0
        self._acked_before: int | None = None
        self._acked_at_loss: int | None = None
        self._acked_at_start: int | None = None
        self._peer_finished = False
        self._idle = False
        self._params: dict[str, Any] = {}
        self._first: asyncio.Future[Plain | None] | None = None
        self._unanswered = False

    def __repr__(self) -> str:
        return f"Link(used={self.used}, connected={self.is_connected()})"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._tls = transport.get_extra_info("sslcontext") is not None
        self._acked_at_start = bytes_acked(transport)

    def begin_request(self, **params: Any) -> None:
        """A request is about to be written; ``params`` are for the parser of its answer (``set_response_params``).

        Note how many bytes the peer has, or will have, acknowledged before the next request is written.

        On a plain connection that is what was written so far: answers came to all of it. Under TLS the kernel counts records.
        """
        self.used += 1
        self._idle = False
        self._params = params
        self._parser = None
        self._first = self._loop.create_future()
        self._unanswered = True
        if self._tls:
            self._acked_before = bytes_acked(self.transport)
        elif self._acked_at_start is not None:
            self._acked_before = self._acked_at_start + self._written

    async def first(self) -> Plain | None:
        """The answer, where all of it came in one plain block; None: ``read`` it from the parser, or what went wrong instead."""
        assert self._first is not None
        return await self._first

    def _begun(self, data: bytes) -> bool:
        """The first bytes of an answer are here; True where they are all of it."""
        self._unanswered = False
        plain = read_plain(data) if data and not self._params.get("skip_payload") else None
        if plain is None:
            self.set_response_params(**self._params)
        if self._first is not None and not self._first.done():
            self._first.set_result(plain)
        return plain is not None

    def end_answer(self) -> None:
        """The answer is through. What is behind it is nobody's (RFC 9112 section 9.2): such a connection is not used again."""
        self._idle = True
        parser = self._parser
        try:
            begun = parser is not None and parser.feed_eof() is not None
        except Exception:  # whatever the parser makes of what is behind: it is no answer
            begun = True
        if begun or getattr(parser, "_lines", None):  # the latter: aiohttp's Python parser
            self.force_close()

    def _spoil(self) -> None:
        """Bytes came that no request has asked for: they must never be taken for the next request's answer."""
        self.force_close()
        if self.transport is not None:
            self.transport.abort()

    def write(self, data: bytes) -> None:
        """Write bytes of a request. Raises ConnectionResetError once the connection is lost."""
        transport = self.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError
        self._written += len(data)
        transport.write(data)

    async def drain(self) -> None:
        """Wait until the transport takes more; the caller bounds it. Raises OSError or ClientError once the connection is lost."""
        if self._paused:
            await self._drain_helper()

    @property
    def untouched(self) -> bool:
        """Proof that the peer's kernel took no byte of the current request: it can not have been processed.

        Only a FIN proves it: it brings the peer's last acknowledgement. After a RST the count is no proof, because the peer may
        have read the request with its (delayed) acknowledgement still to come.
        """
        return self._peer_finished and self._acked_before is not None and self._acked_at_loss == self._acked_before

    @property
    def write_paused(self) -> bool:
        """Whether the transport's buffer is over its high-water mark."""
        return self._paused

    def take_tail(self) -> bytes:
        """Bytes that came behind an upgrade's head; reading, held for them, goes on."""
        tail, self._tail = self._tail, b""
        if self._buffer_paused:
            self._resume_reading_for_buffer()
        return tail

    def data_received(self, data: bytes) -> None:
        if self.relay is not None:
            self.relay(data)
            return
        if self._idle and data:
            self._spoil()
            return
        if self._unanswered and self._begun(data):
            return
        super().data_received(data)
        fault, payload = self._exception, self._payload
        if fault is not None and payload is not None and not payload.is_eof() and payload.exception() is None:
            payload.set_exception(
                fault
            )  # aiohttp's C parser forgets the body that it refuses: its reader would wait for ever

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Where reading is not paused there is nothing to resume: aiohttp's readers ask for it after each piece."""
        if self._reading_paused:
            super().resume_reading(resume_parser)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.on_writable is not None:
            self.on_writable()

    def eof_received(self) -> None:
        self._peer_finished = True
        super().eof_received()

    def _hear_out(self) -> None:
        """Take what the kernel still holds: a write that failed closed the transport before an early answer (413) was read."""
        sock: socket.socket | None = self.transport.get_extra_info("socket") if self.transport is not None else None
        if sock is None or sock.fileno() < 0:
            return
        with suppress(OSError), socket.socket(fileno=os.dup(sock.fileno())) as rest:
            rest.setblocking(False)
            for _ in range(LAST_READS):
                if not (data := rest.recv(READ_PIECE)):
                    return
                self.data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._acked_at_loss = bytes_acked(self.transport)
        # Linux says EPIPE, not ECONNRESET, where the reset answered data that was sent behind the peer's FIN (tcp_reset).
        self._peer_finished = self._peer_finished or isinstance(exc, BrokenPipeError)
        if exc is not None and self.relay is None and not self._tls:
            self._hear_out()
        if self._unanswered:
            self._begun(b"")
        payload = self._payload
        if exc is not None and payload is not None and not payload.is_eof() and payload.exception() is None:
            # aiohttp takes any close for the end of a body that only the close ends; a reset is none.
            payload.set_exception(ClientPayloadError("the connection broke"), exc)
        super().connection_lost(exc)
        if self.on_lost is not None:
            self.on_lost()
