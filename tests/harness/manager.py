"""A service manager as a service sees it: the other end of NOTIFY_SOCKET (sd_notify(3))."""

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from harness.process import eventually

PIECE = 4096
CREDENTIALS = struct.calcsize("3i")


@dataclass(frozen=True)
class Notice:
    """One message: its lines, the process that sent it, and when it was read (monotonic seconds)."""

    lines: tuple[str, ...]
    pid: int
    at: float

    def value(self, name: str) -> str:
        """The value of ``NAME=value``."""
        return next(line.partition("=")[2] for line in self.lines if line.startswith(f"{name}="))


class Manager:
    """Collects what is sent to ``path``. ``heard`` has every notice so far, in order."""

    def __init__(self, path: Path | str) -> None:
        self.path = path
        self.heard: list[Notice] = []
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sock.setblocking(False)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._sock.bind(str(path))

    def __repr__(self) -> str:
        return f"<Manager {self.path} {[notice.lines for notice in self.heard]}>"

    def env(self, *, watchdog_s: float | None = None) -> dict[str, str]:
        """What a service gets in its environment."""
        watchdog = {} if watchdog_s is None else {"WATCHDOG_USEC": str(round(watchdog_s * 1_000_000))}
        return {"NOTIFY_SOCKET": str(self.path), **watchdog}

    def take(self) -> Self:
        """Read all that has been sent."""
        while True:
            try:
                data, ancillary, _, _ = self._sock.recvmsg(PIECE, socket.CMSG_SPACE(CREDENTIALS))
            except BlockingIOError:
                return self
            pid = struct.unpack("3i", ancillary[0][2][:CREDENTIALS])[0]
            self.heard.append(Notice(tuple(data.decode().splitlines()), pid, time.monotonic()))

    async def until(self, line: str, *, number: int = 1, within_s: float = 30.0) -> Notice:
        """Wait for the ``number``-th notice that has ``line``."""
        found: list[Notice] = []

        def there() -> bool:
            found[:] = [notice for notice in self.take().heard if line in notice.lines]
            return len(found) >= number

        await eventually(there, within_s)
        return found[number - 1]

    def all(self, line: str) -> list[Notice]:
        """Every notice so far that has ``line``."""
        return [notice for notice in self.take().heard if line in notice.lines]

    def fill(self) -> None:
        """Leave no room for another message until the next ``take``."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock, suppress(BlockingIOError):
            sock.setblocking(False)
            while True:
                sock.sendto(b"", str(self.path))

    def close(self) -> None:
        self._sock.close()


@contextmanager
def manager(folder: Path) -> Iterator[Manager]:
    """One that listens in ``folder`` for the length of a block."""
    listening = Manager(folder / "notify")
    try:
        yield listening
    finally:
        listening.close()
