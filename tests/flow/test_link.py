"""What an upstream connection relies on: in aiohttp's response protocol, in the loop, and in the kernel.

Each of these is somebody else's inside. A release that changes one of them must fail here, and not in front of a client.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import ClientError
from aiohttp.http import HttpProcessingError

from harness.process import eventually
from soloflight.flow.link import Link, bytes_acked, closed_by_peer

REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CODED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the proof is the Linux kernel's")


class Pair:
    """A link, and the peer's end of its connection as a plain socket that the peer alone reads from."""

    def __init__(self, link: Link, peer: socket.socket) -> None:
        self.link = link
        self.peer = peer
        self.lost = asyncio.Event()
        link.on_lost = self.lost.set

    def expect(self) -> None:
        """The link waits for an answer, as an exchange does."""
        self.link.begin_request(read_until_eof=True, auto_decompress=False)

    async def sent(self, data: bytes) -> None:
        """The peer has sent ``data``, and the link has it."""
        await asyncio.get_running_loop().sock_sendall(self.peer, data)

    def fin(self) -> None:
        self.peer.close()

    def rst(self) -> None:
        self.peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.peer.close()


async def connect() -> Pair:
    loop = asyncio.get_running_loop()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        connecting = asyncio.create_task(loop.create_connection(lambda: Link(loop), *listener.getsockname()))
        peer, _ = await loop.sock_accept(listener)
        peer.setblocking(False)
        _, link = await connecting
    return Pair(link, peer)


@pytest_asyncio.fixture
async def pair() -> AsyncIterator[Pair]:
    pair = await connect()
    yield pair
    if pair.link.transport is not None:
        pair.link.transport.abort()
        await asyncio.wait_for(pair.lost.wait(), 5)
    pair.peer.close()


# ── what the kernel tells ───────────────────────────────────────────────────────────────────────────────────────────


@LINUX
async def test_the_kernel_counts_what_the_peers_kernel_has_taken(pair: Pair) -> None:
    before = bytes_acked(pair.link.transport)
    assert before is not None
    pair.link.write(b"x" * 1000)
    await eventually(lambda: bytes_acked(pair.link.transport) == before + 1000)


async def test_where_it_can_not_be_told_it_is_not(tmp_path: Path) -> None:
    assert bytes_acked(None) is None
    assert closed_by_peer(None)
    server = await asyncio.start_unix_server(lambda reader, writer: writer.close(), tmp_path / "socket")
    reader, writer = await asyncio.open_unix_connection(tmp_path / "socket")
    assert bytes_acked(writer.transport) is None
    await reader.read()
    writer.close()
    server.close()


async def test_an_idle_connection_shows_a_fin_a_reset_and_stray_bytes_before_the_loop_has_seen_them() -> None:
    for leave in (Pair.fin, Pair.rst, lambda pair: pair.peer.send(b"x")):
        pair = await connect()
        assert not closed_by_peer(pair.link.transport)
        assert pair.link.transport is not None
        pair.link.transport.pause_reading()  # the loop sees nothing from here on
        leave(pair)
        await eventually(lambda pair=pair: closed_by_peer(pair.link.transport))
        pair.link.transport.abort()
        await asyncio.wait_for(pair.lost.wait(), 5)
        pair.peer.close()


# ── proof that a request was not taken ──────────────────────────────────────────────────────────────────────────────


async def answered(pair: Pair, answer: bytes = OK) -> None:
    """One request and its answer: the connection is a kept one from here on."""
    pair.expect()
    pair.link.write(REQUEST)
    await eventually(lambda: len(pair.peer.recv(1 << 16, socket.MSG_PEEK)) == len(REQUEST))
    pair.peer.recv(1 << 16)
    await pair.sent(answer)
    plain = await pair.link.first()
    assert (plain is not None) == (answer == OK)
    assert (plain[1] if plain else await (await pair.link.read())[1].read()) == b"ok"


@LINUX
async def test_a_fin_without_a_byte_taken_is_proof(pair: Pair) -> None:
    await answered(pair)
    assert pair.link.transport is not None
    pair.link.transport.pause_reading()  # the FIN comes, unseen, before the request is written
    pair.fin()
    await eventually(lambda: closed_by_peer(pair.link.transport))
    pair.expect()
    pair.link.write(REQUEST)
    pair.link.transport.resume_reading()
    await asyncio.wait_for(pair.lost.wait(), 5)
    assert pair.link.untouched


@LINUX
async def test_a_fin_behind_a_request_that_was_taken_is_none(pair: Pair) -> None:
    await answered(pair)
    pair.expect()
    pair.link.write(REQUEST)
    await eventually(lambda: len(pair.peer.recv(1 << 16, socket.MSG_PEEK)) == len(REQUEST))
    pair.peer.recv(1 << 16)
    pair.fin()
    await asyncio.wait_for(pair.lost.wait(), 5)
    assert not pair.link.untouched


@pytest.mark.parametrize("taken", [True, False])
async def test_a_reset_is_never_proof(pair: Pair, taken: bool) -> None:
    await answered(pair)
    pair.expect()
    if taken:
        pair.link.write(REQUEST)
        await eventually(lambda: len(pair.peer.recv(1 << 16, socket.MSG_PEEK)) == len(REQUEST))
    pair.rst()
    await asyncio.wait_for(pair.lost.wait(), 5)
    assert not pair.link.untouched


async def test_a_connection_that_was_never_lost_proves_nothing(pair: Pair) -> None:
    pair.expect()
    assert not pair.link.untouched


# ── aiohttp's protocol ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_whoever_waits_for_the_loss_finds_the_link_without_a_connection(pair: Pair) -> None:
    """on_lost comes after aiohttp's own connection_lost: transport and state are final."""
    seen: list[tuple[bool, bool]] = []
    pair.link.on_lost = lambda: (seen.append((pair.link.is_connected(), pair.link.transport is None)), pair.lost.set())  # type: ignore[func-returns-value, assignment]
    pair.fin()
    await asyncio.wait_for(pair.lost.wait(), 5)
    assert seen == [(False, True)]


async def test_writing_to_a_lost_connection_is_an_error_at_once(pair: Pair) -> None:
    pair.fin()
    await asyncio.wait_for(pair.lost.wait(), 5)
    with pytest.raises(ConnectionResetError):
        pair.link.write(b"x")
    await pair.link.drain()  # nothing is paused: nothing to wait for


async def test_draining_waits_until_the_peer_takes_more(pair: Pair) -> None:
    writable: list[bool] = []
    pair.link.on_writable = lambda: writable.append(pair.link.write_paused)
    assert not pair.link.write_paused
    pair.link.write(b"x" * (8 << 20))
    assert pair.link.write_paused
    draining = asyncio.create_task(pair.link.drain())
    await asyncio.sleep(0)
    assert not draining.done()
    loop = asyncio.get_running_loop()
    while not draining.done():
        await loop.sock_recv(pair.peer, 1 << 20)
    await draining
    assert writable == [False]


@pytest.mark.parametrize("leave", [Pair.fin, Pair.rst])
async def test_draining_ends_with_the_connection(pair: Pair, leave: Callable[[Pair], None]) -> None:
    pair.link.write(b"x" * (8 << 20))
    draining = asyncio.create_task(pair.link.drain())
    await asyncio.sleep(0)
    leave(pair)
    with pytest.raises((OSError, ClientError)):
        await asyncio.wait_for(draining, 5)


SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"


@pytest.mark.parametrize("cut", [len(SWITCH), len(SWITCH) + 3, 20])
async def test_bytes_behind_an_upgrade_are_kept_and_later_ones_relayed(pair: Pair, cut: int) -> None:
    stream = SWITCH + b"first"
    pair.expect()
    reading = asyncio.create_task(pair.link.read())
    await pair.sent(stream[:cut])
    await asyncio.sleep(0.01)
    await pair.sent(stream[cut:])
    message, _ = await asyncio.wait_for(reading, 5)
    assert (message.code, message.upgrade) == (101, True)
    relayed = bytearray()
    await asyncio.sleep(0.01)
    relayed += pair.link.take_tail()
    pair.link.relay = relayed.extend
    await pair.sent(b" second")
    await eventually(lambda: len(relayed) == len(b"first second"))
    assert (relayed, pair.link.take_tail()) == (b"first second", b"")


async def test_many_bytes_behind_an_upgrade_hold_reading_until_they_are_taken(pair: Pair) -> None:
    pair.expect()
    reading = asyncio.create_task(pair.link.read())
    await pair.sent(SWITCH)
    await asyncio.wait_for(reading, 5)
    sending = asyncio.create_task(pair.sent(b"x" * (8 << 20)))
    relayed = bytearray()
    await asyncio.sleep(0.05)
    relayed += pair.link.take_tail()
    pair.link.relay = relayed.extend
    await asyncio.wait_for(sending, 5)
    await eventually(lambda: len(relayed) == 8 << 20)


# ── what is behind an answer ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("answers", [(OK, OK), (OK, CODED), (CODED, OK), (CODED, CODED)])
async def test_a_connection_is_kept_behind_a_whole_answer(pair: Pair, answers: tuple[bytes, bytes]) -> None:
    await answered(pair, answers[0])
    pair.link.end_answer()
    assert not pair.link.should_close
    await answered(pair, answers[1])
    assert pair.link.used == 2
    assert repr(pair.link) == "Link(used=2, connected=True)"


@pytest.mark.parametrize("stray", [OK, b"x", b"HTTP/1.1 2", b"\0"])
async def test_bytes_that_no_request_asked_for_end_the_connection(pair: Pair, stray: bytes) -> None:
    await answered(pair)
    pair.link.end_answer()
    await pair.sent(stray)
    await asyncio.wait_for(pair.lost.wait(), 5)


@pytest.mark.parametrize("stray", [OK, b"HTTP/1.1 2"])
async def test_bytes_in_the_same_read_as_the_answer_end_the_connection(pair: Pair, stray: bytes) -> None:
    pair.expect()
    reading = asyncio.create_task(pair.link.read())
    await pair.sent(OK + stray)
    _, payload = await asyncio.wait_for(reading, 5)
    assert await payload.read() == b"ok"
    pair.link.end_answer()
    assert pair.link.should_close


async def test_what_is_no_beginning_of_an_answer_spoils_the_read_it_came_in(pair: Pair) -> None:
    pair.expect()
    reading = asyncio.create_task(pair.link.read())
    await pair.sent(OK + b"x")
    with pytest.raises(HttpProcessingError):
        await asyncio.wait_for(reading, 5)


async def test_a_body_that_the_parser_refuses_does_not_leave_its_reader_waiting(pair: Pair) -> None:
    pair.expect()
    reading = asyncio.create_task(pair.link.read())
    await pair.sent(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    _, payload = await asyncio.wait_for(reading, 5)
    await pair.sent(b"not a chunk size\r\n")
    with pytest.raises((HttpProcessingError, ClientError)):
        await asyncio.wait_for(payload.readany(), 2)


@LINUX
async def test_an_early_answer_is_heard_though_the_request_could_not_be_written(pair: Pair) -> None:
    """The peer refuses an upload: it answers and resets while more is being sent to it."""
    pair.expect()
    assert pair.link.transport is not None
    pair.link.transport.pause_reading()
    await pair.sent(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
    await eventually(lambda: closed_by_peer(pair.link.transport))
    pair.peer.close()
    for _ in range(200):
        if pair.link.transport is None or pair.link.transport.is_closing():
            break
        pair.link.transport.write(b"x" * 1000)
        await asyncio.sleep(0.001)
    plain = await asyncio.wait_for(pair.link.first(), 5)
    assert plain is not None
    assert plain[0].status == 413
