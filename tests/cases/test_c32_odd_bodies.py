"""C32: numbers at the edge (2^53, 1 and 1.0, NaN, huge digits), and bodies that do not parse.

Source: margince/margince#1075, evik42/serde-json-canonicalizer#13, hit-box/hitbox#211. Python 3.11 reads `1e0` as 1.0,
takes `NaN`, reads `1e400` as Infinity, refuses an integer of 5,000 digits, and has no stack for 200,000 `[`.
Right: different integers, different keys; a number counts as it is written, so 1, 1.0 and 1e0 are three. What can not be
read, or only in two ways, is keyed on its bytes and goes upstream untouched: never a 500, never two of them shared, and
nobody else waits for it.
"""

import asyncio
import json
from contextlib import AsyncExitStack

import pytest

from harness.bystander import bystander
from harness.client import ask, chat, connect, fresh, settle
from harness.proxy import Proxy
from soloflight.testing.script import json as json_answer
from soloflight.testing.upstream import ScriptedUpstream

ANSWER = json_answer({"object": "chat.completion", "choices": [{"index": 0, "finish_reason": "stop"}]})
OTHERS_WAIT_S = 0.1


def same_but(*written: str) -> list[bytes]:
    base = json.dumps(fresh(stream=False))[:-1].encode()
    return [base + b"," + member.encode() + b"}" for member in written]


DIFFERENT = {
    "integers beyond float64": ['"seed":9007199254740993', '"seed":9007199254740992'],
    "spellings of one": ['"x":1', '"x":1.0', '"x":1e0', '"x":1E0', '"x":10e-1'],
    "zeros": ['"x":0', '"x":-0', '"x":0.0', '"x":-0.0'],
    "beyond float64": ['"x":1e400', '"x":1e401', '"x":-1e400', '"x":Infinity'],
    "no numbers": ['"x":NaN', '"x":nan', '"x":-Infinity', '"x":"NaN"', '"x":null'],
    "5,000 digits": ['"x":' + "7" * 5000, '"x":' + "7" * 4999 + "8", '"x":' + "7" * 5001],
    "duplicate names": ['"x":1,"x":2', '"x":2,"x":1', '"x":1', '"x":2'],
    "lone surrogates": ['"x":"\\ud800"', '"x":"\\ud801"', '"x":"\\ufffd"'],
}
DEEP = b"[" * 200_000
PLAIN = '{"model":"m","messages":[],"odd":1}'
ODD = {
    "not closed": [b"{bad1", b"{bad2"],
    "nothing": [b"", b" ", b"\n", b"null"],
    "deep": [DEEP, DEEP + b"[", DEEP + b"]" * 200_000, b'{"a":' * 100_000],
    "a byte order mark": [b"\xef\xbb\xbf" + PLAIN.encode(), PLAIN.encode()],
    "UTF-16 and Latin-1": [PLAIN.encode("utf-16-le"), PLAIN.encode("utf-16"), b'{"a":"\xe9"}', b'{"a":"\xe8"}'],
    "an array": [b'[{"model":"m"}]', b'[{"model":"n"}]', b'"m"', b"1"],
    "a stream that is none": [b'{"stream":"true"}', b'{"stream":null}', b'{"stream":1}', b"{}"],
    "behind the end": [b"{}{}", b"{} x", b"{},"],
}


async def assert_all_different(proxy: Proxy, upstream: ScriptedUpstream, bodies: list[bytes]) -> None:
    """Each of ``bodies``, sent at the same time, makes its own call, goes upstream as it is, and is answered for itself."""
    gate = asyncio.Event()
    upstream.play([gate, ANSWER])
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connect(proxy.port)) for _ in bodies]
        for client, body in zip(clients, bodies, strict=True):
            await client.send(chat(body))
        await upstream.wait_calls(len(bodies))
        gate.set()
        answers = await asyncio.gather(*(client.finish() for client in clients))
    assert [answer.status for answer in answers] == [200] * len(bodies)
    assert len({answer.get("X-Soloflight-Flight") or object() for answer in answers}) == len(bodies)
    assert sorted(received.body for received in upstream.requests) == sorted(bodies)


@pytest.mark.parametrize("what", DIFFERENT)
async def test_numbers_and_other_members(what: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    await assert_all_different(proxy, upstream, same_but(*DIFFERENT[what]))


@pytest.mark.parametrize("what", ODD)
async def test_bodies_that_do_not_parse(what: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    async with bystander(proxy) as others:
        await assert_all_different(proxy, upstream, ODD[what])
    assert others.longest_s < OTHERS_WAIT_S
    assert "Traceback" not in proxy.log


async def test_equal_bad_bodies_may_share_and_an_error_is_forgotten(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    gate = asyncio.Event()
    refusal = json_answer({"error": {"message": "We could not parse the JSON body of your request."}}, status=400)
    upstream.play([gate, refusal])
    bad = chat(b"{bad" + json.dumps(fresh()).encode())
    async with connect(proxy.port) as a, connect(proxy.port) as b:
        await a.send(bad)
        await upstream.wait_calls(1)
        await b.send(bad)
        await settle(proxy.port)
        gate.set()
        answers = [await a.finish(), await b.finish()]
    assert [(answer.status, answer.body) for answer in answers] == [(400, refusal.partition(b"\r\n\r\n")[2])] * 2
    assert (await ask(proxy.port, bad)).role == "owner"
    assert upstream.calls == 2
