"""C08: an error delivered inside a 200 stream.

Source: open-octo/octo-agent#910, BerriAI/litellm#39748, karthink/gptel#1512, vercel/ai#2720.
Right: owner and followers all get the same error event as it was; nothing is kept; the flight is gone, so that
the next request is a fresh call.
"""

import asyncio

import pytest

from harness.client import ask, chat, connect, fresh
from harness.process import eventually
from harness.proxy import Proxy
from soloflight.testing.chat import CH
from soloflight.testing.script import CLOSE, sse
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

DELTA = (
    b"event: content_block_delta\n"
    b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"x"}}\n\n'
)
ERRORS = {
    "/v1/chat/completions": (
        CH,
        b'data: {"error":{"message":"boom","type":"server_error","code":500}}\n\n',
    ),
    "/v1/messages": (
        DELTA,
        b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"x"}}\n\n',
    ),
}


@pytest.mark.parametrize("target", ERRORS)
async def test_all_get_the_error_and_none_keeps_it(target: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    event, error = ERRORS[target]
    gate = asyncio.Event()
    upstream.play(sse(event, gate, error, CLOSE))
    before = {outcome: calls(proxy, outcome) for outcome in ("complete", "error")}
    body = chat(fresh(), target=target)
    async with connect(proxy.port) as a, connect(proxy.port) as b, connect(proxy.port) as c:
        for client in (a, b, c):
            await client.send(body)
            await client.read_body(len(event))
        gate.set()
        answers = [await client.finish() for client in (a, b, c)]
    assert [answer.role for answer in answers] == ["owner", "follower", "follower"]
    assert [answer.body for answer in answers] == [event + error] * 3
    assert all(answer.complete for answer in answers)
    assert upstream.calls == 1

    again = await ask(proxy.port, body)
    assert (again.role, again.body, upstream.calls) == ("owner", event + error, 2)
    await eventually(lambda: calls(proxy, "error") == before["error"] + 2)
    assert calls(proxy, "complete") == before["complete"]


def calls(proxy: Proxy, outcome: str) -> float:
    """Upstream calls that ended so: an error inside a 200 stream is no success."""
    return proxy.metric("soloflight_upstream_calls_total", outcome=outcome)
