"""The lock is given back before the last byte: a request sent at once is never refused for the sake of the one before."""

import asyncio

import pytest

from governance.jobs import JOB, WAYS, Way, job
from harness.client import RawClient, connect, fresh
from harness.site import Site
from soloflight.testing.chat import CH, DONE, FIN
from soloflight.testing.script import LAST_CHUNK, chunk, head
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

TIMES = 200
every_way = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)


@every_way
async def test_one_job_after_the_other(way: Way, site: Site, upstream: ScriptedUpstream) -> None:
    """On one connection, and by turns over the nodes."""
    upstream.play(way.answer())
    async with connect(site.one.port) as a, connect(site.other.port) as b:
        for number in range(TIMES):
            answer = await (a, b)[number % 2].ask(way.job("reject", f"last {way.name}"))
            assert answer.status == 200, (number, answer.body)
    assert upstream.calls == TIMES


async def test_the_end_of_a_stream_is_held_for_it(site: Site, upstream: ScriptedUpstream) -> None:
    """An SDK goes on at ``[DONE]``, however long the upstream takes for what follows."""
    slow = asyncio.Event()
    fields = head(200, "Content-Type: text/event-stream", "Transfer-Encoding: chunked")
    upstream.play([fields, chunk(CH), chunk(FIN), chunk(DONE), slow, LAST_CHUNK])
    async with connect(site.one.port) as client:
        for _ in range(20):
            await client.send(job("reject", "done", body=fresh()))
            await client.read_until(lambda response: DONE in response.body)
            async with connect(site.other.port) as next_one:
                await next_one.send(job("reject", "done", body=fresh()))
                assert (await next_one.read_events(1)).status == 200
                await next_one.finish()
            await client.finish()
        slow.set()


@pytest.mark.parametrize("stream", [False, True], ids=["JSON", "SSE"])
async def test_a_follower_elsewhere_finds_it_given_back_too(
    stream: bool, site: Site, upstream: ScriptedUpstream
) -> None:
    """The same request of the same session follows on another node: what it sends next is not refused either."""
    way = WAYS[stream]
    gates = [asyncio.Event() for _ in range(60)]
    upstream.play(*[step for gate in gates for step in (way.answer(gate), JOB)])

    async def follow_up(client: RawClient) -> int:
        await client.finish()
        return (await client.ask(job("reject", "mate", body=fresh(stream=False)))).status

    async with connect(site.one.port) as owner, connect(site.other.port) as follower:
        for number, gate in enumerate(gates):
            body = fresh(stream=stream)
            await owner.send(job("reject", "mate", body=body))
            await upstream.wait_calls(2 * number + 1)
            await follower.send(job("reject", "mate", body=body))
            if stream:
                await follower.read_events(1)
            else:
                await site.settle(site.other)
            gate.set()
            assert await follow_up(follower) == 200, number
            await owner.finish()
