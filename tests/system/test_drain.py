"""A drain over several workers, and what no single process shows: signals to a group, an admin's open page, a late answer.

One process alone is in test_signals; a fleet in tests/cases/test_c62.
"""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from harness.client import chat, connect, fresh, request
from harness.fixtures import StartProxy
from harness.process import eventually, http_status
from harness.proxy import Proxy
from harness.stalls import lasted
from harness.workers import alive, children, one_on_each, workers
from soloflight.testing.chat import CH, DONE, FIN
from soloflight.testing.script import raw, sse
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

STREAM = CH + FIN + DONE
LIMIT_S = 20


class Group(Proxy):
    """Two workers and their supervisor, who leads a process group, as a shell's or a container's first process does."""

    leads_a_group = True

    def signal_group(self, number: int) -> None:
        os.killpg(self.pid, number)


class StartGroup(Protocol):
    def __call__(self, drain_timeout_s: float = LIMIT_S) -> Group: ...


@pytest.fixture
def start_group(tmp_path: Path, upstream: ScriptedUpstream) -> Iterator[StartGroup]:
    started: list[Group] = []

    def start(drain_timeout_s: float = LIMIT_S) -> Group:
        config = {"server": {"drain_timeout": drain_timeout_s, "workers": 2}}
        group = Group(config, upstream=upstream.port, folder=tmp_path)
        started.append(group)
        group.wait_log("2 workers are ready", within_s=20)
        return group

    yield start
    for group in started:
        group.stop()


async def over(group: Group, pids: list[int], within_s: float = 3.0) -> None:
    """All of it has ended, well."""
    await eventually(lambda: group.exit_code is not None, within_s)
    assert group.exit_code == 0
    await eventually(lambda: not any(map(alive, pids)))
    group.check_log()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
async def test_a_signal_to_the_whole_group_is_one(
    number: int, start_group: StartGroup, upstream: ScriptedUpstream
) -> None:
    gate = asyncio.Event()
    upstream.play(sse(CH, gate, FIN, DONE))
    group = start_group()
    pids = children(group.pid)
    body = chat(fresh())
    async with one_on_each(group) as clients:
        for client in clients:
            await client.send(body)
            await client.read_events(1)
        group.signal_group(number)
        await eventually(lambda: group.log.count("draining:") == 2)
        group.signal_group(number)  # too soon to be a second one
        await eventually(lambda: http_status(f"{group.url}/_soloflight/health") is None)
        assert upstream.requests[0].left is None
        gate.set()
        answers = [await client.finish() for client in clients]
    assert [answer.body for answer in answers] == [STREAM] * 2
    assert [answer.role for answer in answers] == ["owner", "follower"]
    await over(group, pids)
    assert upstream.calls == 1


async def test_a_second_signal_ends_all_workers_at_once(start_group: StartGroup, upstream: ScriptedUpstream) -> None:
    upstream.play(sse(CH, asyncio.Event()))
    group = start_group()
    pids = children(group.pid)
    async with one_on_each(group) as clients:
        for client in clients:
            await client.send(chat(fresh()))
            await client.read_events(1)
        group.signal_group(signal.SIGTERM)
        await eventually(lambda: group.log.count("draining:") == 2)
        await asyncio.sleep(1.1)
        assert group.exit_code is None
        begun = time.monotonic()
        group.signal_group(signal.SIGTERM)
        for client in clients:
            answer = await client.finish()
            assert (answer.ended, answer.last_chunk_seen) == ("rst", False)
        assert lasted(begun) < 2
    await over(group, pids)


async def test_what_outlasts_the_drain_is_cut_on_every_worker(
    start_group: StartGroup, upstream: ScriptedUpstream
) -> None:
    upstream.play(sse(CH, asyncio.Event()))
    group = start_group(drain_timeout_s=0.5)
    pids = children(group.pid)
    async with one_on_each(group) as clients:
        for client in clients:
            await client.send(chat(fresh()))
            await client.read_events(1)
        group.send(signal.SIGTERM)
        for client in clients:
            answer = await client.finish()
            assert b'"code":"draining"' in answer.body
            assert (answer.ended, answer.last_chunk_seen) == ("rst", False)
    await over(group, pids)


async def test_a_worker_that_does_not_end_is_killed_in_time(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    group = start_proxy({}, "--workers=2", upstream=upstream.port, check=False)
    group.wait_log("2 workers are ready")
    pids = children(group.pid)
    hung = workers(group)[0]
    os.kill(hung, signal.SIGSTOP)
    group.send(signal.SIGTERM)
    await eventually(lambda: group.log.count("draining:") == 1)
    await asyncio.sleep(1.1)
    group.send(signal.SIGTERM)
    await eventually(lambda: group.exit_code is not None, 8)
    assert group.exit_code == 1
    await eventually(lambda: "do not end and are killed" in group.log)
    await eventually(lambda: not any(map(alive, pids)))


async def test_an_answer_that_was_under_way_says_that_it_is_the_last(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    """Its head goes out while the process drains: whoever keeps the connection would find it closed."""
    gate = asyncio.Event()
    upstream.play([gate, raw(b"{}", type="application/json")])
    proxy = start_proxy({"server": {"drain_timeout": "20s"}}, upstream=upstream.port)
    async with connect(proxy.port) as shared, connect(proxy.port) as alone:
        await shared.send(chat(fresh(stream=False)))
        await alone.send(request("GET", "/v1/files"))
        await upstream.wait_calls(2)
        proxy.send(signal.SIGTERM)
        await eventually(lambda: "draining" in proxy.log)
        gate.set()
        for client in (shared, alone):
            answer = await client.finish()
            assert (answer.status, answer.body, answer.get("Connection")) == (200, b"{}", "close")
            assert await client.ended() == "fin"
    assert proxy.wait(within_s=8) == 0


async def test_one_whose_head_was_out_already_ends_its_connection_too(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    gate = asyncio.Event()
    upstream.play(sse(CH, gate, FIN, DONE))
    proxy = start_proxy({"server": {"drain_timeout": "20s"}}, upstream=upstream.port)
    async with connect(proxy.port) as client:
        await client.send(chat(fresh()))
        await client.read_events(1)
        proxy.send(signal.SIGTERM)
        await eventually(lambda: "draining" in proxy.log)
        gate.set()
        assert (await client.finish()).complete
        assert await client.ended() == "fin"
    assert proxy.wait(within_s=8) == 0


@pytest.mark.parametrize("words", [(), ("--workers=2",)], ids=["alone", "workers"])
async def test_a_status_page_that_is_open_holds_nobody_up(
    words: tuple[str, ...], start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    proxy = start_proxy({}, *words, upstream=upstream.port)
    proxy.wait_log("workers are ready" if words else "admin listening")
    async with connect(proxy.admin_port) as page:
        await page.send(request("GET", "/api/events", host="127.0.0.1"))
        await page.read_events(1)
        proxy.send(signal.SIGTERM)
        await eventually(lambda: proxy.exit_code is not None, 4)
    assert proxy.exit_code == 0
