"""C23: a stale kept connection, on which a POST fails although nothing was processed.

Source: aio-libs/aiohttp#9138 and #850, zytedata/python-zyte-api#39, infinigence/octollm#100.
Right: RFC 9112 section 9.3.1: a request is written again only if it is known that it was not processed: a kept
connection that its peer closed before its kernel took a byte (TCP_INFO tells). Whatever may have been read is not
generated a second time: the client gets 502.
"""

import asyncio
import ctypes
import json
import random
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from harness.client import ask, chat, connect, fresh, settle
from harness.proxy import Proxy
from harness.wire import Response
from soloflight.testing.chat import completion_object
from soloflight.testing.exchange import Exchange
from soloflight.testing.script import CLOSE, RESET, Step
from soloflight.testing.script import json as json_answer
from soloflight.testing.upstream import ScriptedUpstream

ANSWER = json_answer(completion_object())
IDLE_S = 0.012
REQUESTS = 500
CLIENTS = 4

SO_ATTACH_FILTER, SO_DETACH_FILTER = 26, 27  # asm-generic/socket.h
BPF_RET = 0x06


def make_deaf(sock: Any) -> None:
    """The kernel drops what comes for ``sock``, and acknowledges none of it: a filter that lets nothing in."""
    program = ctypes.create_string_buffer(struct.pack("HBBI", BPF_RET, 0, 0, 0))
    sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HP", 1, ctypes.addressof(program)))


def let_hear(sock: Any) -> None:
    """The end of ``make_deaf``: what was dropped is sent again by TCP."""
    sock.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)


class Impatient:
    """A server that closes each connection on which nothing came for ``IDLE_S``, and none that its kernel has bytes from.

    (Those would be answered with a reset, which proves nothing: such a request is a 502.)
    """

    def __init__(self) -> None:
        self.served: list[bytes] = []
        self.opened = 0
        self._tasks: list[asyncio.Task[None]] = []

    @asynccontextmanager
    async def listen(self, port: int) -> AsyncIterator[None]:
        with socket.create_server(("127.0.0.1", port), backlog=100) as listener:
            listener.setblocking(False)
            self._tasks.append(asyncio.create_task(self._accept(listener)))
            yield
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            connection, _ = await asyncio.get_running_loop().sock_accept(listener)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 100)  # ms that a deaf one lingers on
            self.opened += 1
            self._tasks.append(asyncio.create_task(self._serve(connection)))

    async def _serve(self, connection: socket.socket) -> None:
        with connection:
            while request := await self._next(connection):
                self.served.append(request)
                await asyncio.get_running_loop().sock_sendall(connection, ANSWER)

    async def _next(self, connection: socket.socket) -> bytes:
        """The next request, which comes in one piece; b"" if the connection was idle for too long, or has ended."""
        if await self._comes(connection):
            return connection.recv(1 << 16)
        make_deaf(connection)  # nothing comes between this look and the close
        try:
            request = connection.recv(1 << 16)
        except BlockingIOError:
            return b""
        let_hear(connection)
        return request

    async def _comes(self, connection: socket.socket) -> bool:
        """Whether there is something to read within ``IDLE_S``; it is not taken yet."""
        loop, readable = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(connection, readable.set)
        try:
            async with asyncio.timeout(IDLE_S):
                await readable.wait()
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(connection)
        return True


async def test_requests_at_the_moment_the_upstream_closes(proxy: Proxy, upstream_port: int) -> None:
    upstream = Impatient()
    chance = random.Random(23)

    async def one_client() -> list[int]:
        statuses = []
        async with connect(proxy.port) as client:
            for _ in range(REQUESTS // CLIENTS):
                statuses.append((await client.ask(chat(fresh(stream=False)))).status)
                await asyncio.sleep(IDLE_S * chance.uniform(0.75, 1.15))
        return statuses

    async with upstream.listen(upstream_port):
        for _ in range(3):  # a machine that is busy elsewhere may be too late for every one
            upstream.opened, upstream.served = 0, []
            lists = await asyncio.gather(*(one_client() for _ in range(CLIENTS)))
            if raced := 10 < upstream.opened < REQUESTS - 10:
                break
    statuses = [status for one in lists for status in one]
    assert raced, "the race was not run"
    assert len(upstream.served) == len(set(upstream.served)) == statuses.count(200)
    assert sum(status != 200 for status in statuses) < REQUESTS * 0.005


async def kept(proxy: Proxy, upstream: ScriptedUpstream, *steps: Step) -> Response:
    """The answer to a request on a kept connection whose upstream does ``steps`` once it has read all of it."""
    upstream.play(ANSWER, steps, ANSWER)
    assert (await ask(proxy.port, chat(fresh(stream=False)))).status == 200
    return await ask(proxy.port, chat(fresh(stream=False)))


@pytest.mark.parametrize("ending", [CLOSE, RESET], ids=["fin", "rst"])
@pytest.mark.parametrize("pause_s", [0.0, 0.1])
async def test_a_request_that_was_read_is_not_sent_again(
    pause_s: float, ending: Step, proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    answer = await kept(proxy, upstream, pause_s, ending)
    first, second = upstream.requests
    assert first.connection == second.connection
    assert second.body_complete
    assert answer.status == 502
    assert json.loads(answer.body)["error"]["code"] == "upstream_unreachable"


@pytest.mark.parametrize("ending", [CLOSE, RESET], ids=["fin", "rst"])
async def test_nor_on_a_new_connection(ending: Step, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play([ending])
    answer = await ask(proxy.port, chat(fresh(stream=False)))
    assert (answer.status, upstream.calls) == (502, 1)


async def test_what_no_kernel_took_is_sent_again(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    """The race itself: the request is written, nobody has it, and then the FIN arrives."""
    idle: list[Exchange] = []

    async def deaf_from_now(exchange: Exchange) -> None:
        make_deaf(exchange.writer.get_extra_info("socket"))
        idle.append(exchange)

    upstream.play([ANSWER, deaf_from_now], ANSWER)
    assert (await ask(proxy.port, chat(fresh(stream=False)))).status == 200
    body = fresh(stream=False)
    async with connect(proxy.port) as client:
        await client.send(chat(body))
        await settle(proxy.port)  # by now the proxy has written it
        assert upstream.calls == 1
        idle[0].end(CLOSE)
        answer = await client.finish()
    assert (answer.status, answer.role) == (200, "owner")
    first, second = upstream.requests
    assert first.connection != second.connection
    assert json.loads(second.body) == body
