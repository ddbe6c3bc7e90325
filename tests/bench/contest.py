"""Contenders side by side: processes pinned to one core, wrk on the other, rounds that alternate, medians and ratios."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SERVER_CORE, LOAD_CORE = "0", "1"
CONNECTIONS = 64
TICKS = os.sysconf("SC_CLK_TCK")


def full() -> bool:
    """Whether this is the long run."""
    return os.environ.get("BENCH") == "full"


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextmanager
def running(*command: str, port: int, core: str = SERVER_CORE, log: Path | None = None) -> Iterator[int]:
    """A server process pinned to one core, waited for until it listens, ended by its id. Yields the process id."""
    out = log.open("wb") if log is not None else subprocess.DEVNULL
    root = Path(__file__).parents[1]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
    process = subprocess.Popen(["taskset", "-c", core, *command], stdout=out, stderr=out, env=env)
    try:
        until = time.monotonic() + 20
        while True:
            assert process.poll() is None, f"{command[0]} ended at once"
            with socket.socket() as sock:
                if sock.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert time.monotonic() < until, f"{command} does not listen"
            time.sleep(0.05)
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def soloflight(port: int, upstream: str, *more: str) -> list[str]:
    """The product's command line, access log off."""
    where = ["--listen", f"127.0.0.1:{port}", "--upstream", upstream, "--admin-listen", "off"]
    return [sys.executable, "-m", "soloflight", "serve", *where, "--log-level", "warning", *more]


def textbook(kind: str, port: int, upstream: str) -> list[str]:
    """The comparison's command line."""
    return [sys.executable, "-m", "bench.textbook", kind, str(port), upstream]


@dataclass
class Figures:
    """One contender's rounds."""

    rps: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Requests per second."""
        return statistics.median(self.rps)

    @property
    def cpu(self) -> float:
        """CPU µs of the server per request."""
        return statistics.median(self.cpu_us)


def cpu_s(pid: int) -> float:
    """CPU seconds a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def wrk(url: str, script: Path, seconds: int, pid: int, figures: Figures) -> None:
    """One round of load; refuses to count errors."""
    before = cpu_s(pid)
    command = ["taskset", "-c", LOAD_CORE, "wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}", "-s", str(script), url]
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=seconds + 30).stdout
    used = cpu_s(pid) - before
    assert "Non-2xx" not in text, text
    requests = int(re.search(r"(\d+) requests in", text)[1])  # type: ignore[index]
    figures.rps.append(float(re.search(r"Requests/sec:\s+([\d.]+)", text)[1]))  # type: ignore[index]
    figures.cpu_us.append(used / max(1, requests) * 1e6)


def have(tool: str) -> bool:
    """Whether a program is there to compare with."""
    return shutil.which(tool, path=os.environ.get("PATH", "") + ":/usr/sbin") is not None


def post_script(
    folder: Path, name: str, size: int, *, fresh: bool = False, headers: dict[str, str] | None = None
) -> Path:
    """A wrk script that POSTs a chat body of about ``size`` bytes; ``fresh``: another body each time."""
    lines = ['wrk.method="POST"', 'wrk.headers["Content-Type"]="application/json"']
    lines.append('wrk.headers["Authorization"]="Bearer k"')
    lines += [f'wrk.headers["{key}"]="{value}"' for key, value in (headers or {}).items()]
    filler = f'string.rep("z",{max(1, size - 80)})'
    start = '{"model":"m","messages":[{"role":"user","content":"'
    end = '"}],"temperature":0}'
    if fresh:
        lines.append("local n=0")
        body = f"'{start}'..n..'x'..math.random()..{filler}..'{end}'"
        lines.append(f"request=function() n=n+1; return wrk.format(nil,nil,nil,{body}) end")
    else:
        lines.append(f"wrk.body='{start}'..{filler}..'{end}'")
    path = folder / f"{name}.lua"
    path.write_text("\n".join(lines) + "\n")
    return path


def nginx_origin(folder: Path, port: int, body: str) -> list[str]:
    """nginx as the fastest upstream there is: one fixed answer."""
    conf = folder / "origin.conf"
    paths = "".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    conf.write_text(
        f"worker_processes 1; daemon off; pid {folder}/origin.pid; error_log {folder}/origin.log;"
        "events { worker_connections 4096; }"
        f"http {{ access_log off; keepalive_requests 100000000; {paths}"
        f"server {{ listen 127.0.0.1:{port}; location / {{ default_type application/json; return 200 '{body}'; }} }} }}"
    )
    return ["nginx", "-c", str(conf), "-p", str(folder)]


def table(title: str, rows: list[tuple[str, ...]]) -> None:
    """Print aligned rows."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    print(f"\n{title}")
    for row in rows:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)))


def crowd(port: int, count: int, mode: str, elsewhere: int | None = None) -> dict[str, Any]:
    """The clients of ``bench.crowd``, in their own process on the load's core."""
    more = [] if elsewhere is None else [str(elsewhere)]
    command = ["taskset", "-c", LOAD_CORE, sys.executable, "-m", "bench.crowd", str(port), str(count), mode, *more]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=90, env=env)
    return dict(json.loads(done.stdout))
