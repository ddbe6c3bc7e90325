"""A TCP proxy that misbehaves on demand: between the proxy and its backend, or anywhere else.

It can delay, swallow, hold, cut and refuse, per direction and at runtime, lose or double the reply to one chosen
request, and make chosen connections half-open. It knows no protocol: a "request" is what one read gave, true of
clients that wait for replies.
``up`` is from the client to the target, ``down`` is back.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable
from enum import Enum
from types import TracebackType
from typing import Self

HELD_BYTES = 64 << 20  # a direction of a connection that holds more than this is cut


class Fate(Enum):
    """What becomes of one chosen reply."""

    LOST = "lost"
    CUT = "lost, and its connection is cut"
    DOUBLED = "doubled"


class Direction:
    """The faults of one direction, for all connections: change them at any time."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.delay_s = 0.0  # of each piece, from its arrival
        self.swallow = False  # read and throw away
        self.bytes = 0  # arrived in all

    def __repr__(self) -> str:
        return f"<Direction {self.name} delay={self.delay_s} swallow={self.swallow} bytes={self.bytes}>"


class _Lane:
    """One direction of one connection: pieces in order, each due at a time; the loop's timer sends them."""

    def __init__(self, link: _Link, faults: Direction) -> None:
        self.link = link
        self.faults = faults
        self.ended = False  # its end has been passed on
        self.sink: asyncio.WriteTransport | None = None
        self.held_bytes = 0
        self._pieces: deque[tuple[float, bytes]] = deque()  # b"" is the end
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<_Lane {self.faults.name} pieces={len(self._pieces)} held={self.held_bytes}>"

    def put(self, data: bytes) -> None:
        """Take ``data`` (``b""``: the end of this direction) for sending when it is due."""
        self.faults.bytes += len(data)
        if data and self.faults.swallow:
            return
        self._pieces.append((asyncio.get_running_loop().time() + self.faults.delay_s, data))
        self.held_bytes += len(data)
        self.flush()

    def flush(self) -> None:
        """Send what is due, and come back for the rest."""
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._pieces and self.sink is not None and not self.link.proxy.paused:
            due, data = self._pieces[0]
            if due > loop.time():
                self._timer = loop.call_at(due, self.flush)
                return
            self._pieces.popleft()
            self.held_bytes -= len(data)
            if self.sink.is_closing():
                continue
            if data:
                self.sink.write(data)
            else:
                self.sink.write_eof()
                self.ended = True
                self.link.lane_ended()

    def drop(self) -> None:
        """Forget what is held."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._pieces.clear()


class _Link(asyncio.Protocol):
    """One client's connection and its own connection to the target, of which this is the protocol."""

    def __init__(self, proxy: FaultProxy, client: asyncio.StreamWriter) -> None:
        self.proxy = proxy
        self.client = client  # a StreamWriter closes its connection when nobody holds it
        self.up = _Lane(self, proxy.up)
        self.down = _Lane(self, proxy.down)
        self.down.sink = client.transport
        self.marked = False
        self._fate: Fate | None = None  # of the next reply

    def __repr__(self) -> str:
        return f"<_Link up={self.up!r} down={self.down!r}>"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self.up.sink = transport

    def client_sent(self, data: bytes) -> None:
        """Bytes, or ``b""`` for the end, came from the client."""
        if data:
            self.proxy._look_at(self, data)
            self._fate = self.proxy._fate_of_reply(data, self._fate)
        self.up.put(data)
        self._bound()

    def data_received(self, data: bytes) -> None:
        fate, self._fate = self._fate, None
        if fate is None or fate is Fate.DOUBLED:
            for _ in range(1 if fate is None else 2):
                self.down.put(data)
            self._bound()
            return
        self.proxy.replies_lost += 1
        if fate is Fate.CUT:
            self.end(reset=True)

    def eof_received(self) -> bool:
        self.down.put(b"")
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.end(reset=exc is not None)

    def lane_ended(self) -> None:
        """Both directions ended in order: so does the link."""
        if self.up.ended and self.down.ended:
            self.end(reset=False)

    def end(self, *, reset: bool) -> None:
        """End both connections, with RST or FIN; what was held is lost."""
        for lane in (self.up, self.down):
            lane.drop()
            if lane.sink is not None and not lane.sink.is_closing():
                if reset:
                    _break(lane.sink)
                else:
                    lane.sink.close()
        self.proxy._links.discard(self)

    def _bound(self) -> None:
        for lane in (self.up, self.down):
            written = lane.sink.get_write_buffer_size() if lane.sink is not None else 0
            if lane.held_bytes + written > HELD_BYTES:
                self.end(reset=True)


class FaultProxy:
    """``async with FaultProxy("127.0.0.1", 6379) as faults``: connect to ``faults.port``, break it at will.

    ``faults.up.delay_s = 0.2``, ``faults.down.swallow = True``, ``faults.pause()``, ``faults.cut()``,
    ``faults.refuse = True``, ``faults.lose_reply(b"EVALSHA")``; ``faults.heal()`` takes everything back.
    ``faults.before_request`` is called with each request before it goes on: what it sets counts for it already.
    """

    def __init__(self, target_host: str, target_port: int, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self.target = (target_host, target_port)
        self.host = host
        self.port = port
        self.up = Direction("up")
        self.down = Direction("down")
        self.paused = False
        self.refuse = False  # new connections are reset at once
        self.before_request: Callable[[bytes], None] | None = None
        self.mark = b""  # connections on which the client has sent this can be muted
        self.accepted = 0
        self.replies_lost = 0
        self._fates: deque[tuple[bytes, Fate]] = deque()
        self._links: set[_Link] = set()
        self._server: asyncio.Server | None = None

    def __repr__(self) -> str:
        state = "paused" if self.paused else "refusing" if self.refuse else "open"
        return f"<FaultProxy :{self.port} to {self.target} {state} links={self.open_now}>"

    @property
    def open_now(self) -> int:
        """Client connections open at this moment."""
        return len(self._links)

    async def start(self) -> None:
        """Listen; ``port`` then is the real one."""
        self._server = await asyncio.start_server(self._accept, self.host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening and cut what is open."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.cut()
        await asyncio.sleep(0.01)  # the loop closes aborted sockets in a later round

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def pause(self) -> None:
        """Hold all bytes of both directions until ``resume``; sockets stay open."""
        self.paused = True

    def resume(self) -> None:
        """Send on what ``pause`` held, in order."""
        self.paused = False
        for link in list(self._links):
            link.up.flush()
            link.down.flush()

    def cut(self, *, reset: bool = True) -> int:
        """End all present connections on both sides, by RST or by FIN. Gives their number."""
        links = list(self._links)
        for link in links:
            link.end(reset=reset)
        return len(links)

    def mute(self) -> int:
        """Make the present connections with ``mark`` half-open: open, and nothing comes down any more. Gives their number."""
        links = [link for link in self._links if link.marked]
        for link in links:
            link.down.faults = Direction("muted")
            link.down.faults.swallow = True
        return len(links)

    def lose_reply(self, to: bytes = b"", *, cut: bool = True) -> None:
        """The target gets the next request with ``to`` in it; its reply is lost, the connection is cut.

        Without ``cut`` the connection stays and the client waits. May be called several times: each call is
        good for one reply, in order.
        """
        self._fates.append((to, Fate.CUT if cut else Fate.LOST))

    def double_reply(self, to: bytes = b"") -> None:
        """The reply to the next request with ``to`` in it comes twice."""
        self._fates.append((to, Fate.DOUBLED))

    def heal(self) -> None:
        """Take every fault back. What was lost stays lost, and a muted connection muted."""
        self.up.delay_s = self.down.delay_s = 0.0
        self.up.swallow = self.down.swallow = False
        self.refuse = False
        self.before_request = None
        self._fates.clear()
        self.resume()

    def _look_at(self, link: _Link, data: bytes) -> None:
        link.marked = link.marked or (bool(self.mark) and self.mark in data)
        if self.before_request is not None:
            self.before_request(data)

    def _fate_of_reply(self, request: bytes, so_far: Fate | None) -> Fate | None:
        if self._fates and self._fates[0][0] in request:
            return self._fates.popleft()[1]
        return so_far

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        link = _Link(self, writer)
        self._links.add(link)
        try:
            if self.refuse:
                link.end(reset=True)
                return
            await asyncio.get_running_loop().create_connection(lambda: link, *self.target)
            while data := await reader.read(1 << 16):
                link.client_sent(data)
            link.client_sent(b"")
        except OSError:
            link.end(reset=True)


def _break(transport: asyncio.WriteTransport) -> None:
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
