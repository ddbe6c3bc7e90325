"""C39: opting out by `no-store`, `no-cache` and vendors' spellings.

Source: theopenco/llmgateway#3895, BerriAI/litellm#3199 and #1599, envoyproxy/envoy#47400,
diegosouzapw/OmniRoute#37.
Right: RFC 9111 section 5.2.1: after no-store nothing is kept; no-cache is not answered from what is kept. The same on
all routes and in any case and spacing; a stage may decide not to honour it.
"""

import asyncio
import json
from typing import Any

import pytest

from harness.client import ask, chat, connect, fresh, settle
from harness.proxy import Proxy
from soloflight.testing.chat import completion_object
from soloflight.testing.received import Received
from soloflight.testing.script import Script
from soloflight.testing.script import json as json_answer
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

PROXY = {"stage": [{"name": "firm", "match": {"paths": ["/firm/*"]}, "allow_client_control": False}]}
NO_STORE = ["Cache-Control: no-store", "cache-control: NO-STORE", "CACHE-CONTROL: x=1 ,\tno-store , max-age=60"]
NO_CACHE = [
    "Cache-Control: no-cache",
    "Cache-Control: max-age=0",
    "cAcHe-CoNtRoL: NO-CACHE, foo",
    'Cache-Control: foo="a", max-age="0"',
]


def chat_body() -> dict[str, Any]:
    return fresh(stream=False)


def input_body() -> dict[str, Any]:
    return {"model": "m", "input": fresh()["messages"][0]["content"]}


def messages_body() -> dict[str, Any]:
    return {**fresh(stream=False), "max_tokens": 9}


ROUTES: dict[str, tuple[Any, dict[str, Any]]] = {
    "/v1/chat/completions": (chat_body, completion_object()),
    "/v1/responses": (input_body, {"object": "response", "status": "completed", "output": []}),
    "/v1/embeddings": (input_body, {"object": "list", "data": [{"index": 0, "embedding": [0.5]}]}),
    "/v1/messages": (messages_body, {"type": "message", "role": "assistant", "content": [], "stop_reason": "end_turn"}),
}


def numbered(document: dict[str, Any]) -> Any:
    def answer(received: Received) -> Script:
        return json_answer({**document, "call": received.number})

    return answer


@pytest.mark.parametrize("wish", NO_STORE)
@pytest.mark.parametrize("route", ROUTES)
async def test_no_store_is_a_call_of_its_own(route: str, wish: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    make, document = ROUTES[route]
    upstream.play(numbered(document))
    body = make()
    seen = []
    for field in (wish, wish, None, wish, None):
        answer = await ask(proxy.port, chat(body, *([field] if field else []), target=route))
        seen.append((answer.role, json.loads(answer.body)["call"]))
        if field:
            assert answer.get("Cache-Status") == "soloflight; fwd=bypass; detail=no-store"
    assert seen == [("bypass", 1), ("bypass", 2), ("owner", 3), ("bypass", 4), ("replay", 3)]


@pytest.mark.parametrize("wish", NO_CACHE)
@pytest.mark.parametrize("route", ROUTES)
async def test_no_cache_is_not_answered_from_what_is_kept(
    route: str, wish: str, proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    make, document = ROUTES[route]
    upstream.play(numbered(document))
    body = make()
    seen = []
    for field in (None, None, wish, None, wish):
        answer = await ask(proxy.port, chat(body, *([field] if field else []), target=route))
        seen.append((answer.role, json.loads(answer.body)["call"]))
        if field:
            assert answer.get("Cache-Status") == "soloflight; fwd=request"
    assert seen == [("owner", 1), ("replay", 1), ("owner", 2), ("replay", 2), ("owner", 3)]


async def test_no_store_neither_joins_nor_is_joined(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    gate = asyncio.Event()
    upstream.play(lambda received: [gate, json_answer({**completion_object(), "call": received.number})])
    body = chat_body()
    async with connect(proxy.port) as a, connect(proxy.port) as b, connect(proxy.port) as c:
        await a.send(chat(body, NO_STORE[0]))
        await upstream.wait_calls(1)
        await b.send(chat(body))
        await upstream.wait_calls(2)
        await c.send(chat(body, NO_STORE[0]))
        await upstream.wait_calls(3)
        gate.set()
        answers = [await client.finish() for client in (a, b, c)]
    assert [answer.role for answer in answers] == ["bypass", "owner", "bypass"]
    assert [json.loads(answer.body)["call"] for answer in answers] == [1, 2, 3]


async def test_no_cache_may_join_what_runs(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    gate = asyncio.Event()
    upstream.play([gate, json_answer(completion_object())])
    body = chat_body()
    async with connect(proxy.port) as a, connect(proxy.port) as b:
        await a.send(chat(body))
        await upstream.wait_calls(1)
        await b.send(chat(body, NO_CACHE[0]))
        await settle(proxy.port)
        gate.set()
        roles = [(await client.finish()).role for client in (a, b)]
    assert (roles, upstream.calls) == (["owner", "follower"], 1)


async def test_a_failed_refresh_leaves_the_old_answer(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    gate = asyncio.Event()
    good, failed = json_answer(completion_object("old")), json_answer({"error": {"message": "no"}}, status=500)
    upstream.play(good, [gate, failed], json_answer(completion_object("new")))
    body = chat_body()
    old = await ask(proxy.port, chat(body))
    async with connect(proxy.port) as refresher:
        await refresher.send(chat(body, NO_CACHE[0]))
        await upstream.wait_calls(2)
        meanwhile = await ask(proxy.port, chat(body))
        gate.set()
        assert (await refresher.finish()).status == 500
    after = await ask(proxy.port, chat(body))
    assert [answer.role for answer in (meanwhile, after)] == ["replay", "replay"]
    assert old.body == meanwhile.body == after.body
    refreshed = await ask(proxy.port, chat(body, NO_CACHE[0]))
    assert b"new" in refreshed.body
    assert (await ask(proxy.port, chat(body))).body == refreshed.body
    assert upstream.calls == 3


async def test_how_old_it_may_be(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(numbered(completion_object()))
    body = chat_body()
    await ask(proxy.port, chat(body))
    await asyncio.sleep(1.1)  # the passing of time is what is tested
    roles = [(await ask(proxy.port, chat(body, f"Cache-Control: max-age={age}"))).role for age in (60, 1, 60)]
    assert (roles, upstream.calls) == (["replay", "owner", "replay"], 2)


@pytest.mark.parametrize("value", ["max-age=x", "max-age=-1", "max-age"])
async def test_a_malformed_wish_is_refused(value: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    answer = await ask(proxy.port, chat(chat_body(), f"Cache-Control: {value}"))
    assert answer.status == 400
    assert json.loads(answer.body)["error"]["code"] == "bad_request"
    assert upstream.calls == 0


async def test_a_stage_may_not_honour_it(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(numbered(completion_object()))
    body, target = chat_body(), "/firm/v1/chat/completions"
    roles = [
        (await ask(proxy.port, chat(body, *([wish] if wish else []), target=target))).role
        for wish in (None, NO_STORE[0], NO_CACHE[0], NO_CACHE[1])
    ]
    assert (roles, upstream.calls) == (["owner", "replay", "replay", "replay"], 1)


async def test_our_own_fields_in_any_case(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(numbered(completion_object()))
    body = chat_body()
    for number, name in enumerate(("X-Soloflight-Stage", "x-soloflight-stage", "X-SOLOFLIGHT-STAGE")):
        answer = await ask(proxy.port, chat(body, f"{name}: firm"))
        assert answer.role == ("replay" if number else "owner")
        assert (await ask(proxy.port, chat(body, f"{name}: nowhere"))).status == 400
    assert (await ask(proxy.port, chat(body))).role == "owner"  # stages never share
    assert all(b"soloflight" not in name.lower() for received in upstream.requests for name, _ in received.fields)
