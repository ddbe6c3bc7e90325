"""One worker process: its whole life, and the supervisor's end of it."""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Self

from soloflight.config.models import Settings
from soloflight.plugins import Plugins
from soloflight.web.control import NOT_RELOADED, READY, RELOADED, Channel, Control
from soloflight.web.serve import Reload, serve_process
from soloflight.web.team import Team

log = logging.getLogger("soloflight")

COUNTED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""The signals that only the supervisor acts on."""


@dataclass(slots=True)
class Worker:
    """What the supervisor knows of one worker. ``took_reload``: None until it has read the configuration that it was told to."""

    index: int
    pid: int
    channel: socket.socket
    born: float
    heard_at: float
    ready: bool = False
    talks: bool = True
    took_reload: bool | None = None
    _code: int | None = None

    @classmethod
    def fork(
        cls,
        index: int,
        settings: Settings,
        plugins: Plugins,
        reload: Reload,
        *,
        beat_s: float | None,
        team: Team | None,
        close: Iterable[socket.socket],
    ) -> Self:
        """Begin a worker.

        ``beat_s``: how often it says that it lives, None: never. ``team``: whom its admin listener speaks for, None: itself.
        ``close``: sockets of the supervisor's that it must not hold open.
        """
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            for sock in (ours, *close):
                sock.close()
            _live(index, settings, plugins, reload, lambda: Channel(theirs, beat_s, team))
        theirs.close()
        ours.setblocking(False)
        now = time.monotonic()
        return cls(index, pid, ours, now, now)

    def tell(self, word: bytes) -> None:
        """Say ``word``; one that has ended is told nothing."""
        try:
            self.channel.send(word)
        except OSError:
            log.debug("worker %d does not listen", self.index)

    def hear(self) -> None:
        """Take what it has said."""
        try:
            words = self.channel.recv(256)
        except BlockingIOError:
            return
        except OSError:
            words = b""
        self.talks = bool(words)
        self.heard_at = time.monotonic()
        self.ready = self.ready or READY in words
        if NOT_RELOADED in words:
            self.took_reload = False
        elif RELOADED in words:
            self.took_reload = True

    def silent_s(self, now: float) -> float:
        """For how long one that is ready has said nothing."""
        return now - self.heard_at if self.ready else 0.0

    def exit_code(self) -> int | None:
        """How it ended, negative for a signal; None while it lives."""
        if self._code is None:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            if found:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def kill(self) -> None:
        """End it at once, and wait for that."""
        if self.exit_code() is None:
            os.kill(self.pid, signal.SIGKILL)
            _, status = os.waitpid(self.pid, 0)
            self._code = os.waitstatus_to_exitcode(status)


def wake_up_by_signals() -> socket.socket:
    """A socket on which the numbers of the signals that came can be read, one byte each; SIGCHLD too, to wake its reader."""
    reader, writer = socket.socketpair()
    for sock in (reader, writer):
        sock.setblocking(False)
    signal.set_wakeup_fd(writer.detach(), warn_on_full_buffer=False)
    for number in (*COUNTED, signal.SIGCHLD):
        signal.signal(number, _noted)
    return reader


def _noted(number: int, frame: object) -> None:
    """The byte on the wake-up socket is all that a signal does here."""


def _live(
    index: int, settings: Settings, plugins: Plugins, reload: Reload, make_control: Callable[[], Control]
) -> None:
    """The child's whole life; it never returns into the supervisor's code."""
    code = 1
    try:
        os.close(signal.set_wakeup_fd(-1))
        for number in COUNTED:
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        code = serve_process(settings, plugins, reload, make_control)
    except BaseException:
        log.exception("worker %d failed", index)
    finally:
        logging.shutdown()
        os._exit(code)
