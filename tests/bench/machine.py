"""Processes on this machine: pinned to a core, waited for, ended by their ids; what they use of CPU and memory.

The server has one core, the load and the upstream the other. No figure is judged here.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

SERVER_CORE, LOAD_CORE = "0", "1"
TICKS = os.sysconf("SC_CLK_TCK")
TESTS = Path(__file__).parents[1]
# Debian keeps servers in /usr/sbin, which is not on everyone's path.
SEARCH = os.environ.get("PATH", "") + ":/usr/sbin"


class Broken(Exception):
    """A wrong answer, an error status, a call too many, or a contender that does not start: no figure, but a fault."""


def program(name: str) -> str | None:
    """Where a program is, or None."""
    return shutil.which(name, path=SEARCH)


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def environment() -> dict[str, str]:
    """This process's environment, with which ``python -m bench.X`` works."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]), "PATH": SEARCH}


def listens(port: int) -> bool:
    """Whether somebody accepts connections at the port."""
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def running(command: Sequence[str], port: int, core: str, log: Path, patience_s: float = 20) -> Iterator[int]:
    """A server with its own process group on one core, once it listens at ``port``. Yields its process id."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            ["taskset", "-c", core, *command], stdout=out, stderr=out, env=environment(), start_new_session=True
        )
    try:
        until = time.monotonic() + patience_s
        while not listens(port):
            if process.poll() is not None or time.monotonic() > until:
                raise Broken(f"{command[0]} does not listen: {log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.02)
        yield process.pid
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process and those it started, which are in its group."""
    for sign, patience_s in ((signal.SIGTERM, 10), (signal.SIGKILL, 10)):
        try:
            os.killpg(process.pid, sign)
            process.wait(patience_s)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def family(pid: int) -> list[int]:
    """A process and all that descend from it."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            found += [int(child) for child in task.read_text().split()]
    return found


def cpu_s(pid: int) -> float:
    """CPU seconds that a process and its children have used."""
    used = 0
    for member in family(pid):
        fields = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
        used += int(fields[11]) + int(fields[12])
    return used / TICKS


class Others:
    """What everything that is not this bench takes of the two cores, from when this is made.

    User and system time, and what the host of a virtual machine took; interrupts are left out: the kernel does not say whose.
    """

    def __init__(self) -> None:
        self._began, self._busy, self._own = time.monotonic(), busy_s(), own_s()

    def share(self) -> float:
        """Of one core, so far."""
        taken = busy_s() - self._busy - (own_s() - self._own)
        return max(0.0, taken / (time.monotonic() - self._began))


def busy_s() -> float:
    """CPU seconds that the two cores have spent on programs or given away."""
    lines = (line.split() for line in Path("/proc/stat").read_text().splitlines())
    cores = {line[0]: [int(field) for field in line[1:]] for line in lines if line[0].startswith("cpu")}
    return sum(sum(cores[f"cpu{core}"][i] for i in (0, 1, 2, 7)) for core in (SERVER_CORE, LOAD_CORE)) / TICKS


def own_s() -> float:
    """CPU seconds of this process, of all that descend from it, and of those of them that have ended."""
    ended = os.times()
    return cpu_s(os.getpid()) + ended.children_user + ended.children_system


def memory_kb(pid: int) -> float:
    """Memory of a process and its children; what they share is counted once."""
    pss = 0.0
    for member in family(pid):
        rollup = Path(f"/proc/{member}/smaps_rollup").read_text()
        pss += next(float(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return pss
