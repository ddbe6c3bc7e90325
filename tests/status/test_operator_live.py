"""An operator's hands on real proxies: flights seen from both sides, ended, and kept answers forgotten by the whole fleet."""

import asyncio
import json
import urllib.error
import urllib.request
from typing import Any

import pytest

from harness.client import RawClient, ask, chat, connect, fresh
from harness.fixtures import StartProxy, all_ready
from harness.process import eventually
from harness.proxy import Proxy
from harness.redis import RedisServer
from soloflight.testing.chat import CH, DONE, FIN
from soloflight.testing.script import Step, sse
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = [pytest.mark.system, pytest.mark.beside]

WHOLE = (CH, FIN, DONE)
CONFIG: dict[str, Any] = {
    "stage": [
        {
            "name": "heavy",
            "session": "reject",
            "match": {"paths": ["/heavy/*"]},
            "running_lease": "60s",
            "pending_lease": "60s",
        },
        {"name": "other"},
    ]
}


def told(proxy: Proxy, method: str, path: str, body: object = None) -> tuple[int, Any]:
    """Status and JSON of a request to the admin listener."""
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(proxy.admin + path, data=data, method=method)
    try:
        with urllib.request.urlopen(asked, timeout=5) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def only_flight(proxy: Proxy) -> dict[str, Any]:
    """The one flight that runs there."""
    (row,) = proxy.api("/api/flights")["flights"]
    assert isinstance(row, dict)
    return row


async def reading(client: RawClient, data: bytes) -> None:
    """Send a request and read the first event of its answer."""
    await client.send(data)
    await client.read_events(1)


async def test_an_ended_flight_is_cut_and_its_key_and_session_are_free_at_once(start_proxy: StartProxy) -> None:
    gate = asyncio.Event()
    async with ScriptedUpstream(sse(CH, gate), sse(*WHOLE)) as upstream:
        proxy = start_proxy(CONFIG, upstream=upstream.port)
        body = chat(fresh(), "X-Soloflight-Session: s1", target="/heavy/v1/chat/completions")
        async with connect(proxy.port) as a, connect(proxy.port) as b:
            for client in (a, b):
                await reading(client, body)
            row = only_flight(proxy)
            seen = {
                name: row[name]
                for name in (
                    "stage",
                    "state",
                    "role",
                    "attempt",
                    "frames",
                    "bytes",
                    "listeners",
                    "followers",
                    "watchers",
                )
            }
            assert seen == {
                "stage": "heavy",
                "state": "running",
                "role": "owner",
                "attempt": 1,
                "frames": 2,
                "bytes": len(CH),
                "listeners": 2,
                "followers": 1,
                "watchers": 0,
            }
            assert row["owner"] == row["node"]
            assert 50 < row["lease_left_s"] <= 60
            assert 0 <= row["progress_age_s"] <= row["age_s"] < 10
            assert told(proxy, "GET", f"/api/flights/{row['id']}")[1]["key"] == row["key"]
            assert told(proxy, "DELETE", f"/api/flights/{row['id']}") == (
                200,
                {"flight": row["id"], "result": "aborted"},
            )
            for client in (a, b):
                answer = await client.finish()
                assert not answer.complete
                assert b'"code":"aborted"' in answer.body
                assert DONE not in answer.body
        await eventually(lambda: upstream.requests[0].left is not None)
        again = await ask(proxy.port, body)
        assert (again.status, again.role, again.body, upstream.calls) == (200, "owner", b"".join(WHOLE), 2)
        assert told(proxy, "DELETE", f"/api/flights/{row['id']}")[0] == 404
        await eventually(lambda: proxy.metric("soloflight_not_kept_total", reason="abandoned") == 1)
        await eventually(lambda: proxy.metric("soloflight_upstream_calls_total", outcome="abandoned") == 1)
        await eventually(lambda: proxy.metric("soloflight_errors_total", reason="aborted") == 2)


async def test_a_flight_is_seen_from_both_sides_and_ended_from_the_other(
    start_proxy: StartProxy, redis_server: RedisServer
) -> None:
    gate = asyncio.Event()
    async with ScriptedUpstream(sse(CH, gate), sse(*WHOLE)) as upstream:
        one, two = all_ready(
            start_proxy(CONFIG, upstream=upstream.port, backend="redis", redis_url=redis_server.url, ready=False)
            for _ in range(2)
        )
        body = chat(fresh())
        async with connect(one.port) as a, connect(two.port) as b:
            for client in (a, b):
                await reading(client, body)
            await eventually(lambda: only_flight(one)["watchers"] == 1)
            owned, followed = only_flight(one), only_flight(two)
            assert owned["id"] == followed["id"]
            assert (followed["role"], followed["owner"], followed["attempt"]) == ("follower", owned["node"], None)
            assert (followed["listeners"], followed["followers"]) == (1, 1)
            assert 0 < followed["lease_left_s"] <= 5.1
            await eventually(lambda: two.metric("soloflight_followers") == 1)
            assert told(two, "DELETE", f"/api/flights/{owned['id']}")[0] == 202
            for client in (a, b):
                answer = await client.finish()
                assert (answer.complete, b'"code":"aborted"' in answer.body) == (False, True)
        again = await ask(two.port, body)
        assert (again.role, again.body) == ("owner", b"".join(WHOLE))


async def test_a_purge_reaches_every_node_and_those_to_come(start_proxy: StartProxy, redis_server: RedisServer) -> None:
    async with ScriptedUpstream(sse(*WHOLE)) as upstream:

        def start() -> Proxy:
            return start_proxy(CONFIG, upstream=upstream.port, backend="redis", redis_url=redis_server.url)

        one, two = start(), start()
        mine, kept, named = chat(fresh()), chat(fresh(), "X-Soloflight-Stage: other"), chat(fresh())
        flights = {}
        for body in (mine, kept, named):
            answer = await ask(one.port, body)
            flights[body] = answer.get("X-Soloflight-Flight")
            assert (await ask(two.port, body)).role == "replay"  # and two keeps it itself from now on
        assert upstream.calls == 3

        assert told(one, "POST", "/api/purge", {"key": flights[named]})[1] == {"local": 1, "kept": True, "told": True}
        await eventually(
            lambda: (
                two.metric("soloflight_local_bytes", stage="default")
                == one.metric("soloflight_local_bytes", stage="default")
            )
        )
        assert (await ask(two.port, named)).role == "owner"

        assert told(two, "POST", "/api/purge", {"stage": "default"})[1]["told"] is True
        await eventually(lambda: one.metric("soloflight_local_bytes", stage="default") == 0)
        three = start()
        assert [(await ask(proxy.port, kept)).role for proxy in (one, two, three)] == ["replay"] * 3
        assert [(await ask(proxy.port, mine)).role for proxy in (three, two, one)] == ["owner", "replay", "replay"]
        assert upstream.calls == 5
        assert told(one, "POST", "/api/purge", {"stage": "nowhere"})[0] == 404


async def test_tokens_avoided_are_known_on_every_node(start_proxy: StartProxy, redis_server: RedisServer) -> None:
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":40,"completion_tokens":2}}\n\n'
    gate = asyncio.Event()
    steps: tuple[Step, ...] = (CH, gate, FIN, usage, DONE)
    async with ScriptedUpstream(sse(*steps)) as upstream:
        one, two = all_ready(
            start_proxy(upstream=upstream.port, backend="redis", redis_url=redis_server.url, ready=False)
            for _ in range(2)
        )
        body = chat(fresh())
        async with connect(one.port) as a, connect(two.port) as b, connect(one.port) as c:
            for client in (a, b, c):
                await reading(client, body)
            gate.set()
            assert [(await client.finish()).role for client in (a, b, c)] == ["owner", "follower", "follower"]
        for proxy in (one, two):
            await eventually(
                lambda proxy=proxy: proxy.metric("soloflight_upstream_calls_avoided_total", by="join") == 1
            )
            for kind, count in (("prompt", 40), ("completion", 2)):
                await eventually(
                    lambda proxy=proxy, kind=kind, count=count: (
                        proxy.metric("soloflight_tokens_avoided_total", by="join", kind=kind) == count
                    )
                )
            await eventually(lambda proxy=proxy: proxy.metric("soloflight_follower_lag_seconds_count") == 1)
        three = start_proxy(upstream=upstream.port, backend="redis", redis_url=redis_server.url)
        assert (await ask(three.port, body)).role == "replay"
        await eventually(lambda: three.metric("soloflight_tokens_avoided_total", by="replay", kind="prompt") == 40)
        assert upstream.calls == 1


async def test_one_admin_listener_speaks_for_all_workers(start_proxy: StartProxy) -> None:
    gate = asyncio.Event()
    async with ScriptedUpstream(sse(CH, gate, FIN, DONE)) as upstream:
        proxy = start_proxy({}, "--workers=3", upstream=upstream.port)
        await asyncio.to_thread(proxy.wait_log, "3 workers are ready", within_s=15)
        body = chat(fresh())
        clients = [await RawClient.open(proxy.port) for _ in range(12)]
        for client in clients:
            await reading(client, body)
        rows = proxy.api("/api/flights")["flights"]
        (owner,) = {row["owner"] for row in rows}
        assert (len({row["id"] for row in rows}), sum(row["listeners"] for row in rows)) == (1, 12)
        assert told(proxy, "GET", f"/api/flights/{rows[0]['id']}")[1]["node"] == owner
        gate.set()
        answers = [await client.finish() for client in clients]
        assert sorted(answer.role for answer in answers) == ["follower"] * 11 + ["owner"]
        for client in clients:
            client.close()
        await eventually(lambda: proxy.metric("soloflight_requests_total") == 12)
        overview = proxy.api("/api/overview")
        assert (len(overview["nodes"]), overview["status"], overview["backend"]["up"]) == (3, "ok", True)
        assert overview["stages"][0]["counts"]["requests"] == {
            "owner": 1,
            "follower": 11,
            "replay": 0,
            "bypass": 0,
            "none": 0,
        }
        assert proxy.metric("soloflight_requests_total") == 12
        assert proxy.metric("soloflight_upstream_calls_total") == 1
        assert proxy.metric("soloflight_backend_up") == 1
