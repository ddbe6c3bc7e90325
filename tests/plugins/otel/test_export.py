"""Real processes that send OTLP over HTTP: an owner, a follower, a replay, one alone; on one node, and on two over Redis."""

import asyncio
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from harness.client import ask, chat, connect, fresh, request
from harness.collector import Collector, attributes_of
from harness.fixtures import StartProxy, all_ready
from harness.redis import RedisServer
from harness.wire import Response
from soloflight.testing.chat import CH, DONE, FIN
from soloflight.testing.script import json as json_answer
from soloflight.testing.script import sse
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = [pytest.mark.system, pytest.mark.beside]

SERVER, CLIENT, INTERNAL = Span.SPAN_KIND_SERVER, Span.SPAN_KIND_CLIENT, Span.SPAN_KIND_INTERNAL
OWNERS, FOLLOWERS = "4bf92f3577b34da6a3ce929d0e0e4736", "5bf92f3577b34da6a3ce929d0e0e4736"
SECRET = "sk-canary-4711"
LATE_NS = 100_000_000


def trace_fields(trace: str) -> tuple[str, str]:
    return f"traceparent: 00-{trace}-00f067aa0ba902b7-01", "tracestate: vendor=opaque,other=1"


def ids(span: Span) -> tuple[bytes, bytes]:
    return span.trace_id, span.span_id


def links(span: Span) -> list[tuple[bytes, bytes]]:
    return [(link.trace_id, link.span_id) for link in span.links]


async def followed(
    port: int, other: int, upstream: ScriptedUpstream, body: dict[str, Any], *, own: str = ""
) -> list[Response]:
    """The answers of an owner at ``port`` and of a follower at ``other``."""
    gate = asyncio.Event()
    upstream.play(sse(CH, gate, FIN, DONE))
    calls = upstream.calls
    async with connect(port) as owner, connect(other) as follower:
        await owner.send(chat(body, *(trace_fields(own) if own else ()), key=SECRET))
        await upstream.wait_calls(calls + 1)
        await follower.send(chat(body, *trace_fields(FOLLOWERS), key=SECRET))
        await follower.read_events(1)
        gate.set()
        return [await owner.finish(), await follower.finish()]


async def test_one_node(start_proxy: StartProxy, upstream: ScriptedUpstream, upstream_port: int) -> None:
    with Collector() as collector:
        proxy = start_proxy(upstream=upstream_port, env={"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url})
        bare, traced = (chat_body() for _ in range(2))
        plain = await followed(proxy.port, proxy.port, upstream, bare)
        below = await followed(proxy.port, proxy.port, upstream, traced, own=OWNERS)
        replays = [await ask(proxy.port, chat(traced, key=SECRET)) for _ in range(3)]  # the third is recognised
        upstream.play([json_answer({"data": []})])
        target = f"/v1/files?key={SECRET}"
        alone = await ask(
            proxy.port, request("GET", target, *trace_fields(FOLLOWERS), f"Authorization: Bearer {SECRET}")
        )
        assert [one.role for one in (*plain, *below, *replays, alone)] == [
            *("owner", "follower") * 2, *("replay",) * 3, "bypass",
        ]  # fmt: skip
        # What the owner and the one alone brought went on untouched; where nothing was brought, nothing was added.
        seen = [(got.field(b"traceparent"), got.field(b"tracestate")) for got in upstream.requests]
        fields = [
            tuple(field.partition(": ")[2].encode() for field in trace_fields(one)) for one in (OWNERS, FOLLOWERS)
        ]
        assert seen == [(b"", b""), *fields]
        await asyncio.to_thread(proxy.stop)
    assert collector.services == {"soloflight"}

    # Without a trace of the client's: the call is below its owner, and the follower links to it.
    flight = plain[0].get("x-soloflight-flight")
    [owner], [follower] = (collector.of(SERVER, flight=flight, role=role) for role in ("owner", "follower"))
    [call] = collector.of(CLIENT, flight=flight)
    assert (owner.parent_span_id, call.parent_span_id, call.trace_id) == (b"", owner.span_id, owner.trace_id)
    assert follower.parent_span_id.hex() == "00f067aa0ba902b7"
    assert (follower.trace_id.hex(), links(follower), links(owner)) == (FOLLOWERS, [ids(call)], [])
    # Each one's beginning is reckoned back from when its end was told of, which a busy loop does a little late.
    assert owner.start_time_unix_nano <= call.start_time_unix_nano + LATE_NS
    assert call.start_time_unix_nano < call.end_time_unix_nano
    assert attributes_of(owner)["soloflight.request_id"] == plain[0].get("x-soloflight-request-id")

    # With one: owner and call are in it, and whoever did not call links there.
    flight = below[0].get("x-soloflight-flight")
    [owner], [follower] = (collector.of(SERVER, flight=flight, role=role) for role in ("owner", "follower"))
    [call] = collector.of(CLIENT, flight=flight)
    found = collector.of(SERVER, flight=flight, role="replay")
    assert (owner.trace_id.hex(), owner.parent_span_id.hex()) == (OWNERS, "00f067aa0ba902b7")
    assert (call.trace_id, call.parent_span_id) == (owner.trace_id, owner.span_id)
    assert [links(span) for span in (follower, *found)] == [[ids(call)]] * 4
    [named] = collector.of(INTERNAL, flight=flight)
    assert links(named) == [ids(call)]

    [own] = collector.of(SERVER, role="bypass")
    [call] = [span for span in collector.of(CLIENT) if span.parent_span_id == own.span_id]
    assert (own.trace_id.hex(), own.parent_span_id.hex()) == (FOLLOWERS, "00f067aa0ba902b7")
    assert attributes_of(own)["url.path"] == "/v1/files"
    assert len(collector.spans) == 2 + 1 + 2 + 2 + 3 + 2
    assert SECRET not in repr(collector.spans)
    assert "canary prompt" not in repr(collector.spans)


async def test_two_nodes(
    start_proxy: StartProxy, upstream: ScriptedUpstream, upstream_port: int, redis_server: RedisServer
) -> None:
    with Collector() as collector:
        config = {"plugins": {"otel": {"endpoint": collector.url}}}
        redis = {"backend": "redis", "redis_url": redis_server.url, "upstream": upstream_port}
        a, b = all_ready(start_proxy(config, **redis, ready=False) for _ in range(2))
        bodies = [chat_body(), chat_body()]
        pairs = [
            await followed(a.port, b.port, upstream, body, own=own)
            for body, own in zip(bodies, ("", OWNERS), strict=True)
        ]
        c = start_proxy(config, **redis)
        replays = [await ask(c.port, chat(body, key=SECRET)) for body in bodies]
        assert [one.role for pair in pairs for one in pair] == ["owner", "follower"] * 2
        assert [one.role for one in replays] == ["replay"] * 2
        for proxy in (a, b, c):
            await asyncio.to_thread(proxy.stop)
    for pair, kind in zip(pairs, (CLIENT, INTERNAL), strict=True):
        flight = pair[0].get("x-soloflight-flight")
        [target] = collector.of(kind, flight=flight)
        [follower], [replay] = (collector.of(SERVER, flight=flight, role=role) for role in ("follower", "replay"))
        assert links(follower) == links(replay) == [ids(target)]
    [call] = collector.of(CLIENT, flight=flight)
    [named] = collector.of(INTERNAL)
    assert links(named) == [ids(call)]
    assert call.trace_id.hex() == OWNERS


async def test_no_collector_is_no_harm(start_proxy: StartProxy, upstream: ScriptedUpstream, upstream_port: int) -> None:
    """Nobody listens there: answers are as ever, and the end is clean."""
    proxy = start_proxy({"plugins": {"otel": {"endpoint": "http://127.0.0.1:1"}}}, upstream=upstream_port)
    upstream.play(sse(CH, FIN, DONE))
    assert (await ask(proxy.port, chat(chat_body()))).status == 200
    await asyncio.to_thread(proxy.stop, within_s=10.0)
    assert proxy.exit_code == 0


def chat_body() -> dict[str, Any]:
    return fresh(metadata={"note": "canary prompt"})
