"""A run of the demo: a scripted upstream, a real proxy process, and 50 identical clients that come one by one.

It ends with what it shows, "50 requests, 1 upstream call", or with exit code 1.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from soloflight.cli.demo_clients import Crowd
from soloflight.cli.demo_table import Screen, summary
from soloflight.flow.tasks import Tasks
from soloflight.testing import chat
from soloflight.testing.script import Step, sse
from soloflight.testing.upstream import ScriptedUpstream

__all__ = ["run"]

PROGRAM = (sys.executable, "-m", "soloflight")
CLIENTS = 50
ARRIVALS_S = 6.0
EVENTS = 75
PAUSE_S = 0.1  # the answer takes 7.5 s, so the last client to come still finds it running
REFRESH_S = 0.1
START_WITHIN_S = 10.0
END_WITHIN_S = 60.0
STOP_WITHIN_S = 5.0
TEXT = "One upstream call makes this answer, and everybody who asks for it reads it from its first byte."


async def run() -> int:
    """Run the demo; returns the exit code."""
    words = TEXT.split()
    events = [chat.content(words[number % len(words)] + " ") for number in range(EVENTS)] + [chat.FIN, chat.DONE]
    steps: list[Step] = [step for event in events for step in (PAUSE_S, event)]
    crowd = Crowd(CLIENTS, ARRIVALS_S, expected_bytes=sum(map(len, events)))
    try:
        async with (
            asyncio.timeout(END_WITHIN_S),
            ScriptedUpstream(sse(*steps)) as upstream,
            _proxy(upstream.url) as url,
        ):
            await _watch(crowd, url, upstream)
            report = summary(crowd, upstream.calls)
    except TimeoutError:
        raise click.ClickException(f"the demo did not end within {END_WITHIN_S:g} s") from None
    click.echo(report.text)
    return 0 if report.shown else 1


async def _watch(crowd: Crowd, url: str, upstream: ScriptedUpstream) -> None:
    """Let the crowd come, and draw it until everybody has left."""
    clients = Tasks("demo clients")
    screen = Screen(crowd)
    started = time.monotonic()
    try:
        clients.spawn(crowd.visit(url, clients), "demo crowd")
        with screen:
            while not await clients.wait_idle(REFRESH_S):
                screen.draw(time.monotonic() - started, upstream.calls)
            screen.draw(time.monotonic() - started, upstream.calls)
    finally:
        await clients.close()


@asynccontextmanager
async def _proxy(upstream: str) -> AsyncIterator[str]:
    """A ``soloflight serve`` process in front of ``upstream``, listening; yields its origin."""
    port = _free_port()
    command = [*PROGRAM, "serve", "--upstream", upstream, "--listen", f"127.0.0.1:{port}"]
    settings = ["--admin-listen", "off", "--backend", "memory", "--workers", "1", "--log-level", "warning"]
    # The demo shows the proxy as it is installed, whatever the shell it is started from is set up for.
    ours = {name: value for name, value in os.environ.items() if not name.startswith("SOLOFLIGHT_")}
    with TemporaryDirectory(prefix="soloflight-demo-") as folder:
        process = await asyncio.create_subprocess_exec(*command, *settings, env=ours, cwd=Path(folder))
        try:
            await _listening(port, process)
            yield f"http://127.0.0.1:{port}"
        finally:
            await _stop(process)


async def _listening(port: int, process: asyncio.subprocess.Process) -> None:
    """Wait until the proxy takes connections; a click error if it ends instead, or takes too long."""
    try:
        async with asyncio.timeout(START_WITHIN_S):
            while process.returncode is None:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                except OSError:
                    await asyncio.sleep(0.02)
                    continue
                writer.close()
                return
    except TimeoutError:
        raise click.ClickException(f"the proxy did not listen within {START_WITHIN_S:g} s") from None
    raise click.ClickException(f"the proxy ended with exit code {process.returncode}")


async def _stop(process: asyncio.subprocess.Process) -> None:
    """SIGTERM, and SIGKILL for one that does not drain in time."""
    if process.returncode is None:
        process.terminate()
        try:
            async with asyncio.timeout(STOP_WITHIN_S):
                await process.wait()
        except TimeoutError:
            process.kill()
    await process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
