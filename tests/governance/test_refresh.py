"""A refresh: a new call where an answer is kept. The old one stays until the new one is whole, and survives its failure."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from governance.jobs import job
from governance.stages import BRIEF, BRIEF_LEASE_S
from harness.client import ask, connect, fresh
from harness.process import eventually
from harness.site import Site, open_site
from harness.wire import Response
from soloflight.testing.chat import CH, completion_object, content, finish
from soloflight.testing.script import CLOSE, HANG, RESET, Answer, Script, Step, head, sse
from soloflight.testing.script import json as json_answer
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

REFRESH = ["Cache-Control: no-cache", "Cache-Control: max-age=0"]
STAGES = ["default", "asks"]
"""With an L1, and without one."""
WORD_S = 5.0
"""What a busy machine may need for a word from one node to the other."""
STREAM_HEAD = head(200, "Content-Type: text/event-stream", "Transfer-Encoding: chunked")

FAILURES: dict[str, list[Step]] = {
    "an error": [json_answer({"error": {"message": "no"}}, status=500)],
    "a limit": [json_answer({"error": {"message": "later"}}, "Retry-After: 1", status=429)],
    "not HTTP": [b"+PONG\r\n\r\n", CLOSE],
    "no answer": [CLOSE],
    "cut in the document": [head(200, "Content-Type: application/json", "Content-Length: 99"), b"{", 0.02, RESET],
    "cut in the stream": sse(CH, CLOSE, last=False),
    "an error in the stream": sse(CH, b'data: {"error": {"message": "overloaded"}}\n\n'),
    "a document that says failed": [json_answer({"error": {"message": "overloaded"}})],
    "a document cut by length": [json_answer(completion_object("x", "length"))],
}


def answer(text: str) -> bytes:
    return json_answer(completion_object(text))


def text_of(response: Response) -> str:
    assert response.status == 200, response.body
    return str(json.loads(response.body)["choices"][0]["message"]["content"])


def seen(response: Response) -> tuple[str | None, str]:
    return response.role, text_of(response)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("failure", FAILURES)
async def test_the_old_answer_survives_a_refresh_that_fails(
    failure: str, stage: str, site: Site, upstream: ScriptedUpstream
) -> None:
    """Whoever waits for the refresh gets its failure; everybody else, on every node, the old answer, also while it runs."""
    gate = asyncio.Event()
    upstream.play(answer("old"), [gate, *FAILURES[failure]], answer("new"))
    body = fresh(stream=False)
    plain, refresh = job(stage, body=body), job(stage, None, REFRESH[0], body=body)
    assert seen(await ask(site.one.port, plain)) == ("owner", "old")
    async with connect(site.one.port) as first, connect(site.other.port) as second:
        await first.send(refresh)
        await upstream.wait_calls(2)
        await second.send(refresh)
        await site.settle(site.other)
        for node in site.nodes:
            assert seen(await ask(node.port, plain)) == ("replay", "old"), "while it runs"
        gate.set()
        failed = [await first.finish(), await second.finish()]
    assert {(one.status, one.body, one.ended) for one in failed} == {
        (failed[0].status, failed[0].body, failed[0].ended)
    }
    for node in site.nodes:
        assert seen(await ask(node.port, plain)) == ("replay", "old"), "when it has failed"
    assert seen(await ask(site.other.port, refresh)) == ("owner", "new")
    for node in site.nodes:
        assert seen(await ask(node.port, plain)) == ("replay", "new")
    assert upstream.calls == 3


@pytest.mark.parametrize("stage", STAGES)
async def test_an_upstream_that_can_not_be_reached(stage: str, site: Site, upstream: ScriptedUpstream) -> None:
    upstream.play(answer("old"), answer("new"))
    body = fresh(stream=False)
    plain, refresh = job(stage, body=body), job(stage, None, REFRESH[1], body=body)
    assert seen(await ask(site.one.port, plain)) == ("owner", "old")
    await upstream.stop()
    asking = [asyncio.create_task(ask(node.port, refresh)) for node in site.nodes]
    for node in site.nodes:
        assert seen(await ask(node.port, plain)) == ("replay", "old")
    assert {(await task).status for task in asking} == {502}
    for node in site.nodes:
        assert seen(await ask(node.port, plain)) == ("replay", "old")
    await upstream.start()
    assert seen(await ask(site.other.port, refresh)) == ("owner", "new")


@pytest.mark.parametrize("stage", STAGES)
async def test_refreshes_at_the_same_time_share_one_call(stage: str, site: Site, upstream: ScriptedUpstream) -> None:
    """Then every node serves the new one, for as long as the old one would have been."""
    gate = asyncio.Event()
    upstream.play(answer("old"), [gate, answer("new")])
    body = fresh(stream=False)
    plain = job(stage, body=body)
    for node in site.nodes:
        assert text_of(await ask(node.port, plain)) == "old"
    asking = []
    for number in range(8):
        node = site.nodes[number % len(site.nodes)]
        asking.append(asyncio.create_task(ask(node.port, job(stage, None, REFRESH[number % 2], body=body))))
    await upstream.wait_calls(2)
    for node in site.nodes:
        await site.settle(node)
    gate.set()
    answers = [await task for task in asking]
    assert {text_of(one) for one in answers} == {"new"}
    assert sorted(one.role or "" for one in answers) == ["follower"] * 7 + ["owner"]
    for node in site.nodes:
        assert seen(await ask(node.port, plain)) == ("replay", "new")
    assert upstream.calls == 2


@pytest.mark.parametrize("stage", STAGES)
async def test_every_node_serves_the_new_one_at_once(stage: str, site: Site, upstream: ScriptedUpstream) -> None:
    """The one that made it behind its last byte; the others as soon as word of it is there, and then for good."""
    upstream.play(lambda received: answer(f"call {received.number}"))
    body = fresh(stream=False)
    plain, refresh = job(stage, body=body), job(stage, None, REFRESH[0], body=body)
    async with connect(site.one.port) as one, connect(site.other.port) as other:
        for node in (one, other):
            await node.ask(plain)
        for number in range(60):
            first, second = (one, other) if number % 2 else (other, one)
            new = text_of(await first.ask(refresh))
            assert text_of(await first.ask(plain)) == new, number
            async with asyncio.timeout(WORD_S):
                while (told := text_of(await second.ask(plain))) != new:
                    assert told == f"call {upstream.calls - 1}"
            assert text_of(await second.ask(plain)) == new, number


async def test_a_stream_is_refreshed_too(site: Site, upstream: ScriptedUpstream) -> None:
    gate = asyncio.Event()

    def stream(text: str, *between: Step) -> Script:
        return sse(content(text), *between, finish(), b"data: [DONE]\n\n")

    upstream.play(stream("old"), stream("new", gate))
    body = fresh()
    plain, refresh = job("", body=body), job("", None, REFRESH[0], body=body)
    old = await ask(site.one.port, plain)
    async with connect(site.other.port) as refresher, connect(site.one.port) as second:
        await refresher.send(refresh)
        await refresher.read_events(1)
        meanwhile = await ask(site.one.port, plain)
        await second.send(refresh)
        await second.read_events(1)
        gate.set()
        new = [await client.finish() for client in (refresher, second)]
    assert (meanwhile.role, meanwhile.body) == ("replay", old.body)
    assert new[0].body == new[1].body != old.body
    assert [one.role for one in new] == ["owner", "follower"]
    for node in site.nodes:
        assert (await ask(node.port, plain)).body == new[0].body


async def test_a_refresh_that_everybody_left(site: Site, upstream: ScriptedUpstream) -> None:
    """It is finished for the retry: then the new answer is there, on every node, and until then the old one."""
    gate = asyncio.Event()
    upstream.play(answer("old"), [gate, answer("new")])
    body = fresh(stream=False)
    plain = job("", body=body)
    await ask(site.one.port, plain)
    async with connect(site.one.port) as leaver:
        await leaver.send(job("", None, REFRESH[0], body=body))
        await upstream.wait_calls(2)
    for node in site.nodes:
        assert seen(await ask(node.port, plain)) == ("replay", "old")
    gate.set()
    await eventually(lambda: not site.flights())
    for node in site.nodes:
        assert seen(await ask(node.port, plain)) == ("replay", "new")
    assert upstream.calls == 2


# ── its process ends ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def fragile(tmp_path: Path, upstream_port: int) -> Iterator[Site]:
    """Two nodes, of which one will be killed."""
    with ExitStack() as stack:
        site = open_site("redis", tmp_path, upstream_port, BRIEF, ExitStack())
        assert site.redis is not None
        stack.callback(site.redis.stop)
        stack.callback(site.other.stop)
        stack.callback(site.one.kill)
        yield site


@pytest.mark.parametrize("begun", [False, True], ids=["before its first byte", "in its middle"])
async def test_the_old_answer_survives_its_process(begun: bool, fragile: Site, upstream: ScriptedUpstream) -> None:
    """The refreshing process is killed: who waits elsewhere gets another call's whole answer, or is cut; the rest the old one."""
    site = fragile
    part = head(200, "Content-Type: application/json", "Content-Length: 999") + b"{"
    lost: Answer = [part, HANG] if begun else [HANG]
    upstream.play(answer("old"), lost, answer("new"))
    body = fresh(stream=False)
    plain, refresh = job("", body=body), job("", None, REFRESH[0], body=body)
    for node in site.nodes:
        assert text_of(await ask(node.port, plain)) == "old"
    async with connect(site.one.port) as first, connect(site.other.port) as second:
        await first.send(refresh)
        await upstream.wait_calls(2)
        await second.send(refresh)
        if begun:
            await second.read_body(1)
        else:
            await site.settle(site.other)
        assert seen(await ask(site.other.port, plain)) == ("replay", "old")
        site.one.kill()
        assert seen(await ask(site.other.port, plain)) == ("replay", "old")
        waited = await second.finish(within_s=BRIEF_LEASE_S + 10)
    if begun:
        assert (waited.ended, upstream.calls) == ("rst", 2)
        assert seen(await ask(site.other.port, plain)) == ("replay", "old")
        assert seen(await ask(site.other.port, refresh)) == ("owner", "new")
    else:
        assert seen(waited) == ("owner", "new")
    assert seen(await ask(site.other.port, plain)) == ("replay", "new")
    assert upstream.calls == 3
