"""The real `anthropic` client: what it sends arrives, and what it reads is what the upstream said, for every role."""

import asyncio
import json
from typing import Any

import pytest
from anthropic import Anthropic, AsyncAnthropic

from harness.client import fresh
from sdk.answers import MESSAGE, MESSAGE_EVENTS, TEXT
from soloflight.testing.script import json as json_answer
from soloflight.testing.script import sse
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

ROLE = "x-soloflight-role"


def asked(**members: Any) -> dict[str, Any]:
    return {"model": "claude", "max_tokens": 9, "messages": fresh()["messages"], **members}


async def test_a_message_async_and_sync(
    anthropic_async: AsyncAnthropic, anthropic_sync: Anthropic, upstream: ScriptedUpstream
) -> None:
    upstream.play(json_answer(MESSAGE))
    body = asked()
    messages = [
        await anthropic_async.messages.create(**body),
        await asyncio.to_thread(anthropic_sync.messages.create, **body),
    ]
    for message in messages:
        assert message.content[0].text == TEXT
        assert (message.stop_reason, message.usage.output_tokens) == ("end_turn", 2)
    assert upstream.calls == 1
    assert json.loads(upstream.requests[0].body) == body
    assert upstream.requests[0].target == "/v1/messages"
    seen = upstream.requests[0]
    assert b"k1" in (
        seen.field(b"x-api-key"),
        seen.field(b"authorization").removeprefix(b"Bearer "),
    )  # by the SDK's age
    assert seen.field(b"anthropic-version")


async def test_a_stream_async_and_sync(
    anthropic_async: AsyncAnthropic, anthropic_sync: Anthropic, upstream: ScriptedUpstream
) -> None:
    upstream.play(sse(*MESSAGE_EVENTS))
    body = asked()

    def sync() -> Any:
        with anthropic_sync.messages.stream(**body) as stream:
            return "".join(stream.text_stream), stream.get_final_message()

    async with anthropic_async.messages.stream(**body) as stream:
        text = "".join([piece async for piece in stream.text_stream])
        message = await stream.get_final_message()
    assert text == message.content[0].text == TEXT
    assert message.stop_reason == "end_turn"
    assert await asyncio.to_thread(sync) == (text, message)
    assert upstream.calls == 1


async def test_raw_events(anthropic_async: AsyncAnthropic, upstream: ScriptedUpstream) -> None:
    upstream.play(sse(*MESSAGE_EVENTS))
    body = asked(stream=True)
    for _ in range(2):
        events = [event async for event in await anthropic_async.messages.create(**body)]
        assert [event.type for event in events][-1] == "message_stop"
        assert len(events) == len(MESSAGE_EVENTS) - 1  # the SDK keeps pings to itself
    assert upstream.calls == 1


async def test_a_stream_arrives_as_it_comes(
    anthropic_async: AsyncAnthropic, gate: asyncio.Event, upstream: ScriptedUpstream
) -> None:
    upstream.play(sse(*MESSAGE_EVENTS[:4], gate, *MESSAGE_EVENTS[4:]))
    async with anthropic_async.messages.stream(**asked()) as stream:
        pieces = aiter(stream.text_stream)
        assert await anext(pieces) == TEXT[:5]
        gate.set()
        assert "".join([piece async for piece in pieces]) == TEXT[5:]


async def test_raw_response(
    anthropic_async: AsyncAnthropic, anthropic_sync: Anthropic, upstream: ScriptedUpstream
) -> None:
    upstream.play(json_answer(MESSAGE, "request-id: req_1"))
    body = asked()
    raw = await anthropic_async.messages.with_raw_response.create(**body)
    again = await asyncio.to_thread(anthropic_sync.messages.with_raw_response.create, **body)
    assert [response.headers[ROLE] for response in (raw, again)] == ["owner", "replay"]
    assert raw.headers["x-soloflight-flight"] == again.headers["x-soloflight-flight"]
    for message in (await raw.parse(), again.parse()):
        assert message.content[0].text == TEXT
        assert message._request_id == "req_1"
    assert upstream.calls == 1


async def test_another_version_is_another_request(anthropic_async: AsyncAnthropic, upstream: ScriptedUpstream) -> None:
    upstream.play(json_answer(MESSAGE))
    body = asked()
    for beta in (None, "tools-2099-01-01", None):
        await anthropic_async.messages.create(**body, extra_headers={"anthropic-beta": beta} if beta else None)
    assert [received.field(b"anthropic-beta") for received in upstream.requests] == [b"", b"tools-2099-01-01"]
