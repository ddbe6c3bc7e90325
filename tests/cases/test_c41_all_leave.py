"""C41: the last listener leaves: the upstream must be stopped.

Source: BerriAI/litellm#37140, #30223 and #13774, 1rgs/claude-code-proxy#114, Wei-Shaw/sub2api#6482.
Right: as the stage says, and never undefined. "cancel": after a grace time the upstream's connection is closed.
"finish": the call is finished and kept for the retry, but works for nobody no longer than `max_abandoned`, and than
`max_abandoned_stream` once bytes had been delivered. Who comes back in time joins the living flight; who comes
later starts a clean new one.
"""

import asyncio
import time

import pytest

from harness.client import ask, chat, connect, fresh, settle
from harness.process import eventually
from harness.proxy import Proxy
from harness.stalls import lasted
from soloflight.testing.chat import CH, DONE, FIN, completion_object
from soloflight.testing.script import HANG, Ending, Script, Step, head, sse
from soloflight.testing.script import json as json_answer
from soloflight.testing.upstream import ScriptedUpstream

GRACE_S, ABANDONED_S, ABANDONED_STREAM_S = 0.3, 1.5, 0.2
RETURN_S = 1.2
"""Grace enough for a client that comes back to a machine that stood still for a moment."""
CANCEL, FINISH, BRIEF, RETURN = (f"/{name}/v1/chat/completions" for name in ("cancel", "finish", "brief", "return"))
PROXY = {
    "stage": [
        {"name": "cancel", "match": {"paths": [CANCEL]}, "on_abandon": "cancel", "abandon_grace": GRACE_S},
        {"name": "return", "match": {"paths": [RETURN]}, "on_abandon": "cancel", "abandon_grace": RETURN_S},
        {"name": "finish", "match": {"paths": [FINISH]}, "on_abandon": "finish"},
        {
            "name": "brief",
            "match": {"paths": [BRIEF]},
            "on_abandon": "finish",
            "max_abandoned": ABANDONED_S,
            "max_abandoned_stream": ABANDONED_STREAM_S,
        },
    ]
}
JSON = json_answer(completion_object())
JSON_BODY = JSON.partition(b"\r\n\r\n")[2]
EARLY = {"SSE": CH, "JSON": JSON_BODY[:20], "silence": b""}
WHOLE = {"SSE": CH + FIN + DONE, "JSON": JSON_BODY, "silence": JSON_BODY}


def script(form: str, then: asyncio.Event | Ending | None = None) -> Script:
    """The early part of an answer, and its rest after an event (or at once, or never: HANG)."""
    rest: list[Step] = [] if then is None else [then]
    if form == "SSE":
        return sse(CH, HANG, last=False) if then is HANG else sse(CH, *rest, FIN, DONE)
    opening = head(200, "Content-Type: application/json", f"Content-Length: {len(JSON_BODY)}")
    if form == "JSON":
        return [opening + JSON_BODY[:20], *rest, JSON_BODY[20:]]
    return [*rest, JSON]


async def two_come_and_leave(form: str, target: str, proxy: Proxy, upstream: ScriptedUpstream) -> tuple[bytes, float]:
    """A and B share a flight, and both leave. Gives the request, and when the last one left."""
    body = chat(fresh(stream=form == "SSE"), target=target)
    async with connect(proxy.port) as a, connect(proxy.port) as b:
        for client in (a, b):
            await client.send(body)
            await upstream.wait_calls(1)
            await client.read_body(len(EARLY[form]))
        await settle(proxy.port)
        a.close()
        await settle(proxy.port)
        b.reset()
        return body, time.monotonic()


async def assert_stopped(upstream: ScriptedUpstream, left_at: float, bound_s: float) -> None:
    """The upstream sees its connection closed not before the bound, and soon after it; no other is left open."""
    await upstream.wait_until(lambda: upstream.requests[0].left is not None, bound_s + 10)
    stopped_at = upstream.requests[0].left_at
    assert stopped_at is not None
    assert bound_s * 0.9 < stopped_at - left_at
    assert lasted(left_at, stopped_at) < bound_s + 1
    await upstream.wait_until(lambda: upstream.open_now == 0)


@pytest.mark.parametrize("form", EARLY)
async def test_cancel(form: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(script(form, HANG), script(form))
    body, left_at = await two_come_and_leave(form, CANCEL, proxy, upstream)
    await assert_stopped(upstream, left_at, GRACE_S)
    again = await ask(proxy.port, body)
    assert (again.role, again.body, again.complete) == ("owner", WHOLE[form], True)
    assert upstream.calls == 2


@pytest.mark.parametrize("form", EARLY)
async def test_finish(form: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    go_on = asyncio.Event()
    upstream.play(script(form, go_on))
    body, _ = await two_come_and_leave(form, FINISH, proxy, upstream)
    await asyncio.sleep(2 * GRACE_S)  # longer than any other stage would have let it run
    assert upstream.requests[0].left is None
    go_on.set()
    await upstream.wait_until(lambda: upstream.requests[0].finished_at is not None)
    await settle(proxy.port)
    retry = await ask(proxy.port, body)
    assert (retry.role, retry.body, upstream.calls) == ("replay", WHOLE[form], 1)


@pytest.mark.parametrize(
    ("form", "bound_s"), [("SSE", ABANDONED_STREAM_S), ("JSON", ABANDONED_STREAM_S), ("silence", ABANDONED_S)]
)
async def test_finish_is_bounded(form: str, bound_s: float, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(script(form, HANG), script(form))
    body, left_at = await two_come_and_leave(form, BRIEF, proxy, upstream)
    await assert_stopped(upstream, left_at, bound_s)
    again = await ask(proxy.port, body)
    assert (again.role, again.body, upstream.calls) == ("owner", WHOLE[form], 2)


@pytest.mark.parametrize("target", [RETURN, FINISH])
@pytest.mark.parametrize("form", EARLY)
async def test_who_comes_back_in_time_joins(form: str, target: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    go_on = asyncio.Event()
    upstream.play(script(form, go_on))
    body, left_at = await two_come_and_leave(form, target, proxy, upstream)
    async with connect(proxy.port) as c:
        await asyncio.sleep(RETURN_S / 4 - (time.monotonic() - left_at))
        await c.send(body)
        await asyncio.sleep(RETURN_S)  # the grace time of the others is over
        go_on.set()
        answer = await c.finish()
    assert (answer.role, answer.body, answer.complete) == ("follower", WHOLE[form], True)
    assert upstream.calls == 1
    assert upstream.requests[0].left is None


async def test_at_the_very_moment_of_the_end(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    """Whether the old flight or a new one: whoever comes around the end of the grace time gets a whole answer."""
    upstream.play(lambda received: sse(CH, 0.4, FIN, DONE))

    async def one(offset_s: float) -> str | None:
        body = chat(fresh(), target=CANCEL)
        async with connect(proxy.port) as a:
            await a.send(body)
            await a.read_body(len(CH))
        await asyncio.sleep(GRACE_S + offset_s)
        answer = await ask(proxy.port, body)
        assert (answer.status, answer.body, answer.complete) == (200, WHOLE["SSE"], True)
        return answer.role

    roles: list[str | None] = []
    for _ in range(3):  # a machine that is busy elsewhere may be too late for every one
        roles += await asyncio.gather(*(one(number / 1000) for number in range(-20, 20)))
        if {"owner", "follower"} <= set(roles):
            break
    assert set(roles) <= {"owner", "follower", "replay"}
    assert {"owner", "follower"} <= set(roles), "the moment was missed"
    stopped = sum(received.left is not None for received in upstream.requests)
    assert stopped == roles.count("owner")
    assert upstream.calls == len(roles) + stopped
    held = proxy.open_files()
    await eventually(lambda: proxy.open_files() <= held)
