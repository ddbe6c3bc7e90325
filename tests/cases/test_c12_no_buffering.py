"""C12: events held back, by gzip or by a buffer.

Source: mostlygeek/llama-swap#236, ggml-org/llama.cpp#20872, Kludex/starlette#2753, tower-rs/tower-http#419.
Right: each event reaches the client within a small bound of its arrival; event streams carry
`X-Accel-Buffering: no`; the proxy does no compression of its own.
"""

import asyncio
import zlib
from statistics import quantiles

import pytest

from harness.client import chat, connect, fresh, settle
from harness.proxy import Proxy
from harness.stalls import lasted
from harness.wire import Response
from soloflight.testing.chat import CH, DONE, FIN
from soloflight.testing.received import Received
from soloflight.testing.script import Step, sse
from soloflight.testing.upstream import ScriptedUpstream

EVENTS = 20
PAUSE_S = 0.03
BOUND_S = 0.1


def gzipped(events: list[bytes]) -> list[bytes]:
    """The same stream gzip-coded, with a sync flush after every event."""
    packer = zlib.compressobj(wbits=31)
    pieces = [packer.compress(event) + packer.flush(zlib.Z_SYNC_FLUSH) for event in events]
    return [*pieces[:-1], pieces[-1] + packer.flush(zlib.Z_FINISH)]


def p95_lag_s(received: Received, answer: Response) -> float:
    """95th percentile of (event at the client − event written by the upstream)."""
    writes = received.sent[1 : EVENTS + 1]  # the first one is the head
    lags = [lasted(at, answer.arrival_s(len(CH) * (n + 1))) for n, (at, _) in enumerate(writes)]
    return quantiles(lags, n=20)[-1]


@pytest.mark.parametrize("coding", ["identity", "gzip"])
async def test_each_event_arrives_soon(coding: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    gate = asyncio.Event()
    events = [CH] * EVENTS + [FIN, DONE]
    coded = gzipped(events) if coding == "gzip" else events
    steps: list[Step] = [step for piece in coded for step in (piece, PAUSE_S)]
    upstream.play([gate, *sse(*steps, fields=["Content-Encoding: gzip"] if coding == "gzip" else [])])
    body = chat(fresh(), "Accept-Encoding: gzip, br")
    async with connect(proxy.port) as a, connect(proxy.port) as b:
        await a.send(body)
        await upstream.wait_calls(1)
        await b.send(body)
        await settle(proxy.port)
        gate.set()
        answers = await asyncio.gather(a.finish(), b.finish())

    assert [answer.role for answer in answers] == ["owner", "follower"]
    for answer in answers:
        assert answer.body == b"".join(events)
        assert answer.get("Content-Encoding") is None
        assert answer.get("X-Accel-Buffering") == "no"
        assert p95_lag_s(upstream.requests[0], answer) < BOUND_S
    assert upstream.requests[0].field(b"accept-encoding") in (b"", b"identity")
