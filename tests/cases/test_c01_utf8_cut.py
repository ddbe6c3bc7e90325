"""C01: a UTF-8 character, NEL and U+2028 cut across network chunks.

Source: api7/aisix#111, danielmiessler/Fabric#2203, open-metadata/OpenMetadata#29531.
Right: a proxy has no reason to decode: the bytes go through unchanged, to owner, follower and replay. WHATWG
SSE section 9.2 ends lines at CR, LF and CRLF only, never at NEL or U+2028.
"""

import asyncio
import json
from hashlib import sha256

import pytest

from harness.client import ask, chat, connect, fresh
from harness.proxy import Proxy
from soloflight.testing.chat import DONE, FIN, content
from soloflight.testing.script import sse
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

TEXT = "\U0001f30d \u0085 \u2028 你"
LINE = content(TEXT)
INSIDE = [LINE.index(TEXT.encode()) + cut for cut in (2, 6, 10, 13)]  # each within one character
PIECES = [LINE[start:end] for start, end in zip([0, *INSIDE], [*INSIDE, len(LINE)], strict=True)]


async def test_bytes_go_through_unchanged(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    assert [piece[-1:] for piece in PIECES[:4]] == [b"\x9f", b"\xc2", b"\x80", b"\xe4"]
    joined = asyncio.Event()
    spaced = [step for piece in PIECES[2:] for step in (piece, 0.02)]
    upstream.play(sse(PIECES[0], 0.02, PIECES[1], joined, *spaced, FIN, DONE))
    body = chat(fresh())
    async with connect(proxy.port) as a, connect(proxy.port) as b:
        await a.send(body)
        await a.read_body(INSIDE[1])
        await b.send(body)
        await b.read_body(INSIDE[1])
        joined.set()
        answers = [await a.finish(), await b.finish(), await ask(proxy.port, body)]

    assert [answer.role for answer in answers] == ["owner", "follower", "replay"]
    assert {sha256(answer.body).digest() for answer in answers} == {sha256(LINE + FIN + DONE).digest()}
    for answer in answers:
        assert b"\xef\xbf\xbd" not in answer.body
        first, _, last = answer.events
        assert json.loads(first.data)["choices"][0]["delta"]["content"] == TEXT
        assert last.data == "[DONE]"
