"""How long an answer is kept, and for whom: by its class, by the stage's rules, and by what stands behind the request."""

import asyncio
from typing import Any

import pytest

from governance.jobs import JOB, job
from harness.client import ask, chat, connect, fresh
from harness.site import Site
from harness.wire import Response
from soloflight.testing.chat import completion_object
from soloflight.testing.script import json as json_answer
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

SAMPLED_S, OTHER_S, NAMED_S = 3, 60, 90
"""The retentions of the stage "times"."""
KEY = "Idempotency-Key"
RETRY = "x-stainless-retry-count"

SAMPLED: dict[str, dict[str, Any]] = {
    "no temperature": {"temperature": None},
    "a temperature": {"temperature": 0.7},
    "a seed that is null": {"temperature": 1, "seed": None},
}
PLAIN: dict[str, dict[str, Any]] = {
    "temperature 0": {"temperature": 0},
    "temperature 0.0": {"temperature": 0.0},
    "a seed": {"temperature": 1, "seed": 7},
}


def body_of(members: dict[str, Any]) -> dict[str, Any]:
    body = fresh(stream=False)
    body.pop("temperature")
    return {**body, **{name: value for name, value in members.items() if (name, value) != ("temperature", None)}}


def ttl(answer: Response) -> int:
    """How much longer a replay says that it is to be had."""
    mark = answer.get("Cache-Status") or ""
    assert mark.startswith("soloflight; hit; ttl="), mark
    return int(mark.rpartition("=")[2])


def unused() -> str:
    return f"{KEY}: {fresh()['messages'][0]['content']}"


@pytest.mark.parametrize(
    ("members", "named", "kept_s"),
    [
        *((members, False, SAMPLED_S) for members in SAMPLED.values()),
        *((members, False, OTHER_S) for members in PLAIN.values()),
        *((members, True, NAMED_S) for members in (SAMPLED["a temperature"], PLAIN["temperature 0"])),
    ],
    ids=[*SAMPLED, *PLAIN, "sampled with a key", "temperature 0 with a key"],
)
async def test_by_class(
    members: dict[str, Any], named: bool, kept_s: int, site: Site, upstream: ScriptedUpstream
) -> None:
    upstream.play(JOB)
    raw = job("times", None, *([unused()] if named else []), body=body_of(members))
    await ask(site.one.port, raw)
    for node in site.nodes:
        assert kept_s - SAMPLED_S <= ttl(await ask(node.port, raw)) <= kept_s
    assert upstream.calls == 1


async def test_a_sampled_answer_is_new_after_its_time(site: Site, upstream: ScriptedUpstream) -> None:
    """On every node, L1 or not: "regenerate" is new, a retry is not."""
    upstream.play(JOB)
    raws = [job(stage, body=body_of(SAMPLED["a temperature"])) for stage in ("times", "times")]
    for raw in raws:
        for node in site.nodes:
            await ask(node.port, raw)
    assert upstream.calls == 2
    await asyncio.sleep(SAMPLED_S + 0.1)  # the passing of time is what is tested
    for raw, node in zip(raws, (site.one, site.other), strict=True):
        assert (await ask(node.port, raw)).role == "owner"
    assert upstream.calls == 4


async def test_an_api_that_does_not_sample(site: Site, upstream: ScriptedUpstream) -> None:
    upstream.play(json_answer({"object": "list", "data": [{"index": 0, "embedding": [0.5]}]}))
    raw = job("times", body={"model": "m", "input": fresh()["messages"][0]["content"]}, target="/v1/embeddings")
    await ask(site.one.port, raw)
    assert ttl(await ask(site.other.port, raw)) > SAMPLED_S


# ── share = "deterministic" ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("members", "named", "joins"),
    [
        *((members, False, False) for members in SAMPLED.values()),
        *((members, False, True) for members in PLAIN.values()),
        (SAMPLED["a temperature"], True, True),
    ],
    ids=[*SAMPLED, *PLAIN, "sampled with a key"],
)
async def test_who_joins_where_only_equal_answers_are_shared(
    members: dict[str, Any], named: bool, joins: bool, site: Site, upstream: ScriptedUpstream
) -> None:
    gate = asyncio.Event()
    upstream.play([gate, JOB])
    raw = job("deterministic", None, *([unused()] if named else []), body=body_of(members))
    async with connect(site.one.port) as first, connect(site.one.port) as second, connect(site.other.port) as third:
        for client in (first, second, third):
            await client.send(raw)
            if client is first:
                await upstream.wait_calls(1)
        for node in site.nodes:
            await site.settle(node)
        gate.set()
        answers = [await client.finish() for client in (first, second, third)]
    if joins:
        assert [answer.role for answer in answers] == ["owner", "follower", "follower"]
        assert upstream.calls == 1
    else:
        assert [answer.role for answer in answers] == ["owner", "bypass", "bypass"]
        assert answers[1].get("Cache-Status") == "soloflight; fwd=bypass; detail=busy"
        assert upstream.calls == 3
    assert (await ask(site.other.port, raw)).role == "replay", "what it keeps is another rule"


# ── replay = "retries" ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("fields", "replays"),
    [
        ([], False),
        ([f"{RETRY}: 0"], False),
        ([f"{RETRY}: 1"], True),
        (["X-Stainless-Retry-Count: 12"], True),
        ([f"{RETRY}: -1"], False),
        ([f"{RETRY}: one"], False),
        ([f"{RETRY}:"], False),
        ([f"{RETRY}: 00"], False),
        ([f"{RETRY}: 01"], True),
    ],
    ids=lambda value: " ".join(value).rpartition(": ")[2] or "none" if isinstance(value, list) else str(value),
)
async def test_who_is_a_retry(fields: list[str], replays: bool, site: Site, upstream: ScriptedUpstream) -> None:
    upstream.play(JOB)
    body = fresh(stream=False)
    await ask(site.one.port, job("retries", body=body))
    for node in site.nodes:
        again = await ask(node.port, job("retries", None, *fields, body=body))
        assert again.role == ("replay" if replays else "owner")
    assert upstream.calls == (1 if replays else 1 + len(site.nodes))


async def test_a_retry_of_the_answer_that_came_last(site: Site, upstream: ScriptedUpstream) -> None:
    """A plain request made a new answer: it is the one that a retry gets."""
    upstream.play(lambda received: json_answer(completion_object(f"call {received.number}")))
    body = fresh(stream=False)
    for node in (site.one, site.other, site.one):
        last = await ask(node.port, job("retries", body=body))
        assert last.role == "owner"
    for node in site.nodes:
        retried = await ask(node.port, job("retries", None, f"{RETRY}: 1", body=body))
        assert (retried.role, retried.body) == ("replay", last.body)


# ── requests with state behind them ─────────────────────────────────────────────────────────────────────────────────

DONE_RESPONSE = json_answer({"object": "response", "status": "completed", "output": []})
QUEUED_RESPONSE = json_answer({"object": "response", "status": "queued", "output": []})
STATEFUL = {"conversation": {"conversation": "conv_1"}, "background": {"background": True}}
STATELESS = {
    "a stored response": {"previous_response_id": "resp_1"},
    "no conversation": {"conversation": None},
    "background false": {"background": False},
}


def respond(members: dict[str, Any], *fields: str) -> bytes:
    return chat({"model": "m", "temperature": 0, **members}, *fields, target="/v1/responses")


def asked() -> dict[str, Any]:
    return {"input": fresh()["messages"][0]["content"]}


@pytest.mark.parametrize("members", STATEFUL.values(), ids=STATEFUL)
async def test_with_state_it_joins_and_is_replayed_to_retries_only(
    members: dict[str, Any], site: Site, upstream: ScriptedUpstream
) -> None:
    gate = asyncio.Event()
    upstream.play([gate, DONE_RESPONSE], DONE_RESPONSE)
    body = {**members, **asked()}
    async with connect(site.one.port) as first, connect(site.other.port) as second:
        await first.send(respond(body))
        await upstream.wait_calls(1)
        await second.send(respond(body))
        await site.settle(site.other)
        gate.set()
        assert [(await client.finish()).role for client in (first, second)] == ["owner", "follower"]
    for node in site.nodes:
        assert (await ask(node.port, respond(body, f"{RETRY}: 1"))).role == "replay"
    assert upstream.calls == 1
    for number, node in enumerate(site.nodes):
        assert (await ask(node.port, respond(body))).role == "owner"
        assert upstream.calls == number + 2
    named = unused()
    assert (await ask(site.one.port, respond(body, named))).role == "owner"
    assert (await ask(site.other.port, respond(body, named))).role == "replay"


@pytest.mark.parametrize("members", STATELESS.values(), ids=STATELESS)
async def test_what_is_no_state(members: dict[str, Any], site: Site, upstream: ScriptedUpstream) -> None:
    upstream.play(DONE_RESPONSE)
    body = {**members, **asked()}
    roles = [(await ask(node.port, respond(body))).role for node in (site.one, site.other)]
    assert roles == ["owner", "replay"]


async def test_work_that_is_only_queued_is_never_kept(site: Site, upstream: ScriptedUpstream) -> None:
    upstream.play(QUEUED_RESPONSE)
    body = {"background": True, **asked()}
    for number, node in enumerate((site.one, site.other)):
        assert (await ask(node.port, respond(body, f"{RETRY}: 1"))).role == "owner"
        assert upstream.calls == number + 1
