"""The processes behind one port: as the kernel lists them, and told apart by their clients."""

import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from harness.client import RawClient, request
from harness.proxy import Proxy

TRIES = 64


def children(pid: int) -> list[int]:
    """Its children that live; zombies are not among them."""
    return [child for child in _listed(pid) if alive(child)]


def zombies(pid: int) -> list[int]:
    """Its children that have ended and were not waited for."""
    return [child for child in _listed(pid) if state(child) == "Z"]


def _listed(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def state(pid: int) -> str:
    """The kernel's letter for it; ``""`` where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def alive(pid: int) -> bool:
    return state(pid) not in ("", "Z", "X")


def command(pid: int) -> str:
    """Its command line."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def redis_of(proxy: Proxy) -> int | None:
    """The private redis-server; None while there is none."""
    return next((child for child in children(proxy.pid) if "redis-server" in command(child)), None)


def _sockets(pid: int) -> set[str]:
    found = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.add(os.readlink(descriptor))
        except FileNotFoundError:
            continue
    return found


def worker_of(proxy: Proxy, client: RawClient) -> int:
    """The process that has accepted ``client``."""
    here, there = client.sock.getsockname()[1], proxy.port
    row = re.compile(rf"^ *\d+: [0-9A-F]+:{there:04X} [0-9A-F]+:{here:04X} .*", re.MULTILINE)
    found = row.search(Path("/proc/net/tcp").read_text())
    assert found is not None, f"nobody has accepted {client!r}"
    wanted = f"socket:[{found[0].split()[9]}]"
    (pid,) = (child for child in children(proxy.pid) if wanted in _sockets(child))
    return pid


def workers(proxy: Proxy) -> list[int]:
    """The processes that listen on the proxy's port."""
    listening = re.compile(rf"^ *\d+: [0-9A-F]+:{proxy.port:04X} 00000000:0000 0A .*", re.MULTILINE)
    wanted = {f"socket:[{row.split()[9]}]" for row in listening.findall(Path("/proc/net/tcp").read_text())}
    return [child for child in children(proxy.pid) if wanted & _sockets(child)]


@asynccontextmanager
async def one_on_each(proxy: Proxy, count: int = 2) -> AsyncIterator[list[RawClient]]:
    """A connection to each of ``count`` workers."""
    opened: list[RawClient] = []
    found: dict[int, RawClient] = {}
    try:
        for _ in range(TRIES):
            client = await RawClient.open(proxy.port)
            opened.append(client)
            # Refused by the proxy itself; the connection stays open, and has been accepted.
            answer = await client.ask(request("GET", "/#"))
            assert answer.status == 400
            found.setdefault(worker_of(proxy, client), client)
            if len(found) == count:
                break
        assert len(found) == count, f"{len(found)} workers answer in {TRIES} tries"
        yield list(found.values())
    finally:
        for client in opened:
            client.close()
