"""A canary search: no credential and no prompt is anywhere where the proxy tells of itself, whatever kind of request it came in.

Looked through: the log at debug level in both forms, metrics, every page of the admin API while the requests run and after,
the bodies and heads of the proxy's own errors, and everything that Redis holds.
"""

import asyncio
import base64
import gzip
import json
import urllib.request
from collections.abc import AsyncIterator
from typing import Any

import pytest

from harness.client import RawClient, ask, chat, connect, fresh, request
from harness.fixtures import StartProxy
from harness.proxy import Proxy
from harness.redis import RedisServer
from soloflight.testing.chat import CH, DONE, FIN
from soloflight.testing.received import Received
from soloflight.testing.script import CLOSE, Script, head, sse
from soloflight.testing.script import json as json_answer
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

KEY, PROMPT = "CANARYKEY4711", "CANARYPROMPT4711"
BASE64 = base64.b64encode(f"user:{KEY}".encode()).decode()
FORBIDDEN = (KEY, PROMPT, BASE64, KEY[::-1], base64.b64encode(KEY.encode()).decode().rstrip("="))
PAGES = ("/", "/metrics", "/api/overview", "/api/flights", "/api/stages", "/readyz")
AUTH = f"Authorization: Bearer {KEY}"
JSON = "Content-Type: application/json"
SWITCH = head(101, "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Accept: x", reason="Switching Protocols")
FORM = (
    f'--b\r\nContent-Disposition: form-data; name="file"; filename="{PROMPT}.txt"\r\n\r\n{PROMPT}\r\n--b--\r\n'.encode()
)


def body(**more: Any) -> bytes:
    """A chat with the prompt, unlike all before."""
    base = fresh(**more)
    return json.dumps({**base, "messages": [{"role": "user", "content": f"{PROMPT} {base['messages']}"}]}).encode()


def answer(received: Received) -> Script:
    """What the upstream says; its own answers may say anything, and do not repeat the question here."""
    path = received.target.partition("?")[0]
    if received.field(b"upgrade"):
        return [SWITCH, CLOSE]
    if path.endswith("/broken"):
        return [*sse(CH, last=False), CLOSE]
    if path.endswith("/refused"):
        return json_answer({"error": {"message": "no"}}, status=401)
    if path.endswith("/rubbish/v1/chat/completions"):
        return [b"nonsense\r\n\r\n", CLOSE]
    return sse(CH, FIN, DONE)


SHARED = (
    chat(body(), key=KEY),
    chat(
        body(stream=False),
        f"api-key: {KEY}",
        f"x-api-key: {KEY}",
        f"x-goog-api-key: {KEY}",
        f"Cookie: session={KEY}",
        key=KEY,
    ),
    chat(body(), f"X-My-Secret-Token: {KEY}", f"Idempotency-Key: {KEY}", f"X-Soloflight-Session: {KEY}", key=KEY),
    request("POST", f"/v1/chat/completions?api_key={KEY}&key={KEY}", JSON, body=body()),
    request("POST", f"http://user:{KEY}@host/v1/chat/completions", AUTH, JSON, body=body()),
    request("GET", f"/v1/models?api_key={KEY}", AUTH),
    request("POST", "/v1/audio/transcriptions", AUTH, "Content-Type: multipart/form-data; boundary=b", body=FORM),
    request("POST", "/v1/chat/completions", AUTH, JSON, "Content-Encoding: gzip", body=gzip.compress(body())),
)
ALONE = (
    chat(body(), "Cache-Control: no-store", key=KEY),
    request("POST", f"/v1/files?api_key={KEY}", AUTH, "Content-Type: multipart/form-data; boundary=b", body=FORM),
    request("POST", f"/v1/threads/t/messages?token={KEY}", AUTH, JSON, body=body()),
    request("DELETE", f"/v1/files/x?key={KEY}", AUTH),
    request("GET", "/v1/files/refused", AUTH),
    request("GET", "/v1/files/broken", AUTH),
)
REFUSED = (
    (chat(body(), f"X-Soloflight-Stage: {KEY}", key=KEY), 400),
    (chat(body(), f"Cache-Control: max-age={KEY}", key=KEY), 400),
    (chat(body(), f"X-Soloflight-Session: {KEY * 50}", key=KEY), 400),
    (chat(body(), "Cache-Control: only-if-cached", key=KEY), 504),
    (request("POST", f"/v1/chat/completions#{KEY}", AUTH, JSON, body=body()), 400),
    (request("POST", f"http:{KEY}", AUTH, JSON, body=body()), 400),
    (request("POST", "/v1/chat/completions", AUTH, JSON, "Content-Encoding: gzip", body=body()), 400),
    (request("POST", "/v1/chat/completions", AUTH, f"Transfer-Encoding: {KEY}", body=body()), 400),
    (request("GET", f"/v1/models?{KEY}", f"{KEY} {KEY}: {KEY}"), 400),
    (request("GET", f"/v1/models?{KEY}", f"X-Long: {KEY * 20_000}"), 431),
    (chat(body(), target="/rubbish/v1/chat/completions", key=KEY), 502),
)
HANDSHAKE = request(
    "GET",
    f"/v1/realtime?model=m&api_key={KEY}",
    *(
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    ),
    f"Sec-WebSocket-Protocol: realtime, openai-insecure-api-key.{KEY}, openai-beta.realtime-v1",
    f"Authorization: Basic {BASE64}",
)
STAGES = [{"name": "sessions", "session": "reject", "match": {"paths": ["/v1/*"]}}]


def clean(what: str, text: str | bytes) -> None:
    """Nothing forbidden is in ``text``."""
    shown = text if isinstance(text, str) else text.decode("latin-1")
    for word in FORBIDDEN:
        at = shown.find(word)
        assert at < 0, f"{what}: …{shown[max(0, at - 200) : at + 80]}…"


async def look(proxy: Proxy) -> None:
    """Look through every page of the admin listener."""
    for path in PAGES:
        page = await asyncio.to_thread(lambda path=path: urllib.request.urlopen(proxy.admin + path, timeout=5).read())
        clean(path, page)
    for row in proxy.api("/api/flights")["flights"]:
        clean("a flight", json.dumps(proxy.api(f"/api/flights/{row['id']}")))


@pytest.fixture
async def upstream() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream() as server:
        server.play(answer)
        yield server


async def visit(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    """Every kind of request, twice each, with a look in between."""
    for data in SHARED:
        roles = [(await ask(proxy.port, data)).role for _ in range(2)]
        assert roles[0] == "owner", data[:200]
    for data in ALONE:
        await ask(proxy.port, data)
    for data, status in REFUSED:
        refused = await ask(proxy.port, data)
        assert refused.status == status, data[:200]
        clean("an error", refused.raw_head + refused.body)
    async with connect(proxy.port) as client:
        await client.send(HANDSHAKE)
        assert (await client.head()).status == 101
        await client.ended()
    upstream.play(sse(CH, gate := asyncio.Event(), FIN, DONE))
    await _while_it_runs(proxy, gate)
    upstream.play(answer)


async def _while_it_runs(proxy: Proxy, gate: asyncio.Event) -> None:
    """Owner, follower, one that leaves, a busy session and a mismatch, seen in mid-flight."""
    data = chat(body(), f"X-Soloflight-Session: {KEY}", f"Idempotency-Key: {KEY}{PROMPT}", key=KEY)
    async with connect(proxy.port) as one, connect(proxy.port) as two:
        for client in (one, two):
            await client.send(data)
            await client.read_events(1)
        leaver = await RawClient.open(proxy.port)
        await leaver.send(data)
        await leaver.read_events(1)
        leaver.reset()
        for other, status in (
            (chat(body(), f"X-Soloflight-Session: {KEY}", key=KEY), 409),
            (chat(body(), f"Idempotency-Key: {KEY}{PROMPT}", key=KEY), 422),
        ):
            refused = await ask(proxy.port, other)
            assert refused.status == status
            clean("an error", refused.raw_head + refused.body)
        await look(proxy)
        gate.set()
        for client in (one, two):
            assert (await client.finish()).complete


@pytest.mark.parametrize("form", ["text", "json"])
async def test_nothing_tells_a_credential_or_a_prompt(
    form: str, start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    config = {"stage": STAGES, "upstream": {"headers": {"X-Operator-Key": KEY}}}
    proxy = start_proxy(config, "--log-level=debug", f"--log-format={form}", upstream=upstream.port)
    await visit(proxy, upstream)
    await look(proxy)
    clean("the log", proxy.log)
    assert len(proxy.log) > 10_000
    assert "POST" in proxy.log
    assert "realtime" in proxy.log


async def test_nor_does_redis_hold_one(
    start_proxy: StartProxy, upstream: ScriptedUpstream, redis_server: RedisServer
) -> None:
    options = {"upstream": upstream.port, "backend": "redis", "redis_url": redis_server.url}
    proxy = start_proxy({"stage": STAGES}, "--log-level=debug", **options)
    await visit(proxy, upstream)
    await look(proxy)
    clean("the log", proxy.log)
    held = redis_server.everything()
    assert len(held) > 2_000
    clean("redis", held)


async def test_nor_does_the_refusal_of_a_wrong_client_key(start_proxy: StartProxy, upstream: ScriptedUpstream) -> None:
    config = {"server": {"client_keys": ["another-key-of-ours"]}}
    proxy = start_proxy(config, "--log-level=debug", upstream=upstream.port)
    for data in (*SHARED, *ALONE, HANDSHAKE):
        refused = await ask(proxy.port, data)
        assert refused.status == 401
        clean("an error", refused.raw_head + refused.body)
    assert upstream.calls == 0
    await look(proxy)
    clean("the log", proxy.log)
    assert "another-key-of-ours" not in proxy.log


def test_the_search_finds_what_is_there() -> None:
    for text in (f"path=/v1?api_key={KEY}", PROMPT.encode(), f"Basic {BASE64}"):
        with pytest.raises(AssertionError):
            clean("this", text)
