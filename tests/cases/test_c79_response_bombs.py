"""C79: compressed response bombs and endless bodies from upstream.

Source: mitmproxy/mitmproxy#7964, ogx-ai/ogx#4494, envoyproxy/envoy#21619, curl/curl#21581.
Right: memory stays within the recording's limit and some room, whatever the upstream sends; the client goes on
getting bytes; nothing of it is kept; nobody else is held up.
"""

import asyncio
import gzip
import itertools
import zlib
from collections.abc import Iterator

import pytest

from harness.bystander import bystander
from harness.client import RawClient, ask, chat, connect, fresh, request
from harness.proxy import Proxy
from harness.refusals import refused
from soloflight.testing.chat import content
from soloflight.testing.script import LAST_CHUNK, Step, chunk, head, json, raw
from soloflight.testing.upstream import ScriptedUpstream

MIB = 1 << 20
RECORDING = 8 * MIB
ROOM = 64 * MIB
LAG_S = 0.2
PROXY = {"stage_defaults": {"max_recording": "8MiB", "max_abandoned_stream": "200ms"}}
ZEROS = bytes(MIB)
EVENTS = chunk(content("x" * 200) * 256)
SSE_HEAD = head(200, "Content-Type: text/event-stream", "Transfer-Encoding: chunked")


def gzip_bomb(mib: int) -> bytes:
    """A gzip stream of ``mib`` MiB of spaces: one block many times. Its check sum is right for 128 MiB only."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = deflate.compress(b" " * (16 * MIB)) + deflate.flush(zlib.Z_FULL_FLUSH)
    check = zlib.crc32(b" " * (128 * MIB)).to_bytes(4, "little") + (mib * MIB & 0xFFFFFFFF).to_bytes(4, "little")
    return b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + block * (mib // 16) + b"\x03\0" + check


async def take(client: RawClient, size: int, *, within_s: float = 30.0) -> bytes:
    """Read ``size`` bytes, or to the end, and keep only the last few: as fast as they come."""
    buffer, taken, tail = bytearray(MIB), 0, b""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(within_s):
        while taken < size and (count := await loop.sock_recv_into(client.sock, buffer)):
            taken += count
            tail = (tail + buffer[max(0, count - 16) : count])[-16:]
            if tail.endswith(b"\r\n" + LAST_CHUNK):
                break
    return tail


async def assert_not_kept(proxy: Proxy, body: bytes) -> None:
    first, rest = body.split(b"\r\n", 1)
    answer = await ask(proxy.port, first + b"\r\nCache-Control: only-if-cached\r\n" + rest)
    assert refused(answer) == (504, "not_cached")


async def test_4_gb_of_json_in_4_mb(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    bomb = gzip_bomb(4096)
    assert len(bomb) < 5 * MIB
    upstream.play(raw(bomb, "Content-Encoding: gzip", type="application/json"))
    body = chat(fresh(stream=False))
    before = proxy.reset_peak()
    async with bystander(proxy) as other, connect(proxy.port) as client:
        await client.send(body)
        await client.read_body(MIB)
        assert client.response.status == 200
        await take(client, 64 * MIB)
    assert proxy.peak_rss() - before < RECORDING + ROOM
    assert other.longest_s < LAG_S
    await upstream.wait_until(lambda: upstream.open_now == 0)  # who has left ends it
    await assert_not_kept(proxy, body)


async def test_a_bomb_that_nobody_reads(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(raw(gzip_bomb(4096), "Content-Encoding: gzip", type="application/json"))
    body = chat(fresh(stream=False))
    before = proxy.reset_peak()
    async with bystander(proxy) as other:
        async with connect(proxy.port) as client:
            await client.send(body)
            await client.read_body(1)
        await upstream.wait_until(lambda: upstream.open_now == 0)
    assert proxy.peak_rss() - before < RECORDING + ROOM
    assert other.longest_s < LAG_S
    await assert_not_kept(proxy, body)


async def test_a_whole_bomb_is_delivered_and_not_kept(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(raw(gzip_bomb(128), "Content-Encoding: gzip", type="application/json"))
    body = chat(fresh(stream=False))
    before = proxy.reset_peak()
    async with connect(proxy.port) as client:
        await client.send(body)
        assert (await take(client, 200 * MIB)).endswith(b" \r\n" + LAST_CHUNK)
    assert proxy.peak_rss() - before < RECORDING + ROOM
    await assert_not_kept(proxy, body)


async def test_alone_a_bomb_is_bytes(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    bomb = gzip.compress(gzip_bomb(4096))
    upstream.play(raw(bomb, "Content-Encoding: gzip, gzip", type="application/json"))
    before = proxy.reset_peak()
    answer = await ask(proxy.port, request("GET", "/v1/files/f1/content"))
    assert (answer.status, answer.body, answer.get("Content-Encoding")) == (200, bomb, "gzip, gzip")
    assert proxy.peak_rss() - before < ROOM


@pytest.mark.parametrize("target", ["/v1/chat/completions", "/v1/unknown"])
async def test_a_stream_that_never_ends(target: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(lambda _: itertools.chain([SSE_HEAD], itertools.repeat(EVENTS)))
    body = chat(fresh(), target=target)
    before = proxy.reset_peak()
    async with connect(proxy.port) as quick, connect(proxy.port) as stalled:
        await quick.send(body)
        await quick.read_events(1)
        await stalled.send(body)  # joins, and reads no further than this
        await stalled.read_events(1)
        async with bystander(proxy) as other:
            await take(quick, 128 * MIB)
    assert proxy.peak_rss() - before < RECORDING + ROOM
    assert other.longest_s < LAG_S
    await upstream.wait_until(lambda: upstream.open_now == 0)
    if target == "/v1/chat/completions":
        assert upstream.calls == 1
        await assert_not_kept(proxy, body)


@pytest.mark.parametrize("target", ["/v1/chat/completions", "/v1/files"])
async def test_a_long_header_block(target: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    long, many = ["X-Long: " + "x" * 100_000], [f"X-Many-{number}: {'x' * 80}" for number in range(1000)]
    before = proxy.reset_peak()
    for fields in (long, many):
        upstream.play(json({}, *fields))
        answer = await ask(proxy.port, chat(fresh(stream=False), target=target))
        if answer.status == 200:
            sent = [tuple(field.encode().split(b": ")) for field in fields]
            assert [field for field in answer.fields if field[0].startswith((b"X-Long", b"X-Many"))] == sent
        else:
            assert refused(answer) == (502, "upstream_invalid")
    upstream.play(json({}, "X-Endless: " + "x" * (8 * MIB)))
    assert refused(await ask(proxy.port, chat(fresh(stream=False), target=target))) == (502, "upstream_invalid")
    assert proxy.peak_rss() - before < ROOM


async def test_an_event_of_500_mb(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    piece = chunk(b"x" * MIB)

    def script(_: object) -> Iterator[Step]:
        yield SSE_HEAD + chunk(b"data: ")
        yield from itertools.repeat(piece, 500)
        yield chunk(b"\n\n") + chunk(b"data: [DONE]\n\n") + LAST_CHUNK

    upstream.play(script)
    body = chat(fresh())
    before = proxy.reset_peak()
    async with bystander(proxy) as other, connect(proxy.port) as client:
        await client.send(body)
        assert (await take(client, 600 * MIB)).endswith(b"\n\n\r\n" + LAST_CHUNK)
    assert proxy.peak_rss() - before < RECORDING + ROOM
    assert other.longest_s < LAG_S
    await assert_not_kept(proxy, body)
