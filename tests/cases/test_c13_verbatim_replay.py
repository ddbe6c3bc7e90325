"""C13: a cache hit for a stream loses reasoning, tool calls or shape.

Source: BerriAI/litellm#32068 and #30216, theopenco/llmgateway#529, diegosouzapw/OmniRoute#3108.
Right: the replay is the recorded byte sequence, in order, terminator included; only the pace may differ.
"""

from hashlib import sha256

import pytest

from harness.client import ask, chat, fresh
from harness.proxy import Proxy
from soloflight.testing.chat import DONE, FIN, chunk_object, content, event
from soloflight.testing.script import sse
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

ARGUMENTS = ['{"ci', 'ty":', ' "Bé', 'rn"', "}"]


def tool_piece(index: int, arguments: str, first: bool) -> bytes:
    call = {"index": index, "function": {"arguments": arguments}}
    if first:
        call |= {"id": f"call_{index}", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    return event(chunk_object({"tool_calls": [call]}))


def with_logprobs() -> bytes:
    value = chunk_object({"content": "x"})
    value["choices"][0]["logprobs"] = {"content": [{"token": "x", "logprob": -0.0, "top_logprobs": []}]}
    return event({**value, "x_foo": {"big": 12345678901234567890, "tiny": 1e-7}})


EVENTS = [
    event(chunk_object({"role": "assistant", "reasoning_content": "hm\n\n"})),
    event(chunk_object({"refusal": None, "reasoning_content": " so"})),
    *(tool_piece(index, piece, n == 0) for n, piece in enumerate(ARGUMENTS) for index in (0, 1)),
    with_logprobs(),
    content(""),
    FIN,
    event({"id": "c1", "choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3}}),
    DONE,
]


async def test_the_replay_is_the_recording(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    paced = [step for event_bytes in EVENTS for step in (event_bytes, 0.005)]
    upstream.play(sse(*paced))
    body = chat(fresh(), "Accept: text/event-stream")
    first, second = await ask(proxy.port, body), await ask(proxy.port, body)

    assert sha256(first.body).digest() == sha256(b"".join(EVENTS)).digest()
    assert sha256(second.body).digest() == sha256(first.body).digest()
    assert (first.status, first.get("Content-Type")) == (second.status, second.get("Content-Type"))
    assert second.get("Content-Type") == "text/event-stream"
    assert second.complete
    assert (first.role, second.role) == ("owner", "replay")
    assert first.get("X-Soloflight-Flight") == second.get("X-Soloflight-Flight")
    assert first.get("Cache-Status") == "soloflight; fwd=miss"
    assert (second.get("Cache-Status") or "").startswith("soloflight; hit; ttl=")
    assert int(second.get("Age") or "-1") >= 0
    assert upstream.calls == 1
