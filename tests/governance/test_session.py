"""One heavy job per session: the other one is refused or waits, an equal one joins, and nobody else is concerned."""

import asyncio
import time
from contextlib import AsyncExitStack

import pytest

from governance.jobs import JOB, LONE, WAYS, Way, job
from governance.stages import BRIEF_WAIT_S
from harness.client import ask, connect, fresh, request
from harness.process import eventually
from harness.refusals import refused
from harness.site import Site
from harness.stalls import lasted
from harness.wire import Response
from soloflight.testing.received import Received
from soloflight.testing.script import Script
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

BUSY = (409, "session_busy")
SOON_S = 1.0
LATE_S = 5.0
"""What the product measures itself has the stalls of the machine in it."""
every_way = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)


def is_busy(answer: Response) -> None:
    """The whole form of a refusal (contract section 5)."""
    assert refused(answer) == BUSY
    assert int(answer.get("Retry-After") or 0) >= 1
    assert answer.get("x-should-retry") == "false"


@every_way
async def test_another_job_of_the_session_is_refused(way: Way, site: Site, upstream: ScriptedUpstream) -> None:
    gate = asyncio.Event()
    upstream.play(way.answer(gate))
    async with connect(site.one.port) as first:
        await first.send(way.job("reject", "r1"))
        await upstream.wait_calls(1)
        for node in site.nodes:
            for other in WAYS:
                asked = time.monotonic()
                is_busy(await ask(node.port, other.job("reject", "r1")))
                assert lasted(asked) < SOON_S, "the holder says at once that it goes on"
        gate.set()
        assert (await first.finish()).complete
    assert upstream.calls == 1


@every_way
async def test_another_job_of_the_session_waits_its_turn(way: Way, site: Site, upstream: ScriptedUpstream) -> None:
    """First come, first served, over all nodes."""
    gates = [asyncio.Event() for _ in range(4)]
    order: list[bytes] = []

    def answer(received: Received) -> Script:
        order.append(received.field(b"x-job"))
        return way.answer(gates[len(order) - 1])

    upstream.play(answer)
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connect(node.port)) for node in (site.one, site.other) * 2]
        for number, client in enumerate(clients):
            await client.send(way.job("queue", f"q {way.name}", f"X-Job: {number}"))
            await waits(site, upstream, number)
        for number, gate in enumerate(gates):
            await upstream.wait_calls(number + 1)
            assert upstream.calls == number + 1, "one at a time"
            gate.set()
            assert (await clients[number].finish()).complete
    assert order == [b"0", b"1", b"2", b"3"]


async def waits(site: Site, upstream: ScriptedUpstream, before: int) -> None:
    """The job that was just sent waits behind ``before`` others; the first one runs."""
    if not before:
        await upstream.wait_calls(1)
    elif site.redis is not None:
        await eventually(lambda: sum(len(queue) for _, queue in site.locks().values()) == before)
    else:
        await site.settle(site.one)


@every_way
async def test_the_wait_has_an_end(way: Way, site: Site, upstream: ScriptedUpstream) -> None:
    gate = asyncio.Event()
    upstream.play(way.answer(gate))
    async with connect(site.one.port) as first:
        await first.send(way.job("brief", "b"))
        await upstream.wait_calls(1)
        for node in site.nodes:
            asked = time.monotonic()
            is_busy(await ask(node.port, way.job("brief", "b")))
            assert time.monotonic() - asked > BRIEF_WAIT_S * 0.9
        assert lasted(asked) < BRIEF_WAIT_S + SOON_S
        gate.set()
        await first.finish()
    assert upstream.calls == 1


@pytest.mark.parametrize("stage", ["reject", "queue"])
async def test_an_equal_request_of_the_session_joins(stage: str, site: Site, upstream: ScriptedUpstream) -> None:
    gate = asyncio.Event()
    upstream.play([gate, JOB])
    body = fresh(stream=False)
    async with connect(site.one.port) as a, connect(site.one.port) as b, connect(site.other.port) as c:
        await a.send(job(stage, "same", body=body))
        await upstream.wait_calls(1)
        for client in (b, c):
            await client.send(job(stage, "same", body=body))
        for node in site.nodes:
            await site.settle(node)
        gate.set()
        answers = [await client.finish() for client in (a, b, c)]
    assert [answer.role for answer in answers] == ["owner", "follower", "follower"]
    assert len({answer.body for answer in answers}) == upstream.calls == 1
    for node in site.nodes:
        assert (await ask(node.port, job(stage, "same", body=body))).role == "replay"


async def test_a_replay_asks_for_no_lock(site: Site, upstream: ScriptedUpstream) -> None:
    gate = asyncio.Event()
    upstream.play(JOB, [gate, JOB])
    body = fresh(stream=False)
    await ask(site.one.port, job("reject", "locked", body=body))
    async with connect(site.one.port) as holder:
        await holder.send(job("reject", "locked"))
        await upstream.wait_calls(2)
        for node in site.nodes:
            assert (await ask(node.port, job("reject", "locked", body=body))).role == "replay"
        gate.set()
        await holder.finish()


async def test_without_the_field_there_is_no_lock(site: Site, upstream: ScriptedUpstream) -> None:
    gate = asyncio.Event()
    upstream.play(lambda _: [gate, JOB])
    async with connect(site.one.port) as a, connect(site.other.port) as b, connect(site.one.port) as c:
        await a.send(job("reject", "free"))
        await b.send(job("reject"))
        await c.send(job("", "free"))  # the default stage has no locks
        await upstream.wait_calls(3)
        gate.set()
        assert [(await client.finish()).status for client in (a, b, c)] == [200] * 3


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("reject", "id", "k1"), ("reject", "other", "k1")),
        (("reject", "id", "k1"), ("reject", "id", "k2")),
        (("reject", "id", "k1"), ("twin", "id", "k1")),
        (("reject", b"a:b", "k1"), ("reject", b"a", "k1")),
        (("reject", b"a b", "k1"), ("reject", b"a%20b", "k1")),
        (("reject", b"\xff\xfe", "k1"), ("reject", b"\xff", "k1")),
        (("reject", b"{x}:session", "k1"), ("reject", b"{x}", "k1")),
        (("reject", b"*", "k1"), ("reject", b"**", "k1")),
        (("reject", "i" * 512, "k1"), ("reject", "i" * 511, "k1")),
    ],
    ids=["ids", "credentials", "stages", "colon", "space", "bytes", "braces", "globs", "longest"],
)
@pytest.mark.parametrize("target", ["/v1/chat/completions", LONE], ids=["shared", "lone"])
async def test_sessions_that_are_not_one(
    first: tuple[str, str | bytes, str],
    second: tuple[str, str | bytes, str],
    target: str,
    site: Site,
    upstream: ScriptedUpstream,
) -> None:
    gate = asyncio.Event()
    upstream.play(lambda _: [gate, JOB])
    async with connect(site.one.port) as a, connect(site.other.port) as b:
        for client, (stage, session, key) in ((a, first), (b, second)):
            await client.send(job(stage, session, target=target, key=key))
        await upstream.wait_calls(2)
        for node, (stage, session, key) in ((site.other, first), (site.one, second)):
            is_busy(await ask(node.port, job(stage, session, target=target, key=key)))
        gate.set()
        assert [(await client.finish()).status for client in (a, b)] == [200, 200]
    assert upstream.calls == 2


@pytest.mark.parametrize("target", ["/v1/chat/completions", LONE], ids=["shared", "lone"])
@pytest.mark.parametrize(
    "fields",
    [
        (b"X-Soloflight-Session: " + b"i" * 513,),
        (b"X-Soloflight-Session:",),
        (b"X-Soloflight-Session: a", b"X-Soloflight-Session: a"),
    ],
    ids=["over-long", "empty", "twice"],
)
@pytest.mark.parametrize("stage", ["reject", ""], ids=["locks", "no locks"])
async def test_an_id_that_is_none(
    stage: str, fields: tuple[bytes, ...], target: str, site: Site, upstream: ScriptedUpstream
) -> None:
    assert refused(await ask(site.one.port, job(stage, None, *fields, target=target))) == (400, "bad_request")
    assert upstream.calls == 0


async def test_uploads_take_the_lock_too(site: Site, upstream: ScriptedUpstream) -> None:
    """A form on a route that is not shared is not read before its turn, and goes up as it came."""
    gate = asyncio.Event()
    upstream.play([gate, JOB], JOB)
    form = (
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="cv.pdf"\r\n\r\n'
        + b"%PDF " * 200_000
        + b"\r\n--b--\r\n"
    )

    def upload(stage: str) -> bytes:
        fields = ("Content-Type: multipart/form-data; boundary=b", "Authorization: Bearer k1")
        return request(
            "POST", "/v1/files", *fields, f"X-Soloflight-Stage: {stage}", "X-Soloflight-Session: cv", body=form
        )

    async with connect(site.one.port) as first, connect(site.other.port) as second:
        await first.send(upload("queue"))
        await upstream.wait_calls(1)
        sending = asyncio.create_task(second.send(upload("queue")))
        for node in site.nodes:
            await site.settle(node)
        assert upstream.calls == 1
        gate.set()
        assert (await first.finish()).status == 200
        await sending
        assert (await second.finish()).status == 200
    assert [received.body for received in upstream.requests] == [form, form]


async def test_waits_are_measured(site: Site, upstream: ScriptedUpstream) -> None:
    """``soloflight_session_wait_seconds``: one observation for each who took a lock, or was refused it."""

    def waits_of(stage: str) -> float:
        return sum(node.metric("soloflight_session_wait_seconds_count", stage=stage) for node in site.nodes)

    def waited_s(stage: str) -> float:
        return sum(node.metric("soloflight_session_wait_seconds_sum", stage=stage) for node in site.nodes)

    gate = asyncio.Event()
    upstream.play([gate, JOB], JOB)
    count, before_s, others = waits_of("brief"), waited_s("brief"), waits_of("twin")
    async with connect(site.one.port) as first:
        await first.send(job("brief", "measured"))
        await upstream.wait_calls(1)
        is_busy(await ask(site.other.port, job("brief", "measured")))
        gate.set()
        await first.finish()
    await eventually(lambda: waits_of("brief") == count + 2)
    assert BRIEF_WAIT_S * 0.9 < waited_s("brief") - before_s < BRIEF_WAIT_S + LATE_S
    assert waits_of("twin") == others
