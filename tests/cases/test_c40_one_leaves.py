"""C40: the owner's client, or one of those who wait, leaves: the others live, and the key stays.

Source: authzed/spicedb#925, Mininglamp-OSS/octo-server#769, vllm-project/vllm-omni#7070, ctrlplanedev/ctrlplane#1105,
janos/singleflight#4, buildbuddy-io/buildbuddy#7199.
Right: the call belongs to nobody's request: all who stay get the whole answer, by one upstream call that sees no abort,
and it is kept. One who leaves is freed at once. (The server cancels a handler when its client leaves; there is no other
mode.)
"""

import asyncio

import pytest

from harness.client import RawClient, ask, chat, connect, fresh, settle
from harness.process import eventually
from harness.proxy import Proxy
from soloflight.testing.chat import CH, DONE, FIN, completion_object
from soloflight.testing.script import Script, head, sse
from soloflight.testing.script import json as json_answer
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

BODIES = {
    "SSE": CH * 10 + FIN + DONE,
    "JSON": json_answer(completion_object("x" * 90)).partition(b"\r\n\r\n")[2],
}
EARLY = {"SSE": 3 * len(CH), "JSON": 40}


def leave(client: RawClient, how: str) -> None:
    if how == "RST":
        client.reset()
    else:
        client.close()


def script(form: str, begin: asyncio.Event, go_on: asyncio.Event) -> Script:
    """The head and the early part of the body after ``begin``, the rest after ``go_on``."""
    body, early = BODIES[form], EARLY[form]
    if form == "SSE":
        return [begin, *sse(*[CH] * 3, go_on, *[CH] * 7, FIN, DONE)]
    opening = head(200, "Content-Type: application/json", f"Content-Length: {len(body)}")
    return [begin, opening + body[:early], go_on, body[early:]]


@pytest.mark.parametrize("when", ["mid-answer", "before the first byte"])
@pytest.mark.parametrize("how", ["FIN", "RST"])
@pytest.mark.parametrize("form", BODIES)
async def test_the_owners_client_leaves(
    form: str, how: str, when: str, proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    begin, go_on = asyncio.Event(), asyncio.Event()
    upstream.play(script(form, begin, go_on))
    body = chat(fresh(stream=form == "SSE"))
    async with connect(proxy.port) as a, connect(proxy.port) as b, connect(proxy.port) as c:
        await a.send(body)
        await upstream.wait_calls(1)
        for client in (b, c):
            await client.send(body)
        await settle(proxy.port)
        if when == "mid-answer":
            begin.set()
            for client in (a, b, c):
                await client.read_body(EARLY[form])
            assert a.response.role == "owner"
        leave(a, how)
        await settle(proxy.port)
        begin.set()
        go_on.set()
        answers = await asyncio.gather(b.finish(), c.finish())
    assert [answer.body for answer in answers] == [BODIES[form]] * 2
    assert all(answer.complete for answer in answers)
    assert upstream.calls == 1
    assert upstream.requests[0].left is None
    assert upstream.requests[0].finished_at is not None
    replay = await ask(proxy.port, body)
    assert (replay.role, replay.body, upstream.calls) == ("replay", BODIES[form], 1)


@pytest.mark.parametrize("how", ["FIN", "RST"])
@pytest.mark.parametrize("form", BODIES)
async def test_one_who_waits_leaves(form: str, how: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    """B leaves, then C joins, then D: the key has stayed all the time."""
    begin, go_on = asyncio.Event(), asyncio.Event()
    upstream.play(script(form, begin, go_on))
    body = chat(fresh(stream=form == "SSE"))
    async with connect(proxy.port) as a, connect(proxy.port) as c, connect(proxy.port) as d:
        await a.send(body)
        await upstream.wait_calls(1)
        async with connect(proxy.port) as b:
            await b.send(body)
            await settle(proxy.port)
            held = proxy.open_files()
            leave(b, how)
            await eventually(lambda: proxy.open_files() < held)
        await c.send(body)
        await settle(proxy.port)
        begin.set()
        await c.read_body(EARLY[form])
        await d.send(body)
        await d.read_body(EARLY[form])
        go_on.set()
        answers = await asyncio.gather(a.finish(), c.finish(), d.finish())
    assert [answer.role for answer in answers] == ["owner", "follower", "follower"]
    assert [answer.body for answer in answers] == [BODIES[form]] * 3
    assert upstream.calls == 1
    assert upstream.requests[0].left is None


async def test_many_leave_at_random_moments(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    """Of forty, every other one leaves somewhere in the stream; who stays has all of it."""
    events = [CH] * 20
    steps = [step for event in events for step in (event, 0.01)]
    upstream.play(sse(*steps, FIN, DONE))
    body = chat(fresh())

    async def one(number: int) -> bytes | None:
        async with connect(proxy.port) as client:
            await client.send(body)
            if number % 2:
                await client.read_body((number % 20) * len(CH) + 1)
                leave(client, "RST" if number % 4 == 1 else "FIN")
                return None
            return (await client.finish()).body

    bodies = await asyncio.gather(*map(one, range(40)))
    assert bodies[::2] == [CH * 20 + FIN + DONE] * 20
    assert upstream.calls == 1
    assert upstream.requests[0].left is None
