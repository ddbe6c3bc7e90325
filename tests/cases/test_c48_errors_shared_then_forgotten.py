"""C48: errors are the same for all who wait, and then forgotten; a retry storm makes one call.

Source: redis/rueidis#1014, Aiven-Open/karapace#1154, matrix-org/synapse#1801, weserv/images#369.
Right: all who wait get the same status, body and fields (transport faults: the same 502 in the API's form). Nothing
is remembered: who comes at once afterwards makes a new call, and a crowd of retries makes one.
"""

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from harness.certificates import server_tls
from harness.client import RawClient, chat, connect, fresh, settle
from harness.fixtures import StartProxy
from harness.proxy import Proxy
from harness.refusals import refused
from harness.stalls import lasted
from harness.wire import Response
from soloflight.testing.chat import completion_object
from soloflight.testing.script import CLOSE, RESET, Step, head, json
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

CROWD = 10
OWN = {b"x-soloflight-role", b"x-soloflight-request-id", b"cache-status"}
ERROR = {"error": {"message": "no", "type": "t", "code": None, "param": None}}
CHUNKED = head(200, "Transfer-Encoding: chunked")
HEALTHY = json(completion_object())

STATUSES: dict[int, list[str]] = {
    429: ["Retry-After: 1", "x-ratelimit-remaining-requests: 0", "x-request-id: req_1"],
    500: [],
    503: ["Retry-After: 1"],
    408: [],
    401: ["WWW-Authenticate: Bearer"],
    404: [],
    400: ["X-Own: a", "X-Own: b", "x-should-retry: false"],
}
BROKEN: dict[str, tuple[list[Step], str]] = {
    "chunk size is no number": ([CHUNKED + b"zz\r\nx\r\n"], "upstream_invalid"),
    "chunk size is no number, later": ([CHUNKED, 0.05, b"zz\r\nx\r\n"], "upstream_invalid"),
    "cut before the first chunk": ([CHUNKED, CLOSE], "upstream_truncated"),
    "chunk without its end": ([CHUNKED, b"5\r\n", CLOSE], "upstream_truncated"),
    "no answer": ([CLOSE], "upstream_unreachable"),
    "reset": ([0.02, RESET], "upstream_unreachable"),
    "no HTTP": ([b"+PONG\r\n\r\n", CLOSE], "upstream_invalid"),
}


def shared(answer: Response) -> tuple[object, ...]:
    """All that must be the same for everybody."""
    assert answer.complete
    return answer.status, answer.body, tuple(field for field in answer.fields if field[0].lower() not in OWN)


async def crowd(stack: AsyncExitStack, port: int) -> list[RawClient]:
    return [await stack.enter_async_context(connect(port)) for _ in range(CROWD)]


async def all_ask(clients: list[RawClient], body: bytes) -> list[Response]:
    for client in clients:
        await client.send(body)
    return [await client.finish() for client in clients]


async def ask_behind_gate(
    proxy: Proxy, upstream: ScriptedUpstream, clients: list[RawClient], body: bytes, *answers: Step
) -> list[Response]:
    """All wait for the one call before its answer comes; ``HEALTHY`` for every later call."""
    gate = asyncio.Event()
    upstream.play([gate, *answers], [HEALTHY])
    await clients[0].send(body)
    await upstream.wait_calls(upstream.calls + 1)
    for client in clients[1:]:
        await client.send(body)
    await settle(proxy.port)
    gate.set()
    return [await client.finish() for client in clients]


@pytest.mark.parametrize("status", STATUSES)
async def test_an_upstream_error_is_the_same_for_all_and_forgotten(
    status: int, proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    body = chat(fresh(stream=False))
    fields = STATUSES[status]
    async with AsyncExitStack() as stack:
        clients = await crowd(stack, proxy.port)
        first = await ask_behind_gate(proxy, upstream, clients, body, json(ERROR, *fields, status=status))
        assert {shared(answer)[:2] for answer in first} == {(status, json(ERROR).partition(b"\r\n\r\n")[2])}
        assert len({shared(answer) for answer in first}) == 1
        sent = [tuple(field.encode().split(b": ", 1)) for field in fields]
        assert [field for field in first[0].fields if field in sent] == sent
        assert upstream.calls == 1

        again = await all_ask(clients, body)
        assert {answer.status for answer in again} == {200}
        assert len({shared(answer)[:2] for answer in again}) == 1
        assert upstream.calls == 2


async def test_a_client_that_obeys_retry_after_gets_the_new_answer(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    body = chat(fresh(stream=False))
    async with AsyncExitStack() as stack:
        clients = await crowd(stack, proxy.port)
        limited = json(ERROR, "Retry-After: 1", status=429)
        first = await ask_behind_gate(proxy, upstream, clients, body, limited)
        assert {(answer.status, answer.get("Retry-After")) for answer in first} == {(429, "1")}
        await asyncio.sleep(1.1)  # what the upstream asked for
        assert {answer.status for answer in await all_ask(clients, body)} == {200}
    assert upstream.calls == 2


@pytest.mark.parametrize("fault", BROKEN)
async def test_a_transport_fault_is_the_same_for_all_and_forgotten(
    fault: str, proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    steps, code = BROKEN[fault]
    body = chat(fresh(stream=False))
    async with AsyncExitStack() as stack:
        clients = await crowd(stack, proxy.port)
        first = await ask_behind_gate(proxy, upstream, clients, body, *steps)
        assert {refused(answer) for answer in first} == {(502, code)}
        assert len({answer.body for answer in first}) == 1
        assert len({answer.get("X-Soloflight-Flight") for answer in first}) == 1
        assert upstream.calls == 1, "the upstream may have been working: it is not called again"

        assert {answer.status for answer in await all_ask(clients, body)} == {200}
        assert upstream.calls == 2


async def test_a_refused_connection_is_the_same_for_all_and_forgotten(proxy: Proxy, upstream_port: int) -> None:
    body = chat(fresh(stream=False))
    async with AsyncExitStack() as stack:
        clients = await crowd(stack, proxy.port)
        begun = time.monotonic()
        first = await all_ask(clients, body)
        assert lasted(begun) < 3
        assert {refused(answer) for answer in first} == {(502, "upstream_unreachable")}
        assert len({answer.body for answer in first}) == 1
        assert len({answer.get("X-Soloflight-Flight") for answer in first}) == 1

        async with ScriptedUpstream(HEALTHY, port=upstream_port) as upstream:
            assert {answer.status for answer in await all_ask(clients, body)} == {200}
            assert upstream.calls == 1


async def test_failing_tls_is_the_same_for_all(start_proxy: StartProxy, tmp_path: Path) -> None:
    context, _ = server_tls(tmp_path)
    async with ScriptedUpstream(HEALTHY, tls=context) as upstream, AsyncExitStack() as stack:
        proxy = start_proxy(upstream=upstream.url)  # trusts the system's authorities only
        answers = await all_ask(await crowd(stack, proxy.port), chat(fresh(stream=False)))
        assert {refused(answer) for answer in answers} == {(502, "upstream_unreachable")}
        assert len({answer.body for answer in answers}) == 1
        assert len({answer.get("X-Soloflight-Flight") for answer in answers}) == 1
        assert upstream.calls == 0
