"""C30: field boundaries in the hash, type tags, short hashes, path and query.

Source: angular/angular#69780, erpc/erpc#1034 and #1098, arthurfiorette/axios-cache-interceptor#795,
mikehostetler/amplify#77.
Right: an injective encoding under a strong hash: nothing that moves from one part of a request into another gives the
same key.
"""

import asyncio
import random
from contextlib import AsyncExitStack

import pytest

from bodies.json_texts import Model, Number, canonical
from bodies.keys import key
from harness.client import connect, request, settle
from harness.proxy import Proxy
from soloflight.testing.script import json as json_answer
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

WIDE = {"paths": ["/v1/a*"], "methods": ["POST", "PUT"]}
TENANTS = {"paths": ["/t/*"], "methods": ["POST"]}
PROXY = {
    "stage": [
        {"name": "wide", "match": WIDE},
        {"name": "tenants", "match": TENANTS, "scope": "header:X-Tenant"},
        {"name": "header", "match": {"paths": ["/h/*"], "methods": ["POST"]}, "key_headers": ["X-One", "X-Two"]},
    ]
}
JSON = "Content-Type: application/json"
TEXT = "Content-Type: text/plain"
KEY = "Authorization: Bearer k1"
CHAT, LEGACY = "/v1/chat/completions", "/v1/completions"
AZURE = "/openai/deployments/{}/chat/completions?api-version={}"


def post(target: str, body: str, *fields: str, method: str = "POST") -> bytes:
    return request(method, target, KEY, *(fields or (JSON,)), body=body.encode())


def prompt(value: str) -> bytes:
    return post(LEGACY, f'{{"prompt":{value}}}')


GROUPS = {
    "path and body": [post("/v1/a", "b|c", TEXT), post("/v1/a|b", "c", TEXT), post("/v1/ab", "|c", TEXT)],
    "nesting": [
        prompt('[["A","B"]]'),
        prompt('["A","B"]'),
        prompt('["A,B"]'),
        prompt('"A,B"'),
        prompt('[["A"],["B"]]'),
    ],
    "types": [
        prompt(value) for value in ('"1"', "1", "true", '"true"', "null", '"null"', '""', "[]", "{}", "0", "false")
    ],
    "close numbers": [prompt("25"), prompt("25.0000001")],
    "tenant and key": [
        post("/t/x", "{}", JSON, "X-Tenant: t1:x", "Idempotency-Key: y"),
        post("/t/x", "{}", JSON, "X-Tenant: t1", "Idempotency-Key: x:y"),
        post("/t/x", "{}", JSON, "X-Tenant: t1:x:y"),
    ],
    "a separator in a field": [
        post(CHAT, "{}", JSON, "OpenAI-Organization: a|b", "OpenAI-Project: c"),
        post(CHAT, "{}", JSON, "OpenAI-Organization: a", "OpenAI-Project: b|c"),
        post(CHAT, "{}", JSON, "OpenAI-Organization: a|b|c"),
        post(CHAT, "{}", JSON, "OpenAI-Project: a|b|c"),
        post(CHAT, "{}", JSON, "OpenAI-Organization: a", "OpenAI-Organization: b"),
        post(CHAT, "{}", JSON, "OpenAI-Organization: a, b"),
        post(CHAT, "{}", JSON, "OpenAI-Organization: a", "OpenAI-Project: c"),
        post(CHAT, "{}", JSON, *(f"OpenAI-Organization: {value}" for value in ("a", "openai-project", "c"))),
        post(CHAT, "{}", JSON, "OpenAI-Organization:"),
        post(CHAT, "{}"),
    ],
    "fields of the stage": [
        post("/h/x", "{}", JSON, "X-One: a", "X-Two: b"),
        post("/h/x", "{}", JSON, "X-One: b", "X-Two: a"),
        post("/h/x", "{}", JSON, "X-One: ab"),
        post("/h/x", "{}", JSON, "X-Two: ab"),
    ],
    "query": [
        post(f"{CHAT}{query}", '{"n":3}') for query in ("?a=1&b=2", "?a=2&b=1", "?b=2&a=1", "?a=1&b=2&", "?", "")
    ],
    "deployments": [
        post(AZURE.format(deployment, version), '{"n":1}')
        for deployment, version in (("d1", "2024-06-01"), ("d2", "2024-06-01"), ("d1", "2024-10-21"))
    ],
    "routes": [post(CHAT, '{"n":2}'), post(LEGACY, '{"n":2}'), post("/v2/chat/completions", '{"n":2}')],
    "methods": [post("/v1/a", "{}"), post("/v1/a", "{}", method="PUT")],
}


@pytest.mark.parametrize("group", GROUPS)
async def test_pairwise_different_keys(group: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    requests = GROUPS[group]
    gate = asyncio.Event()
    upstream.play([gate, json_answer({})])
    async with AsyncExitStack() as stack:
        for_each_twice = [
            (await stack.enter_async_context(connect(proxy.port)), await stack.enter_async_context(connect(proxy.port)))
            for _ in requests
        ]
        for number, ((first, second), data) in enumerate(zip(for_each_twice, requests, strict=True)):
            await first.send(data)
            await upstream.wait_calls(number + 1)
            await second.send(data)
        await settle(proxy.port)
        gate.set()
        pairs = [(await first.finish(), await second.finish()) for first, second in for_each_twice]
    assert [(first.role, second.role) for first, second in pairs] == [("owner", "follower")] * len(requests)
    flights = [{answer.get("X-Soloflight-Flight") for answer in pair} for pair in pairs]
    assert [len(ids) for ids in flights] == [1] * len(requests)
    assert len(set.union(*flights)) == len(requests)
    assert upstream.calls == len(requests)


def structure(chance: random.Random, depth: int = 3) -> Model:
    """A small structure over few atoms, so that many are near to each other."""
    kind = chance.randrange(8 if depth else 5)
    if kind == 0:
        return chance.choice([None, True, False])
    if kind == 1:
        return Number(chance.choice(["0", "1", "1.0", "10", "-0", "1e1", "9007199254740993", "9007199254740992"]))
    if kind < 5:
        return "".join(chance.choice('ab,:"[]{}1\\') for _ in range(chance.randrange(4)))
    if kind == 5:
        names = {"".join(chance.choice("ab,:") for _ in range(chance.randrange(3))) for _ in range(chance.randrange(4))}
        return {name: structure(chance, depth - 1) for name in names}
    return [structure(chance, depth - 1) for _ in range(chance.randrange(4))]


def test_random_structures_have_different_keys() -> None:
    """Any two of 20,000 different structures: 2 x 10^8 pairs."""
    chance = random.Random(30)
    key_of: dict[str, str] = {}
    while len(key_of) < 20_000:
        text = canonical(structure(chance))
        if text not in key_of:
            key_of[text] = key(text.encode()).text
    assert len(set(key_of.values())) == len(key_of), "two values have one key"
    assert all(len(digits) * 4 >= 160 for digits in key_of.values())
