"""What a serving process is told from outside: drain, stop now, read the configuration again — by signals or by its supervisor."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import Callable

SECOND_SIGNAL_S = 1.0

DRAIN, STOP, RELOAD = b"d", b"s", b"r"
READY, FAILED = b"+", b"-"


class Control:
    """``first``: stop without losing a stream. ``second``: stop at once. ``on_reload`` is called for each re-read."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        self.on_reload: Callable[[], None] = lambda: None
        self._acted = 0.0

    def __repr__(self) -> str:
        return f"{type(self).__name__}(first={self.first.is_set()}, second={self.second.is_set()})"

    def listen(self) -> None:
        """Begin to hear."""

    def ready(self) -> None:
        """The process serves."""

    def failed(self) -> None:
        """The process could not start, for a reason that another try would meet again."""


class Signals(Control):
    """A process of its own: SIGTERM and SIGINT drain; one that comes at least a second after the first was acted on ends at
    once (contract section 1). SIGHUP re-reads the configuration."""

    def listen(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, lambda: self.on_reload())

    def _stop(self) -> None:
        now = time.monotonic()
        if not self.first.is_set():
            self._acted = now
            self.first.set()
        elif now - self._acted >= SECOND_SIGNAL_S:
            self.second.set()


class Channel(Control):
    """A worker: signals are the supervisor's to count, so that one to the whole process group is one. It speaks through a socket.

    The end of the channel is the end of the supervisor: the worker drains, because nobody would restart or stop it.
    """

    def __init__(self, sock: socket.socket) -> None:
        super().__init__()
        self._sock = sock

    def listen(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, lambda: None)
        self._sock.setblocking(False)
        loop.add_reader(self._sock.fileno(), self._hear)

    def ready(self) -> None:
        self._say(READY)

    def failed(self) -> None:
        self._say(FAILED)

    def _say(self, word: bytes) -> None:
        try:
            self._sock.send(word)
        except OSError:
            self.first.set()

    def _hear(self) -> None:
        try:
            words = self._sock.recv(64)
        except BlockingIOError:
            return
        except OSError:
            words = b""
        if not words:
            asyncio.get_running_loop().remove_reader(self._sock.fileno())
            self.first.set()
        for word in words:
            if word == DRAIN[0]:
                self.first.set()
            elif word == STOP[0]:
                self.first.set()
                self.second.set()
            elif word == RELOAD[0]:
                self.on_reload()
