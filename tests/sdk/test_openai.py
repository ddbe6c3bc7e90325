"""The real `openai` client: what it sends arrives, and what it reads is what the upstream said, for every role."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI

from harness.client import fresh
from harness.proxy import Proxy
from sdk.answers import RESPONSE, RESPONSE_EVENTS, TEXT, VECTOR, embeddings
from soloflight.testing.chat import DONE, FIN, completion_object, content, event
from soloflight.testing.received import Received
from soloflight.testing.script import Script, sse
from soloflight.testing.script import json as json_answer
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

USAGE = {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3}
STREAM = [
    content(TEXT[:5]),
    content(TEXT[5:]),
    FIN,
    event({"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [], "usage": USAGE}),
    DONE,
]
ROLE = "x-soloflight-role"


def asked() -> str:
    return str(fresh()["messages"][0]["content"])


async def test_a_completion_async_and_sync(
    openai_async: AsyncOpenAI, openai_sync: OpenAI, upstream: ScriptedUpstream
) -> None:
    upstream.play(json_answer(completion_object(TEXT)))
    body = fresh(stream=False)
    completions = [
        await openai_async.chat.completions.create(**body),
        await asyncio.to_thread(openai_sync.chat.completions.create, **body),
    ]
    for completion in completions:
        assert completion.choices[0].message.content == TEXT
        assert completion.usage is not None
        assert completion.usage.total_tokens == 3
    assert upstream.calls == 1
    assert json.loads(upstream.requests[0].body) == body
    assert upstream.requests[0].target == "/v1/chat/completions"
    assert upstream.requests[0].field(b"authorization") == b"Bearer k1"


async def test_a_stream_async_and_sync(
    openai_async: AsyncOpenAI, openai_sync: OpenAI, upstream: ScriptedUpstream
) -> None:
    upstream.play(sse(*STREAM))
    body = fresh(stream_options={"include_usage": True})

    def sync() -> list[Any]:
        with openai_sync.chat.completions.create(**body) as stream:
            return list(stream)

    chunks = [chunk async for chunk in await openai_async.chat.completions.create(**body)]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == TEXT
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.model_dump(exclude_none=True) == USAGE
    assert await asyncio.to_thread(sync) == chunks
    assert upstream.calls == 1


async def test_a_stream_arrives_as_it_comes(
    openai_async: AsyncOpenAI, gate: asyncio.Event, upstream: ScriptedUpstream
) -> None:
    upstream.play(sse(STREAM[0], gate, *STREAM[1:]))
    async with await openai_async.chat.completions.create(**fresh()) as stream:
        first = await anext(aiter(stream))
        assert first.choices[0].delta.content == TEXT[:5]
        gate.set()
        rest = [chunk async for chunk in stream]
    assert len(rest) == 3


async def test_raw_response(openai_async: AsyncOpenAI, openai_sync: OpenAI, upstream: ScriptedUpstream) -> None:
    upstream.play(json_answer(completion_object(TEXT), "x-request-id: req_1", "openai-processing-ms: 7"))
    body = fresh(stream=False)
    raw = await openai_async.chat.completions.with_raw_response.create(**body)
    again = await asyncio.to_thread(openai_sync.chat.completions.with_raw_response.create, **body)
    assert [response.headers[ROLE] for response in (raw, again)] == ["owner", "replay"]
    assert raw.headers["x-soloflight-flight"] == again.headers["x-soloflight-flight"]
    for response in (raw, again):
        assert response.status_code == 200
        assert response.headers["openai-processing-ms"] == "7"
        completion = response.parse()
        assert completion.choices[0].message.content == TEXT
        assert completion._request_id == "req_1"
    assert upstream.calls == 1


async def test_streaming_response(openai_async: AsyncOpenAI, upstream: ScriptedUpstream) -> None:
    upstream.play(sse(*STREAM))
    body = fresh()
    for role in ("owner", "replay"):
        async with openai_async.chat.completions.with_streaming_response.create(**body) as response:
            assert response.headers[ROLE] == role
            assert response.headers["content-type"] == "text/event-stream"
            assert await response.read() == b"".join(STREAM)


@pytest.mark.parametrize("stream", [False, True], ids=["JSON", "stream"])
async def test_fifty_at_once(stream: bool, proxy: Proxy, gate: asyncio.Event, upstream: ScriptedUpstream) -> None:
    upstream.play([gate, *(sse(*STREAM) if stream else [json_answer(completion_object(TEXT))])])
    body = fresh(stream=stream)

    async def one(client: AsyncOpenAI) -> str:
        answer = await client.chat.completions.create(**body)
        if not stream:
            return str(answer.choices[0].message.content)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in answer if chunk.choices])

    async with AsyncOpenAI(api_key="k1", base_url=f"{proxy.url}/v1", max_retries=0) as client:
        asking = [asyncio.create_task(one(client)) for _ in range(50)]
        await upstream.wait_calls(1)
        gate.set()
        assert await asyncio.gather(*asking) == [TEXT] * 50
    assert upstream.calls == 1


async def test_responses(openai_async: AsyncOpenAI, openai_sync: OpenAI, upstream: ScriptedUpstream) -> None:
    upstream.play(json_answer(RESPONSE))
    body = {"model": "m", "input": asked()}
    first = await openai_async.responses.create(**body)
    second = await asyncio.to_thread(openai_sync.responses.create, **body)
    assert first.output_text == second.output_text == TEXT
    assert (first.status, upstream.calls) == ("completed", 1)


async def test_a_stream_of_responses(
    openai_async: AsyncOpenAI, openai_sync: OpenAI, upstream: ScriptedUpstream
) -> None:
    upstream.play(sse(*RESPONSE_EVENTS))
    body = {"model": "m", "input": asked(), "stream": True}
    first = [happened async for happened in await openai_async.responses.create(**body)]
    second = await asyncio.to_thread(lambda: list(openai_sync.responses.create(**body)))
    assert [happened.type for happened in first] == [json.loads(e.split(b"data: ")[1])["type"] for e in RESPONSE_EVENTS]
    assert first == second
    assert first[-1].response.output_text == TEXT
    assert upstream.calls == 1


def by_encoding(received: Received) -> Script:
    return json_answer(embeddings(json.loads(received.body).get("encoding_format")))


async def test_embeddings_in_base64_by_default(
    openai_async: AsyncOpenAI, openai_sync: OpenAI, upstream: ScriptedUpstream
) -> None:
    """The SDK asks for base64 where its caller says nothing, and decodes it; floats are another answer."""
    upstream.play(by_encoding)
    body = {"model": "e", "input": asked()}
    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: openai_async.embeddings.create(**body),
        lambda: openai_async.embeddings.create(**body, encoding_format="float"),
        lambda: asyncio.to_thread(openai_sync.embeddings.create, **body),
        lambda: asyncio.to_thread(openai_sync.embeddings.create, **body, encoding_format="float"),
    ]
    for call in calls:
        assert list((await call()).data[0].embedding) == VECTOR
    formats = [json.loads(received.body).get("encoding_format") for received in upstream.requests]
    assert formats == ["base64", "float"]


async def test_an_upload_shares_whatever_its_boundary(
    openai_async: AsyncOpenAI, openai_sync: OpenAI, upstream: ScriptedUpstream
) -> None:
    upstream.play(lambda received: json_answer({"text": received.body_sha256}))
    audio = asked().encode() * 1000

    def body(content: bytes) -> dict[str, Any]:
        return {"model": "whisper-1", "file": ("audio.wav", content), "language": "de"}

    first = await openai_async.audio.transcriptions.create(**body(audio))
    second = await asyncio.to_thread(openai_sync.audio.transcriptions.create, **body(audio))
    other = await openai_async.audio.transcriptions.create(**body(audio + b"."))
    assert first.text == second.text != other.text
    assert upstream.calls == 2


async def test_models_and_files(openai_async: AsyncOpenAI, upstream: ScriptedUpstream) -> None:
    models = {"object": "list", "data": [{"id": "m", "object": "model", "created": 1, "owned_by": "me"}]}
    kept = {
        "id": "file-1",
        "object": "file",
        "bytes": 4,
        "created_at": 1,
        "filename": "a.jsonl",
        "purpose": "batch",
        "status": "processed",
    }
    upstream.play(json_answer(models), json_answer(kept), json_answer(kept))
    for _ in range(2):
        assert [model.id for model in (await openai_async.models.list()).data] == ["m"]
    for _ in range(2):  # an upload is never shared
        assert (await openai_async.files.create(file=("a.jsonl", b"{}\n{}"), purpose="batch")).id == "file-1"
    assert [received.target for received in upstream.requests] == ["/v1/models", "/v1/files", "/v1/files"]
    assert all(b"{}\n{}" in received.body for received in upstream.requests[1:])
