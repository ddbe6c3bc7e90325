"""C21: an HTTP library's default limits: 1 MiB of request body, 8190 bytes of a field.

Source: liaohch3/claude-tap#2, aio-libs/aiohttp#4474, #2304 and #13397, mathworks/matlab-proxy#94.
Right: long contexts and long fields pass; limits are settings; a body over the limit is a 413 in the API's error
form before all of it was read, with memory bounded.
"""

import json
from contextlib import suppress

import pytest

from harness.client import ask, chat, connect, fresh, request
from harness.proxy import Proxy
from harness.wire import Response
from soloflight.testing.chat import completion_object
from soloflight.testing.script import chunk
from soloflight.testing.script import json as json_answer
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

MIB = 1 << 20
LIMIT = 8 * MIB
PROXY = {"server": {"max_body": "8MiB", "max_shared_body": "4MiB"}}
HUGE = 60 * MIB
ROOM = 20 * MIB


def error_code(answer: Response) -> str:
    assert (answer.get("Content-Type") or "").startswith("application/json")
    error = json.loads(answer.body)["error"]
    assert error.keys() >= {"message", "type", "code", "param"}
    return str(error["code"])


@pytest.mark.parametrize("size", [3 * MIB, 6 * MIB], ids=["shared", "too large to share"])
async def test_a_picture_in_a_prompt_passes(size: int, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(json_answer(completion_object()))
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "QUJD" * (size // 4)}}
    body = json.dumps(fresh(messages=[{"role": "user", "content": [picture]}], stream=False)).encode()
    assert (await ask(proxy.port, chat(body))).status == 200
    assert upstream.requests[0].body == body


async def test_a_long_credential_passes(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(json_answer(completion_object()))
    key = "k" * 9000
    assert (await ask(proxy.port, chat(fresh(stream=False), key=key))).status == 200
    assert upstream.requests[0].field(b"authorization") == f"Bearer {key}".encode()


async def test_a_head_without_measure_is_refused_in_the_apis_form(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    answer = await ask(proxy.port, chat(fresh(stream=False), key="k" * MIB))
    assert answer.status == 431
    assert error_code(answer) == "headers_too_large"
    assert upstream.calls == 0


async def test_a_long_upstream_field_passes(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    policy = "p" * 12_000
    upstream.play(json_answer(completion_object(), f"Content-Security-Policy: {policy}"))
    answers = [await ask(proxy.port, chat(fresh(stream=False))), await ask(proxy.port, request("GET", "/v1/files"))]
    assert [answer.status for answer in answers] == [200, 200]
    assert [answer.get("Content-Security-Policy") for answer in answers] == [policy, policy]


@pytest.mark.parametrize("target", ["/v1/chat/completions", "/v1/files"])
@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_a_body_over_the_limit_is_refused_early(
    framing: str, target: str, proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    upstream.play(json_answer({}))
    fields = ["Content-Type: application/json"]
    fields.append(f"Content-Length: {HUGE}" if framing == "length" else "Transfer-Encoding: chunked")
    piece = b"x" * (64 << 10)
    framed = piece if framing == "length" else chunk(piece)
    before = proxy.reset_peak()
    async with connect(proxy.port) as client:
        await client.send(request("POST", target, *fields))
        for _ in range((LIMIT + MIB) // len(piece)):
            await client.send_more(framed)
        answer = await client.finish()  # while most of the body is still to come
        assert answer.status == 413
        assert error_code(answer) == "body_too_large"
        with suppress(ConnectionError):  # a client that does not care
            for _ in range((HUGE - LIMIT - MIB) // len(piece)):
                await client.send_more(framed)
    assert proxy.peak_rss() - before < LIMIT + ROOM
    assert all(not received.body_complete for received in upstream.requests)
