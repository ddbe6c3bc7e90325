"""WebSocket (/v1/realtime): a tunnel both ways, in which every frame is the peers' own (RFC 6455)."""

import asyncio
import base64
import os
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import WSMsgType, web

from harness.client import RawClient, connect, request
from harness.process import eventually
from harness.proxy import Proxy
from soloflight.testing.exchange import Exchange
from soloflight.testing.script import CLOSE, RESET, Step, head, json
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

MIB = 1 << 20
TARGET = "/v1/realtime?model=gpt-4o%20realtime"
SECRET = "openai-insecure-api-key.sk-secret-4711"
HANDSHAKE = request(
    "GET",
    TARGET,
    *("Connection: keep-alive, Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"),
    f"Sec-WebSocket-Key: {base64.b64encode(bytes(16)).decode()}",
)
SWITCH = head(101, "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Accept: x", reason="Switching Protocols")

Talk = Callable[[web.WebSocketResponse], Awaitable[None]]


class Realtime:
    """A WebSocket server behind the proxy. ``talk`` is what it does with a connection; the default is an echo."""

    def __init__(self) -> None:
        self.requests: list[web.Request] = []
        self.sockets: list[web.WebSocketResponse] = []
        self.heard: list[aiohttp.WSMessage] = []
        self.talk: Talk = self.echo

    async def serve(self, request: web.Request) -> web.WebSocketResponse:
        self.requests.append(request)
        socket = web.WebSocketResponse(protocols=("realtime",), autoping=False, max_msg_size=0)
        await socket.prepare(request)
        self.sockets.append(socket)
        await self.talk(socket)
        return socket

    async def echo(self, socket: web.WebSocketResponse) -> None:
        async for message in socket:
            self.heard.append(message)
            if message.type is WSMsgType.TEXT:
                await socket.send_str(message.data)
            elif message.type is WSMsgType.BINARY:
                await socket.send_bytes(message.data)
            elif message.type is WSMsgType.PING:
                await socket.pong(message.data)


@pytest_asyncio.fixture
async def realtime(upstream_port: int) -> AsyncIterator[Realtime]:
    server = Realtime()
    app = web.Application()
    app.router.add_get("/v1/realtime", server.serve)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", upstream_port).start()
    yield server
    for socket in server.sockets:
        await socket.close()
    await runner.cleanup()


@pytest_asyncio.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as client:
        yield client


async def test_text_and_binary_both_ways(proxy: Proxy, realtime: Realtime, session: aiohttp.ClientSession) -> None:
    large = os.urandom(MIB)
    async with session.ws_connect(f"{proxy.url}{TARGET}", max_msg_size=0) as socket:
        for text in ("hello", "", "\U0001f30d 你", "x" * 100_000):
            await socket.send_str(text)
            assert await socket.receive_str() == text
        for data in (large, b"", bytes(range(256))):
            await socket.send_bytes(data)
            assert await socket.receive_bytes() == data
    (seen,) = realtime.requests
    assert seen.raw_path == TARGET


async def test_many_sockets_at_once(proxy: Proxy, realtime: Realtime, session: aiohttp.ClientSession) -> None:
    async def one(number: int) -> None:
        async with session.ws_connect(f"{proxy.url}{TARGET}") as socket:
            for turn in range(20):
                await socket.send_str(f"{number} {turn}")
                assert await socket.receive_str() == f"{number} {turn}"

    await asyncio.gather(*map(one, range(50)))
    assert len(realtime.sockets) == 50


async def test_subprotocol_and_fields(
    proxy: Proxy, realtime: Realtime, upstream_port: int, session: aiohttp.ClientSession
) -> None:
    fields = {"Authorization": "Bearer k1", "OpenAI-Beta": "realtime=v1", "X-Soloflight-Anything": "x"}
    async with session.ws_connect(f"{proxy.url}{TARGET}", protocols=("realtime", SECRET), headers=fields) as socket:
        assert socket.protocol == "realtime"
        await socket.send_str("hi")
        assert await socket.receive_str() == "hi"
    (seen,) = realtime.requests
    assert seen.headers["Sec-WebSocket-Protocol"] == f"realtime,{SECRET}"
    assert (seen.headers["Authorization"], seen.headers["OpenAI-Beta"]) == ("Bearer k1", "realtime=v1")
    assert not [name for name in seen.headers if name.lower().startswith("x-soloflight")]
    assert seen.headers["Host"] == f"127.0.0.1:{upstream_port}"
    assert "sk-secret" not in proxy.log


async def test_compression_is_the_peers_own(proxy: Proxy, realtime: Realtime, session: aiohttp.ClientSession) -> None:
    async with session.ws_connect(f"{proxy.url}{TARGET}", compress=15) as socket:
        assert socket.compress
        await socket.send_str("a" * 10_000)
        assert await socket.receive_str() == "a" * 10_000


async def test_pings_and_pongs_pass(proxy: Proxy, realtime: Realtime, session: aiohttp.ClientSession) -> None:
    async def ping(socket: web.WebSocketResponse) -> None:
        await socket.ping(b"from the server")
        await realtime.echo(socket)

    realtime.talk = ping
    async with session.ws_connect(f"{proxy.url}{TARGET}", autoping=False) as socket:
        first = await socket.receive()
        assert (first.type, first.data) == (WSMsgType.PING, b"from the server")
        await socket.pong(first.data)
        await socket.ping(b"from the client")
        second = await socket.receive()
        assert (second.type, second.data) == (WSMsgType.PONG, b"from the client")
    heard = [(message.type, bytes(message.data)) for message in realtime.heard]
    assert heard[:2] == [(WSMsgType.PONG, b"from the server"), (WSMsgType.PING, b"from the client")]


@pytest.mark.parametrize(("code", "reason"), [(1000, b""), (1011, b"overloaded"), (4001, "auf Wiedersehen é".encode())])
async def test_close_codes_of_the_client(
    code: int, reason: bytes, proxy: Proxy, realtime: Realtime, session: aiohttp.ClientSession
) -> None:
    async with session.ws_connect(f"{proxy.url}{TARGET}") as socket:
        await socket.close(code=code, message=reason)
    (seen,) = realtime.sockets
    await eventually(lambda: seen.close_code is not None)
    assert seen.close_code == code


@pytest.mark.parametrize(("code", "reason"), [(1000, b""), (1001, b"going away"), (4002, b"session expired")])
async def test_close_codes_of_the_server(
    code: int, reason: bytes, proxy: Proxy, realtime: Realtime, session: aiohttp.ClientSession
) -> None:
    async def leave(socket: web.WebSocketResponse) -> None:
        await socket.close(code=code, message=reason)

    realtime.talk = leave
    async with session.ws_connect(f"{proxy.url}{TARGET}") as socket:
        message = await socket.receive()
        assert (message.type, message.data, message.extra) == (WSMsgType.CLOSE, code, reason.decode() or "")


async def test_a_client_that_is_cut_off_is_seen_by_the_server(
    proxy: Proxy, realtime: Realtime, session: aiohttp.ClientSession
) -> None:
    socket = await session.ws_connect(f"{proxy.url}{TARGET}")
    await socket.send_str("hi")
    await socket.receive_str()
    transport = socket.get_extra_info("socket")
    assert transport is not None
    socket._writer.transport.abort()
    (seen,) = realtime.sockets
    await eventually(lambda: seen.closed)
    assert seen.close_code == aiohttp.WSCloseCode.ABNORMAL_CLOSURE
    await socket.close()


@pytest.mark.parametrize("how", [CLOSE, RESET])
async def test_a_server_that_is_cut_off_is_seen_by_the_client(
    how: Step, proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    upstream.play([SWITCH + b"\x81\x02hi", 0.05, how])
    async with connect(proxy.port) as client:
        await client.send(HANDSHAKE)
        answer = await client.head()
        assert answer.status == 101
        assert await client.ended() in ("fin", "rst")
        assert client.parser.rest + client.left_over == b"\x81\x02hi"


async def read_raw(client: RawClient, size: int) -> bytes:
    """``size`` bytes behind the 101."""
    data = client.parser.rest
    async with asyncio.timeout(10):
        while len(data) < size:
            piece = await asyncio.get_running_loop().sock_recv(client.sock, MIB)
            assert piece, f"ended after {len(data)}"
            data += piece
    return data


async def test_a_flood_right_behind_the_switch(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    flood = os.urandom(8 * MIB)
    upstream.play([SWITCH + flood, asyncio.Event()])
    async with connect(proxy.port) as client:
        await client.send(HANDSHAKE)
        await client.head()
        assert await read_raw(client, len(flood)) == flood


async def test_a_flood_right_behind_the_handshake(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    flood, got, gate = os.urandom(4 * MIB), bytearray(), asyncio.Event()

    async def listen(exchange: Exchange) -> None:
        while len(got) < len(flood):
            got.extend(await exchange.reader.read(MIB))
        await exchange.write(b"thanks")

    upstream.play([gate, SWITCH, listen, asyncio.Event()])
    async with connect(proxy.port) as client:
        await client.send(HANDSHAKE + flood[:MIB])
        await upstream.wait_calls(1)
        sending = asyncio.create_task(client.send_more(flood[MIB:]))
        gate.set()
        await sending
        await client.head()
        assert await read_raw(client, 6) == b"thanks"
    assert bytes(got) == flood


async def test_a_client_that_does_not_read_costs_no_memory(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    written = 0

    async def pour(exchange: Exchange) -> None:
        nonlocal written
        while True:
            await exchange.write(bytes(MIB))
            written += 1

    upstream.play([SWITCH, pour])
    before = proxy.reset_peak()
    async with connect(proxy.port, receive_buffer=MIB) as client:
        await client.send(HANDSHAKE)
        await client.head()
        poured = -1
        while written != poured:  # until nothing moves any more
            poured = written
            await asyncio.sleep(0.3)
        assert poured < 32
        await read_raw(client, (poured + 8) * MIB)  # and on it goes, once it reads
    assert proxy.peak_rss() - before < 16 * MIB


async def test_a_refusal_is_passed_on(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    refusal = {"error": {"message": "no access", "type": "invalid_request_error", "code": "forbidden", "param": None}}
    upstream.play(json(refusal, "X-Own: kept", status=403))
    async with connect(proxy.port) as client:
        for _ in range(2):  # the connection stays usable
            answer = await client.ask(HANDSHAKE)
            assert (answer.status, answer.get("X-Own"), answer.complete) == (403, "kept", True)
            assert b"no access" in answer.body
        plain = await client.ask(request("GET", "/v1/files"))
        assert plain.status == 403
    assert [received.field(b"upgrade") for received in upstream.requests] == [b"websocket", b"websocket", b""]


async def test_a_refusal_reaches_a_websocket_client(
    proxy: Proxy, upstream: ScriptedUpstream, session: aiohttp.ClientSession
) -> None:
    upstream.play(json({}, status=401))
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await session.ws_connect(f"{proxy.url}{TARGET}")
    assert refused.value.status == 401


async def test_without_an_upstream_it_is_a_502(proxy: Proxy) -> None:
    async with connect(proxy.port) as client:
        answer = await client.ask(HANDSHAKE)
    assert answer.status == 502


async def test_an_upstream_that_switches_unasked_is_a_502(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play([SWITCH + b"\x81\x02hi", 0.05])
    async with connect(proxy.port) as client:
        answer = await client.ask(request("GET", "/v1/realtime"))
    assert answer.status == 502
    assert b"hi" not in answer.body


@pytest.mark.parametrize("protocol", ["h2c", "TLS/1.0", "websocket-2"])
async def test_other_upgrades_are_not_passed_on(protocol: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(json({"plain": True}))
    async with connect(proxy.port) as client:
        fields = ("Connection: Upgrade, HTTP2-Settings", f"Upgrade: {protocol}", "HTTP2-Settings: x")
        for _ in range(2):
            answer = await client.ask(request("GET", "/v1/files", *fields))
            assert (answer.status, answer.body) == (200, b'{"plain": true}')
    for received in upstream.requests:
        assert received.field(b"upgrade") + received.field(b"http2-settings") + received.field(b"connection") == b""
