"""C68: multipart and binary bodies are opaque; answers that are no JSON.

Source: BerriAI/litellm#23338, #25464, #27289 and #29926, Helicone/helicone#4091.
Right: bytes and Content-Type unchanged both ways; answers stream; 206 is never shared with 200.
"""

import asyncio
import hashlib

import pytest
from openai import AsyncOpenAI

from harness.client import ask, connect, request
from harness.proxy import Proxy
from soloflight.testing.script import LAST_CHUNK, Step, chunk, head, raw
from soloflight.testing.script import json as json_answer
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

KEY = "Authorization: Bearer k1"
ALL_BYTES = bytes(range(256))
BOUNDARY = b"=_?:'()+"
FORM = (
    b"a preamble that is no part\r\n"
    b"--" + BOUNDARY + b'\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n'
    b"--" + BOUNDARY + b'\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\n'
    b"Content-Type: image/png\r\n\r\n"
    + ALL_BYTES
    + b"\r\n--"
    + BOUNDARY[:-1]
    + b"\r\n--other--\r\n"
    + ALL_BYTES
    + b"\r\n"
    b"--" + BOUNDARY + b"--\r\nan epilogue"
)
FORM_TYPE = 'multipart/form-data;  Boundary="' + BOUNDARY.decode() + '"; charset=x'
WITHOUT_END = FORM.partition(b"--\r\nan epilogue")[0] + b"--"
SENT = {
    "form": (FORM_TYPE, FORM),
    "form without trailing CRLF": (FORM_TYPE, WITHOUT_END),
    "octets": ("application/octet-stream", ALL_BYTES * 300),
    "urlencoded": ("application/x-www-form-urlencoded", b"a=%2F&b=+&c=\xff&&a"),
    "JSON that is none": ("application/json", b'{"file":"' + ALL_BYTES + b'"'),
}
ROUTES = ["/v1/images/edits", "/v1/files", "/v1/audio/transcriptions", "/v1/chat/completions"]

MP3 = ALL_BYTES * (5 * 4096)
ANSWERS = {
    "audio/mpeg": MP3,
    "text/plain; charset=latin-1": "caf\xe9\r\n".encode("latin-1"),
    "application/zip": b"PK\x03\x04" + ALL_BYTES,
    "application/jsonl": b'{"a":1}\n{"b":\n\xff}\n',
    "application/pdf": b"%PDF-1.7\n" + ALL_BYTES,
}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("target", ROUTES)
@pytest.mark.parametrize("kind", SENT)
async def test_the_body_goes_on_byte_for_byte(kind: str, target: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    content_type, body = SENT[kind]
    upstream.play(json_answer({"text": "ok"}))
    sent = request("POST", target, f"Content-Type: {content_type}", KEY, body=body)
    assert (await ask(proxy.port, sent)).status == 200
    received = upstream.requests[0]
    assert received.body_sha256 == sha256(body)
    assert received.all(b"content-type") == [content_type.encode()]
    assert received.field(b"content-length") == str(len(body)).encode()


async def test_what_the_sdk_sends(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    picture = ("a.png", ALL_BYTES * 1000, "image/png")
    upstream.play(json_answer({"created": 1, "data": [], "id": "f1"}))
    async with AsyncOpenAI(api_key="k1", base_url=f"{proxy.url}/v1", max_retries=0) as client:
        await client.images.edit(model="m", image=picture, prompt="bluer")
        assert (await client.files.create(file=picture, purpose="vision")).id == "f1"
    for received in upstream.requests:
        boundary = received.field(b"content-type").partition(b"boundary=")[2]
        assert received.body.startswith(b"--" + boundary)
        assert received.body.endswith(b"\r\n--" + boundary + b"--\r\n")
        assert b"\r\n\r\n" + ALL_BYTES * 1000 + b"\r\n--" + boundary in received.body


@pytest.mark.parametrize("target", ["/v1/audio/speech", "/v1/files/f1/content"])
@pytest.mark.parametrize("content_type", ANSWERS)
async def test_an_answer_that_is_no_json(
    content_type: str, target: str, proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    body = ANSWERS[content_type]
    first, rest = body[: len(body) // 8 + 1], body[len(body) // 8 + 1 :]
    gate = asyncio.Event()
    opening = head(200, f"Content-Type: {content_type}", "Transfer-Encoding: chunked")
    steps: list[Step] = [opening + chunk(first), gate, chunk(rest) + LAST_CHUNK]
    upstream.play(steps)
    asked = b'{"input":"%s %s"}' % (content_type.encode(), target.encode())
    async with connect(proxy.port) as client:
        await client.send(request("POST", target, "Content-Type: application/json", KEY, body=asked))
        await client.read_body(len(first))  # while the rest has not been written
        gate.set()
        answer = await client.finish()
    assert (answer.status, answer.complete) == (200, True)
    assert answer.all("Content-Type") == [content_type]
    assert sha256(answer.body) == sha256(body)
    if target == "/v1/audio/speech":
        again = await ask(proxy.port, request("POST", target, "Content-Type: application/json", KEY, body=asked))
        assert (again.role, again.all("Content-Type"), sha256(again.body)) == ("replay", [content_type], sha256(body))


async def test_a_part_is_not_shared_with_the_whole(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    whole, part = raw(b"0123456789"), raw(b"234", "Content-Range: bytes 2-4/10", status=206)
    upstream.play(lambda received: part if received.field(b"range") else whole)
    target = "/c68/models"
    ranged = request("GET", target, KEY, "Range: bytes=2-4")
    for sent, status, body, role in (
        (ranged, 206, b"234", "bypass"),
        (request("GET", target, KEY), 200, b"0123456789", "owner"),
        (ranged, 206, b"234", "bypass"),
    ):
        answer = await ask(proxy.port, sent)
        assert (answer.status, answer.body, answer.role) == (status, body, role)
    assert upstream.calls == 3


async def test_a_part_that_nobody_asked_for_is_not_kept(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(raw(b"234", "Content-Range: bytes 2-4/10", status=206), raw(b"0123456789"))
    sent = request("GET", "/c68/part/models", KEY)
    assert [(await ask(proxy.port, sent)).status for _ in range(2)] == [206, 200]
