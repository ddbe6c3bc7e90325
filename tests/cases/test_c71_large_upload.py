"""C71: a large upload is streamed; Expect: 100-continue; an early refusal; half an upload.

Source: BerriAI/litellm#34254, aio-libs/aiohttp#3702.
Right: memory is O(buffer), nothing is read whole that will not be shared; the upstream's early 413 reaches the
client; of half an upload the upstream sees a broken connection, never a complete short request.
"""

import hashlib
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
import pytest_asyncio

from harness.client import RawClient, ask, connect, request
from harness.proxy import Proxy
from harness.refusals import refused
from soloflight.testing.exchange import Exchange
from soloflight.testing.script import CLOSE, LAST_CHUNK, ReadBody, chunk, json, raw
from soloflight.testing.upstream import ScriptedUpstream

MIB = 1 << 20
SIZE = 500 * MIB
PIECE = bytes(range(256)) * (MIB // 256)
GROWTH = 50 * MIB
PROXY = {"server": {"max_body": "600MiB"}}
KEY = "Authorization: Bearer k1"
FRAMINGS = {"length": f"Content-Length: {SIZE}", "chunked": "Transfer-Encoding: chunked"}
TOO_LARGE = raw(b'{"error":{"message":"25 MB at most"}}', status=413, type="application/json")


@pytest_asyncio.fixture
async def upstream(upstream_port: int) -> AsyncIterator[ScriptedUpstream]:
    """One that reads a body only when its script says so, and keeps none of it."""
    async with ScriptedUpstream(port=upstream_port, read_first=False, keep_bytes=0) as server:
        yield server


async def upload(client: RawClient, framing: str, size: int) -> str:
    """Send ``size`` bytes of body; gives their digest."""
    digest = hashlib.sha256()
    framed = PIECE if framing == "length" else chunk(PIECE)
    for _ in range(size // MIB):
        await client.send_more(framed)
        digest.update(PIECE)
    return digest.hexdigest()


@pytest.mark.parametrize("framing", FRAMINGS)
async def test_500_mb_pass_in_constant_memory(framing: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play([ReadBody(), json({"id": "file-1"})])
    before = proxy.reset_peak()
    async with connect(proxy.port) as client:
        await client.send(request("POST", "/v1/files", FRAMINGS[framing], "Expect: 100-continue", KEY))
        await client.read_until(lambda response: bool(response.informational))
        assert client.response.informational == [b"HTTP/1.1 100 Continue\r\n\r\n"]
        digest = await upload(client, framing, SIZE)
        if framing == "chunked":
            await client.send_more(LAST_CHUNK)
        answer = await client.finish()
    assert (answer.status, answer.body) == (200, b'{"id": "file-1"}')
    assert proxy.peak_rss() - before < GROWTH
    received = upstream.requests[0]
    assert (received.body_length, received.body_complete, received.body_sha256) == (SIZE, True, digest)


async def test_the_upstream_sees_the_first_bytes_at_once(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play([ReadBody(), json({})])
    async with connect(proxy.port) as client:
        await client.send(request("POST", "/v1/files", FRAMINGS["length"], KEY))
        await client.send_more(PIECE)
        await upstream.wait_calls(1)
    received = upstream.requests[0]
    await upstream.wait_until(lambda: received.left is not None)
    assert not received.body_complete


async def linger(exchange: Exchange) -> None:
    """Close as nginx does: the answer and FIN, then read on until the client has gone."""
    exchange.writer.write_eof()
    while await exchange.reader.read(MIB):
        pass


@pytest.mark.parametrize("ending", [CLOSE, linger], ids=["close", "lingering close"])
@pytest.mark.parametrize("framing", FRAMINGS)
async def test_an_early_413_reaches_the_client(
    framing: str, ending: object, proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    upstream.play([ReadBody(MIB), TOO_LARGE, ending])  # type: ignore[list-item]
    async with connect(proxy.port) as client:
        await client.send(request("POST", "/v1/files", FRAMINGS[framing], KEY))
        with suppress(ConnectionError):  # the connection may be closed while a client sends on
            await upload(client, framing, 100 * MIB)
        answer = await client.finish()
    assert (answer.status, answer.body) == (413, TOO_LARGE.partition(b"\r\n\r\n")[2])
    assert not upstream.requests[0].body_complete


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("framing", FRAMINGS)
async def test_half_an_upload_is_seen_as_that(framing: str, how: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play([ReadBody(), json({})])
    async with connect(proxy.port) as client:
        await client.send(request("POST", "/v1/files", FRAMINGS[framing], KEY))
        await upload(client, framing, 8 * MIB)
        await upstream.wait_calls(1)
        received = upstream.requests[0]
        if how == "reset":
            client.reset()
        else:
            client.close()
        await upstream.wait_until(lambda: upstream.open_now == 0)
    assert received.left is not None
    assert not received.body_complete
    assert received.sent == []


async def test_a_refusal_of_ours_comes_before_the_body(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    for target in ("/v1/files", "/v1/audio/transcriptions"):
        head = request("POST", target, "Content-Length: 1000000000", "Expect: 100-continue", KEY)
        answer = await ask(proxy.port, head)
        assert refused(answer) == (413, "body_too_large")
        assert answer.informational == []
    assert upstream.calls == 0
