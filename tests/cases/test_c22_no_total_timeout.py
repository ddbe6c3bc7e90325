"""C22: a hidden total timeout of 300 s; a half-dead upstream.

Source: BerriAI/litellm#25654, open-webui/open-webui#3258 and #27038, Nerovix/kouhai-bot#46.
Right: a healthy stream runs to its end, however long it takes. An upstream that falls silent is given up after the
idle timeout: owner and followers see the cut, nothing is kept, the flight is gone. One that never said a word is a 504
after its bound, and not a second paid call.
"""

import asyncio
import json
import time

import pytest

from harness.client import ask, chat, connect, fresh, request, settle
from harness.proxy import Proxy
from harness.stalls import lasted
from soloflight.testing.chat import CH, DONE, FIN
from soloflight.testing.script import HANG, Script, Step, sse
from soloflight.testing.upstream import ScriptedUpstream

IDLE_S = 1.0
FIRST_BYTE_S = 1.5
BUSY_S = 0.3
"""What a busy machine may add: a tenth of these short bounds is less than that."""
PROXY = {"stage_defaults": {"progress_timeout": IDLE_S, "first_byte_timeout": FIRST_BYTE_S, "heartbeat": "200ms"}}
ALONE = request("GET", "/v1/files/f1/content")


def every(pause_s: float, total_s: float) -> Script:
    steps: list[Step] = [step for _ in range(round(total_s / pause_s)) for step in (CH, pause_s)]
    return sse(*steps, FIN, DONE)


def assert_after(bound_s: float, silent_since: float) -> None:
    """It is ``bound_s`` since then, with a tenth more or less."""
    assert time.monotonic() - silent_since > bound_s * 0.9
    assert lasted(silent_since) < bound_s * 1.1 + BUSY_S


async def both_to_the_end(proxy: Proxy, within_s: float) -> list[bytes]:
    """The bodies that a request for a shared answer and one that goes alone get at the same time."""
    sent = (chat(fresh()), ALONE)
    answers = await asyncio.gather(*(ask(proxy.port, data, within_s=within_s) for data in sent))
    assert [answer.role for answer in answers] == ["owner", "bypass"]
    assert all(answer.complete for answer in answers)
    return [answer.body for answer in answers]


async def test_a_long_healthy_stream_runs_to_its_end(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(every(IDLE_S / 4, 3 * IDLE_S))
    assert await both_to_the_end(proxy, 10) == [CH * 12 + FIN + DONE] * 2
    assert [received.left for received in upstream.requests] == [None, None]


@pytest.mark.soak  # the case's own figures, in real time: longer than 300 s, the default total of aiohttp's client
@pytest.mark.timeout(400)
async def test_five_and_a_half_minutes(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(every(IDLE_S / 2, 330))
    assert await both_to_the_end(proxy, 360) == [CH * 660 + FIN + DONE] * 2


async def test_a_silent_upstream_is_given_up(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(sse(CH, CH, HANG, last=False), sse(CH, FIN, DONE))
    body = fresh()
    async with connect(proxy.port) as a, connect(proxy.port) as b:
        for client in (a, b):
            await client.send(chat(body))
            await client.read_body(2 * len(CH))
        silent_since = upstream.requests[0].sent[-1][0]
        answers = await asyncio.gather(a.finish(), b.finish())
    assert_after(IDLE_S, silent_since)
    assert [answer.role for answer in answers] == ["owner", "follower"]
    for answer in answers:
        error = json.loads(answer.events[-1].data)["error"]
        assert (error["type"], error["code"]) == ("soloflight_error", "upstream_timeout")
        assert b"[DONE]" not in answer.body
        assert not answer.last_chunk_seen
        assert answer.ended == "rst"
    await upstream.wait_until(lambda: upstream.requests[0].left is not None)  # nobody works for nobody

    again = await ask(proxy.port, chat(body))
    assert (again.role, again.body, upstream.calls) == ("owner", CH + FIN + DONE, 2)


async def test_an_upstream_that_never_speaks_is_a_504_and_one_call(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play([HANG])
    body = chat(fresh())
    async with connect(proxy.port) as a, connect(proxy.port) as b:
        await a.send(body)
        await upstream.wait_calls(1)
        silent_since = upstream.requests[0].arrived_at
        await b.send(body)
        await settle(proxy.port)
        answers = await asyncio.gather(a.finish(), b.finish())
    assert_after(FIRST_BYTE_S, silent_since)
    for answer in answers:
        assert answer.status == 504
        assert json.loads(answer.body)["error"]["code"] == "upstream_timeout"
        assert answer.get("x-should-retry") == "false"
        assert (answer.get("Proxy-Status") or "").startswith("soloflight; error=http_response_timeout")
    assert upstream.calls == 1


async def test_a_silent_upstream_of_a_request_that_goes_alone(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(sse(CH, HANG, last=False))
    async with connect(proxy.port) as client:
        await client.send(ALONE)
        await client.read_body(len(CH))
        answer = await client.finish()
    assert_after(IDLE_S, upstream.requests[0].sent[-1][0])
    assert (answer.role, answer.last_chunk_seen, answer.ended) == ("bypass", False, "rst")
