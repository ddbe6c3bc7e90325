"""conf/soloflight.service: what it says of the product is so, seen from where systemd stands (sd_notify(3), systemd.service(5))."""

import asyncio
import os
import re
import shlex
import signal
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from harness.client import ask, chat, connect, fresh
from harness.fixtures import StartProxy
from harness.manager import Manager, manager
from harness.process import Process, eventually
from harness.proxy import PROGRAM, clean_env
from harness.stalls import lasted
from harness.workers import workers
from soloflight.config import units
from soloflight.testing.chat import CH, DONE, FIN
from soloflight.testing.script import sse
from soloflight.testing.upstream import ScriptedUpstream

UNIT = Path(__file__).parents[2] / "conf" / "soloflight.service"
WATCHDOG_S = 1.2
WAYS = [(), ("--workers=2",)]
READY, RELOADING, STOPPING, ALIVE = "READY=1", "RELOADING=1", "STOPPING=1", "WATCHDOG=1"


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Manager]:
    with manager(tmp_path) as listening:
        yield listening


@pytest.fixture(scope="module")
def unit() -> dict[str, list[str]]:
    """Its directives; one that stands there twice has two values."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for line in UNIT.read_text().splitlines():
        if line and not line.startswith(("#", "[")):
            name, _, value = line.partition("=")
            found[name].append(value)
    return found


# ── the product's side ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("words", WAYS, ids=["alone", "workers"])
async def test_a_whole_life(
    words: tuple[str, ...], systemd: Manager, start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    gate = asyncio.Event()
    upstream.play(sse(CH, gate, FIN, DONE))
    proxy = start_proxy(
        {"server": {"drain_timeout": "7s", "drain_delay": "200ms"}},
        *words,
        upstream=upstream.port,
        env=systemd.env(watchdog_s=WATCHDOG_S),
    )
    await systemd.until(READY)
    async with connect(proxy.port) as client:
        await client.send(chat(fresh()))
        await client.read_events(1)

        proxy.send(signal.SIGHUP)
        begun = await systemd.until(RELOADING)
        assert 0 < begun.at - int(begun.value("MONOTONIC_USEC")) / 1e6 < 5
        ended = await systemd.until(READY, number=2)
        assert ended.at >= begun.at
        await eventually(lambda: proxy.log.count("configuration reloaded") == max(1, len(workers(proxy))))

        proxy.send(signal.SIGTERM)
        stopping = await systemd.until(STOPPING)
        assert 7.2 < int(stopping.value("EXTEND_TIMEOUT_USEC")) / 1e6 < 60
        signs = len(systemd.all(ALIVE))
        await systemd.until(ALIVE, number=signs + 2)  # a drain is no hanging
        gate.set()
        assert (await client.finish()).complete
    assert proxy.wait() == 0
    assert len(systemd.all(STOPPING)) == 1
    assert len(systemd.all(READY)) == 2
    assert {notice.pid for notice in systemd.heard} == {proxy.pid}  # NotifyAccess=main takes no other's word


@pytest.mark.parametrize("words", WAYS, ids=["alone", "workers"])
async def test_ready_means_that_it_listens(
    words: tuple[str, ...], systemd: Manager, tmp_path: Path, upstream: ScriptedUpstream
) -> None:
    upstream.play(sse(CH, FIN, DONE))
    command = [str(PROGRAM), "serve", "--listen=127.0.0.1:0", "--admin-listen=off", "--upstream", upstream.url, *words]
    process = Process(command, tmp_path / "log", clean_env(**systemd.env()))
    try:
        await systemd.until(READY)
        port = re.findall(r"listening on http://127\.0\.0\.1:(\d+),", process.log)[-1]
        for _ in range(8):  # whichever worker it is
            assert (await ask(int(port), chat(fresh()))).complete
        assert systemd.all(ALIVE) == []  # no watchdog was asked for
    finally:
        assert process.terminate() == 0


@pytest.mark.parametrize("words", WAYS, ids=["alone", "workers"])
async def test_signs_of_life(
    words: tuple[str, ...], systemd: Manager, start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    proxy = start_proxy({}, *words, upstream=upstream.port, env=systemd.env(watchdog_s=WATCHDOG_S))
    await systemd.until(READY)
    first = len(systemd.all(ALIVE))
    await systemd.until(ALIVE, number=first + 4)
    at = [notice.at for notice in systemd.all(ALIVE)[first:]]
    assert max(lasted(before, after) for before, after in pairwise(at)) < WATCHDOG_S
    proxy.freeze()
    await asyncio.sleep(0)
    silent_from = len(systemd.all(ALIVE))
    with pytest.raises(TimeoutError):
        await systemd.until(ALIVE, number=silent_from + 1, within_s=2 * WATCHDOG_S)
    proxy.thaw()
    await systemd.until(ALIVE, number=silent_from + 1)


async def test_a_watchdog_for_another_process_is_not_ours(
    systemd: Manager, start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    env = systemd.env(watchdog_s=WATCHDOG_S) | {"WATCHDOG_PID": str(os.getpid())}
    start_proxy({}, upstream=upstream.port, env=env)
    await systemd.until(READY)
    with pytest.raises(TimeoutError):
        await systemd.until(ALIVE, within_s=WATCHDOG_S)


async def test_a_bad_file_ends_the_reload_too(
    systemd: Manager, start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    for words in WAYS:
        before = len(systemd.all(READY))
        proxy = start_proxy({}, *words, upstream=upstream.port, env=systemd.env())
        await systemd.until(READY, number=before + 1)
        proxy.config_file.write_text("[server]\nwhat = 1\n")
        proxy.send(signal.SIGHUP)
        await systemd.until(READY, number=before + 2)
        await eventually(lambda proxy=proxy: "not reloaded" in proxy.log)


async def test_an_abstract_socket(start_proxy: StartProxy, upstream: ScriptedUpstream, tmp_path: Path) -> None:
    name = f"soloflight-test-{os.getpid()}"
    listening = Manager("\0" + name)
    try:
        start_proxy({}, upstream=upstream.port, env={"NOTIFY_SOCKET": f"@{name}"})
        await listening.until(READY)
    finally:
        listening.close()


async def test_a_manager_that_does_not_read_holds_nobody_up(
    systemd: Manager, start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    upstream.play(sse(CH, FIN, DONE))
    proxy = start_proxy({}, upstream=upstream.port, env=systemd.env(watchdog_s=0.002))  # its queue is soon full
    await systemd.until(ALIVE, number=30)
    await asyncio.sleep(0.5)
    assert (await ask(proxy.port, chat(fresh()))).complete


@pytest.mark.parametrize("words", WAYS, ids=["alone", "workers"])
async def test_one_that_reads_late_gets_what_counts(
    words: tuple[str, ...], systemd: Manager, start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    """Signs of life may be lost; that a reload has ended must not be."""
    proxy = start_proxy({}, *words, upstream=upstream.port, env=systemd.env(watchdog_s=WATCHDOG_S))
    await systemd.until(READY)
    systemd.fill()
    proxy.send(signal.SIGHUP)
    await asyncio.sleep(0.2)
    await systemd.until(RELOADING)
    await systemd.until(READY, number=2)


async def exit_code(command: list[str], env: dict[str, str]) -> int:
    """Run a command to its end."""
    child = await asyncio.create_subprocess_exec(
        *command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    async with asyncio.timeout(40):
        return await child.wait()


# ── the unit's side ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_it_is_as_the_product_behaves(unit: dict[str, list[str]]) -> None:
    assert unit["Type"] == ["notify"]
    assert unit["NotifyAccess"] == ["main"]
    assert unit["KillMode"] == ["mixed"]  # SIGTERM to the supervisor alone: only it counts signals
    assert unit["KillSignal"] == ["SIGTERM"]
    assert unit["RestartPreventExitStatus"] == ["2"]
    assert unit["ExecReload"][-1] == "/bin/kill -HUP $MAINPID"
    families = set(unit["RestrictAddressFamilies"][0].split())
    assert families == {"AF_INET", "AF_INET6", "AF_UNIX"}
    assert units.parse_duration(unit["WatchdogSec"][0]) >= 10  # a loop on a loaded machine is late, not hung


async def test_start_reload_and_stop_by_its_own_commands(
    unit: dict[str, list[str]], systemd: Manager, tmp_path: Path, upstream: ScriptedUpstream
) -> None:
    upstream.play(sse(CH, FIN, DONE))
    file = tmp_path / "soloflight.toml"
    file.write_text(
        f'[server]\nlisten = "127.0.0.1:0"\nadmin_listen = "off"\nworkers = 2\n[upstream]\nurl = "{upstream.url}"\n'
    )
    environment = clean_env(**systemd.env(watchdog_s=30))

    def command(line: str, pid: int = 0) -> list[str]:
        places = {"/opt/soloflight/bin/soloflight": str(PROGRAM), "/etc/soloflight/soloflight.toml": str(file)}
        return [places.get(word, word).replace("$MAINPID", str(pid)) for word in shlex.split(line)]

    (start,) = unit["ExecStart"]
    process = Process(command(start), tmp_path / "log", environment)
    try:
        await systemd.until(READY)
        for line in unit["ExecReload"]:
            assert await exit_code(command(line, process.pid), environment) == 0
        await systemd.until(READY, number=2)
        file.write_text("[server]\nwhat = 1\n")
        assert (
            await exit_code(command(unit["ExecReload"][0]), environment) == 2
        )  # systemctl reload fails, and the process hears nothing of it
    finally:
        process.send(getattr(signal, unit["KillSignal"][0]))
        await eventually(lambda: process.exit_code is not None, 10)
    assert process.exit_code == 0
    assert str(await exit_code(command(start), environment)) in unit["RestartPreventExitStatus"]


def test_systemd_itself_takes_it(tmp_path: Path) -> None:
    copy = tmp_path / "soloflight.service"
    copy.write_text(UNIT.read_text().replace("/opt/soloflight/bin/soloflight", str(PROGRAM)))
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True, timeout=30, check=False
    )
    assert (verified.returncode, verified.stdout + verified.stderr) == (0, "")
    judged = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=15", str(copy)],  # tenths: 1.5 of 10
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert judged.returncode == 0, judged.stdout
