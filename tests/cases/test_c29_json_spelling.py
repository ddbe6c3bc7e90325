"""C29: the same JSON in another member order, white space or spelling.

Source: 6/openai-caching-proxy-worker#1, theopenco/llmgateway#3877.
Right: RFC 8259 section 4: the order of members has no meaning, and escapes decode to the same string: one key. NFC and
NFD are different strings: two. Upstream goes what the owner sent, byte for byte. Under another content type the bytes
are what they are.
"""

import asyncio
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack

import pytest

from harness.client import ask, chat, connect, fresh, request, settle
from harness.proxy import Proxy
from harness.wire import Response
from soloflight.testing.chat import completion_object
from soloflight.testing.script import json as json_answer
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

ANSWER = json_answer(completion_object())


def prompt() -> str:
    return str(fresh()["messages"][0]["content"])


async def all_at_once(proxy: Proxy, upstream: ScriptedUpstream, requests: Sequence[bytes]) -> list[Response]:
    """The answers to ``requests``, all of which are under way before the first is answered."""
    gate = asyncio.Event()
    upstream.play([gate, ANSWER])
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connect(proxy.port)) for _ in requests]
        for client, data in zip(clients, requests, strict=True):
            await client.send(data)
            await upstream.wait_calls(1)
            await settle(proxy.port)  # each has been taken in before the next one comes
        gate.set()
        return await asyncio.gather(*(client.finish() for client in clients))


def spellings(text: str) -> list[bytes]:
    """One body in seven spellings; ``text`` holds an é and a /."""
    body = {"model": "m", "messages": [{"role": "user", "content": text}], "temperature": 0}
    turned = {
        "temperature": 0,
        "messages": [{"content": text, "role": "user"}],
        "model": "m",
    }
    return [
        json.dumps(body, ensure_ascii=False).encode(),
        json.dumps(turned, ensure_ascii=False).encode(),
        json.dumps(body, indent=2, ensure_ascii=False).replace("\n", "\r\n\t").encode(),
        json.dumps(body, ensure_ascii=True, separators=(",", ":")).encode(),
        json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(),
        json.dumps(turned, ensure_ascii=False, separators=(",", ":")).encode(),
        json.dumps(body, ensure_ascii=False).replace("/", "\\/").replace("model", "\\u006dodel").encode(),
    ]


async def test_seven_spellings_one_call(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    bodies = spellings(f"{prompt()} caf\u00e9 a/b")
    assert len(set(bodies)) == 7
    answers = await all_at_once(proxy, upstream, [chat(body) for body in bodies])
    assert [answer.role for answer in answers] == ["owner", *["follower"] * 6]
    assert len({answer.get("X-Soloflight-Flight") for answer in answers}) == 1
    assert upstream.calls == 1
    assert upstream.requests[0].body == bodies[0]
    replays = [await ask(proxy.port, chat(body)) for body in bodies]
    assert ([answer.role for answer in replays], upstream.calls) == (["replay"] * 7, 1)


async def test_whoever_owns_its_own_bytes_go_upstream(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    bodies = spellings(f"{prompt()} caf\u00e9 a/b")
    upstream.play(ANSWER)
    for body in bodies:
        assert (await ask(proxy.port, chat(body, "Cache-Control: no-cache"))).role == "owner"
    assert [received.body for received in upstream.requests] == bodies


async def test_nfc_and_nfd_are_two(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    text = prompt()
    answers = await all_at_once(
        proxy, upstream, [chat(spellings(f"{text} {letter} /")[0]) for letter in ("\u00e9", "e\u0301")]
    )
    assert [answer.role for answer in answers] == ["owner", "owner"]
    assert upstream.calls == 2


async def test_other_content_types_are_bytes(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    first, second, *_ = spellings(f"{prompt()} \u00e9 /")
    text = ("Content-Type: text/plain", "Authorization: Bearer k1")
    as_text = [request("POST", "/v1/chat/completions", *text, body=body) for body in (first, first, second)]
    answers = await all_at_once(proxy, upstream, [chat(first), *as_text])
    assert [answer.role for answer in answers] == ["owner", "owner", "follower", "owner"]
    assert upstream.calls == 3
