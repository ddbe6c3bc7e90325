"""Raw clients: bytes out, responses in as they came. Every wait is bounded.

``ask`` sends one request on a connection of its own and reads its response. ``RawClient`` goes step by step.
``request`` and ``chat`` build the bytes.
"""

import asyncio
import json
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, Self

from harness.wire import Response, ResponseParser, parse_events

WITHIN_S = 10.0
PIECE_BYTES = 1 << 16

BODY0 = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "temperature": 0}
BODY0S = {**BODY0, "stream": True}

_numbers = count(1)


def fresh(base: dict[str, Any] = BODY0S, **members: Any) -> dict[str, Any]:
    """``base`` with a prompt that no other call here has, and ``members`` on top: a new fingerprint."""
    prompt = f"hi {next(_numbers)} {time.monotonic_ns()}"
    return {**base, "messages": [{"role": "user", "content": prompt}], **members}


def request(method: str, target: str, *fields: str | bytes, body: bytes = b"", host: str = "proxy.test") -> bytes:
    """One request with ``Host``, ``fields`` as given and, if there is a body, ``Content-Length``."""
    lines = [f"{method} {target} HTTP/1.1".encode("latin-1"), b"Host: " + host.encode()]
    lines += [line.encode("latin-1") if isinstance(line, str) else line for line in fields]
    if body:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def chat(
    body: dict[str, Any] | bytes,
    *fields: str | bytes,
    target: str = "/v1/chat/completions",
    key: str = "k1",
) -> bytes:
    """A POST of ``body`` as an SDK of the holder of ``key`` would send it."""
    raw = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
    common = ("Content-Type: application/json", f"Authorization: Bearer {key}")
    return request("POST", target, *common, *fields, body=raw)


class RawClient:
    """One connection. Use ``connect`` as a context manager, or ``open`` and ``close``.

    It reads from the socket only when told to, so a client that does not read is a slow one; and what arrived
    before a reset is not lost.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.parser = ResponseParser()
        self.left_over = b""
        self._loop = asyncio.get_running_loop()

    def __repr__(self) -> str:
        return f"<RawClient {self.response.ended} body={len(self.response.kept)}>"

    @classmethod
    async def open(cls, port: int, *, receive_buffer: int | None = None) -> Self:
        """Connect; a small ``receive_buffer`` makes a slow reader felt early."""
        sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        try:
            async with asyncio.timeout(WITHIN_S):
                await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        except BaseException:
            sock.close()
            raise
        return cls(sock)

    @property
    def response(self) -> Response:
        """The response being read."""
        return self.parser.response

    async def send(self, data: bytes, *, within_s: float = WITHIN_S) -> None:
        """Write ``data``, and begin to read a new response (HEAD has no body, so its method counts)."""
        if self.response.raw_head and self.response.ended is None:
            raise RuntimeError("the response before has not been read to its end")
        self.left_over += self.parser.rest
        method = data.partition(b" ")[0].decode("latin-1")
        self.parser = ResponseParser("HEAD" if method == "HEAD" else "GET")
        await self.send_more(data, within_s=within_s)

    async def send_more(self, data: bytes, *, within_s: float = WITHIN_S) -> None:
        """Write ``data`` as a further part of the same request."""
        async with asyncio.timeout(within_s):
            await self._loop.sock_sendall(self.sock, data)

    async def read_until(self, holds: Callable[[Response], bool], *, within_s: float = WITHIN_S) -> Response:
        """Read until ``holds(response)`` or the response has ended; ``TimeoutError`` after ``within_s``."""
        if self.left_over:
            self.left_over, data = b"", self.left_over
            self.parser.feed(data)
        async with asyncio.timeout(within_s):
            while not self.parser.done and not holds(self.response):
                await self._read_some()
        return self.response

    async def head(self, *, within_s: float = WITHIN_S) -> Response:
        """Read until the final head (not a 1xx) is there."""
        return await self.read_until(lambda response: bool(response.raw_head), within_s=within_s)

    async def read_body(self, length: int, *, within_s: float = WITHIN_S) -> Response:
        """Read until ``length`` decoded body bytes are there."""
        return await self.read_until(lambda response: len(response.kept) >= length, within_s=within_s)

    async def read_events(self, number: int, *, within_s: float = WITHIN_S) -> Response:
        """Read until ``number`` whole events are there."""
        return await self.read_until(lambda response: len(parse_events(response.body)) >= number, within_s=within_s)

    async def finish(self, *, within_s: float = WITHIN_S) -> Response:
        """Read to the response's end, whichever it is."""
        return await self.read_until(lambda response: False, within_s=within_s)

    async def ask(self, data: bytes, *, within_s: float = WITHIN_S) -> Response:
        """Send a request and read its response to the end; the connection stays open."""
        await self.send(data)
        return await self.finish(within_s=within_s)

    async def ended(self, *, within_s: float = WITHIN_S) -> str:
        """Wait until the peer ends the connection: ``"fin"`` or ``"rst"``. What it sends is kept."""
        async with asyncio.timeout(within_s):
            while True:
                try:
                    data = await self._loop.sock_recv(self.sock, PIECE_BYTES)
                except ConnectionError:
                    return "rst"
                if not data:
                    return "fin"
                self.left_over += data

    async def _read_some(self) -> None:
        try:
            data = await self._loop.sock_recv(self.sock, PIECE_BYTES)
        except ConnectionError:
            self.parser.end("rst")
            return
        if data:
            self.parser.feed(data)
        else:
            self.parser.end("fin")

    def fin(self) -> None:
        """Close the sending side only."""
        self.sock.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Break the connection with RST."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def close(self) -> None:
        """Leave: a FIN, or a RST if something that arrived has not been read."""
        self.sock.close()


@asynccontextmanager
async def connect(port: int, *, receive_buffer: int | None = None) -> AsyncIterator[RawClient]:
    """A connection to ``port`` for the length of a block."""
    client = await RawClient.open(port, receive_buffer=receive_buffer)
    try:
        yield client
    finally:
        client.close()


async def ask(port: int, data: bytes, *, within_s: float = WITHIN_S) -> Response:
    """Send ``data`` on a connection of its own, and read its response to the end."""
    async with connect(port) as client:
        return await client.ask(data, within_s=within_s)


async def settle(port: int) -> None:
    """Let a one-process proxy take in all that was sent before: one loop serves it and these round trips.

    For followers of a silent flight, whose joining shows nowhere on the wire.
    """
    async with connect(port) as client:
        for _ in range(8):
            response = await client.ask(request("GET", "/_soloflight/health"))
            assert response.status == 200


async def raw_request(port: int, data: bytes, *, within_s: float = WITHIN_S) -> bytes:
    """Send ``data`` and give every byte that comes until the peer closes or resets."""
    async with connect(port) as client:
        await client.send(data)
        await client.ended(within_s=within_s)
        return client.left_over
