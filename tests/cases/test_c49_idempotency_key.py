"""C49: what an Idempotency-Key names.

Source: tashfeenahmed/freellmapi#1095, elizaOS/eliza#12994, keygen-sh/keygen-api#305,
draft-ietf-httpapi-idempotency-key-header-07.
Right: credential and key name the operation. The same body joins or replays, another one is a 422 and never gets the old
answer; who else uses the key is somebody else. A try that failed, or was cut, may be run again. The key itself is neither
stored nor logged.
"""

import asyncio
import hashlib
import json
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from harness.client import ask, chat, connect, fresh, request
from harness.refusals import refused
from harness.site import BACKENDS, Site, open_site
from harness.wire import Response
from soloflight.testing.chat import CH, completion_object
from soloflight.testing.received import Received
from soloflight.testing.script import CLOSE, RESET, Answer, Script, head, sse
from soloflight.testing.script import json as json_answer
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

CONFIG = {"stage": [{"name": "asks", "local_retention": 0}]}
KEY = "Idempotency-Key: k"
MISMATCH = (422, "idempotency_mismatch")
JOB = json_answer(completion_object())


@pytest.fixture(scope="module", params=BACKENDS)
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, upstream_port: int
) -> Iterator[Site]:
    """A proxy with the memory backend; two at one Redis."""
    with ExitStack() as stack:
        yield open_site(request.param, tmp_path_factory.mktemp("site"), upstream_port, CONFIG, stack)


def numbered(received: Received) -> Script:
    return json_answer({**completion_object(), "call": received.number})


def seen(answer: Response) -> tuple[int, str | None, int]:
    """(status, role, the upstream call that made it)."""
    return answer.status, answer.role, json.loads(answer.body)["call"]


def unused() -> str:
    """A key that no other test has."""
    return f"Idempotency-Key: {fresh()['messages'][0]['content']}"


async def test_the_table(site: Site, upstream: ScriptedUpstream) -> None:
    """(status, role, call) of each request of the case, in a row, each on every node."""
    upstream.play(numbered)
    body, other = fresh(stream=False), fresh(stream=False)
    owned, replayed = "owner", "replay"
    first, *more = (ask(node.port, chat(body, KEY)) for node in site.nodes)
    assert seen(await first) == (200, owned, 1)
    for asked in more:
        assert seen(await asked) == (200, replayed, 1)
    for node in site.nodes:
        assert refused(await ask(node.port, chat(other, KEY))) == MISMATCH, "K1 + k, another body"
        assert seen(await ask(node.port, chat(body, KEY))) == (200, replayed, 1), "which changes nothing"
    assert upstream.calls == 1
    assert seen(await ask(site.one.port, chat(body, KEY, key="k2"))) == (200, owned, 2), "another tenant, the same key"
    assert seen(await ask(site.other.port, chat(other, KEY, key="k3"))) == (200, owned, 3), "and another body"
    assert seen(await ask(site.one.port, chat(body, "Idempotency-Key: K"))) == (200, owned, 4), "another key"
    assert seen(await ask(site.other.port, chat(body))) == (200, owned, 5), "no key"
    elsewhere = "/v2/chat/completions"
    assert seen(await ask(site.other.port, chat(body, KEY, target=elsewhere))) == (200, owned, 6), "another path"
    assert seen(await ask(site.one.port, chat(body, "idempotency-KEY:   k  "))) == (200, replayed, 1), "spelling"


@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_while_the_first_still_runs(where: str, site: Site, upstream: ScriptedUpstream) -> None:
    """The same body joins, another is refused, and the first is not touched."""
    gate = asyncio.Event()
    upstream.play([gate, JOB])
    node = site.one if where == "here" else site.other
    name, body = unused(), fresh(stream=False)
    async with connect(site.one.port) as first, connect(node.port) as second:
        await first.send(chat(body, name))
        await upstream.wait_calls(1)
        await second.send(chat(body, name))
        await site.settle(node)
        assert refused(await ask(node.port, chat(fresh(stream=False), name))) == MISMATCH
        gate.set()
        answers = [await client.finish() for client in (first, second)]
    assert [answer.role for answer in answers] == ["owner", "follower"]
    assert answers[0].body == answers[1].body
    assert upstream.calls == 1


async def test_keys_keep_equal_requests_apart_in_flight(site: Site, upstream: ScriptedUpstream) -> None:
    gate = asyncio.Event()
    upstream.play(lambda _: [gate, JOB])
    body = fresh(stream=False)
    asked = [chat(body, unused()), chat(body, unused()), chat(body)]
    waiting = [asyncio.create_task(ask(site.nodes[n % len(site.nodes)].port, raw)) for n, raw in enumerate(asked)]
    await upstream.wait_calls(3)
    gate.set()
    assert [(await task).role for task in waiting] == ["owner"] * 3


FAILURES: dict[str, Answer] = {
    "an error": json_answer({"error": {"message": "no"}}, status=500),
    "a limit": json_answer({"error": {"message": "later"}}, "Retry-After: 1", status=429),
    "cut in a document": [head(200, "Content-Type: application/json", "Content-Length: 99") + b"{", 0.02, RESET],
    "cut in a stream": sse(CH, CLOSE, last=False),
    "an error in the stream": sse(CH, b'data: {"error": {"message": "overloaded"}}\n\n'),
    "no answer": [CLOSE],
}


@pytest.mark.parametrize("same", [True, False], ids=["same body", "another body"])
@pytest.mark.parametrize("failure", FAILURES)
async def test_a_try_that_failed_may_be_run_again(
    failure: str, same: bool, site: Site, upstream: ScriptedUpstream
) -> None:
    upstream.play(FAILURES[failure], numbered)
    name, body = unused(), fresh(stream="stream" in failure)
    await ask(site.one.port, chat(body, name))
    again = body if same else fresh(stream=False)
    assert seen(await ask(site.other.port, chat(again, name))) == (200, "owner", 2)
    assert seen(await ask(site.one.port, chat(again, name))) == (200, "replay", 2)


@pytest.mark.parametrize("stage", ["default", "asks"], ids=["with L1", "without L1"])
async def test_another_body_never_gets_a_kept_answer(stage: str, site: Site, upstream: ScriptedUpstream) -> None:
    """Wherever it is kept: in the process that made it, in one that replayed it, at the coordinator."""
    upstream.play(JOB)
    chosen, name, body = f"X-Soloflight-Stage: {stage}", unused(), fresh(stream=False)
    assert (await ask(site.one.port, chat(body, name, chosen))).role == "owner"
    for _ in range(2):
        for node in site.nodes:
            for wish in ("", "Cache-Control: max-age=60", "Cache-Control: only-if-cached", "Cache-Control: no-cache"):
                fields = [chosen, name, *([wish] if wish else [])]
                assert refused(await ask(node.port, chat(fresh(stream=False), *fields))) == MISMATCH, wish
            assert (await ask(node.port, chat(body, name, chosen))).role == "replay"
    assert upstream.calls == 1


async def test_keys_that_are_none(site: Site, upstream: ScriptedUpstream) -> None:
    upstream.play(JOB)
    bad = [b"Idempotency-Key:", b"Idempotency-Key:  \t ", b"Idempotency-Key: " + b"k" * 10_240]
    bad += [b"Idempotency-Key: " + b"k" * 513]
    for field in bad:
        for target in ("/v1/chat/completions", "/v1/files"):
            answer = await ask(site.one.port, chat(fresh(stream=False), field, target=target))
            assert refused(answer) == (400, "bad_request")
        answer = await ask(site.one.port, request("GET", "/v1/models", field))
        assert refused(answer) == (400, "bad_request")
    twice = (b"Idempotency-Key: a", b"Idempotency-Key: b")
    assert refused(await ask(site.one.port, chat(fresh(stream=False), *twice))) == (400, "bad_request")
    assert upstream.calls == 0
    assert (await ask(site.one.port, chat(fresh(stream=False), b"Idempotency-Key: " + b"k" * 512))).status == 200


async def test_on_a_get(site: Site, upstream: ScriptedUpstream) -> None:
    """It names an operation there, too, and none that a POST has; where nothing is shared it is just passed on."""
    upstream.play(numbered)
    name = unused()
    models = request("GET", "/v1/models", "Authorization: Bearer k1", name)
    assert seen(await ask(site.one.port, models)) == (200, "owner", 1)
    assert seen(await ask(site.other.port, models)) == (200, "replay", 1)
    assert seen(await ask(site.other.port, request("GET", "/v1/models", "Authorization: Bearer k1"))) == (
        200,
        "owner",
        2,
    )
    assert seen(await ask(site.one.port, chat(fresh(stream=False), name))) == (200, "owner", 3)
    files = request("GET", "/v1/files", "Authorization: Bearer k1", name)
    assert [seen(await ask(site.one.port, files)) for _ in range(2)] == [(200, "bypass", 4), (200, "bypass", 5)]
    passed_on = {received.field(b"idempotency-key").decode() for received in upstream.requests}
    assert passed_on == {name.partition(": ")[2], ""}, "the upstream has use for it"


async def test_the_key_is_neither_stored_nor_logged(site: Site, upstream: ScriptedUpstream) -> None:
    gate = asyncio.Event()
    upstream.play([gate, JOB], JOB)
    key = "mail-of-jane.doe@example.org"
    body, name = fresh(stream=False), f"Idempotency-Key: {key}"
    dumps = []
    async with connect(site.one.port) as first, connect(site.other.port) as second:
        await first.send(chat(body, name))
        await upstream.wait_calls(1)
        await second.send(chat(body, name))
        await site.settle(site.other)
        dumps.append(site.redis.everything() if site.redis else b"")
        seen_by_admin = [json.dumps(node.api(path)) for node in site.nodes for path in ("/api/flights", "/api/stages")]
        gate.set()
        assert [(await client.finish()).status for client in (first, second)] == [200, 200]
    assert refused(await ask(site.other.port, chat(fresh(stream=False), name))) == MISMATCH
    dumps.append(site.redis.everything() if site.redis else b"")
    dumps += [node.log.encode() for node in site.nodes] + [text.encode() for text in seen_by_admin]
    digest = hashlib.sha256(key.encode())
    for secret in (key.encode(), digest.hexdigest().encode(), digest.digest(), b64encode(key.encode())):
        assert all(secret not in dump for dump in dumps)
    if site.redis:
        assert b"chat.completion" in dumps[1], "the dump sees what is stored"
