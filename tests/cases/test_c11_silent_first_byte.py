"""C11: a time to first token that is longer than others' idle timeouts.

Source: BerriAI/litellm#37322, vllm-project/vllm#47647 and #51034, ggml-org/llama.cpp#24013.
Right: status fidelity wins: no early 200 while the upstream is silent, so its 429 reaches owner and followers
as 429, with Retry-After. (Keep-alives ahead of the head are not offered.)
"""

import asyncio

import pytest

from harness.client import RawClient, chat, connect, fresh, settle
from harness.proxy import Proxy
from harness.wire import Response
from soloflight.testing.chat import CH, DONE, FIN
from soloflight.testing.script import Script, json, sse
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

SILENCE_S = 1.0
ERROR = {"error": {"message": "slow down", "type": "rate_limit_error", "code": "rate_limited"}}


async def assert_silent(client: RawClient) -> None:
    with pytest.raises(TimeoutError):
        await client.head(within_s=SILENCE_S / 2)


async def after_silence(proxy: Proxy, upstream: ScriptedUpstream, answer: Script) -> list[Response]:
    """What an owner and a follower that joined in mid-silence get; neither hears a byte before the end of it."""
    gate = asyncio.Event()
    opening = [answer] if isinstance(answer, bytes) else list(answer)  # type: ignore[arg-type]
    upstream.play([gate, *opening])
    body = chat(fresh())
    async with connect(proxy.port) as a, connect(proxy.port) as b:
        await a.send(body)
        await upstream.wait_calls(1)
        await assert_silent(a)
        await b.send(body)
        await settle(proxy.port)
        await assert_silent(b)
        gate.set()
        return [await a.finish(), await b.finish()]


async def test_a_normal_stream_after_silence(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    answers = await after_silence(proxy, upstream, sse(CH, FIN, DONE))
    assert [answer.body for answer in answers] == [CH + FIN + DONE] * 2
    assert [answer.role for answer in answers] == ["owner", "follower"]
    assert upstream.calls == 1


async def test_an_error_after_silence_keeps_its_status(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    refusal = json(ERROR, "Retry-After: 7", status=429)
    answers = await after_silence(proxy, upstream, refusal)
    assert [answer.status for answer in answers] == [429, 429]
    assert [answer.get("Retry-After") for answer in answers] == ["7", "7"]
    assert answers[0].body == answers[1].body == refusal.partition(b"\r\n\r\n")[2]
    assert upstream.calls == 1
