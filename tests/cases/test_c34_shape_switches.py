"""C34: `stream`, `encoding_format` and other switches of an answer's shape.

Source: gumieri/nenya#18, ENTERPILOT/GoModel#202, Portkey-AI/gateway#19, tensorzero/tensorzero#3633, mem0ai/mem0#5170.
Right: each shape has its own flight and its own kept answer; a replay has the type of what was recorded.
"""

import base64
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from bodies.forms import field, file, form
from harness.client import ask, chat, fresh, request
from harness.proxy import Proxy
from harness.wire import Response
from soloflight.testing.chat import CH, DONE, FIN, completion_object
from soloflight.testing.received import Received
from soloflight.testing.script import Script, raw, sse
from soloflight.testing.script import json as json_answer
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

DEFAULT_DIMENSIONS = 1024
TYPES = {"json": "application/json", "text": "text/plain; charset=utf-8", "srt": "application/x-subrip"}
TEXTS = {"json": b'{"text":"hello"}', "text": b"hello\n", "srt": b"1\n00:00:00,000 --> 00:00:01,000\nhello\n"}


def answer(received: Received) -> Script:
    """What an API says to each shape of request."""
    if received.target.endswith("/transcriptions"):
        shape = next(name for name in TYPES if b"\r\n\r\n" + name.encode() + b"\r\n" in received.body)
        return raw(TEXTS[shape], type=TYPES[shape])
    document = json.loads(received.body)
    if received.target.endswith("/embeddings"):
        return json_answer({"object": "list", "data": [{"index": 0, "embedding": embedding(document)}]})
    if document.get("stream") is True or b"event-stream" in received.field(b"accept"):
        return sse(CH, FIN, DONE)
    said = json.dumps(document.get("response_format"))
    return json_answer(completion_object(said))


def embedding(document: dict[str, Any]) -> Any:
    numbers = [0.5] * document.get("dimensions", DEFAULT_DIMENSIONS)
    if document.get("encoding_format") == "base64":
        return base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()
    return numbers


@dataclass
class Shape:
    """A request, and what a client that sent it can read."""

    sent: bytes
    type: str
    reads: Callable[[Response], bool]


def is_stream(response: Response) -> bool:
    return [event.data for event in response.events][-1:] == ["[DONE]"] and len(response.events) == 3


def says(text: str) -> Callable[[Response], bool]:
    return lambda response: json.loads(response.body)["choices"][0]["message"]["content"] == text


def floats(count: int) -> Callable[[Response], bool]:
    return lambda response: json.loads(response.body)["data"][0]["embedding"] == [0.5] * count


def packed(count: int) -> Callable[[Response], bool]:
    def reads(response: Response) -> bool:
        data = base64.b64decode(json.loads(response.body)["data"][0]["embedding"], validate=True)
        return struct.unpack(f"<{count}f", data) == (0.5,) * count

    return reads


def transcription(shape: str) -> bytes:
    boundary = f"----{shape}-and-by-chance"
    parts = [file("file", "a.wav", b"RIFF....WAVE"), field("model", "whisper-1"), field("response_format", shape)]
    fields = (f"Content-Type: multipart/form-data; boundary={boundary}", "Authorization: Bearer k1")
    return request("POST", "/v1/audio/transcriptions", *fields, body=form(boundary.encode(), *parts))


def shapes() -> dict[str, Shape]:
    base = fresh(stream=False)
    plain = {name: value for name, value in base.items() if name != "stream"}
    words = {"model": "e", "input": base["messages"][0]["content"]}
    schema = {"type": "json_object"}
    stream, document = "text/event-stream", "application/json"

    def embed(**members: Any) -> bytes:
        return chat({**words, **members}, target="/v1/embeddings")

    return {
        "stream": Shape(chat({**base, "stream": True}), stream, is_stream),
        "no stream": Shape(chat(base), document, says("null")),
        "stream absent": Shape(chat(plain), document, says("null")),
        "stream by Accept": Shape(chat({**plain, "top_p": 1}, "Accept: text/event-stream"), stream, is_stream),
        "JSON by Accept": Shape(chat({**plain, "top_p": 1}, "Accept: application/json"), document, says("null")),
        "a JSON object": Shape(chat({**base, "response_format": schema}), document, says(json.dumps(schema))),
        "base64": Shape(embed(encoding_format="base64"), document, packed(DEFAULT_DIMENSIONS)),
        "float": Shape(embed(encoding_format="float"), document, floats(DEFAULT_DIMENSIONS)),
        "encoding absent": Shape(embed(), document, floats(DEFAULT_DIMENSIONS)),
        "256 floats": Shape(embed(dimensions=256), document, floats(256)),
        "512 floats": Shape(embed(dimensions=512), document, floats(512)),
        "256 in base64": Shape(embed(dimensions=256, encoding_format="base64"), document, packed(256)),
        **{
            f"transcription as {name}": Shape(
                transcription(name), TYPES[name], lambda response, name=name: response.body == TEXTS[name]
            )
            for name in TYPES
        },
    }


async def test_the_matrix_twice(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(answer)
    matrix = shapes()
    flights = set()
    for role in ("owner", "replay"):
        for name, shape in matrix.items():
            response = await ask(proxy.port, shape.sent)
            assert (response.status, response.get("Content-Type")) == (200, shape.type), name
            assert response.complete, name
            assert shape.reads(response), name
            assert response.role == role or name == "stream absent", name  # may be one with stream: false
            flights.add(response.get("X-Soloflight-Flight"))
    assert len(matrix) - 1 <= len(flights) == upstream.calls <= len(matrix)
