"""SIGTERM and SIGINT drain: what runs ends well, what is left is cut visibly, the exit code is 0 (contract sections 1 and 6)."""

import asyncio
import signal
import time

import pytest

from harness.client import RawClient, ask, chat, connect, fresh, request
from harness.fixtures import StartProxy
from harness.process import eventually, http_status
from harness.proxy import Proxy
from harness.refusals import refused
from harness.stalls import lasted
from soloflight.testing.chat import CH, DONE, FIN
from soloflight.testing.script import head, raw, sse
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

ROUTES = ["/v1/chat/completions", "/v1/unknown"]
LONG = {"server": {"drain_timeout": "20s"}}
SECOND_COUNTS_AFTER_S = 1.0


async def ended(proxy: Proxy, *, within_s: float) -> None:
    """The process ends by itself, with exit code 0."""
    await eventually(lambda: proxy.exit_code is not None, within_s)
    assert proxy.exit_code == 0
    proxy.check_log()


async def draining(proxy: Proxy) -> None:
    """The signal has been acted on."""
    await eventually(lambda: "draining" in proxy.log)


async def refuses_connections(proxy: Proxy) -> None:
    await eventually(lambda: http_status(f"{proxy.url}/_soloflight/health") is None)


async def begin_stream(client: RawClient, target: str) -> None:
    await client.send(chat(fresh(), target=target))
    await client.read_events(1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
@pytest.mark.parametrize("target", ROUTES)
async def test_a_running_stream_ends_well(
    target: str, number: int, start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    gate = asyncio.Event()
    proxy = start_proxy(LONG, upstream=upstream.port)
    upstream.play(sse(CH, gate, FIN, DONE))
    async with connect(proxy.port) as stream:
        await begin_stream(stream, target)
        proxy.send(number)
        await draining(proxy)
        await refuses_connections(proxy)
        assert proxy.exit_code is None
        gate.set()
        answer = await stream.finish()
    assert (answer.body, answer.complete) == (CH + FIN + DONE, True)
    await ended(proxy, within_s=3)


async def test_open_connections_are_served_and_then_closed(start_proxy: StartProxy, upstream: ScriptedUpstream) -> None:
    gate = asyncio.Event()
    proxy = start_proxy(LONG, upstream=upstream.port)
    upstream.play(sse(CH, gate, FIN, DONE), raw(b"{}", type="application/json"))
    async with connect(proxy.port) as stream, connect(proxy.port) as alone, connect(proxy.port) as shared:
        await begin_stream(stream, ROUTES[0])
        for client in (alone, shared):
            assert (await client.ask(request("GET", "/_soloflight/livez"))).status == 200
        proxy.send(signal.SIGTERM)
        await draining(proxy)
        for client, sent in (
            (alone, request("GET", "/v1/files")),
            (shared, chat(fresh(stream=False))),
        ):
            answer = await client.ask(sent)
            assert (answer.status, answer.body) == (200, b"{}")
            assert answer.get("Connection") == "close"
            assert await client.ended() == "fin"
        gate.set()
        assert (await stream.finish()).complete
    await ended(proxy, within_s=3)


async def test_an_answer_that_was_kept_says_close_too(start_proxy: StartProxy, upstream: ScriptedUpstream) -> None:
    gate = asyncio.Event()
    proxy = start_proxy(LONG, upstream=upstream.port)
    upstream.play(raw(b'{"data":[]}', type="application/json"), sse(CH, gate, FIN, DONE))
    known = request("GET", "/v1/models")
    async with connect(proxy.port) as stream, connect(proxy.port) as client:
        assert [(await client.ask(known)).role for _ in range(3)] == ["owner", "replay", "replay"]
        await begin_stream(stream, ROUTES[0])
        proxy.send(signal.SIGTERM)
        await draining(proxy)
        answer = await client.ask(known)
        assert (answer.role, answer.get("Connection")) == ("replay", "close")
        assert await client.ended() == "fin"
        gate.set()
        assert (await stream.finish()).complete
    await ended(proxy, within_s=3)


async def test_health_while_draining(start_proxy: StartProxy, upstream: ScriptedUpstream) -> None:
    gate = asyncio.Event()
    config = {"server": {"drain_timeout": "20s", "drain_delay": "2s"}}
    proxy = start_proxy(config, upstream=upstream.port)
    upstream.play(sse(CH, gate, FIN, DONE), raw(b"{}"))
    async with connect(proxy.port) as stream:
        await begin_stream(stream, ROUTES[0])
        proxy.send(signal.SIGTERM)
        await draining(proxy)
        statuses = {path: http_status(f"{proxy.url}/_soloflight/{path}") for path in ("health", "readyz", "livez")}
        assert statuses == {"health": 503, "readyz": 503, "livez": 200}
        assert (await ask(proxy.port, request("GET", "/v1/files"))).status == 200  # the endpoints of a cluster lag
        assert http_status(f"{proxy.admin}/readyz") == 503
        assert http_status(f"{proxy.admin}/livez") == 200
        await refuses_connections(proxy)
        gate.set()
        assert (await stream.finish()).complete
    await ended(proxy, within_s=3)


async def test_who_only_holds_a_connection_does_not_hold_it_up(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    proxy = start_proxy(LONG, upstream=upstream.port)
    upstream.play(raw(b"{}"))
    async with connect(proxy.port) as idle, connect(proxy.port) as used, connect(proxy.port) as half:
        await used.ask(request("GET", "/v1/files"))
        await half.send(b"POST /v1/files HTTP/1.1\r\nHost:")
        proxy.send(signal.SIGTERM)
        await ended(proxy, within_s=3)
        for client in (idle, used, half):
            assert await client.ended() in ("fin", "rst")


async def test_work_that_nobody_listens_to_ends_well(start_proxy: StartProxy, upstream: ScriptedUpstream) -> None:
    gate = asyncio.Event()
    proxy = start_proxy(LONG, upstream=upstream.port)
    upstream.play([gate, raw(b"{}", type="application/json")])
    async with connect(proxy.port) as client:
        await client.send(chat(fresh(stream=False)))
        await upstream.wait_calls(1)
    proxy.send(signal.SIGTERM)
    await draining(proxy)
    await refuses_connections(proxy)
    assert (proxy.exit_code, upstream.requests[0].left) == (None, None)
    gate.set()
    await ended(proxy, within_s=3)
    assert upstream.requests[0].left is None


@pytest.mark.parametrize("target", ROUTES)
async def test_what_outlasts_the_drain_is_cut_visibly(
    target: str, start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    proxy = start_proxy({"server": {"drain_timeout": "500ms"}}, upstream=upstream.port)
    upstream.play(sse(CH, asyncio.Event()))
    async with connect(proxy.port) as stream:
        await begin_stream(stream, target)
        begun = time.monotonic()
        proxy.send(signal.SIGTERM)
        answer = await stream.finish()
        assert time.monotonic() - begun > 0.4
        assert lasted(begun) < 3
        assert (answer.ended, answer.last_chunk_seen) == ("rst", False)
        assert answer.body.startswith(CH)
        assert b"[DONE]" not in answer.body
    await ended(proxy, within_s=3)
    await upstream.wait_until(lambda: upstream.requests[0].left is not None)


async def test_a_request_that_waits_is_told(start_proxy: StartProxy, upstream: ScriptedUpstream) -> None:
    """Nothing has been sent yet: an error answer, or a reset, but never a good end."""
    proxy = start_proxy({"server": {"drain_timeout": "500ms"}}, upstream=upstream.port)
    upstream.play([asyncio.Event()])
    async with connect(proxy.port) as client:
        await client.send(chat(fresh()))
        await upstream.wait_calls(1)
        proxy.send(signal.SIGTERM)
        answer = await client.finish()
        assert answer.ended == "rst" or refused(answer)[0] == 503
    await ended(proxy, within_s=3)


async def test_a_tunnel_is_cut_at_the_end(start_proxy: StartProxy, upstream: ScriptedUpstream) -> None:
    proxy = start_proxy({"server": {"drain_timeout": "500ms"}}, upstream=upstream.port)
    upstream.play([head(101, "Connection: Upgrade", "Upgrade: websocket") + b"hi", asyncio.Event()])
    async with connect(proxy.port) as client:
        fields = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: x")
        await client.send(request("GET", "/v1/realtime", *fields))
        assert (await client.head()).status == 101
        proxy.send(signal.SIGTERM)
        assert await client.ended() in ("fin", "rst")
    await ended(proxy, within_s=3)


async def test_a_second_signal_ends_at_once(start_proxy: StartProxy, upstream: ScriptedUpstream) -> None:
    proxy = start_proxy(LONG, upstream=upstream.port)
    upstream.play(sse(CH, asyncio.Event()))
    async with connect(proxy.port) as stream:
        await begin_stream(stream, ROUTES[0])
        proxy.send(signal.SIGTERM)
        await draining(proxy)
        proxy.send(signal.SIGTERM)  # too soon after the first one to count as another
        await asyncio.sleep(SECOND_COUNTS_AFTER_S + 0.1)
        assert proxy.exit_code is None
        proxy.send(signal.SIGINT)
        answer = await stream.finish()
        assert (answer.ended, answer.last_chunk_seen) == ("rst", False)
    await ended(proxy, within_s=3)


async def test_signals_together_are_one(start_proxy: StartProxy, upstream: ScriptedUpstream) -> None:
    """A terminal's Ctrl-C and a supervisor's SIGTERM for it come together."""
    gate = asyncio.Event()
    proxy = start_proxy(LONG, upstream=upstream.port)
    upstream.play(sse(CH, gate, FIN, DONE))
    async with connect(proxy.port) as stream:
        await begin_stream(stream, ROUTES[0])
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
            proxy.send(number)
        await refuses_connections(proxy)
        gate.set()
        assert (await stream.finish()).complete
    await ended(proxy, within_s=3)
