"""An SDK that times out and tries again by itself: one upstream call, and the try that waits long enough is answered."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx2
import openai
import pytest
from anthropic import Anthropic, AsyncAnthropic
from openai import AsyncOpenAI, OpenAI

from harness.client import fresh
from harness.proxy import Proxy
from sdk.answers import MESSAGE, MESSAGE_EVENTS, TEXT
from soloflight.testing.chat import DONE, FIN, completion_object, content
from soloflight.testing.script import Script, sse
from soloflight.testing.script import json as json_answer
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

TIMEOUT_S = 1.0
ANSWERS: dict[tuple[str, bool], Script] = {
    ("openai", False): json_answer(completion_object(TEXT)),
    ("openai", True): sse(content(TEXT[:5]), content(TEXT[5:]), FIN, DONE),
    ("anthropic", False): json_answer(MESSAGE),
    ("anthropic", True): sse(*MESSAGE_EVENTS),
}


class Tries:
    """Counts what an SDK sends; at the second try it lets the upstream answer."""

    def __init__(self, gate: asyncio.Event) -> None:
        self.counts: list[str] = []
        self._gate = gate
        self._loop = asyncio.get_running_loop()

    def sent(self, request: httpx2.Request) -> None:
        self.counts.append(request.headers["x-stainless-retry-count"])
        if len(self.counts) == 2:
            self._loop.call_soon_threadsafe(self._loop.call_later, TIMEOUT_S / 20, self._gate.set)

    async def sent_async(self, request: httpx2.Request) -> None:
        self.sent(request)

    def settings(self, proxy: Proxy, *, sync: bool, path: str = "") -> dict[str, Any]:
        hooks: dict[str, list[Callable[..., Any]]] = {"request": [self.sent if sync else self.sent_async]}
        http = httpx2.Client(event_hooks=hooks) if sync else httpx2.AsyncClient(event_hooks=hooks)
        shared = {"api_key": "k1", "timeout": TIMEOUT_S, "max_retries": 2}
        return {**shared, "base_url": f"{proxy.url}{path}", "http_client": http}


async def openai_text(proxy: Proxy, tries: Tries, *, stream: bool, sync: bool) -> str:
    body = fresh(stream=stream)
    settings = tries.settings(proxy, sync=sync, path="/v1")

    def ask_sync() -> str:
        with OpenAI(**settings) as client:
            answer = client.chat.completions.create(**body)
            if stream:
                return "".join(chunk.choices[0].delta.content or "" for chunk in answer)
            return str(answer.choices[0].message.content)

    if sync:
        return await asyncio.to_thread(ask_sync)
    async with AsyncOpenAI(**settings) as client:
        answer = await client.chat.completions.create(**body)
        if stream:
            return "".join([chunk.choices[0].delta.content or "" async for chunk in answer])
        return str(answer.choices[0].message.content)


async def anthropic_text(proxy: Proxy, tries: Tries, *, stream: bool, sync: bool) -> str:
    body: dict[str, Any] = {"model": "claude", "max_tokens": 9, "messages": fresh()["messages"]}
    settings = tries.settings(proxy, sync=sync)

    def ask_sync() -> str:
        with Anthropic(**settings) as client:
            if not stream:
                return str(client.messages.create(**body).content[0].text)
            with client.messages.stream(**body) as events:
                return "".join(events.text_stream)

    if sync:
        return await asyncio.to_thread(ask_sync)
    async with AsyncAnthropic(**settings) as client:
        if not stream:
            return str((await client.messages.create(**body)).content[0].text)
        async with client.messages.stream(**body) as events:
            return "".join([piece async for piece in events.text_stream])


ASK = {"openai": openai_text, "anthropic": anthropic_text}


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
@pytest.mark.parametrize("stream", [False, True], ids=["JSON", "stream"])
@pytest.mark.parametrize("sdk", ASK)
async def test_timeout_and_retry_make_one_upstream_call(
    sdk: str, stream: bool, sync: bool, proxy: Proxy, gate: asyncio.Event, upstream: ScriptedUpstream
) -> None:
    answer = ANSWERS[sdk, stream]
    upstream.play([gate, *([answer] if isinstance(answer, bytes) else answer)])  # type: ignore[misc]
    tries = Tries(gate)
    assert await ASK[sdk](proxy, tries, stream=stream, sync=sync) == TEXT
    assert tries.counts == ["0", "1"]
    assert upstream.calls == 1
    assert upstream.requests[0].left is None
    assert upstream.requests[0].field(b"x-stainless-retry-count") == b"0"


async def test_a_client_that_gives_up_has_cost_one_call(
    proxy: Proxy, gate: asyncio.Event, upstream: ScriptedUpstream
) -> None:
    """All tries time out; the answer comes later, and whoever asks again is answered from it."""
    upstream.play([gate, json_answer(completion_object(TEXT))])
    body = fresh(stream=False)
    base_url = f"{proxy.url}/v1"
    async with AsyncOpenAI(api_key="k1", base_url=base_url, timeout=0.2, max_retries=1) as client:
        with pytest.raises(openai.APITimeoutError):
            await client.chat.completions.create(**body)
        gate.set()
        await upstream.wait_until(lambda: upstream.requests[0].finished_at is not None)
        completion = await client.with_options(timeout=10).chat.completions.create(**body)
    assert completion.choices[0].message.content == TEXT
    assert upstream.calls == 1
