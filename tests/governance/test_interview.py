"""conf/interview.toml as it is shipped: its four stages at once, and what each of them promises; on both backends."""

import asyncio
import json
import re
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from governance.jobs import JOB
from harness.client import RawClient, ask, chat, connect, fresh, request
from harness.process import eventually, wait_until
from harness.proxy import Proxy
from harness.refusals import refused
from harness.site import BACKENDS, Site, open_site
from harness.stalls import lasted
from harness.wire import Response
from soloflight.testing.chat import CH, DONE, FIN, completion_object, content
from soloflight.testing.received import Received
from soloflight.testing.script import Script, sse
from soloflight.testing.script import json as json_answer
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

STAGES = ("evaluation", "followup", "extraction", "demeanor")
INTERVIEW = (Path(__file__).parents[2] / "conf" / "interview.toml").read_text()
DAY_S = 86_400
SOON_S = 1.5
"""What is expected of a busy machine where else there were minutes to wait."""


@pytest.fixture(scope="module", params=BACKENDS)
def interview_process(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, upstream_port: int
) -> Iterator[Site]:
    """The file on each backend, changed in nothing."""
    with ExitStack() as stack:
        yield open_site(request.param, tmp_path_factory.mktemp("interview"), upstream_port, INTERVIEW, stack)


@pytest.fixture
def interview(interview_process: Site) -> Iterator[Site]:
    """It, with nothing running any more behind the test."""
    yield interview_process
    wait_until(interview_process.at_rest, within_s=15, what="no flight runs and no session is locked")


@pytest_asyncio.fixture
async def clients(interview: Site) -> Any:
    """A function that connects a client to one of the nodes."""
    async with AsyncExitStack() as stack:

        async def open_one(node: int = 0) -> RawClient:
            return await stack.enter_async_context(connect(interview.nodes[node % len(interview.nodes)].port))

        yield open_one


def kind(stage: str, *fields: str, body: dict[str, Any] | None = None, **members: Any) -> bytes:
    """A call of one kind, as the application makes it."""
    return chat({**(fresh(stream=False) if body is None else body), **members}, f"X-Soloflight-Stage: {stage}", *fields)


def session(id_: str) -> str:
    return f"X-Soloflight-Session: {id_}"


def ttl(answer: Response) -> int:
    mark = answer.get("Cache-Status") or ""
    assert mark.startswith("soloflight; hit; ttl="), mark
    return int(mark.rpartition("=")[2])


COUNTED = {
    "soloflight_requests_total": "role",
    "soloflight_upstream_calls_total": "",
    "soloflight_flights_live": "",
}


def counts(site: Site) -> dict[str, Counter[str]]:
    """By stage: what all nodes together have counted."""
    found: dict[str, Counter[str]] = {stage: Counter() for stage in STAGES}
    for node in site.nodes:
        for sample, value in node.metrics().items():
            name, _, labels = sample.partition("{")
            named = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            if name in COUNTED and named["stage"] in found:
                found[named["stage"]][named.get(COUNTED[name], name)] += int(value)
    return found


def since(site: Site, before: dict[str, Counter[str]]) -> dict[str, dict[str, int]]:
    """What has been counted since, without zeros."""
    return {stage: dict(+(now - before[stage])) for stage, now in counts(site).items() if now != before[stage]}


# ── the four at once ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_same_request_in_all_of_them(interview: Site, clients: Any, upstream: ScriptedUpstream) -> None:
    """No flight, no result and no figure of one is another's: four calls, four answers, each kept for its own stage."""
    gates = [asyncio.Event() for _ in STAGES]
    upstream.play(
        lambda received: [gates[received.number - 1], json_answer(completion_object(f"answer {received.number}"))]
    )
    before, body = counts(interview), fresh(stream=False)
    crowd: dict[str, list[RawClient]] = {}
    for number, stage in enumerate(STAGES):
        crowd[stage] = [await clients(node) for node in range(3)]
        for client in crowd[stage]:
            await client.send(kind(stage, session("i1"), body=body))
            await upstream.wait_calls(number + 1)
    for node in interview.nodes:
        await interview.settle(node)
    assert upstream.calls == len(STAGES)
    running = {(flight["stage"], flight["role"]) for flight in interview.flights()}
    assert {stage for stage, role in running if role == "owner"} == set(STAGES)
    answers: dict[str, bytes] = {}
    for stage, gate in reversed(list(zip(STAGES, gates, strict=True))):
        gate.set()
        bodies = {(await client.finish()).body for client in crowd[stage]}
        assert len(bodies) == 1
        answers[stage] = bodies.pop()
    assert len(set(answers.values())) == len(STAGES)
    for stage in STAGES:
        for node in interview.nodes:
            replay = await ask(node.port, kind(stage, body=body))
            assert (replay.role, replay.body) == ("replay", answers[stage])
    assert upstream.calls == len(STAGES)
    each = {"owner": 1, "follower": 2, "replay": len(interview.nodes), "soloflight_upstream_calls_total": 1}
    await eventually(lambda: since(interview, before) == dict.fromkeys(STAGES, each))


async def test_each_with_a_behaviour_of_its_own(interview: Site, clients: Any, upstream: ScriptedUpstream) -> None:
    """A slow extraction, a followup that streams, an evaluation that fails, a demeanor at once: none of them waits for another."""
    gates = {name: asyncio.Event() for name in ("extraction", "followup")}

    def answer(received: Received) -> Script:
        name = received.field(b"x-kind").decode()
        if name == "extraction":
            return [gates[name], JOB]
        if name == "followup":
            return sse(content("What "), gates[name], content("then?"), FIN, DONE)
        if name == "evaluation":
            return json_answer({"error": {"message": "overloaded"}}, "Retry-After: 3", status=503)
        return JOB

    upstream.play(answer)
    extraction, followup, waiting = await clients(), await clients(1), await clients(1)
    await extraction.send(kind("extraction", "X-Kind: extraction", session("i2")))
    await upstream.wait_calls(1)
    await waiting.send(kind("extraction", "X-Kind: extraction", session("i2")))
    await followup.send(kind("followup", "X-Kind: followup", session("i2"), stream=True))
    await followup.read_events(1)
    began = time.monotonic()
    for node in interview.nodes:
        failed = await ask(node.port, kind("evaluation", "X-Kind: evaluation", session("i2")))
        assert (failed.status, failed.get("Retry-After")) == (503, "3")
        assert (await ask(node.port, kind("demeanor", session("i2")))).status == 200
    assert lasted(began) < SOON_S
    calls = upstream.calls
    gates["followup"].set()
    assert (await followup.finish()).complete
    assert upstream.calls == calls, "the second extraction of this interview still waits"
    gates["extraction"].set()
    assert [(await client.finish()).status for client in (extraction, waiting)] == [200, 200]
    assert upstream.calls == calls + 1


# ── evaluation ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_evaluation_keeps_a_grade(interview: Site, upstream: ScriptedUpstream) -> None:
    """Sampled or not; and in each process's own memory, so that the backend is not even asked."""
    upstream.play(JOB)
    for temperature, kept_s in ((1, 600), (0, 1800)):
        graded = kind("evaluation", temperature=temperature)
        await ask(interview.one.port, graded)
        assert kept_s - 5 <= ttl(await ask(interview.other.port, graded)) <= kept_s
        before = interview.other.metric("soloflight_backend_seconds_count", op="claim")
        for _ in range(5):
            assert (await ask(interview.other.port, graded)).role == "replay"
        assert interview.other.metric("soloflight_backend_seconds_count", op="claim") == before
    for node in interview.nodes:
        assert node.metric("soloflight_local_bytes", stage="evaluation") > 0


# ── followup ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_followup_is_the_same_for_a_double_click_only(interview: Site, upstream: ScriptedUpstream) -> None:
    upstream.play(sse(CH, FIN, DONE))
    asked = kind("followup", stream=True, temperature=1)
    first = await ask(interview.one.port, asked)
    again = await ask(interview.other.port, asked)
    assert (again.role, again.body) == ("replay", first.body)
    assert ttl(again) <= 15


async def test_followup_lets_a_candidate_come_back(interview: Site, upstream: ScriptedUpstream) -> None:
    """A page that reloads finds its question under way, on any node; 5 s are the file's own."""
    gate = asyncio.Event()
    upstream.play(sse(CH, gate, FIN, DONE))
    asked = kind("followup", stream=True)
    async with connect(interview.one.port) as leaver:
        await leaver.send(asked)
        await leaver.read_events(1)
    await interview.settle(interview.one)
    async with connect(interview.other.port) as back:
        await back.send(asked)
        await back.read_events(1)
        gate.set()
        assert (await back.finish()).body == CH + FIN + DONE
    assert (upstream.calls, upstream.requests[0].left) == (1, None)


async def test_followup_rush_waits_and_delays_nobody_else(
    interview: Site, clients: Any, upstream: ScriptedUpstream
) -> None:
    """50 at a time in one process. The others wait, and whoever asks for another kind does not."""
    gate = asyncio.Event()
    upstream.play(lambda received: [gate, JOB] if received.field(b"x-rush") else JOB)
    rush = [await clients() for _ in range(60)]
    for client in rush:
        await client.send(kind("followup", "X-Rush: 1"))
    await upstream.wait_calls(50)
    await interview.settle(interview.one)
    assert upstream.calls == 50
    began = time.monotonic()
    for stage in ("evaluation", "extraction", "demeanor"):
        assert (await ask(interview.one.port, kind(stage, session("i3")))).status == 200
    assert lasted(began) < SOON_S
    gate.set()
    assert [(await client.finish()).status for client in rush] == [200] * 60
    assert upstream.calls == 63


# ── extraction ──────────────────────────────────────────────────────────────────────────────────────────────────────


def upload(id_: str, file: bytes) -> bytes:
    """A curriculum vitae on its way to a route that is not shared."""
    fields = ("Content-Type: multipart/form-data; boundary=b", "Authorization: Bearer k1")
    part = b'--b\r\nContent-Disposition: form-data; name="file"; filename="cv.pdf"\r\n\r\n' + file + b"\r\n--b--\r\n"
    return request("POST", "/v1/files", *fields, "X-Soloflight-Stage: extraction", session(id_), body=part)


async def test_extraction_does_one_job_for_an_interview(
    interview: Site, clients: Any, upstream: ScriptedUpstream
) -> None:
    """Uploads and calls alike, over all nodes, in the order of their arrival; another interview's at the same time."""
    order: list[str] = []
    gates = [asyncio.Event() for _ in range(5)]

    def answer(received: Received) -> Script:
        multipart = received.field(b"content-type").startswith(b"multipart")
        order.append("upload" if multipart else received.field(b"x-name").decode())
        return [gates[len(order) - 1], JOB]

    upstream.play(answer)
    jobs = [("upload", ""), ("second", "X-Name: second"), ("third", "X-Name: third")]
    asking = []
    for node, (name, field) in enumerate(jobs):
        client = await clients(node)
        await client.send(upload("i4", b"%PDF") if name == "upload" else kind("extraction", field, session("i4")))
        await upstream.wait_calls(1)
        if node and interview.redis is not None:
            await eventually(lambda place=node: any(len(queue) == place for _, queue in interview.locks().values()))
        else:
            await interview.settle(interview.one)
        asking.append(client)
    other = await clients(1)
    await other.send(kind("extraction", "X-Name: other interview", session("i5")))
    await upstream.wait_calls(2)
    assert order == ["upload", "other interview"]
    for number, gate in enumerate(gates[:2] + gates[2:4]):
        await upstream.wait_calls(number + 1)
        gate.set()
    assert [(await client.finish()).status for client in (*asking, other)] == [200] * 4
    assert order == ["upload", "other interview", "second", "third"]


async def test_extraction_is_finished_for_a_client_that_gave_up(interview: Site, upstream: ScriptedUpstream) -> None:
    """Expensive: its retry joins it, or has it replayed all week."""
    gate = asyncio.Event()
    upstream.play([gate, JOB])
    asked = kind("extraction", session("i6"))
    async with connect(interview.one.port) as leaver:
        await leaver.send(asked)
        await upstream.wait_calls(1)
    await interview.settle(interview.one)
    async with connect(interview.other.port) as retry:
        await retry.send(asked)
        await interview.settle(interview.other)
        gate.set()
        assert (await retry.finish()).status == 200
    assert upstream.requests[0].left is None
    await interview.over(interview.one)
    assert 7 * DAY_S - 10 <= ttl(await ask(interview.one.port, asked)) <= 7 * DAY_S
    assert upstream.calls == 1


async def test_extraction_gives_way_to_the_next_job_of_its_interview(
    interview: Site, upstream: ScriptedUpstream
) -> None:
    """Somebody wants something else of the same interview: what nobody listens to is ended, and nothing waits 20 minutes."""
    never = asyncio.Event()
    upstream.play([never, JOB], JOB)
    async with connect(interview.one.port) as leaver:
        await leaver.send(kind("extraction", session("i7")))
        await upstream.wait_calls(1)
    began = time.monotonic()
    assert (await ask(interview.other.port, kind("extraction", session("i7")))).status == 200
    assert lasted(began) < SOON_S
    await upstream.wait_until(lambda: upstream.requests[0].left is not None)


async def test_extraction_keeps_no_cut_data(interview: Site, upstream: ScriptedUpstream) -> None:
    upstream.play(json_answer(completion_object("half", "length")), JOB)
    asked = kind("extraction")
    assert (await ask(interview.one.port, asked)).status == 200
    assert (await ask(interview.other.port, asked)).role == "owner"
    assert (await ask(interview.one.port, asked)).role == "replay"


# ── demeanor ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_demeanor_takes_no_memory(interview: Site, upstream: ScriptedUpstream) -> None:
    """Its retry is answered by the backend, for five seconds; a window's stamp does not make it another question."""
    upstream.play(JOB)
    body = fresh(stream=False)
    for stamp, role in ((1, "owner"), (2, "replay"), (3, "replay")):
        metadata = {"window": "17", "window_sent_at": stamp}
        for node in interview.nodes if role == "replay" else interview.nodes[:1]:
            answer = await ask(node.port, kind("demeanor", body=body, metadata=metadata))
            assert answer.role == role
            if role == "replay":
                assert ttl(answer) <= 5
    another = {"window": "18", "window_sent_at": 1}
    assert (await ask(interview.other.port, kind("demeanor", body=body, metadata=another))).role == "owner"
    for node in interview.nodes:
        assert node.metric("soloflight_local_bytes", stage="demeanor") == 0
    await asyncio.sleep(5.1)  # the file's own time is what is tested
    metadata = {"window": "17", "window_sent_at": 4}
    assert (await ask(interview.other.port, kind("demeanor", body=body, metadata=metadata))).role == "owner"


async def test_demeanor_keeps_no_large_answer(interview: Site, upstream: ScriptedUpstream) -> None:
    large = json_answer(completion_object("x" * (1 << 20)))
    upstream.play(large)
    asked = kind("demeanor")
    for call, node in enumerate((interview.one, interview.other)):
        answer = await ask(node.port, asked)
        assert answer.complete
        assert len(answer.body) > 1 << 20
        assert upstream.calls == call + 1
    await eventually(
        lambda: (
            sum(n.metric("soloflight_not_kept_total", stage="demeanor", reason="too_large") for n in interview.nodes)
            == 2
        )
    )


# ── the operator's view ─────────────────────────────────────────────────────────────────────────────────────────────


async def test_api_stages_tells_them_apart(interview: Site) -> None:
    for node in interview.nodes:
        told = {stage["name"]: stage["rules"] for stage in node.api("/api/stages")["stages"]}
        assert list(told) == [*STAGES, "default"]
        assert [told[stage]["session"] for stage in STAGES] == ["off", "off", "queue", "off"]
        assert [told[stage]["max_upstream"] for stage in STAGES] == [0, 50, 0, 0]
        assert [told[stage]["local_retention_s"] for stage in STAGES] == [600, 15, 30, 0]
        assert [told[stage]["sampled_retention_s"] for stage in STAGES] == [600, 15, 7 * DAY_S, 5]


def purge(node: Proxy, stage: str) -> None:
    """Have a stage's answers forgotten, on every node."""
    wish = json.dumps({"stage": stage}).encode()
    post = urllib.request.Request(f"{node.admin}/api/purge", data=wish, method="POST")
    with urllib.request.urlopen(post, timeout=5) as answer:
        assert answer.status == 200


async def test_one_stage_is_purged_and_no_other(interview: Site, upstream: ScriptedUpstream) -> None:
    upstream.play(JOB)
    body = fresh(stream=False)
    for stage in STAGES:
        await ask(interview.one.port, kind(stage, body=body))
        await ask(interview.other.port, kind(stage, body=body))
    purge(interview.one, "evaluation")
    await interview.settle(interview.other)
    only = "Cache-Control: only-if-cached"
    for node in interview.nodes:
        assert refused(await ask(node.port, kind("evaluation", only, body=body))) == (504, "not_cached")
        for stage in STAGES[1:]:
            assert (await ask(node.port, kind(stage, only, body=body))).role == "replay"
