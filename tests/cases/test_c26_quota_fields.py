"""C26: Retry-After, quota and request-id fields on shared and replayed answers.

Source: descope/authzcache#918, ietf-wg-httpapi/ratelimit-headers#98, Cap-go/capgo.app#2865, PostHog/posthog#82310.
Right: a 429 reaches everyone who waited, with its body and Retry-After, and is forgotten. A replay carries no stale
quota and nobody's cookie; Age and Cache-Status tell what it is. The upstream's x-request-id stays as it is.
"""

import asyncio
import json

import pytest

from harness.client import ask, chat, connect, fresh, settle
from harness.proxy import Proxy
from soloflight.testing.chat import completion_object
from soloflight.testing.script import json as json_answer
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

QUOTA = {
    "x-ratelimit-remaining-requests": "0",
    "x-ratelimit-reset-requests": "60s",
    "anthropic-ratelimit-tokens-remaining": "0",
}
PLAIN = {"x-request-id": "r1", "openai-processing-ms": "812", "Date": "Sat, 26 Sep 2026 10:00:00 GMT"}
GOOD = json_answer(
    completion_object(),
    *(f"{name}: {value}" for name, value in {**QUOTA, **PLAIN}.items()),
    "Set-Cookie: __cf_bm=secret; Path=/",
    "Retry-After: 5",
)
LIMITED = json_answer({"error": {"message": "slow down", "code": "rate_limit_exceeded"}}, "Retry-After: 7", status=429)


async def test_each_role_has_its_fields(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    gate = asyncio.Event()
    upstream.play([gate, GOOD])
    body = chat(fresh(stream=False))
    async with connect(proxy.port) as a, connect(proxy.port) as b:
        await a.send(body)
        await upstream.wait_calls(1)
        await b.send(body)
        await settle(proxy.port)
        gate.set()
        owner, follower = await a.finish(), await b.finish()

    replays = [await ask(proxy.port, body)]
    await asyncio.sleep(1.0)  # the passing of time is what is tested: Age tells it
    replays.append(await ask(proxy.port, body))
    assert int(replays[1].get("Age") or "-1") >= 1
    assert [answer.role for answer in (owner, follower, *replays)] == ["owner", "follower", "replay", "replay"]
    assert upstream.calls == 1
    for answer in (owner, follower, *replays):
        assert answer.status == 200
        for name, value in PLAIN.items():
            assert answer.all(name) == [value]
    for answer in (owner, follower):
        assert {name: answer.get(name) for name in QUOTA} == QUOTA
        assert answer.get("Age") is None
    assert owner.all("Set-Cookie") == ["__cf_bm=secret; Path=/"]
    assert follower.get("Set-Cookie") is None
    for answer in replays:
        assert answer.get("Set-Cookie") is None
        assert answer.get("Retry-After") is None
        assert [name for name, _ in answer.fields if b"ratelimit" in name.lower()] == []
        assert (answer.get("Cache-Status") or "").startswith("soloflight; hit; ttl=")
    request_ids = {answer.get("X-Soloflight-Request-Id") for answer in (owner, follower, *replays)}
    assert len(request_ids) == 4
    assert None not in request_ids


async def test_a_429_reaches_all_who_wait_and_is_forgotten(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    gate = asyncio.Event()
    upstream.play([gate, LIMITED], GOOD)
    body = chat(fresh(stream=False))
    async with connect(proxy.port) as a, connect(proxy.port) as b, connect(proxy.port) as c, connect(proxy.port) as d:
        await a.send(body)
        await upstream.wait_calls(1)
        for client in (b, c, d):
            await client.send(body)
        await settle(proxy.port)
        gate.set()
        answers = [await client.finish() for client in (a, b, c, d)]
    assert [answer.role for answer in answers] == ["owner", "follower", "follower", "follower"]
    for answer in answers:
        assert (answer.status, answer.get("Retry-After")) == (429, "7")
        assert json.loads(answer.body)["error"]["code"] == "rate_limit_exceeded"
    assert upstream.calls == 1

    stored = await ask(proxy.port, chat(json.loads(body.partition(b"\r\n\r\n")[2]), "Cache-Control: only-if-cached"))
    assert (stored.status, upstream.calls) == (504, 1)
    again = await ask(proxy.port, body)
    assert (again.status, again.role, upstream.calls) == (200, "owner", 2)
