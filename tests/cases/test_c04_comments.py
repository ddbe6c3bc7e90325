"""C04: upstream comments re-emitted as data, or stored into the replay.

Source: mnfst/llm-gateway#2053, brainlid/langchain#569, openai/openai-go#621.
Right: comments stay comments, for owner, follower and replay; a stream of comments only is no complete answer
and is not kept.
"""

import asyncio
import re

import pytest

from harness.client import ask, chat, connect, fresh
from harness.proxy import Proxy
from soloflight.testing.chat import CH, DONE, FIN
from soloflight.testing.script import sse
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

COMMENT = b": OPENROUTER PROCESSING\n\n"


async def test_comments_stay_comments(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    joined = asyncio.Event()
    upstream.play(sse(COMMENT, 0.03, COMMENT, joined, 0.03, COMMENT, CH, CH, FIN, DONE))
    body = chat(fresh())
    async with connect(proxy.port) as a, connect(proxy.port) as b:
        await a.send(body)
        await a.read_body(2 * len(COMMENT))
        await b.send(body)
        await b.read_body(2 * len(COMMENT))
        joined.set()
        owner, follower = await a.finish(), await b.finish()
    replay = await ask(proxy.port, body)

    assert [answer.role for answer in (owner, follower, replay)] == ["owner", "follower", "replay"]
    assert owner.body == follower.body == COMMENT * 3 + CH + CH + FIN + DONE
    assert replay.body.replace(COMMENT, b"") == CH + CH + FIN + DONE
    for answer in (owner, follower, replay):
        assert not re.search(rb"^data:\s*:", answer.body, re.MULTILINE)


async def test_comments_alone_are_not_kept(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(sse(COMMENT, COMMENT))
    body = chat(fresh())
    answers = [await ask(proxy.port, body) for _ in range(2)]
    assert [answer.role for answer in answers] == ["owner", "owner"]
    assert [answer.body for answer in answers] == [COMMENT * 2] * 2
    assert upstream.calls == 2
