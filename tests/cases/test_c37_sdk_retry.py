"""C37: an SDK's telemetry fields must not split the key.

Source: openai/openai-node#1277, FlowiseAI/Flowise#4916; the automatic retries of openai 3.57.0 differ only in
`x-stainless-retry-count`, and no idempotency key is sent.
Right: the retry joins the running flight: one upstream call, and the SDK succeeds. So does the same body from another
runtime. What goes upstream is the owner's.
"""

import asyncio

import httpx2
import pytest
from openai import AsyncOpenAI

from harness.client import ask, chat, connect, fresh, settle
from harness.proxy import Proxy
from soloflight.testing.chat import CH, DONE, FIN, completion_object
from soloflight.testing.script import json as json_answer
from soloflight.testing.script import sse
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

TIMEOUT_S = 1.0
OTHER_RUNTIME = [
    "User-Agent: OpenAI/JS 6.1.0",
    "x-stainless-lang: js",
    "x-stainless-runtime: node",
    "x-stainless-retry-count: 1",
    "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    "x-request-id: of-the-other",
    "Accept-Encoding: gzip, deflate",
]


@pytest.mark.parametrize("stream", [False, True], ids=["JSON", "stream"])
async def test_the_third_try_is_answered_by_the_one_call(
    stream: bool, proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    gate = asyncio.Event()
    upstream.play([gate, *(sse(CH, FIN, DONE) if stream else [json_answer(completion_object())])])
    retries: list[str] = []

    async def sent(this: httpx2.Request) -> None:
        retries.append(this.headers["x-stainless-retry-count"])
        if len(retries) == 3:  # this is the last try; the upstream answers while it waits
            asyncio.get_running_loop().call_later(TIMEOUT_S / 10, gate.set)

    hooks = {"request": [sent]}
    http = httpx2.AsyncClient(event_hooks=hooks)
    sdk = AsyncOpenAI(api_key="k1", base_url=f"{proxy.url}/v1", timeout=TIMEOUT_S, max_retries=2, http_client=http)
    body = fresh(stream=stream)
    async with sdk, connect(proxy.port) as other:
        asking = asyncio.create_task(sdk.chat.completions.create(**body))
        await upstream.wait_calls(1)
        theirs = chat(upstream.requests[0].body, *OTHER_RUNTIME)
        await other.send(theirs)
        completion = await asking
        if stream:
            said = [chunk.choices[0].delta.content async for chunk in completion]
            assert said == ["x", None]
        else:
            assert completion.choices[0].message.content == "x"
        followed = await other.finish()
    assert retries == ["0", "1", "2"]
    assert followed.role == "follower"
    assert upstream.calls == 1
    owner = upstream.requests[0]
    assert owner.left is None
    assert owner.field(b"x-stainless-lang") == b"python"
    assert owner.field(b"x-stainless-retry-count") == b"0"
    assert owner.field(b"user-agent").startswith(b"AsyncOpenAI/Python")
    assert (owner.field(b"traceparent"), owner.field(b"x-request-id")) == (b"", b"")
    assert (await ask(proxy.port, theirs)).role == "replay"


async def test_a_retry_after_the_answer_is_a_replay(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    """The answer came while nobody waited: it is kept for the next try."""
    gate = asyncio.Event()
    upstream.play([gate, json_answer(completion_object())])
    body = chat(fresh(stream=False))
    async with connect(proxy.port) as client:
        await client.send(body)
        await upstream.wait_calls(1)
    await settle(proxy.port)
    gate.set()
    await upstream.wait_until(lambda: upstream.requests[0].finished_at is not None)
    await settle(proxy.port)
    answer = await ask(proxy.port, body.replace(b"Content-Type", b"x-stainless-retry-count: 1\r\nContent-Type"))
    assert (answer.role, answer.status, upstream.calls) == ("replay", 200, 1)


async def test_retries_only(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    """A request with state behind it is replayed to its retry, and to nobody who asks anew."""
    upstream.play(json_answer({"object": "response", "status": "completed", "output": []}))
    body = {"model": "m", "input": fresh()["messages"][0]["content"], "conversation": "conv_1"}
    anew = chat(body, "x-stainless-retry-count: 0", target="/v1/responses")
    retry = chat(body, "x-stainless-retry-count: 1", target="/v1/responses")
    roles = [(await ask(proxy.port, sent)).role for sent in (anew, retry, anew, retry)]
    assert (roles, upstream.calls) == (["owner", "replay", "owner", "replay"], 2)
