"""The load: wrk for many requests one after the other, ``crowd.c`` for many at once; both refuse to count a wrong answer."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.contenders import KEY
from bench.machine import LOAD_CORE, SEARCH, Broken, cpu_s

CONNECTIONS = 64
FIELDS = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
SALT = "@salt@"


def chat(size: int, **more: object) -> str:
    """A chat request of ``size`` bytes, with a place for a salt of the same length."""
    body = {"model": "m", "messages": [{"role": "user", "content": SALT}], "temperature": 0, **more}
    return json.dumps(body).replace(SALT, SALT + "z" * max(0, size - len(json.dumps(body))))


def ask(port: int, path: str, body: str) -> bytes:
    """One request; the answer's body. A status other than 200 is a fault."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("POST", path, body.encode(), FIELDS)
        answer = connection.getresponse()
        content = answer.read()
    finally:
        connection.close()
    if answer.status != 200:
        raise Broken(f"status {answer.status}: {content[:300]!r}")
    return content


class Upstream:
    """An origin seen from beside: its address, and how many requests it has had."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._port, self._looks = port, 0

    def __repr__(self) -> str:
        return f"<Upstream {self.url}>"

    def calls(self) -> int:
        """Requests so far, looks left out: nginx counts them, too."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=5)
        connection.request("GET", "/calls")
        text = connection.getresponse().read().decode()
        connection.close()
        self._looks += 1
        return int(text) if text.isdigit() else int(text.splitlines()[2].split()[2]) - self._looks

    def settled(self) -> int:
        """The calls once there come no more: flights that the load has left are finished all the same."""
        seen, until = -1, time.monotonic() + 10
        while (now := self.calls()) != seen and time.monotonic() < until:
            seen = now
            time.sleep(0.03)
        return now


FRESH = 0


@dataclass(frozen=True)
class Script:
    """A wrk script that POSTs bodies of one size: ``variety`` of them in turn, or ``FRESH``: each request another."""

    path: Path
    body: str
    variety: int

    @classmethod
    def write(cls, folder: Path, size: int, variety: int) -> Script:
        """Write script and body to the folder."""
        name = f"{size}x{variety}"
        body, path = chat(size), folder / f"{name}.lua"
        (folder / f"{name}.body").write_text(body)
        lines = ['wrk.method = "POST"', *(f'wrk.headers["{field}"] = "{value}"' for field, value in FIELDS.items())]
        lines.append(f'wrk.body = io.open("{folder / name}.body"):read("*a")')
        if variety != 1:
            number = "n" if variety == FRESH else f"n % {variety}"
            lines += [
                f'local at, n, salt = string.find(wrk.body, "{SALT}"), 0, ""',
                f"local before, after = string.sub(wrk.body, 1, at - 1), string.sub(wrk.body, at + {len(SALT)})",
                "function init(args) salt = args[1] end",
                "function request()",
                "  n = n + 1",
                f"  return wrk.format(nil, nil, nil, before .. salt .. {number} .. after)",
                "end",
            ]
        path.write_text("\n".join(lines) + "\n")
        return cls(path, body, variety)

    def bodies(self, salt: str) -> list[str]:
        """Those that are asked in turn; of fresh ones one that is not asked again."""
        if self.variety == 1:
            return [self.body]
        names = ["first"] if self.variety == FRESH else [str(number) for number in range(self.variety)]
        return [self.body.replace(SALT, salt + name) for name in names]


@dataclass(frozen=True)
class Round:
    """One round of wrk: requests a second, CPU µs of the server per request, p99 in ms, requests."""

    rps: float
    cpu_us: float
    p99_ms: float
    requests: int


MS = {"us": 0.001, "ms": 1.0, "s": 1000.0, "m": 60000.0}


def wrk(url: str, script: Script, seconds: float, pid: int, salt: str) -> Round:
    """One round of load on a server."""
    before = cpu_s(pid)
    much = ["-t1", f"-c{CONNECTIONS}", f"-d{seconds:g}s", "--timeout", "30s", "--latency"]
    command = ["taskset", "-c", LOAD_CORE, "wrk", *much, "-s", str(script.path), url, "--", salt]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60, env={"PATH": SEARCH})
    text = done.stdout
    used = cpu_s(pid) - before
    if done.returncode or "Non-2xx" in text or "Socket errors" in text:
        raise Broken(f"{url}: {text or done.stderr}")
    found = re.search(r"99%\s+([\d.]+)(\w+)[\s\S]*?(\d+) requests in[\s\S]*Requests/sec:\s+([\d.]+)", text)
    if found is None:
        raise Broken(text)
    requests = int(found[3])
    return Round(float(found[4]), used / max(1, requests) * 1e6, float(found[1]) * MS[found[2]], requests)


def build(folder: Path) -> Path:
    """The compiled crowd."""
    binary = folder / "crowd"
    command = ["cc", "-O2", "-o", str(binary), str(Path(__file__).with_name("crowd.c"))]
    subprocess.run(command, check=True)
    return binary


def crowd(
    binary: Path,
    body: str,
    path: str,
    groups: list[tuple[int, int, int]],
    *,
    idle: Callable[[], None] = lambda: None,
    waiting: Callable[[], None] = lambda: None,
) -> list[dict[str, Any]]:
    """``groups`` of (port, clients, delay in ms) ask the same; one result each, as ``crowd.c`` describes it.

    ``idle`` is called when all are connected and none has asked, ``waiting`` when all have asked.
    """
    head = [f"POST {path} HTTP/1.1", "Host: bench", f"Content-Length: {len(body)}"]
    head += [f"{name}: {value}" for name, value in FIELDS.items()]
    request = binary.with_suffix(".request")
    request.write_text("\r\n".join(head) + "\r\n\r\n" + body)
    arguments = [":".join(map(str, group)) for group in groups]
    command = ["taskset", "-c", LOAD_CORE, str(binary), str(request), *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if process.stdout.readline() == b"connected\n":
            idle()
            process.stdin.write(b"go\n")
            process.stdin.flush()
            if process.stdout.readline() == b"asked\n":
                waiting()
        out, err = process.communicate(timeout=90)
        if process.returncode:
            raise Broken(err.decode())
    results: list[dict[str, Any]] = json.loads(out)
    for result in results:
        if set(result["statuses"]) != {"200"} or not result["same"] or result["digest"] != results[0]["digest"]:
            raise Broken(f"answers differ or are errors: {result}")
    return results
