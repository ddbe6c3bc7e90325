"""SIGHUP re-reads the configuration: new rules for requests to come, the old ones for those under way (contract section 1)."""

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from harness import toml
from harness.client import ask, chat, connect, fresh, request
from harness.fixtures import DEFAULTS, StartProxy
from harness.ports import free_port
from harness.process import eventually
from harness.proxy import Proxy, merged
from harness.wire import Response
from harness.workers import one_on_each, workers
from soloflight.testing.chat import CH, DONE, FIN
from soloflight.testing.script import raw, sse
from soloflight.testing.upstream import ScriptedUpstream
from soloflight.web.reload import FIXED_AT_START

pytestmark = pytest.mark.beside

STREAM = CH + FIN + DONE
RELOADED, NOT_RELOADED = "configuration reloaded", "configuration not reloaded"
KEPT_FOR_S = 4.0


@pytest_asyncio.fixture
async def other() -> AsyncIterator[ScriptedUpstream]:
    """Another upstream."""
    async with ScriptedUpstream(sse(CH, FIN, DONE)) as server:
        yield server


def towards(upstream: ScriptedUpstream, **tables: Any) -> dict[str, Any]:
    return merged({"upstream": {"url": upstream.url}}, tables)


async def reload(proxy: Proxy, config: dict[str, Any] | str, says: str = RELOADED) -> None:
    """Replace the file, send SIGHUP, and wait until every process has said what became of it."""
    told = proxy.log.count(says)
    processes = max(1, len(workers(proxy))) if says == RELOADED else 1
    proxy.config_file.write_text(config if isinstance(config, str) else toml.dump(merged(DEFAULTS, config)))
    proxy.send(signal.SIGHUP)
    await eventually(lambda: proxy.log.count(says) == told + processes)


async def test_requests_to_come_have_the_new_rules_and_those_under_way_the_old(
    start_proxy: StartProxy, upstream: ScriptedUpstream, other: ScriptedUpstream
) -> None:
    gate = asyncio.Event()
    upstream.play(sse(CH, gate, FIN, DONE))
    proxy = start_proxy(towards(upstream))
    body = chat(fresh())
    async with connect(proxy.port) as running, connect(proxy.port) as late:
        await running.send(body)
        await running.read_events(1)
        await reload(proxy, towards(other, server={"client_keys": ["sesame"]}))
        assert (await late.ask(body)).status == 401
        answer = await late.ask(chat(fresh(), key="sesame"))
        assert (answer.status, other.calls, upstream.calls) == (200, 1, 1)
        gate.set()
        assert (await running.finish()).body == STREAM
    # The replaced upstream ends with its last call: a kept connection is not kept for ever.
    await upstream.wait_until(lambda: upstream.open_now == 0, within_s=KEPT_FOR_S + 3)
    assert (await ask(proxy.port, chat(fresh(), key="sesame"))).status == 200


async def test_an_upstream_that_did_not_change_keeps_its_connections(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    upstream.play(raw(b"{}"))
    proxy = start_proxy(towards(upstream))
    async with connect(proxy.port) as client:
        assert (await client.ask(request("GET", "/v1/files"))).status == 200
        await reload(proxy, towards(upstream, stage_defaults={"share": "never"}))
        assert (await client.ask(request("GET", "/v1/files"))).status == 200
    assert (upstream.calls, upstream.connections) == (2, 1)


async def test_an_answer_kept_before_is_replayed_by_the_new_rules(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    upstream.play(sse(CH, FIN, DONE))
    proxy = start_proxy(towards(upstream))
    body = chat(fresh())
    async with connect(proxy.port) as client:
        assert [(await client.ask(body)).role for _ in range(3)] == ["owner", "replay", "replay"]
        await reload(proxy, towards(upstream, stage_defaults={"replay": "never"}))
        assert (await client.ask(body)).role == "owner"
        await reload(proxy, towards(upstream))
        assert (await client.ask(body)).role == "replay"
    assert upstream.calls == 2


BAD = {
    "not TOML": 'upstream = "',
    "an unknown key": "[server]\nlisten_to = 1\n",
    "a bad value": '[server]\ndrain_timeout = "soon"\n',
    "a CA bundle that is not there": '[upstream]\nurl = "https://127.0.0.1:1"\nverify_tls = "/nowhere/ca.pem"\n',
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD.keys())
async def test_a_bad_file_is_told_of_and_the_old_one_stays(
    text: str, start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    upstream.play(sse(CH, FIN, DONE))
    proxy = start_proxy(towards(upstream))
    await reload(proxy, text, NOT_RELOADED)
    assert RELOADED not in proxy.log
    assert (await ask(proxy.port, chat(fresh()))).body == STREAM
    await reload(proxy, towards(upstream))  # a good one is taken after it


async def test_what_can_not_change_is_named(start_proxy: StartProxy, upstream: ScriptedUpstream) -> None:
    upstream.play(sse(CH, FIN, DONE))
    proxy = start_proxy(towards(upstream))
    config = towards(upstream, server={"max_memory": "1MiB"}, coordination={"backend": "redis"})
    await reload(proxy, config)
    await eventually(lambda: "these need a restart: server.max_memory, coordination" in proxy.log)
    assert (await ask(proxy.port, chat(fresh()))).body == STREAM


async def test_times_of_the_drain_can_change(start_proxy: StartProxy, upstream: ScriptedUpstream) -> None:
    upstream.play(sse(CH, asyncio.Event()))
    proxy = start_proxy(towards(upstream, server={"drain_timeout": "50s"}))
    await reload(proxy, towards(upstream, server={"drain_timeout": "100ms"}))
    async with connect(proxy.port) as client:
        await client.send(chat(fresh()))
        await client.read_events(1)
        assert proxy.terminate(within_s=5) == 0


async def test_the_level_of_the_log_can_change(start_proxy: StartProxy, upstream: ScriptedUpstream) -> None:
    upstream.play(sse(CH, FIN, DONE))
    proxy = start_proxy(towards(upstream))
    await reload(proxy, towards(upstream, log={"level": "error"}))
    before = proxy.log
    assert (await ask(proxy.port, chat(fresh()))).body == STREAM
    await reload(proxy, "[server]\nwhat = 1\n", NOT_RELOADED)
    assert [line for line in proxy.log.removeprefix(before).splitlines() if " ERROR " not in line] == []


async def test_signals_that_come_together_are_all_heard_and_a_draining_proxy_reads_nothing(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    gate = asyncio.Event()
    upstream.play(sse(CH, gate, FIN, DONE))
    proxy = start_proxy(towards(upstream, server={"drain_timeout": "20s"}))
    async with connect(proxy.port) as client:
        await client.send(chat(fresh()))
        await client.read_events(1)
        for _ in range(5):
            proxy.send(signal.SIGHUP)
        await eventually(lambda: RELOADED in proxy.log)
        proxy.send(signal.SIGTERM)
        await eventually(lambda: "draining" in proxy.log)
        reloads = proxy.log.count(RELOADED)
        proxy.send(signal.SIGHUP)
        gate.set()
        assert (await client.finish()).body == STREAM
        assert proxy.wait() == 0
    assert proxy.log.count(RELOADED) == reloads


def test_the_page_names_what_needs_a_restart() -> None:
    page = (Path(__file__).parents[2] / "docs" / "running.md").read_text()
    (told,) = re.findall(r"\n\n(`server\.listen`.*?) need a restart", page, re.DOTALL)
    names = re.findall(r"`\[?([a-z_.]+)\]?`", told)
    assert [name.removeprefix("server.") for name in names] == [name.removeprefix("server.") for name in FIXED_AT_START]


# ── several workers ─────────────────────────────────────────────────────────────────────────────────────────────────


async def on_each(proxy: Proxy, data: bytes) -> list[Response]:
    """Each worker's answer."""
    async with one_on_each(proxy) as clients:
        return [await client.ask(data) for client in clients]


async def test_every_worker_takes_it_and_one_that_is_restarted_has_it(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    upstream.play(sse(CH, FIN, DONE))
    crew = start_proxy(towards(upstream, server={"workers": 2}))
    crew.wait_log("2 workers are ready")
    config = towards(upstream, server={"workers": 3, "client_keys": ["sesame"]})
    await reload(crew, config)
    await eventually(lambda: "these settings need a restart: server.workers" in crew.log)
    assert [answer.status for answer in await on_each(crew, chat(fresh()))] == [401, 401]
    crew.send(signal.SIGCHLD)  # means nothing here
    first = workers(crew)[0]
    os.kill(first, signal.SIGKILL)
    await eventually(lambda: first not in workers(crew) and len(workers(crew)) == 2)
    assert [answer.status for answer in await on_each(crew, chat(fresh()))] == [401, 401]
    assert [answer.status for answer in await on_each(crew, chat(fresh(), key="sesame"))] == [200, 200]


async def test_one_that_was_being_restarted_meanwhile_has_it(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    crew = start_proxy(towards(upstream, server={"workers": 2}))
    crew.wait_log("2 workers are ready")
    crew.config_file.write_text(toml.dump(towards(upstream, server={"workers": 2, "client_keys": ["sesame"]})))
    first = workers(crew)[0]
    os.kill(first, signal.SIGKILL)
    crew.send(signal.SIGHUP)
    await eventually(lambda: first not in workers(crew) and len(workers(crew)) == 2)
    await eventually(lambda: RELOADED in crew.log)
    assert [answer.status for answer in await on_each(crew, chat(fresh()))] == [401, 401]


@pytest.mark.parametrize("name", ["a bad value", "a CA bundle that is not there"])
async def test_a_bad_file_changes_no_worker_nor_one_to_come(
    name: str, start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    upstream.play(sse(CH, FIN, DONE))
    crew = start_proxy(towards(upstream, server={"workers": 2}))
    crew.wait_log("2 workers are ready")
    crew.config_file.write_text("[server]\nworkers = 2\n" + BAD[name].replace("[server]\n", ""))
    crew.send(signal.SIGHUP)
    await eventually(lambda: NOT_RELOADED in crew.log)
    first = workers(crew)[0]
    os.kill(first, signal.SIGKILL)
    await eventually(lambda: first not in workers(crew) and len(workers(crew)) == 2)
    assert [answer.body for answer in await on_each(crew, chat(fresh()))] == [STREAM, STREAM]
    assert RELOADED not in crew.log


async def test_a_new_listener_needs_a_restart_for_workers_too(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    crew = start_proxy(towards(upstream, server={"workers": 2}))
    crew.wait_log("2 workers are ready")
    port = free_port()
    assert port != crew.port  # the flag goes before the file: nothing changes
    await reload(crew, towards(upstream, server={"workers": 2, "listen": f"127.0.0.1:{port}"}))
    assert "need a restart" not in crew.log
