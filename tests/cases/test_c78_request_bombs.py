"""C78: compressed request bombs.

Source: headroomlabs-ai/headroom#3284 and #3325, alphagov/backdrop#360.
Right: 413 or 400 in the API's form, memory bounded by the decoded limit, nobody else held up, nothing upstream.
"""

import asyncio
import gzip
import zlib

import brotli
import pytest
import zstandard

from harness.bystander import bystander
from harness.client import ask, chat, fresh, request
from harness.proxy import Proxy
from harness.refusals import refused
from soloflight.testing.chat import completion_object
from soloflight.testing.script import chunk, json
from soloflight.testing.upstream import ScriptedUpstream

MIB = 1 << 20
LIMIT = 16 * MIB
ROOM = 64 * MIB
LAG_S = 0.2
AT_ONCE = 20
PROXY = {"server": {"max_shared_body": "16MiB"}}
ZEROS = bytes(MIB)


def gzip_bomb(mib: int) -> bytes:
    """A gzip stream of ``mib`` MiB of zeros: one block many times. Its check sum is wrong, but nobody gets there."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = deflate.compress(ZEROS * 16) + deflate.flush(zlib.Z_FULL_FLUSH)
    return b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + block * (mib // 16) + b"\x03\0" + bytes(8)


def zstd_bomb(mib: int) -> bytes:
    compress = zstandard.ZstdCompressor(level=3).compressobj(size=mib * MIB)
    return b"".join(compress.compress(ZEROS) for _ in range(mib)) + compress.flush()


def brotli_bomb(mib: int) -> bytes:
    compress = brotli.Compressor(quality=5)
    return b"".join(compress.process(ZEROS) for _ in range(mib)) + compress.finish()


BOMBS = {
    "gzip": lambda: gzip_bomb(2048),
    "zstd": lambda: zstd_bomb(512),
    "br": lambda: brotli_bomb(512),
    "gzip, gzip": lambda: gzip.compress(gzip_bomb(2048)),
    "deflate": lambda: zlib.compress(ZEROS * 64),
    "gzip, br": lambda: brotli.compress(gzip_bomb(512)),
}


def bomb(coding: str, framing: str) -> bytes:
    body, kind = BOMBS[coding](), "Content-Type: application/json"
    if framing == "length":
        return request("POST", "/v1/chat/completions", kind, f"Content-Encoding: {coding}", body=body)
    opening = request("POST", "/v1/chat/completions", kind, f"Content-Encoding: {coding}", "Transfer-Encoding: chunked")
    return opening + chunk(body) + chunk(b"")


@pytest.mark.parametrize(("coding", "framing"), [*((coding, "length") for coding in BOMBS), ("gzip", "chunked")])
async def test_a_bomb_does_no_harm(coding: str, framing: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(json(completion_object()))
    data = bomb(coding, framing)
    before = proxy.reset_peak()
    async with bystander(proxy) as other:
        answers = await asyncio.gather(*(ask(proxy.port, data) for _ in range(AT_ONCE)))
    assert {refused(answer) for answer in answers} == {(413, "body_too_large")}
    assert proxy.peak_rss() - before < LIMIT + ROOM
    assert other.longest_s < LAG_S
    assert upstream.calls == 0
    assert (await ask(proxy.port, chat(fresh(stream=False)))).status == 200


DAMAGED = {
    "not gzip": ("gzip", b"{}"),
    "cut": ("gzip", gzip.compress(b'{"model":"m"}')[:-9]),
    "rest behind": ("gzip", gzip.compress(b"{}") + b"rest"),
    "cut zstd": ("zstd", zstandard.compress(b'{"model":"m"}')[:-3]),
    "cut br": ("br", brotli.compress(b'{"model":"m"}' * 9)[:-2]),
}


@pytest.mark.parametrize("what", DAMAGED)
async def test_a_damaged_coding_is_refused(what: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    coding, body = DAMAGED[what]
    answer = await ask(proxy.port, chat(body, f"Content-Encoding: {coding}"))
    assert refused(answer) == (400, "bad_request")
    assert upstream.calls == 0
