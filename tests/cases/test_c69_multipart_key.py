"""C69: two different audio files with one file name; the same file with two boundaries.

Source: BerriAI/litellm#16462, #5026 and #17651, radicalbit/radicalbit-ai-gateway#77.
Right: content counts. The key comes from the parts (name, file name, type, content digest, order), not from the
boundary, which each call of an SDK draws anew.
"""

import asyncio

import pytest

from harness.client import connect, request, settle
from harness.proxy import Proxy
from harness.wire import Response
from soloflight.testing.received import Received
from soloflight.testing.script import Script, json
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

TARGET = "/v1/audio/transcriptions"
Part = tuple[str, bytes]
ONE, TWO = b"RIFF\0content 1\r\n", b"RIFF\0content 2\r\n"


def audio(content: bytes, name: str = "audio.wav", type: str = "audio/wav") -> Part:
    return f'form-data; name="file"; filename="{name}"\r\nContent-Type: {type}', content


def text(name: str, value: str) -> Part:
    return f'form-data; name="{name}"', value.encode()


def form(*parts: Part, boundary: str) -> bytes:
    """A POST of ``parts``; those of one test differ from any other's by their ``prompt``."""
    lines = b"".join(
        f"--{boundary}\r\nContent-Disposition: {head}\r\n\r\n".encode() + content + b"\r\n" for head, content in parts
    )
    body = lines + f"--{boundary}--\r\n".encode()
    kind = f"Content-Type: multipart/form-data; boundary={boundary}"
    return request("POST", TARGET, kind, "Authorization: Bearer k1", body=body)


def heard(received: Received) -> bytes:
    """The text of a transcription names the content, and everything else that was asked."""
    content = b"1" if ONE in received.body else b"2"
    return json({"text": f"content {content.decode()}", "call": received.number})


async def together(proxy: Proxy, upstream: ScriptedUpstream, *sent: bytes, calls: int) -> list[Response]:
    """All requests at once, each there before any answer, taken in one behind the other; ``calls`` of them reach the upstream."""
    gate = asyncio.Event()

    def script(received: Received) -> Script:
        return [gate, heard(received)]

    upstream.play(script)
    async with connect(proxy.port) as a, connect(proxy.port) as b:
        clients = [a, b][: len(sent)]
        for client, data in zip(clients, sent, strict=True):
            await client.send(data)
            await settle(proxy.port)  # each has been taken in before the next one comes
        await upstream.wait_calls(calls)
        gate.set()
        answers = [await client.finish() for client in clients]
    assert upstream.calls == calls
    return answers


async def test_one_name_and_two_contents(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    model = text("model", "one name")
    sent = [form(model, audio(content), boundary="same") for content in (ONE, TWO)]
    first, second = await together(proxy, upstream, *sent, calls=2)
    assert b"content 1" in first.body
    assert b"content 2" in second.body
    assert first.role == second.role == "owner"


async def test_one_content_and_two_boundaries(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    model = text("model", "two boundaries")
    sent = [form(model, audio(ONE), boundary=boundary) for boundary in ("abc", "----WebKitFormBoundary7MA4")]
    first, second = await together(proxy, upstream, *sent, calls=1)
    assert (first.role, second.role) == ("owner", "follower")
    assert first.body == second.body
    (again,) = await together(proxy, upstream, form(model, audio(ONE), boundary="third"), calls=1)
    assert (again.role, again.body) == ("replay", first.body)


BASE = [text("language", "de"), text("response_format", "json"), audio(ONE)]
OTHERS = {
    "another language": [text("language", "en"), BASE[1], BASE[2]],
    "text": [BASE[0], text("response_format", "text"), BASE[2]],
    "srt": [BASE[0], text("response_format", "srt"), BASE[2]],
    "another order": [BASE[1], BASE[0], BASE[2]],
    "another file name": [*BASE[:2], audio(ONE, name="other.wav")],
    "another type": [*BASE[:2], audio(ONE, type="audio/mpeg")],
    "one part more": [*BASE, text("timestamp_granularities[]", "word")],
    "one part twice": [BASE[0], *BASE],
}


@pytest.mark.parametrize("difference", OTHERS)
async def test_what_else_counts(difference: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    prompt = text("prompt", f"unlike the others: {difference}")
    sent = [form(prompt, *parts, boundary="b") for parts in (BASE, OTHERS[difference])]
    first, second = await together(proxy, upstream, *sent, calls=2)
    assert first.role == second.role == "owner"
    assert first.body != second.body
