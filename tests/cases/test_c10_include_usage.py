"""C10: `include_usage`, an extra last chunk with empty choices.

Source: headroomlabs-ai/headroom#2026, nguyenphutrong/quotio#460, tashfeenahmed/freellmapi#156, TheR1D/shell_gpt#738.
Right: the body goes upstream unchanged; `true` has a key of its own; a chunk without choices is no fault.
"""

import asyncio
import json

import pytest

from harness.client import ask, chat, connect, fresh
from harness.proxy import Proxy
from soloflight.testing.chat import CH, DONE, FIN, event
from soloflight.testing.received import Received
from soloflight.testing.script import Script, sse
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

USAGE = event({"id": "c1", "choices": [], "usage": {"total_tokens": 3}})
NO_CHOICES = event({"id": "c1", "object": "chat.completion.chunk", "x_note": "no choices member"})


async def test_only_who_asked_gets_usage(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    gate = asyncio.Event()

    def answer(received: Received) -> Script:
        options = json.loads(received.body).get("stream_options", {})
        return sse(CH, gate, FIN, *([USAGE] if options.get("include_usage") else []), DONE)

    upstream.play(answer)
    base = fresh()
    wanted = [{**base, "stream_options": {"include_usage": flag}} for flag in (True, False)]
    bodies = [json.dumps(body, indent=1).encode() for body in (*wanted, base)]
    async with connect(proxy.port) as a, connect(proxy.port) as b, connect(proxy.port) as c:
        for client, body in zip((a, b, c), bodies, strict=True):
            await client.send(chat(body))
            await client.read_events(1)
        gate.set()
        answers = [await client.finish() for client in (a, b, c)]

    assert upstream.calls in (2, 3)
    assert {received.body for received in upstream.requests} <= set(bodies)
    assert answers[0].body == CH + FIN + USAGE + DONE
    assert answers[1].body == answers[2].body == CH + FIN + DONE


async def test_chunks_without_choices_are_tolerated(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(sse(NO_CHOICES, CH, NO_CHOICES, FIN, USAGE, DONE))
    body = chat(fresh())
    first, second = await ask(proxy.port, body), await ask(proxy.port, body)
    assert first.body == second.body == NO_CHOICES + CH + NO_CHOICES + FIN + USAGE + DONE
    assert (second.role, upstream.calls) == ("replay", 1)
