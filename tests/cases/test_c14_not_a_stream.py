"""C14: `stream: true` is answered with JSON, or an error with another content type.

Source: diegosouzapw/OmniRoute#3108, easychen/openai-api-proxy#33, gumieri/nenya#18.
Right: what counts is the real response, not the request's flag: status, type and body pass through to owner and
followers at once. Only whole JSON with 200 is kept.
"""

import asyncio
import time

import pytest

from harness.client import ask, chat, connect, fresh, settle
from harness.proxy import Proxy
from harness.stalls import lasted
from soloflight.testing.chat import completion_object
from soloflight.testing.script import Step, json, sse
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

BARE_ERROR = b'{"error":{"message":"no","type":"server_error","code":null}}'
ANSWERS: dict[str, tuple[list[Step], int, str]] = {
    "whole JSON": ([json(completion_object())], 200, "application/json"),
    "401": ([json({"error": {"message": "who?"}}, status=401)], 401, "application/json"),
    "unframed error": (sse(BARE_ERROR), 200, "text/event-stream"),
    "empty stream": (sse(), 200, "text/event-stream"),
}
BODIES = {
    "whole JSON": json(completion_object()).partition(b"\r\n\r\n")[2],
    "401": b'{"error": {"message": "who?"}}',
    "unframed error": BARE_ERROR,
    "empty stream": b"",
}


@pytest.mark.parametrize("what", ANSWERS)
async def test_the_real_response_counts(what: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    steps, status, content_type = ANSWERS[what]
    gate = asyncio.Event()
    upstream.play([gate, *steps])
    body = chat(fresh())
    async with connect(proxy.port) as a, connect(proxy.port) as b, connect(proxy.port) as c:
        await a.send(body)
        await upstream.wait_calls(1)
        await b.send(body)
        await c.send(body)
        await settle(proxy.port)
        begun = time.monotonic()
        gate.set()
        answers = await asyncio.gather(a.finish(), b.finish(), c.finish())
    assert lasted(begun) < 1
    assert upstream.calls == 1
    assert [answer.role for answer in answers] == ["owner", "follower", "follower"]
    for answer in answers:
        assert (answer.status, answer.get("Content-Type")) == (status, content_type)
        assert answer.body == BODIES[what]
        assert answer.complete

    again = await ask(proxy.port, body)
    assert (again.status, again.body) == (status, BODIES[what])
    assert (again.role, upstream.calls) == (("replay", 1) if what == "whole JSON" else ("owner", 2))
