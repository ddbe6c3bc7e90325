"""``workers > 1``: forks the workers, restarts one that dies, counts the signals, and ends when all have ended.

It runs no event loop: it waits for signals, and speaks to each worker through a socket pair. Workers listen by SO_REUSEPORT.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import time
from dataclasses import dataclass

from soloflight.config.faults import ConfigError
from soloflight.config.models import Settings
from soloflight.plugins import Plugins
from soloflight.web.control import DRAIN, FAILED, READY, RELOAD, SECOND_SIGNAL_S, STOP, Channel
from soloflight.web.embedded import EmbeddedRedis, NoServer
from soloflight.web.notify import notify, watchdog_s
from soloflight.web.serve import Reload, serve_process

log = logging.getLogger("soloflight")

BACKOFF_S = (0.1, 0.5, 2.0, 5.0)
LONG_LIFE_S = 30.0
LOOK_S = 0.25
HEARD = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD}


@dataclass(slots=True)
class Worker:
    """One worker process and its end of the channel."""

    index: int
    pid: int
    channel: socket.socket
    born: float
    ready: bool = False


class Supervisor:
    """Keeps ``server.workers`` processes serving until it is told to stop."""

    def __init__(self, settings: Settings, plugins: Plugins, reload: Reload) -> None:
        self._settings = settings
        self._plugins = plugins
        self._reload = reload
        self._workers: dict[int, Worker] = {}
        self._due: dict[int, float] = {}
        self._deaths: dict[int, int] = {}
        self._redis: EmbeddedRedis | None = None
        self._held: list[socket.socket] = []
        self._where = settings.server.listen
        self._stopping_since: float | None = None
        self._exit_code = 0

    def __repr__(self) -> str:
        return f"Supervisor({len(self._workers)}/{self._settings.server.workers} workers)"

    def run(self) -> int:
        """Supervise until every worker has ended; returns the exit code."""
        try:
            self._prepare()
        except (NoServer, OSError) as error:
            log.error("can not start: %s", error)
            return 2
        signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)
        try:
            for index in range(self._settings.server.workers):
                self._fork(index)
            self._supervise()
        finally:
            self._kill_left()
            if self._redis is not None:
                self._redis.close()
            for sock in self._held:
                sock.close()
        log.info("all workers have stopped")
        return self._exit_code

    def _prepare(self) -> None:
        """A private Redis where the backend is memory; the port held, so that every worker gets the same."""
        settings = self._settings
        if settings.coordination.backend == "memory":
            self._redis = EmbeddedRedis(settings.server.max_memory)
            self._redis.start()
        self._where = self._hold(settings.server.listen)

    def _for_worker(self, index: int, settings: Settings) -> Settings:
        """The settings as worker ``index`` has them: the held port, the private Redis, one admin listener for all."""
        server: dict[str, object] = {"listen": self._where}
        if index != 0:
            server["admin_listen"] = "off"
        update: dict[str, object] = {"server": settings.server.model_copy(update=server)}
        if self._redis is not None:
            update["coordination"] = settings.coordination.model_copy(update={"backend": "redis"})
            update["redis"] = settings.redis.model_copy(update={"url": self._redis.url})
        return settings.model_copy(update=update)

    def _hold(self, listen: str) -> str:
        """Bind without listening: the port stays ours while workers come and go, and port 0 becomes one port for all."""
        at = self._settings.server.public
        if at.path:
            raise OSError(
                "several workers need a TCP listener (server.listen = HOST:PORT): a Unix socket has no SO_REUSEPORT"
            )
        family, _, _, _, address = socket.getaddrinfo(at.host, at.port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family)
        self._held.append(sock)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(address)
        return f"{listen.rpartition(':')[0]}:{sock.getsockname()[1]}"

    def _fork(self, index: int) -> None:
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            ours.close()
            self._be_worker(index, theirs)
        theirs.close()
        ours.setblocking(False)
        self._workers[pid] = Worker(index, pid, ours, time.monotonic())

    def _be_worker(self, index: int, channel: socket.socket) -> None:
        """The child's whole life; it never returns into the supervisor's code."""
        code = 1
        try:
            for sibling in self._workers.values():
                sibling.channel.close()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, HEARD)
            mine = self._for_worker(index, self._settings)
            code = serve_process(
                mine, self._plugins, lambda: self._for_worker(index, self._reload()), lambda: Channel(channel)
            )
        except BaseException:
            log.exception("worker %d failed", index)
        finally:
            logging.shutdown()
            os._exit(code)

    def _supervise(self) -> None:
        every_s = watchdog_s()
        said = False
        while self._workers or self._due:
            received = signal.sigtimedwait(HEARD, LOOK_S)
            if received is not None and received.si_signo != signal.SIGCHLD:
                self._signalled(received.si_signo)
            self._listen()
            self._bury()
            self._revive()
            self._tend_redis()
            if every_s is not None:
                notify("WATCHDOG=1")
            if not said and len(self._workers) == self._settings.server.workers:
                said = all(worker.ready for worker in self._workers.values())
                if said:
                    notify("READY=1")
                    log.info("%d workers are ready on %s", len(self._workers), self._where)

    def _signalled(self, number: int) -> None:
        now = time.monotonic()
        if number == signal.SIGHUP:
            try:
                self._reload()
            except ConfigError as error:
                for line in str(error).splitlines():
                    log.error("configuration not reloaded: %s", line)
                return
            self._tell(RELOAD)
        elif self._stopping_since is None:
            self._stopping_since = now
            notify("STOPPING=1")
            self._due.clear()
            self._tell(DRAIN)
        elif now - self._stopping_since >= SECOND_SIGNAL_S:
            self._tell(STOP)

    def _tell(self, word: bytes) -> None:
        for worker in self._workers.values():
            try:
                worker.channel.send(word)
            except OSError:
                log.debug("worker %d does not listen", worker.index)

    def _listen(self) -> None:
        channels = {worker.channel: worker for worker in self._workers.values()}
        heard, _, _ = select.select(list(channels), [], [], 0)
        for channel in heard:
            try:
                words = channel.recv(64)
            except OSError:
                continue
            if READY in words:
                channels[channel].ready = True
            if FAILED in words:
                self._exit_code = 2
                self._stopping_since = self._stopping_since or time.monotonic()
                self._due.clear()
                self._tell(DRAIN)

    def _bury(self) -> None:
        """Take note of workers that ended; one that was not told to is restarted, later the more often it died."""
        for pid in list(self._workers):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found == 0:
                continue
            worker = self._workers.pop(pid)
            worker.channel.close()
            if self._stopping_since is not None:
                continue
            now = time.monotonic()
            deaths = 0 if now - worker.born > LONG_LIFE_S else self._deaths.get(worker.index, 0)
            self._deaths[worker.index] = deaths + 1
            delay_s = BACKOFF_S[min(deaths, len(BACKOFF_S) - 1)]
            self._due[worker.index] = now + delay_s
            code = os.waitstatus_to_exitcode(status)
            log.error("worker %d ended (%d); it is restarted in %.1f s", worker.index, code, delay_s)

    def _revive(self) -> None:
        now = time.monotonic()
        for index in [index for index, due in self._due.items() if due <= now]:
            del self._due[index]
            self._fork(index)

    def _tend_redis(self) -> None:
        if self._redis is not None and not self._redis.running and self._stopping_since is None:
            log.error("the private redis-server ended; it is restarted")
            try:
                self._redis.start()
            except OSError as error:
                log.error("%s", error)

    def _kill_left(self) -> None:
        for pid in self._workers:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
