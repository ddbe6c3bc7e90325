"""C35: two credentials, the same body.

Source: BerriAI/litellm#29955, theopenco/llmgateway#3758 (GHSA-h9ww-f95j-h54c), wso2/api-platform#733,
promptfoo/promptfoo#7014.
Right: never shared across credentials, in flight or kept, in whichever field they come, byte for byte; a key that the
upstream refuses gets its 401. A scope that clients name is not believed; groups share only by the operator's setting. No
key can be read back from what is stored or logged.
"""

import asyncio
import hashlib
import json
from base64 import b64encode
from contextlib import AsyncExitStack

import pytest

from bodies.keys import BODY0, key
from harness.client import ask, connect, fresh, request
from harness.fixtures import StartProxy, all_ready
from harness.proxy import Proxy
from harness.redis import RedisServer
from soloflight.core.fingerprint import scope_digest
from soloflight.testing.received import Received
from soloflight.testing.script import Script
from soloflight.testing.script import json as json_answer
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

K1, K2 = "sk-first-0123456789", "sk-second-987654321"
PROXY = {
    "server": {"trusted_proxies": ["10.0.0.0/8"]},
    "stage": [
        {"name": "together", "match": {"paths": ["/together/*"]}, "scope": "everyone"},
        {"name": "tenant", "match": {"paths": ["/tenant/*"]}, "scope": "header:X-Tenant"},
    ],
}
CREDENTIALS = [
    [f"Authorization: Bearer {K1}"],
    [f"Authorization: Bearer {K2}"],
    [f"Authorization: Bearer  {K1}"],
    [f"Authorization: bearer {K1}"],
    [f"api-key: {K1}"],
    [f"x-api-key: {K1}"],
    [f"x-api-key: {K2}"],
    [f"Authorization: Bearer {K1}", f"api-key: {K1}"],
    [f"x-goog-api-key: {K1}"],
    [f"Cookie: session={K1}"],
    [f"X-Customer-Token: {K1}"],
    [],
]


def post(body: dict[str, object], *fields: str, target: str = "/v1/chat/completions") -> bytes:
    return request("POST", target, "Content-Type: application/json", *fields, body=json.dumps(body).encode())


def secret_of(received: Received) -> Script:
    """An answer that only the holder of these credentials may read."""
    words = [b"auth", b"key", b"cookie", b"token"]
    held = [field for field in received.fields if any(word in field[0].lower() for word in words)]
    digest = hashlib.sha256(repr(held).encode()).hexdigest()
    return json_answer({"for": digest, "call": received.number})


async def test_in_flight(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    gate = asyncio.Event()
    upstream.play(lambda received: [gate, secret_of(received)])
    body = fresh(stream=False)
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connect(proxy.port)) for _ in CREDENTIALS]
        for number, (client, fields) in enumerate(zip(clients, CREDENTIALS, strict=True)):
            await client.send(post(body, *fields))
            await upstream.wait_calls(number + 1)
        gate.set()
        answers = await asyncio.gather(*(client.finish() for client in clients))
    assert [answer.role for answer in answers] == ["owner"] * len(CREDENTIALS)
    assert len({answer.body for answer in answers}) == len({answer.get("X-Soloflight-Flight") for answer in answers})
    assert upstream.calls == len({answer.body for answer in answers}) == len(CREDENTIALS)


async def test_in_sequence(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(secret_of)
    body = fresh(stream=False)
    firsts = [await ask(proxy.port, post(body, *fields)) for fields in CREDENTIALS]
    seconds = [await ask(proxy.port, post(body, *fields)) for fields in CREDENTIALS]
    assert [answer.role for answer in firsts] == ["owner"] * len(CREDENTIALS)
    assert [answer.role for answer in seconds] == ["replay"] * len(CREDENTIALS)
    assert [answer.body for answer in firsts] == [answer.body for answer in seconds]
    assert len({answer.body for answer in firsts}) == upstream.calls == len(CREDENTIALS)


async def test_a_refused_key_gets_its_401(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    def known_only(received: Received) -> Script:
        if K2.encode() in received.field(b"authorization"):
            return json_answer({"error": {"message": "Incorrect API key"}}, status=401)
        return secret_of(received)

    upstream.play(known_only)
    body = fresh(stream=False)
    roles = [(await ask(proxy.port, post(body, *CREDENTIALS[0]))).role for _ in range(2)]
    assert roles == ["owner", "replay"]
    for call in (2, 3):
        refused = await ask(proxy.port, post(body, *CREDENTIALS[1]))
        assert (refused.status, refused.role, upstream.calls) == (401, "owner", call)
    only = await ask(proxy.port, post(body, *CREDENTIALS[1], "Cache-Control: only-if-cached"))
    assert (only.status, upstream.calls) == (504, 3)


async def test_a_scope_that_the_client_names_is_not_believed(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(secret_of)
    body = fresh(stream=False)
    target = "/tenant/v1/chat/completions"
    answers = [
        await ask(proxy.port, post(body, *fields, "X-Tenant: t1", target=target))
        for fields in (CREDENTIALS[0], CREDENTIALS[1], [])
    ]
    assert [answer.role for answer in answers] == ["owner"] * 3
    assert len({answer.body for answer in answers}) == 3


async def test_a_group_shares_by_the_operators_setting_only(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(secret_of)
    body = fresh(stream=False)
    target = "/together/v1/chat/completions"
    roles = [(await ask(proxy.port, post(body, *fields, target=target))).role for fields in CREDENTIALS[:3]]
    assert (roles, upstream.calls) == (["owner", "replay", "replay"], 1)
    chosen = await ask(proxy.port, post(body, *CREDENTIALS[0], "X-Soloflight-Stage: together"))
    assert chosen.status == 400
    assert json.loads(chosen.body)["error"]["code"] == "bad_request"


def test_no_key_can_be_read_back() -> None:
    """What is stored is a key over a keyed digest: without the secret it can not even be guessed and compared."""
    fields = [(b"Authorization", f"Bearer {K1}".encode())]
    mine, theirs = (scope_digest(fields, secret * 32) for secret in (b"1", b"2"))
    assert mine != theirs
    plain = {hashlib.sha256(value).hexdigest() for value in (K1.encode(), fields[0][1])}
    stored = key(BODY0, credential=fields[0]).text
    assert stored not in plain
    assert plain.isdisjoint({mine, theirs})
    assert not any(digest.startswith(stored) for digest in plain)


@pytest.mark.redis
async def test_redis_holds_no_key(start_proxy: StartProxy, redis_server: RedisServer) -> None:
    """What two processes share through Redis, while it runs and when it is kept, tells nobody's credential."""
    gate = asyncio.Event()
    async with ScriptedUpstream(lambda received: [gate, secret_of(received)]) as upstream:
        shared = {"upstream": upstream.port, "backend": "redis", "redis_url": redis_server.url}
        first, second = all_ready(start_proxy(**shared, ready=False) for _ in range(2))
        body = fresh(stream=False)
        held = [CREDENTIALS[0], CREDENTIALS[1], [f"api-key: {K1}"], [f"x-api-key: {K2}"]]
        asking = [asyncio.create_task(ask(first.port, post(body, *fields))) for fields in held]
        await upstream.wait_calls(len(held))
        dumps = [redis_server.everything()]
        gate.set()
        owners = await asyncio.gather(*asking)
        replays = [await ask(second.port, post(body, *fields)) for fields in held]
        dumps.append(redis_server.everything())
    assert [answer.role for answer in replays] == ["replay"] * len(held)
    assert [answer.body for answer in owners] == [answer.body for answer in replays]
    assert upstream.calls == len(held)
    assert json.loads(replays[0].body)["for"].encode() in dumps[1], "the dump sees what is stored"
    for key_text in (K1, K2):
        for form in (key_text, f"Bearer {key_text}"):
            digest = hashlib.sha256(form.encode())
            for secret in (form.encode(), digest.hexdigest().encode(), digest.digest(), b64encode(form.encode())):
                assert all(secret not in dump for dump in dumps)


async def test_the_log_names_no_key(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(secret_of)
    body = fresh(stream=False)
    await ask(proxy.port, post(body, *CREDENTIALS[0], target=f"/v1/chat/completions?api_key={K2}"))
    await ask(proxy.port, post(body, f"Authorization: Bearer {K1}", "X-Soloflight-Stage: nowhere"))
    await ask(proxy.port, request("GET", "/v1/files", f"api-key: {K2}"))
    proxy.wait_log("/v1/files")
    for held in (K1, K2, hashlib.sha256(K1.encode()).hexdigest(), body["messages"][0]["content"]):
        assert held not in proxy.log
