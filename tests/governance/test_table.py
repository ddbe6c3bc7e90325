"""{share} x {replay} x {session} x {plain, sampled, named} x {owner, follower, replay, retry} x {JSON, SSE}, against the oracle."""

import asyncio
from itertools import product

import pytest

from governance.jobs import WAYS, Way, job
from governance.oracle import Kind, Moment, Said, said
from governance.stages import REPLAYS, SESSIONS, SHARES, table_stage
from harness.client import RawClient, ask, connect, fresh
from harness.site import Site
from harness.wire import Response
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

KINDS: tuple[Kind, ...] = ("plain", "sampled", "named")
FORMS = [way for way in WAYS if way.name.startswith("shared")]


def request_of(kind: Kind, way: Way, stage: str, session: str) -> tuple[bytes, bytes]:
    """One request, and the same as an SDK's retry."""
    body = fresh(stream=way.stream, temperature=0 if kind == "plain" else 1)
    fields = [f"Idempotency-Key: {body['messages'][0]['content']}"] if kind == "named" else []
    named = None if session == "off" else f"table {kind} {way.name}"
    plain = job(stage, named, *fields, body=body)
    return plain, job(stage, named, *fields, "x-stainless-retry-count: 1", body=body)


def got(answer: Response, *, calls: bool, waits: bool) -> Said:
    """What an answer was, in the oracle's words."""
    mark = (answer.get("Cache-Status") or "").removeprefix("soloflight; ").partition("; ttl=")[0]
    return Said(answer.status, answer.role, mark, calls, waits)


@pytest.mark.parametrize(("share", "replay", "session"), list(product(SHARES, REPLAYS, SESSIONS)))
async def test_what_each_request_gets(
    share: str, replay: str, session: str, site: Site, upstream: ScriptedUpstream
) -> None:
    stage = table_stage(share, replay, session)
    for kind, way in product(KINDS, FORMS):
        plain, retry = request_of(kind, way, stage, session)
        table: dict[Moment, Said] = {}
        gate = asyncio.Event()
        upstream.play(way.answer(gate), way.answer())
        async with connect(site.one.port) as first, connect(site.other.port) as second:
            before = upstream.calls
            await first.send(plain)
            await upstream.wait_calls(before + 1)
            expected = said(share, replay, session, kind, "meanwhile")
            at_once = expected.role != "follower" and not expected.waits
            table["meanwhile"] = await meanwhile(site, upstream, second, plain, first, gate, at_once=at_once)
            table["first"] = got(first.response, calls=True, waits=False)
        for moment, raw in (("afterwards", plain), ("retry", retry)):
            before = upstream.calls
            answer = await ask(site.other.port, raw)
            assert answer.body == first.response.body
            table[moment] = got(answer, calls=upstream.calls > before, waits=False)
        assert table == {moment: said(share, replay, session, kind, moment) for moment in table}, (kind, way.name)


async def meanwhile(
    site: Site,
    upstream: ScriptedUpstream,
    second: RawClient,
    raw: bytes,
    first: RawClient,
    gate: asyncio.Event,
    *,
    at_once: bool,
) -> Said:
    """What the same request gets while the first runs, which then ends. ``at_once``: it should have its answer before that."""
    before = upstream.calls
    await second.send(raw)
    if at_once:
        await second.head()
    else:
        await site.settle(site.other)
    if has_called := upstream.calls > before or at_once:
        await second.finish()
    gate.set()
    await first.finish()
    await second.finish()
    calls = upstream.calls > before
    return got(second.response, calls=calls, waits=calls and not has_called)
