"""C27: sampling and limit parameters left out of the key; an absent temperature taken for 0.

Source: Continuum-AI-Corp/OrcaRouter-Lite#84, BerriAI/litellm#894, BetterDB-inc/monitor#117.
Right: each of them changes what the model may answer, so each makes another key. Without a temperature the API samples
(its default is 1): such an answer is kept for the window of a retry only.
"""

import asyncio
import json
import re
from contextlib import AsyncExitStack
from typing import Any

import pytest

from harness.client import ask, chat, connect, fresh
from harness.proxy import Proxy
from soloflight.testing.received import Received
from soloflight.testing.script import Script
from soloflight.testing.script import json as json_answer
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("f", "g")]
MEMBERS: dict[str, Any] = {
    "max_tokens": 16,
    "max_completion_tokens": 16,
    "top_p": 0.5,
    "stop": ["\n"],
    "n": 2,
    "tool_choice": "none",
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "logit_bias": {"50256": -100},
    "seed": 7,
    "logprobs": True,
    "response_format": {"type": "json_object"},
    "reasoning_effort": "low",
}
KEPT_S, KEPT_SAMPLED_S = 300, 30


def told(received: Received) -> Script:
    """An answer that names the request it answers."""
    document = json.loads(received.body)
    finish = [{"index": at, "finish_reason": "stop"} for at in range(document.get("n", 1))]
    return json_answer({"object": "chat.completion", "asked": document, "choices": finish})


async def test_fifteen_requests_fifteen_calls(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    gate = asyncio.Event()

    def answer(received: Received) -> Script:
        return [gate, told(received)]

    upstream.play(answer)
    base = fresh(stream=False, tools=TOOLS)
    bodies = [base, *({**base, name: value} for name, value in MEMBERS.items())]
    bodies.append({name: value for name, value in base.items() if name != "temperature"})
    assert len(bodies) == 15
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connect(proxy.port)) for _ in bodies]
        for client, body in zip(clients, bodies, strict=True):
            await client.send(chat(body))
        await upstream.wait_calls(15)
        gate.set()
        answers = await asyncio.gather(*(client.finish() for client in clients))
    assert [answer.role for answer in answers] == ["owner"] * 15
    assert len({answer.get("X-Soloflight-Flight") for answer in answers}) == 15
    assert [json.loads(answer.body)["asked"] for answer in answers] == bodies

    replays = await asyncio.gather(*(ask(proxy.port, chat(body)) for body in bodies))
    assert [answer.role for answer in replays] == ["replay"] * 15
    assert [json.loads(answer.body)["asked"] for answer in replays] == bodies
    assert upstream.calls == 15


async def test_values_count_not_only_names(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(told)
    values = {"max_tokens": (16, 4000), "temperature": (0.2, 0.7), "seed": (1, 2), "stop": ("a", ["a"]), "n": (1, 2)}
    base = fresh(stream=False)
    bodies = [{**base, name: value} for name, pair in values.items() for value in pair]
    answers = [await ask(proxy.port, chat(body)) for body in bodies]
    assert [answer.role for answer in answers] == ["owner"] * 10
    assert [json.loads(answer.body)["asked"] for answer in answers] == bodies


async def test_an_absent_temperature_is_not_0(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(told)
    base = fresh(stream=False)
    del base["temperature"]
    kept = {
        KEPT_SAMPLED_S: [base, {**base, "temperature": 1}, {**base, "temperature": None}],
        KEPT_S: [{**base, "temperature": 0}, {**base, "temperature": 0.0}, {**base, "seed": 7}],
    }
    for longest_s, bodies in kept.items():
        for body in bodies:
            answers = [await ask(proxy.port, chat(body)) for _ in range(2)]
            assert [answer.role for answer in answers] == ["owner", "replay"]
            ttl = re.search(r"ttl=(\d+)", answers[1].get("Cache-Status") or "")
            assert ttl is not None
            assert longest_s - 10 < int(ttl[1]) <= longest_s, body
