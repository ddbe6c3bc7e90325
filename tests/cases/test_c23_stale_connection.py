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

SO_ATTACH_FILTER = 26  # asm-generic/socket.h
BPF_RET = 0x06


class Impatient(asyncio.Protocol):
    """A server as uvicorn is one: it closes each connection on which nothing came for ``IDLE_S``."""

    def __init__(self, served: list[bytes], opened: list[int]) -> None:
        self.served = served
        self.opened = opened
        self.pending = b""
        self.timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.opened.append(1)

    def data_received(self, data: bytes) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.pending += data
        head, blank, body = self.pending.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]) if blank else 0
        if blank and len(body) == length:
            self.served.append(body)
            self.pending = b""
            self.transport.write(ANSWER)
            self.timer = asyncio.get_running_loop().call_later(IDLE_S, self.transport.close)


async def test_requests_at_the_moment_the_upstream_closes(proxy: Proxy, upstream_port: int) -> None:
    served: list[bytes] = []
    opened: list[int] = []
    server = await asyncio.get_running_loop().create_server(
        lambda: Impatient(served, opened), "127.0.0.1", upstream_port
    )
    chance = random.Random(23)
    statuses = []
    try:
        async with connect(proxy.port) as client:
            for _ in range(REQUESTS):
                statuses.append((await client.ask(chat(fresh(stream=False)))).status)
                await asyncio.sleep(IDLE_S * chance.uniform(0.85, 1.15))
    finally:
        server.close()
        await server.wait_closed()
    assert 10 < len(opened) < REQUESTS - 10, "the race was not run"
    assert len(served) == len(set(served))
    assert sum(status != 200 for status in statuses) < REQUESTS * 0.005
    assert len(served) >= statuses.count(200)


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


def make_deaf(sock: Any) -> None:
    """The kernel drops what comes for ``sock``, and acknowledges none of it: a filter that lets nothing in."""
    program = ctypes.create_string_buffer(struct.pack("HBBI", BPF_RET, 0, 0, 0))
    sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HP", 1, ctypes.addressof(program)))


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
