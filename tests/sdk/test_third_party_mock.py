"""Behind the proxy a server that nobody here wrote: `@copilotkit/aimock`, in front of it the real SDKs.

Its answers carry new ids each time, so an id that two clients share proves one call; its journal counts them.
"""

import asyncio
import json
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from anthropic import Anthropic, AsyncAnthropic
from openai import AsyncOpenAI, OpenAI

from harness.client import fresh
from harness.ports import free_port
from harness.process import Process, http_status, wait_until

pytestmark = pytest.mark.beside

PROGRAM = Path(__file__).parents[1] / "node_modules" / ".bin" / "llmock"
STARTS_WITHIN_S = 20.0
BETWEEN_CHUNKS_MS = 15
HELLO = "Grüezi! How can I help you today? " * 4
VECTOR = [0.25, -0.5, 0.75]
FIXTURES: list[dict[str, Any]] = [
    {
        "match": {"userMessage": "limited"},
        "response": {"error": {"message": "slow down", "type": "rate"}, "status": 429},
    },
    {
        "match": {"userMessage": "weather"},
        "response": {"toolCalls": [{"name": "weather", "arguments": {"city": "Bern"}}]},
    },
    {"match": {"userMessage": "hi"}, "response": {"content": HELLO}},
    {"match": {"inputText": "hi"}, "response": {"embedding": VECTOR}},
]


class Mock(Process):
    """One running mock."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        fixtures = folder / "fixtures.json"
        fixtures.write_text(json.dumps({"fixtures": FIXTURES}))
        node = shutil.which("node")
        assert node, "node is missing: `make test` brings it"
        where = ["--host", "127.0.0.1", "--port", str(self.port), "--fixtures", str(fixtures)]
        pace = ["--latency", str(BETWEEN_CHUNKS_MS), "--strict"]
        super().__init__([node, str(PROGRAM.resolve()), *where, *pace], folder / "mock.log")

    def seen(self, words: str) -> list[dict[str, Any]]:
        """Its journal's entries of requests with ``words`` in them."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/__aimock/journal?limit=1000", timeout=5) as answer:
            return [entry for entry in json.load(answer) if words in json.dumps(entry["body"])]


@pytest.fixture(scope="module")
def mock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mock]:
    server = Mock(tmp_path_factory.mktemp("mock"))
    try:
        health = f"http://127.0.0.1:{server.port}/health"
        wait_until(lambda: http_status(health) == 200, within_s=STARTS_WITHIN_S, what=f"the mock:\n{server.log}")
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="module")
def upstream_port(mock: Mock) -> int:
    """The module's proxy stands in front of the mock."""
    return mock.port


def asked(say: str = "hi") -> str:
    return f"{say}, {fresh()['messages'][0]['content']}"


async def test_a_chat_completion(openai_async: AsyncOpenAI, openai_sync: OpenAI, mock: Mock) -> None:
    words = asked()
    body = fresh(stream=False, messages=[{"role": "user", "content": words}])
    together = await asyncio.gather(*(openai_async.chat.completions.create(**body) for _ in range(10)))
    later = await asyncio.to_thread(openai_sync.chat.completions.create, **body)
    assert {completion.choices[0].message.content for completion in (*together, later)} == {HELLO}
    assert len({completion.id for completion in (*together, later)}) == 1
    assert len(mock.seen(words)) == 1


async def test_a_chat_stream(openai_async: AsyncOpenAI, openai_sync: OpenAI, mock: Mock) -> None:
    """Ten that join one after the other, while it runs, and one when it is over."""
    words = asked()
    body = fresh(messages=[{"role": "user", "content": words}])

    async def one(number: int) -> list[Any]:
        await asyncio.sleep(number * BETWEEN_CHUNKS_MS / 2000)
        return [chunk async for chunk in await openai_async.chat.completions.create(**body)]

    together = await asyncio.gather(*map(one, range(10)))
    later = await asyncio.to_thread(lambda: list(openai_sync.chat.completions.create(**body)))
    for chunks in (*together, later):
        assert chunks == later
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == HELLO
        assert chunks[-1].choices[0].finish_reason == "stop"
    assert len(later) > 5
    assert len(mock.seen(words)) == 1


async def test_a_tool_call_in_a_stream(openai_async: AsyncOpenAI, mock: Mock) -> None:
    words = asked("weather")
    body = fresh(messages=[{"role": "user", "content": words}])
    streams = [[chunk async for chunk in await openai_async.chat.completions.create(**body)] for _ in range(2)]
    assert streams[0] == streams[1]
    calls = [call for chunk in streams[0] for call in chunk.choices[0].delta.tool_calls or []]
    assert calls[0].function is not None
    assert calls[0].function.name == "weather"
    arguments = "".join(call.function.arguments or "" for call in calls if call.function)
    assert json.loads(arguments) == {"city": "Bern"}
    assert len(mock.seen(words)) == 1


async def test_responses(openai_async: AsyncOpenAI, openai_sync: OpenAI, mock: Mock) -> None:
    words = asked()
    body = {"model": "m", "input": words}
    first = await openai_async.responses.create(**body)
    second = await asyncio.to_thread(openai_sync.responses.create, **body)
    assert first.output_text == second.output_text == HELLO
    assert first.id == second.id
    assert len(mock.seen(words)) == 1


async def test_a_stream_of_responses(openai_async: AsyncOpenAI, mock: Mock) -> None:
    words = asked()
    body = {"model": "m", "input": words, "stream": True}

    async def one() -> list[Any]:
        return [event async for event in await openai_async.responses.create(**body)]

    streams = [*await asyncio.gather(one(), one(), one()), await one()]
    assert all(events == streams[0] for events in streams)
    assert streams[0][-1].type == "response.completed"
    assert streams[0][-1].response.output_text == HELLO
    assert len(mock.seen(words)) == 1


async def test_messages(anthropic_async: AsyncAnthropic, anthropic_sync: Anthropic, mock: Mock) -> None:
    words = asked()
    body: dict[str, Any] = {"model": "claude", "max_tokens": 99, "messages": [{"role": "user", "content": words}]}
    first = await anthropic_async.messages.create(**body)
    second = await asyncio.to_thread(anthropic_sync.messages.create, **body)
    assert first.content[0].text == second.content[0].text == HELLO
    assert first.id == second.id
    assert len(mock.seen(words)) == 1


async def test_a_stream_of_a_message(anthropic_async: AsyncAnthropic, mock: Mock) -> None:
    words = asked()
    body: dict[str, Any] = {"model": "claude", "max_tokens": 99, "messages": [{"role": "user", "content": words}]}

    async def one() -> Any:
        async with anthropic_async.messages.stream(**body) as stream:
            return "".join([piece async for piece in stream.text_stream]), (await stream.get_final_message()).id

    read = [*await asyncio.gather(one(), one(), one()), await one()]
    assert {text for text, _ in read} == {HELLO}
    assert len({name for _, name in read}) == 1
    assert len(mock.seen(words)) == 1


async def test_embeddings(openai_async: AsyncOpenAI, openai_sync: OpenAI, mock: Mock) -> None:
    """It gives floats even to a client that asked for base64, and the SDK takes that."""
    words = asked()
    first = await openai_async.embeddings.create(model="e", input=words)
    second = await asyncio.to_thread(openai_sync.embeddings.create, model="e", input=words)
    floats = await openai_async.embeddings.create(model="e", input=words, encoding_format="float")
    assert [list(answer.data[0].embedding) for answer in (first, second, floats)] == [VECTOR] * 3
    assert len(mock.seen(words)) == 2


async def test_its_errors_are_forgotten(openai_async: AsyncOpenAI, mock: Mock) -> None:
    words = asked("limited")
    body = fresh(stream=False, messages=[{"role": "user", "content": words}])
    for _ in range(2):
        with pytest.raises(openai.RateLimitError) as caught:
            await openai_async.chat.completions.create(**body)
        assert caught.value.response.headers["retry-after"] == "1"
        assert caught.value.body["message"] == "slow down"  # type: ignore[index]
    assert len(mock.seen(words)) == 2


async def test_it_breaks_the_connection(openai_async: AsyncOpenAI, mock: Mock) -> None:
    """Its chaos mode has read the request: it is not sent a second time."""
    words = asked()
    body = fresh(messages=[{"role": "user", "content": words}])
    with pytest.raises(openai.InternalServerError) as caught:
        await openai_async.chat.completions.create(**body, extra_headers={"x-aimock-chaos-disconnect": "1"})
    assert caught.value.code == "upstream_unreachable"
    assert len(mock.seen(words)) == 1


async def test_malformed_json_is_passed_on_and_not_kept(openai_async: AsyncOpenAI, mock: Mock) -> None:
    words = asked()
    body = fresh(stream=False, messages=[{"role": "user", "content": words}])
    create = openai_async.chat.completions.with_raw_response.create
    for call in (1, 2):
        answer = await create(**body, extra_headers={"x-aimock-chaos-malformed": "1"})
        assert (answer.status_code, answer.headers["x-soloflight-role"]) == (200, "owner")
        with pytest.raises(json.JSONDecodeError):
            json.loads(answer.content)
        assert len(mock.seen(words)) == call
