"""C02: CRLF cut between CR and LF, bare CR, and LF, mixed in one stream.

Source: router-for-me/CLIProxyAPI#5658, rexxars/eventsource-parser#17, hey-api/hey-api#3054, miruamel/xuan#194.
Right: exactly three events for every cut position; the terminal is recognised with CRLF, LF and CR; the bytes
that are delivered are unchanged.
"""

import asyncio

import pytest

from harness.client import ask, chat, fresh
from harness.proxy import Proxy
from soloflight.testing.received import Received
from soloflight.testing.script import Script, Step, sse
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

CHOICE = b'[{"index":0,"delta":{%b},"finish_reason":%b}]'
OPEN = CHOICE % (b'"content":"x"', b"null")
STOP = CHOICE % (b"", b'"stop"')
WRITES = [
    b'data: {"id":"c1",\r',
    b'\ndata: "choices":' + OPEN + b"}\r\n\r",
    b"\n",
    b'data: {"id":"c1","choices":' + STOP + b"}\r\r",
    b"data: [DONE]\r\n\r\n",
]
STREAM = b"".join(WRITES)
AT_ONCE = 24


def spaced(*pieces: bytes) -> Script:
    """Each piece in a network chunk and a packet of its own."""
    steps: list[Step] = []
    for piece in pieces:
        steps += [piece, 0.004]
    return sse(*steps[:-1])


def by_cut(received: Received) -> Script:
    cut = int(received.field(b"x-cut"))
    return spaced(STREAM[:cut], STREAM[cut:])


async def twice(proxy: Proxy, *fields: str) -> None:
    body = chat(fresh(), *fields)
    first, second = await ask(proxy.port, body), await ask(proxy.port, body)
    for answer in (first, second):
        assert answer.body == STREAM
        assert answer.complete
        assert len(answer.events) == 3
        assert answer.events[0].data == '{"id":"c1",\n"choices":' + OPEN.decode() + "}"
    assert second.role == "replay", fields
    assert (second.get("Cache-Status") or "").startswith("soloflight; hit")


async def test_the_reported_writes(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(spaced(*WRITES))
    await twice(proxy)
    assert upstream.calls == 1


async def test_every_single_cut(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(by_cut)
    room = asyncio.Semaphore(AT_ONCE)

    async def one(cut: int) -> None:
        async with room:
            await twice(proxy, f"X-Cut: {cut}")

    cuts = range(1, len(STREAM))
    await asyncio.gather(*map(one, cuts))
    assert upstream.calls == len(cuts)
