"""What a serving process is told from outside, and whom it tells how it is: signals and systemd, or its supervisor's channel."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import Callable

from soloflight.web.notify import alive, notify, reloading, stopping, watchdog_s
from soloflight.web.team import Team

SECOND_SIGNAL_S = 1.0

DRAIN, STOP, RELOAD = b"d", b"s", b"r"
READY, RELOADED, NOT_RELOADED, ALIVE = b"+", b"=", b"!", b"."


class Control:
    """``first``: stop without losing a stream. ``second``: stop at once.

    ``beat_s``: how often ``alive`` is due, None where nobody watches. ``team``: the workers that this process is one of.
    """

    def __init__(self, beat_s: float | None = None, team: Team | None = None) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        self._reload: Callable[[], None] | None = None
        self._reload_wanted = False
        self.beat_s = beat_s
        self.team = team

    def __repr__(self) -> str:
        return f"{type(self).__name__}(first={self.first.is_set()}, second={self.second.is_set()})"

    def listen(self) -> None:
        """Begin to hear."""

    def on_reload(self, act: Callable[[], None]) -> None:
        """Call ``act`` for each re-read that is asked for, and now for one that was while the process did not serve yet."""
        self._reload = act
        if self._reload_wanted:
            self._reload_wanted = False
            act()

    def want_reload(self) -> None:
        """The configuration shall be read again."""
        if self._reload is None:
            self._reload_wanted = True
        else:
            self._reload()

    def ready(self) -> None:
        """The process serves."""

    def alive(self) -> None:
        """The loop turns."""

    def reloading(self) -> None:
        """The configuration is being read again."""

    def reloaded(self, *, taken: bool) -> None:
        """It was read; ``taken`` False: the old one stays."""

    def stopping(self, within_s: float) -> None:
        """The process drains and will have ended in ``within_s``."""


class Signals(Control):
    """A process of its own: SIGTERM and SIGINT drain; one that comes at least a second after the first was acted on ends at
    once (contract section 1). SIGHUP re-reads the configuration. systemd is told."""

    def __init__(self) -> None:
        super().__init__(watchdog_s())
        self._acted = 0.0

    def listen(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self.want_reload)

    def ready(self) -> None:
        notify("READY=1")

    def alive(self) -> None:
        alive()

    def reloading(self) -> None:
        reloading()

    def reloaded(self, *, taken: bool) -> None:  # READY ends a reload, whatever became of it
        notify("READY=1")

    def stopping(self, within_s: float) -> None:
        stopping(within_s)

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

    def __init__(self, sock: socket.socket, beat_s: float | None, team: Team | None = None) -> None:
        super().__init__(beat_s, team)
        self._sock = sock

    def listen(self) -> None:
        self._sock.setblocking(False)
        asyncio.get_running_loop().add_reader(self._sock.fileno(), self._hear)

    def ready(self) -> None:
        self._say(READY)

    def alive(self) -> None:
        self._say(ALIVE)

    def reloaded(self, *, taken: bool) -> None:
        self._say(RELOADED if taken else NOT_RELOADED)

    def _say(self, word: bytes) -> None:
        try:
            self._sock.send(word)
        except BlockingIOError:
            return  # the supervisor does not listen now: it has enough to hear already
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
                self.want_reload()
