"""What a client may ask of its own request, on every route, in any spelling; and what it may not (contract section 4)."""

import asyncio
import json
from typing import Any

import pytest

from governance.jobs import JOB, LONE, SHARED, job
from harness.client import ask, chat, connect, fresh, request
from harness.refusals import refused
from harness.site import Site
from harness.wire import Response
from soloflight.testing.chat import completion_object
from soloflight.testing.received import Received
from soloflight.testing.script import Script
from soloflight.testing.script import json as json_answer
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

NOT_CACHED = (504, "not_cached")
BAD = (400, "bad_request")

SPELLINGS = {
    "no-store": ["no-store", "NO-STORE", "x=1 ,\tNo-Store", 'foo="no-cache, x", no-store , max-age=60', "no-store=1"],
    "no-cache": ["no-cache", "No-Cache", "max-age=0", "MAX-AGE = 0", 'foo, max-age="0" , bar', "max-age=60, max-age=0"],
    "only-if-cached": ["only-if-cached", "Only-If-Cached", ",, only-if-cached ,", "max-age=60,only-if-cached"],
    "max-age": ["max-age=60", "Max-Age=60 , x", 'max-age="60"', "max-age=99999999999999999999"],
}


def numbered(received: Received) -> Script:
    return json_answer({**completion_object(), "call": received.number})


def seen(answer: Response) -> tuple[str | None, int]:
    """(role, the upstream call that made it)."""
    assert answer.status == 200, answer.body
    return answer.role, json.loads(answer.body)["call"]


def speech() -> bytes:
    """A multipart form, as for a transcription."""
    text = fresh()["messages"][0]["content"]
    return f'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n{text}\r\n--b--\r\n'.encode()


def form(*fields: str, body: bytes) -> bytes:
    common = ("Content-Type: multipart/form-data; boundary=b", "Authorization: Bearer k1")
    return request("POST", "/v1/audio/transcriptions", *common, *fields, body=body)


def asking(route: str) -> Any:
    """A function that makes one request of its own, with fields, again and again."""
    body = fresh(stream=False)
    if route == "GET models":
        target = f"/v1/models?{body['messages'][0]['content'].replace(' ', '+')}"
        return lambda *fields: request("GET", target, "Authorization: Bearer k1", *fields)
    if route == "form":
        sent = speech()
        return lambda *fields: form(*fields, body=sent)
    return lambda *fields: chat(body, *fields, target=route)


SHAREABLE = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/moderations",
    "/v1/rerank",
    "GET models",
    "form",
]
every_route = pytest.mark.parametrize("route", SHAREABLE)


@every_route
async def test_every_wish_in_any_spelling(route: str, site: Site, upstream: ScriptedUpstream) -> None:
    """One request, kept at first: each wish does what it says, and leaves the kept answer as it should be."""

    def answer(received: Received) -> Script:
        status = {"status": "completed", "output": [], "data": [], "choices": [{"index": 0, "finish_reason": "stop"}]}
        return json_answer({**status, "call": received.number})

    upstream.play(answer)
    make, kept = asking(route), 1

    async def wish(node: int, *values: str) -> Response:
        return await ask(site.nodes[node % len(site.nodes)].port, make(*(f"Cache-Control: {v}" for v in values)))

    for spelling in SPELLINGS["only-if-cached"]:
        assert refused(await wish(0, spelling)) == NOT_CACHED, spelling
    assert upstream.calls == 0
    assert seen(await wish(0)) == ("owner", kept)
    for node in range(len(site.nodes)):
        for spelling in SPELLINGS["only-if-cached"] + SPELLINGS["max-age"]:
            assert seen(await wish(node, spelling)) == ("replay", kept), spelling
    for number, spelling in enumerate(SPELLINGS["no-store"]):
        answered = await wish(number, spelling)
        assert seen(answered) == ("bypass", upstream.calls), spelling
        assert answered.get("Cache-Status") == "soloflight; fwd=bypass; detail=no-store"
        assert seen(await wish(number + 1)) == ("replay", kept), "it is not kept"
    for number, spelling in enumerate(SPELLINGS["no-cache"]):
        answered = await wish(number, *spelling.split(", ") if number % 2 else [spelling])
        assert seen(answered) == ("owner", upstream.calls), spelling
        assert answered.get("Cache-Status") == "soloflight; fwd=request"
        kept = upstream.calls
        for node in range(len(site.nodes)):
            assert seen(await wish(node)) == ("replay", kept), "every node serves the new one"
    calls = upstream.calls
    for contradiction in ("no-store, only-if-cached", "no-cache, only-if-cached, max-age=60"):
        assert refused(await wish(0, contradiction)) == NOT_CACHED
    assert upstream.calls == calls


async def test_only_if_cached_and_fresh_is_refused_or_joins(site: Site, upstream: ScriptedUpstream) -> None:
    """Together they say: what is under way, or nothing."""
    gate = asyncio.Event()
    upstream.play(JOB, [gate, JOB])
    body, both = fresh(stream=False), "Cache-Control: only-if-cached, no-cache"
    assert (await ask(site.one.port, job("", body=body))).role == "owner"
    assert refused(await ask(site.other.port, job("", None, both, body=body))) == NOT_CACHED
    async with connect(site.one.port) as refresher, connect(site.other.port) as second:
        await refresher.send(job("", None, "Cache-Control: no-cache", body=body))
        await upstream.wait_calls(2)
        await second.send(job("", None, both, body=body))
        await site.settle(site.other)
        gate.set()
        assert [(await client.finish()).role for client in (refresher, second)] == ["owner", "follower"]


async def test_only_if_cached_joins_what_runs(site: Site, upstream: ScriptedUpstream) -> None:
    gate = asyncio.Event()
    upstream.play([gate, JOB])
    body = fresh(stream=False)
    async with connect(site.one.port) as first, connect(site.other.port) as second:
        await first.send(job("", body=body))
        await upstream.wait_calls(1)
        await second.send(job("", None, "Cache-Control: only-if-cached", body=body))
        await site.settle(site.other)
        gate.set()
        assert [(await client.finish()).role for client in (first, second)] == ["owner", "follower"]
    assert upstream.calls == 1


LONE_REQUESTS = {
    "unknown path": chat(fresh(stream=False), target=LONE),
    "unknown method": request("DELETE", "/v1/files/f", "Authorization: Bearer k1"),
    "GET": request("GET", "/v1/files", "Authorization: Bearer k1"),
    "conditional": chat(fresh(stream=False), 'If-None-Match: "a"'),
    "unknown coding": chat(fresh(stream=False), "Content-Encoding: x-own"),
    "a stage that shares nothing": chat(fresh(stream=False), "X-Soloflight-Stage: nothing"),
}


def with_field(raw: bytes, field: str) -> bytes:
    """The request with one more field."""
    line, _, rest = raw.partition(b"\r\n")
    return line + b"\r\n" + field.encode("latin-1") + b"\r\n" + rest


@pytest.mark.parametrize("name", LONE_REQUESTS)
async def test_wishes_where_nothing_is_shared(name: str, site: Site, upstream: ScriptedUpstream) -> None:
    """There is nothing to be replayed: only-if-cached is refused, and makes no call; the others change nothing."""
    upstream.play(JOB)
    raw = LONE_REQUESTS[name]
    for spelling in SPELLINGS["only-if-cached"]:
        assert refused(await ask(site.one.port, with_field(raw, f"cache-CONTROL: {spelling}"))) == NOT_CACHED
    assert upstream.calls == 0
    for kind in ("no-store", "no-cache", "max-age"):
        for spelling in SPELLINGS[kind]:
            answer = await ask(site.one.port, with_field(raw, f"Cache-Control: {spelling}"))
            assert (answer.status, answer.role) == (200, "bypass")
    passed_on = [received.field(b"cache-control").decode() for received in upstream.requests]
    assert passed_on == [spelling for kind in ("no-store", "no-cache", "max-age") for spelling in SPELLINGS[kind]]


async def test_a_stage_that_honours_no_wish(site: Site, upstream: ScriptedUpstream) -> None:
    upstream.play(numbered)
    body = fresh(stream=False)
    wishes = [spelling for kind in SPELLINGS.values() for spelling in kind]
    first = await ask(site.one.port, job("firm", None, "Cache-Control: only-if-cached", body=body))
    assert seen(first) == ("owner", 1)
    for number, wish in enumerate(wishes):
        node = site.nodes[number % len(site.nodes)]
        assert seen(await ask(node.port, job("firm", None, f"Cache-Control: {wish}", body=body))) == ("replay", 1), wish
        lone = await ask(node.port, job("firm", None, f"Cache-Control: {wish}", target=LONE))
        assert (lone.status, lone.role) == (200, "bypass")


# ── bad input ───────────────────────────────────────────────────────────────────────────────────────────────────────

MALFORMED = {
    "max-age without a number": "Cache-Control: max-age",
    "max-age empty": "Cache-Control: max-age=",
    "max-age negative": "Cache-Control: max-age=-1",
    "max-age a fraction": "Cache-Control: max-age=1.5",
    "max-age a word": "Cache-Control: no-store, max-age=soon",
    "max-age in other digits": "Cache-Control: max-age=\xb2",
    "an unknown stage": "X-Soloflight-Stage: nowhere",
    "another case": "X-Soloflight-Stage: Reject",
    "a stage that is not selectable": "X-Soloflight-Stage: hidden",
    "an empty stage": "X-Soloflight-Stage:",
    "an over-long stage": "X-Soloflight-Stage: " + "s" * 65,
    "a stage in other letters": "X-Soloflight-Stage: \xe9",
    "an empty session": "X-Soloflight-Session: ",
    "an over-long session": "X-Soloflight-Session: " + "s" * 513,
    "an empty key": "Idempotency-Key:",
    "an over-long key": "Idempotency-Key: " + "k" * 513,
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_a_malformed_wish_reaches_no_upstream(name: str, site: Site, upstream: ScriptedUpstream) -> None:
    upstream.play(JOB)
    for raw in (chat(fresh(stream=False)), *LONE_REQUESTS.values(), asking("GET models")(), asking("form")()):
        plain = raw.replace(b"X-Soloflight-Stage: nothing\r\n", b"")
        assert refused(await ask(site.one.port, with_field(plain, MALFORMED[name]))) == BAD
    assert upstream.calls == 0


@pytest.mark.parametrize("field", ["X-Soloflight-Stage: firm", "X-Soloflight-Session: s", "Idempotency-Key: k"])
async def test_a_wish_given_twice(field: str, site: Site, upstream: ScriptedUpstream) -> None:
    for target in (SHARED, LONE):
        assert refused(await ask(site.one.port, chat(fresh(stream=False), field, field, target=target))) == BAD
    assert upstream.calls == 0


async def test_what_is_not_asked_of_us_goes_on(site: Site, upstream: ScriptedUpstream) -> None:
    """Directives for others, also malformed ones, are none of ours; our own fields stop here."""
    upstream.play(JOB)
    odd = 'Cache-Control: min-fresh=x, max-stale, s-maxage=, private="a, b", =, ==,;'
    for target in (SHARED, LONE):
        raw = chat(fresh(stream=False), odd, "x-SOLOFLIGHT-stage: firm", "X-Soloflight-Unknown: x", target=target)
        assert (await ask(site.one.port, raw)).status == 200
    for received in upstream.requests:
        assert received.field(b"cache-control").decode() == odd.partition(": ")[2]
        assert not [name for name, _ in received.fields if b"soloflight" in name.lower()]
