"""C06: a stream that is cut before its terminal event is cached and replayed as a success.

Source: gonka-ai/gonka#1722, Wei-Shaw/sub2api#6298, tombii/better-ccflare#344, NVIDIA/TensorRT-LLM#18289; the
openai client (3.57.0) ends its loop without an error when the stream stops without [DONE].
Right: never kept. Owner and followers can see the cut: an error event, then a reset without the final zero
chunk; never a made-up [DONE] or finish_reason. The same request goes upstream again.
"""

import asyncio
import json

import pytest

from harness.client import ask, chat, connect, fresh
from harness.proxy import Proxy
from harness.wire import Response
from soloflight.testing.chat import CH
from soloflight.testing.script import CLOSE, RESET, Script, head, sse
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

STREAM = "Content-Type: text/event-stream"
CUTS = {
    "clean close of a close-delimited body": lambda gate: [head(200, STREAM), CH, CH, gate, CLOSE],
    "chunked without its last chunk": lambda gate: sse(CH, CH, gate, CLOSE, last=False),
    "reset": lambda gate: sse(CH, CH, gate, 0.02, RESET, last=False),
    "shorter than its length": lambda gate: [head(200, STREAM, "Content-Length: 9999"), CH, CH, gate, CLOSE],
}


def assert_visibly_cut(answer: Response) -> None:
    assert answer.body.startswith(CH + CH)
    added = answer.body.removeprefix(CH + CH)
    assert added.endswith(b"\n\n")
    assert json.loads(added.removeprefix(b"data: "))["error"]["code"] == "upstream_truncated"
    assert b"[DONE]" not in answer.body
    assert b'"finish_reason":"' not in answer.body
    assert not answer.last_chunk_seen
    assert answer.ended == "rst"


@pytest.mark.parametrize("cut", CUTS)
async def test_a_cut_stream_is_seen_by_all_and_kept_for_none(
    cut: str, proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    gate = asyncio.Event()
    script: Script = CUTS[cut](gate)
    upstream.play(script)
    body = fresh()
    async with connect(proxy.port) as a, connect(proxy.port) as b:
        for client in (a, b):
            await client.send(chat(body))
            await client.read_body(2 * len(CH))
        gate.set()
        owner, follower = await a.finish(), await b.finish()
    assert (owner.role, follower.role, upstream.calls) == ("owner", "follower", 1)
    assert_visibly_cut(owner)
    assert_visibly_cut(follower)

    stored = await ask(proxy.port, chat(body, "Cache-Control: only-if-cached"))
    assert stored.status == 504
    assert json.loads(stored.body)["error"]["code"] == "not_cached"
    again = await ask(proxy.port, chat(body))
    assert (again.role, upstream.calls) == ("owner", 2)
    assert_visibly_cut(again)
