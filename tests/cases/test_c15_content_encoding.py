"""C15: Content-Encoding kept while the body was decoded; doubly coded and falsely labelled bodies.

Source: qualixar/superlocalmemory#79, nammayatri/nammayatri#14833, aio-libs/aiohttp#4462 and #13364,
NVIDIA-NeMo/nemo-platform#1218; aiohttp 3.14.5 does not decode `gzip,gzip` and raises nothing.
Right: bytes and header together changed (what is shared is identity), or both unchanged (what passes through,
and what can not be decoded, which is then not kept).
"""

import gzip

import brotli
import pytest
import zstandard
from openai import AsyncOpenAI

from harness.client import ask, chat, fresh, request
from harness.proxy import Proxy
from soloflight.testing.chat import completion_object
from soloflight.testing.script import json, raw
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

PLAIN = json(completion_object("encoded")).partition(b"\r\n\r\n")[2]
CODED = {
    "gzip": gzip.compress(PLAIN),
    "br": brotli.compress(PLAIN),
    "zstd": zstandard.compress(PLAIN),
    "gzip,gzip": gzip.compress(gzip.compress(PLAIN)),
}
ACCEPT = "Accept-Encoding: gzip, br, zstd"


def answer(coding: str, body: bytes) -> bytes:
    return raw(body, f"Content-Encoding: {coding}", type="application/json")


@pytest.mark.parametrize("coding", CODED)
async def test_shared_answers_are_identity(coding: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(answer(coding, CODED[coding]))
    body = fresh(stream=False)
    for role, accept in (("owner", [ACCEPT]), ("replay", []), ("replay", [ACCEPT])):
        response = await ask(proxy.port, chat(body, *accept))
        assert (response.status, response.role, response.complete) == (200, role, True)
        assert (response.get("Content-Encoding"), response.body) == (None, PLAIN)
        assert response.get("Content-Length") in (None, str(len(PLAIN)))
    assert upstream.requests[0].field(b"accept-encoding") in (b"", b"identity")


async def test_a_false_label_passes_and_is_not_kept(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(answer("gzip", PLAIN))
    body = chat(fresh(stream=False), ACCEPT)
    for call in (1, 2):
        response = await ask(proxy.port, body)
        assert (response.status, response.complete) == (200, True)
        assert (response.get("Content-Encoding"), response.body) == ("gzip", PLAIN)
        assert (response.role, upstream.calls) == ("owner", call)


@pytest.mark.parametrize("coding", CODED)
async def test_passed_through_answers_are_untouched(coding: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(answer(coding, CODED[coding]))
    response = await ask(proxy.port, request("GET", "/v1/files/f1/content", ACCEPT))
    assert (response.get("Content-Encoding"), response.body) == (coding, CODED[coding])
    assert response.get("Content-Length") == str(len(CODED[coding]))
    assert upstream.requests[0].field(b"accept-encoding") == b"gzip, br, zstd"


@pytest.mark.parametrize("coding", ["gzip", "br", "zstd"])
async def test_the_sdk_reads_it(coding: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(answer(coding, CODED[coding]))
    async with AsyncOpenAI(api_key="k1", base_url=f"{proxy.url}/v1", max_retries=0) as client:
        for _ in range(2):
            completion = await client.chat.completions.create(**fresh(stream=False))
            assert completion.choices[0].message.content == "encoded"
