"""C19: percent-encoding and query bytes in the upstream target.

Source: dotnet/yarp#1219 and #1419, aio-libs/aiohttp#2188 and #3424, aio-libs/yarl#509; yarl turns `%3a` into
`:` unless told not to, and `/` joins re-quote `%2F`.
Right: RFC 3986 section 2.4, RFC 9110 section 7.7: path and query go on as received, behind the configured
prefix; `%2F` and `/` are different targets and have different keys.
"""

import asyncio

import pytest

from harness.client import ask, chat, connect, fresh, request
from harness.fixtures import StartProxy
from harness.proxy import Proxy
from soloflight.testing.chat import CH, DONE, FIN
from soloflight.testing.script import json, sse
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

TARGETS = [
    "/v1/files/a%2Fb%2520c%3a;v=1?x=%2f&y=a+b%20c&z&q=%e4%bd%a0&x=2",
    "/v1/models/ft:gpt-4o:org::abc",
    "/v1//x/./y/../z/%41%7e'(*)!",
    "/v1/files?",
    "/v1/files/%zz?q=%&a=%u0041&&=",
]


@pytest.mark.parametrize("target", TARGETS)
async def test_the_target_goes_on_byte_for_byte(target: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(json({}))
    assert (await ask(proxy.port, request("GET", target))).status == 200
    assert upstream.requests[0].request_line == f"GET {target} HTTP/1.1".encode()


async def test_behind_the_configured_prefix(start_proxy: StartProxy, upstream: ScriptedUpstream) -> None:
    prefixed = start_proxy(upstream=f"{upstream.url}/api%20x")
    upstream.play(json({}))
    shared = chat(fresh(stream=False), target="/v1/chat/completions?api-version=%2f+")
    for sent in (*(request("GET", target) for target in TARGETS), shared):
        assert (await ask(prefixed.port, sent)).status == 200
    seen = [received.target for received in upstream.requests]
    assert seen == [f"/api%20x{target}" for target in (*TARGETS, "/v1/chat/completions?api-version=%2f+")]


async def test_an_escaped_slash_has_a_key_of_its_own(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    gate = asyncio.Event()
    upstream.play(sse(CH, gate, FIN, DONE))
    body = fresh()
    targets = ["/v1/a%2Fchat/completions", "/v1/a/chat/completions", "/v1/a%2fchat/completions"]
    async with connect(proxy.port) as a, connect(proxy.port) as b, connect(proxy.port) as c:
        for client, target in zip((a, b, c), targets, strict=True):
            await client.send(chat(body, target=target))
            await client.read_events(1)
        gate.set()
        answers = [await client.finish() for client in (a, b, c)]
    assert [received.target for received in upstream.requests] == targets
    assert [answer.role for answer in answers][1] == "owner"
    flights = [answer.get("X-Soloflight-Flight") for answer in answers]
    assert len(set(flights)) == 3
