"""Which exception an SDK raises, for the upstream's errors (body untouched) and for the proxy's own."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from anthropic import Anthropic, AsyncAnthropic
from openai import AsyncOpenAI, OpenAI

from harness.client import fresh
from harness.fixtures import StartProxy
from harness.ports import free_port
from harness.proxy import Proxy
from sdk.answers import MESSAGE, MESSAGE_EVENTS, RESPONSE_EVENTS
from soloflight.testing.chat import CH, completion_object
from soloflight.testing.script import CLOSE, head, sse
from soloflight.testing.script import json as json_answer
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

CLIENT_KEY = "of-this-proxy"
LARGE = "x" * (1 << 20)
PROXY = {
    "server": {"max_body": "512KiB", "max_shared_body": "256KiB"},
    "stage": [{"name": "silent", "first_byte_timeout": "300ms", "heartbeat": "100ms"}],
}


@dataclass
class Clients:
    """The four clients. ``ask`` makes one call by each of them."""

    openai: tuple[AsyncOpenAI, OpenAI]
    anthropic: tuple[AsyncAnthropic, Anthropic]

    def openai_calls(self, body: dict[str, Any], **options: Any) -> list[Callable[[], Awaitable[Any]]]:
        a, s = self.openai
        return [
            lambda: a.chat.completions.create(**body, **options),
            lambda: asyncio.to_thread(s.chat.completions.create, **body, **options),
        ]

    def anthropic_calls(self, body: dict[str, Any], **options: Any) -> list[Callable[[], Awaitable[Any]]]:
        a, s = self.anthropic
        return [
            lambda: a.messages.create(**body, **options),
            lambda: asyncio.to_thread(s.messages.create, **body, **options),
        ]


@pytest.fixture
def clients(
    openai_async: AsyncOpenAI, openai_sync: OpenAI, anthropic_async: AsyncAnthropic, anthropic_sync: Anthropic
) -> Clients:
    return Clients((openai_async, openai_sync), (anthropic_async, anthropic_sync))


def message_body(**members: Any) -> dict[str, Any]:
    return {"model": "claude", "max_tokens": 9, "messages": fresh()["messages"], **members}


async def fault_of(call: Callable[[], Awaitable[Any]]) -> Any:
    """What ``call`` raises."""
    with pytest.raises((openai.APIError, anthropic.APIError)) as caught:
        await call()
    return caught.value


UPSTREAM_FAULTS = {
    400: (openai.BadRequestError, anthropic.BadRequestError),
    401: (openai.AuthenticationError, anthropic.AuthenticationError),
    403: (openai.PermissionDeniedError, anthropic.PermissionDeniedError),
    404: (openai.NotFoundError, anthropic.NotFoundError),
    409: (openai.ConflictError, anthropic.ConflictError),
    422: (openai.UnprocessableEntityError, anthropic.UnprocessableEntityError),
    429: (openai.RateLimitError, anthropic.RateLimitError),
    500: (openai.InternalServerError, anthropic.InternalServerError),
    503: (openai.InternalServerError, anthropic.InternalServerError),
}


@pytest.mark.parametrize("status", UPSTREAM_FAULTS)
async def test_the_upstreams_errors(status: int, clients: Clients, upstream: ScriptedUpstream) -> None:
    openai_class, anthropic_class = UPSTREAM_FAULTS[status]
    inner = {"message": f"no: {status}", "type": "some_error", "param": "x", "code": "some_code"}
    upstream.play(json_answer({"error": inner}, "x-request-id: req_9", "Retry-After: 7", status=status))
    for call in (*clients.openai_calls(fresh(stream=False)), *clients.openai_calls(fresh(stream=True))):
        fault = await fault_of(call)
        assert type(fault) is openai_class
        assert (fault.status_code, fault.body, fault.code) == (status, inner, "some_code")
        assert fault.request_id == "req_9"
        assert fault.response.headers["retry-after"] == "7"

    outer = {"type": "error", "error": {"type": "some_error", "message": f"no: {status}"}, "request_id": "req_9"}
    upstream.play(json_answer(outer, "request-id: req_9", "Retry-After: 7", status=status))
    for call in clients.anthropic_calls(message_body()):
        fault = await fault_of(call)
        assert isinstance(fault, anthropic_class)
        assert (fault.status_code, fault.body, fault.request_id) == (status, outer, "req_9")
    assert upstream.calls == 6  # an error is forgotten at once


def assert_ours(fault: Any, classes: tuple[type[Exception], type[Exception]], status: int, code: str) -> None:
    assert isinstance(fault, classes)
    assert fault.status_code == status
    assert fault.response.headers["proxy-status"].startswith("soloflight; error=")
    inner = fault.body if isinstance(fault, openai.APIError) else fault.body["error"]
    assert inner.keys() == {"message", "type", "code", "param"}
    assert (inner["type"], inner["code"]) == ("soloflight_error", code)
    if isinstance(fault, openai.APIError):
        assert (fault.type, fault.code) == ("soloflight_error", code)


def both(clients: Clients, openai_body: dict[str, Any], **options: Any) -> Iterable[Callable[[], Awaitable[Any]]]:
    messages = openai_body["messages"]
    return [
        *clients.openai_calls(openai_body, **options),
        *clients.anthropic_calls(message_body(messages=messages), **options),
    ]


@pytest.mark.parametrize(
    ("fields", "status", "code", "classes"),
    [
        ({"X-Soloflight-Stage": "nowhere"}, 400, "bad_request", (openai.BadRequestError, anthropic.BadRequestError)),
        (
            {"Cache-Control": "only-if-cached"},
            504,
            "not_cached",
            (openai.InternalServerError, anthropic.InternalServerError),
        ),
    ],
)
async def test_what_the_proxy_refuses(
    fields: dict[str, str],
    status: int,
    code: str,
    classes: tuple[type[Exception], type[Exception]],
    clients: Clients,
    upstream: ScriptedUpstream,
) -> None:
    for call in both(clients, fresh(stream=False), extra_headers=fields):
        assert_ours(await fault_of(call), classes, status, code)
    assert upstream.calls == 0


async def test_a_body_that_is_too_large(clients: Clients, upstream: ScriptedUpstream) -> None:
    upstream.play(json_answer(completion_object()))
    body = fresh(stream=False, messages=[{"role": "user", "content": LARGE}])
    for call in both(clients, body):
        assert_ours(
            await fault_of(call), (openai.APIStatusError, anthropic.RequestTooLargeError), 413, "body_too_large"
        )
    assert upstream.calls == 0


async def test_an_idempotency_key_with_another_body(clients: Clients, upstream: ScriptedUpstream) -> None:
    upstream.play(lambda received: json_answer(MESSAGE if received.target == "/v1/messages" else completion_object()))
    name = {"Idempotency-Key": fresh()["messages"][0]["content"]}
    classes = (openai.UnprocessableEntityError, anthropic.UnprocessableEntityError)
    for calls in (clients.openai_calls, clients.anthropic_calls):
        bodies = [fresh(stream=False) if calls == clients.openai_calls else message_body() for _ in range(2)]
        for call in calls(bodies[0], extra_headers=name):
            await call()
        for call in calls(bodies[1], extra_headers=name):
            assert_ours(await fault_of(call), classes, 422, "idempotency_mismatch")
    assert upstream.calls == 2


@pytest.mark.parametrize(
    ("script", "status", "code"),
    [
        ([CLOSE], 502, "upstream_unreachable"),
        ([b"SMTP ready\r\n\r\n", CLOSE], 502, "upstream_invalid"),
        ([head(200, "Content-Type: application/json", "Content-Length: 99"), CLOSE], 502, "upstream_truncated"),
        ([5.0], 504, "upstream_timeout"),
    ],
    ids=["closes", "is none", "cuts", "silent"],
)
async def test_an_upstream_that_fails(
    script: list[Any], status: int, code: str, clients: Clients, upstream: ScriptedUpstream
) -> None:
    upstream.play(script)
    classes = (openai.InternalServerError, anthropic.InternalServerError)
    options = {"extra_headers": {"X-Soloflight-Stage": "silent"}} if code == "upstream_timeout" else {}
    faults = await asyncio.gather(*(fault_of(call) for call in both(clients, fresh(stream=False), **options)))
    for fault in faults:
        assert_ours(fault, classes, status, code)
    assert 2 <= upstream.calls <= 4


async def test_no_upstream_and_no_client_key(start_proxy: StartProxy) -> None:
    proxy = start_proxy({"server": {"client_keys": [CLIENT_KEY]}}, upstream=free_port())
    for key, openai_class, status, code in (
        ("k1", openai.AuthenticationError, 401, "unauthorized"),
        (CLIENT_KEY, openai.InternalServerError, 502, "upstream_unreachable"),
    ):
        async with (
            AsyncOpenAI(api_key=key, base_url=f"{proxy.url}/v1", max_retries=0) as asked,
            AsyncAnthropic(api_key=key, base_url=proxy.url, max_retries=0) as told,
        ):
            calls = [
                lambda asked=asked: asked.chat.completions.create(**fresh(stream=False)),
                lambda told=told: told.messages.create(**message_body()),
            ]
            anthropic_class = getattr(anthropic, openai_class.__name__)
            for call in calls:
                assert_ours(await fault_of(call), (openai_class, anthropic_class), status, code)


async def test_a_cut_chat_stream(clients: Clients, upstream: ScriptedUpstream) -> None:
    """Without the error event this SDK would end its loop as if nothing were missing."""
    upstream.play(sse(CH, CH, CLOSE, last=False))
    a, s = clients.openai

    async def read() -> None:
        stream = await a.chat.completions.create(**fresh())
        assert [(await anext(stream)).choices[0].delta.content for _ in range(2)] == ["x", "x"]
        await anext(stream)

    def read_sync() -> None:
        stream = s.chat.completions.create(**fresh())
        assert [next(stream).choices[0].delta.content for _ in range(2)] == ["x", "x"]
        next(stream)

    for call in (read, lambda: asyncio.to_thread(read_sync)):
        fault = await fault_of(call)
        assert (fault.type, fault.code) == ("soloflight_error", "upstream_truncated")


async def test_a_cut_stream_of_responses(clients: Clients, upstream: ScriptedUpstream) -> None:
    """This API tells it by an event, which the SDK hands on; then the connection breaks."""
    upstream.play(sse(*RESPONSE_EVENTS[:2], CLOSE, last=False))
    a, _ = clients.openai
    stream = await a.responses.create(model="m", input=fresh()["messages"][0]["content"], stream=True)
    seen = [await anext(stream) for _ in range(3)]
    assert [event.type for event in seen] == ["response.created", "response.output_text.delta", "error"]
    assert seen[2].code == "upstream_truncated"
    with pytest.raises((openai.APIError, httpx2.TransportError)):
        await anext(stream)


async def test_a_cut_stream_of_a_message(clients: Clients, upstream: ScriptedUpstream) -> None:
    upstream.play(sse(*MESSAGE_EVENTS[:4], CLOSE, last=False))
    a, s = clients.anthropic

    async def read() -> None:
        async with a.messages.stream(**message_body()) as stream:
            async for _ in stream.text_stream:
                pass

    def read_sync() -> None:
        with s.messages.stream(**message_body()) as stream:
            for _ in stream.text_stream:
                pass

    for call in (read, lambda: asyncio.to_thread(read_sync)):
        fault = await fault_of(call)
        assert isinstance(fault, anthropic.APIStatusError)
        assert fault.body["type"] == "error"
        assert fault.body["error"]["type"] == "api_error"


async def test_an_error_event_of_the_upstream(clients: Clients, upstream: ScriptedUpstream) -> None:
    boom = {"message": "boom", "type": "server_error", "code": 500}
    upstream.play(sse(CH, b"data: " + json.dumps({"error": boom}).encode() + b"\n\n"))
    a, _ = clients.openai

    async def read() -> None:
        async for _ in await a.chat.completions.create(**fresh()):
            pass

    assert (await fault_of(read)).body == boom


async def test_what_need_not_be_tried_again_is_not(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    """`x-should-retry: false` keeps an SDK from trying a 504 again; what the upstream says of itself is left to the SDK."""
    sent: list[int] = []

    async def count(_: httpx2.Request) -> None:
        sent.append(1)

    hooks = {"request": [count]}
    async with AsyncOpenAI(
        api_key="k1",
        base_url=f"{proxy.url}/v1",
        max_retries=2,
        http_client=httpx2.AsyncClient(event_hooks=hooks),
    ) as client:
        with pytest.raises(openai.InternalServerError):
            await client.chat.completions.create(
                **fresh(stream=False), extra_headers={"Cache-Control": "only-if-cached"}
            )
        assert (len(sent), upstream.calls) == (1, 0)
        limited = json_answer({"error": {"message": "slow down"}}, "Retry-After-Ms: 1", status=429)
        upstream.play(limited, limited, json_answer(completion_object("at last")))
        completion = await client.chat.completions.create(**fresh(stream=False))
        assert completion.choices[0].message.content == "at last"
    assert (len(sent), upstream.calls) == (4, 3)
