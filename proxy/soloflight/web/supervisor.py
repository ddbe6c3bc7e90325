"""``workers > 1``: forks the workers, restarts one that dies, counts the signals, and ends when all have ended.

It runs no event loop: it waits for signals and for words of its workers, each of which has a socket pair with it. Workers
listen by SO_REUSEPORT. The life of one worker process is in web.worker.
"""

from __future__ import annotations

import logging
import os
import secrets
import select
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import SecretStr

from soloflight.config.faults import ConfigError
from soloflight.config.models import Settings
from soloflight.plugins import Plugins
from soloflight.web.app import CLOSE_S, DRAIN_SETTLE_S
from soloflight.web.control import DRAIN, RELOAD, SECOND_SIGNAL_S, STOP
from soloflight.web.embedded import EmbeddedRedis, NoServer
from soloflight.web.logs import configure
from soloflight.web.notify import alive, notify, reloading, stopping, watchdog_s
from soloflight.web.reload import with_fixed
from soloflight.web.serve import CAN_NOT_START, Reload
from soloflight.web.team import Team
from soloflight.web.worker import Worker, wake_up_by_signals

log = logging.getLogger("soloflight")

BACKOFF_S = (0.1, 0.5, 2.0, 5.0)
LONG_LIFE_S = 30.0
LOOK_S = 0.25
# After a second signal a worker has this long to tell its clients and give its seats back.
AT_ONCE_S = 5.0
# So long workers have to say whether they have taken a configuration; one that hangs must not hold a reload open.
RELOAD_S = 10.0


class Supervisor:
    """Keeps ``server.workers`` processes serving until it is told to stop."""

    def __init__(self, settings: Settings, plugins: Plugins, reload: Reload) -> None:
        self._settings = settings
        self._plugins = plugins
        self._reload = reload
        self._next: Settings | None = None
        self._reload_until = 0.0
        self._workers: dict[int, Worker] = {}
        self._due: dict[int, float] = {}
        self._deaths: dict[int, int] = {}
        self._redis: EmbeddedRedis | None = None
        self._redis_due = 0.0
        self._held: socket.socket | None = None
        self._folder: TemporaryDirectory[str] | None = None
        self._scope_key = settings.server.scope_key
        self._stopping_since: float | None = None
        self._kill_at = float("inf")
        self._been_ready = False
        self._exit_code = 0
        self._watch_s = watchdog_s()
        self._alive_at = 0.0
        self._wake = wake_up_by_signals()

    def __repr__(self) -> str:
        return f"Supervisor({len(self._workers)}/{self._settings.server.workers} workers)"

    def run(self) -> int:
        """Supervise until every worker has ended; returns the exit code."""
        try:
            self._prepare()
            for index in range(self._settings.server.workers):
                self._fork(index)
            self._supervise()
        except (NoServer, OSError) as error:
            log.error("can not start: %s", error)
            return CAN_NOT_START
        finally:
            for worker in self._workers.values():
                worker.kill()
            if self._redis is not None:
                self._redis.close()
            if self._held is not None:
                self._held.close()
            if self._folder is not None:
                self._folder.cleanup()
        log.info("all workers have stopped")
        return self._exit_code

    def _prepare(self) -> None:
        """A private Redis where the backend is memory; the port held, so that every worker gets the same."""
        settings = self._settings
        if settings.coordination.backend == "memory":
            self._redis = EmbeddedRedis(settings.server.max_memory)
            self._redis.start()
            if not self._scope_key.get_secret_value():
                # Not left to the private Redis, which may have to be restarted, empty: all workers must mean the same scopes.
                self._scope_key = SecretStr(secrets.token_hex(32))
        self._held = self._hold(settings)
        if settings.server.admin is not None:
            self._folder = TemporaryDirectory(prefix="soloflight-", ignore_cleanup_errors=True)  # made with mode 0700

    def _hold(self, settings: Settings) -> socket.socket:
        """Bind without listening: the port stays ours while workers come and go, and port 0 becomes one port for all."""
        at = settings.server.public
        if at.path:
            text = "several workers need a TCP listener (server.listen = HOST:PORT): a Unix socket has no SO_REUSEPORT"
            raise OSError(text)
        family, _, _, _, address = socket.getaddrinfo(at.host, at.port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind(address)
        except OSError:
            sock.close()
            raise
        return sock

    def for_worker(self, index: int, settings: Settings) -> Settings:
        """The settings as worker ``index`` has them: the held port, the private Redis, one admin listener for all."""
        assert self._held is not None
        host = settings.server.listen.rpartition(":")[0]
        server: dict[str, object] = {"listen": f"{host}:{self._held.getsockname()[1]}", "scope_key": self._scope_key}
        if index != 0:
            server["admin_listen"] = "off"
        update: dict[str, object] = {"server": settings.server.model_copy(update=server)}
        if self._redis is not None:
            update["coordination"] = settings.coordination.model_copy(update={"backend": "redis"})
            update["redis"] = settings.redis.model_copy(update={"url": self._redis.url})
        return settings.model_copy(update=update)

    def _fork(self, index: int) -> None:
        mine = self.for_worker(index, self._settings)
        worker = Worker.fork(
            index,
            mine,
            self._plugins,
            lambda: self.for_worker(index, with_fixed(self._reload(), self._settings)[0]),
            beat_s=self._watch_s,
            team=self._team(index),
            close=[self._wake, *(sibling.channel for sibling in self._workers.values())],
        )
        self._workers[worker.pid] = worker
        if self._next is not None:
            worker.tell(RELOAD)

    def _team(self, index: int) -> Team | None:
        """Whom the one admin listener speaks for; None where there is none."""
        if self._folder is None:
            return None
        return Team(index, self._settings.server.workers, Path(self._folder.name), os.getpid())

    def _supervise(self) -> None:
        while self._workers or self._due:
            self._hear()
            self._bury()
            self._revive()
            self._tend_redis()
            self._tell_systemd()
            if time.monotonic() > self._kill_at:
                log.error("%d workers do not end and are killed", len(self._workers))
                self._exit_code = 1
                return

    def _hear(self) -> None:
        """Wait for a signal or a worker's word, not for long, and act on it."""
        workers = {worker.channel: worker for worker in self._workers.values() if worker.talks}
        heard, _, _ = select.select([self._wake, *workers], [], [], LOOK_S)
        for channel in heard:
            if channel is self._wake:
                with suppress(BlockingIOError):
                    for number in self._wake.recv(64):
                        self._signalled(number)
            else:
                workers[channel].hear()
        self._settle_reload()

    def _signalled(self, number: int) -> None:
        now = time.monotonic()
        if number == signal.SIGHUP:
            self._begin_reload()
        elif number in (signal.SIGTERM, signal.SIGINT):
            if self._stopping_since is None:
                self._stop(now)
            elif now - self._stopping_since >= SECOND_SIGNAL_S:
                self._kill_at = now + AT_ONCE_S
                self._tell(STOP)

    def _stop(self, now: float) -> None:
        server = self._settings.server
        longest_s = server.drain_delay + DRAIN_SETTLE_S + server.drain_timeout + 2 * CLOSE_S
        self._stopping_since, self._kill_at = now, now + longest_s
        stopping(longest_s)
        self._due.clear()
        self._tell(DRAIN)

    def _tell(self, word: bytes) -> None:
        for worker in self._workers.values():
            worker.tell(word)

    # ── reload ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _begin_reload(self) -> None:
        """Read the file once here: a bad one is told of once, and no worker hears of it."""
        if self._stopping_since is not None:
            return
        reloading()
        try:
            self._next, fixed = with_fixed(self._reload(), self._settings)
        except (ConfigError, OSError, ValueError) as error:
            for line in str(error).splitlines():
                log.error("configuration not reloaded: %s", line)
            notify("READY=1")
            return
        if fixed:
            log.warning("these settings need a restart: %s", ", ".join(fixed))
        for worker in self._workers.values():
            worker.took_reload = None
        self._reload_until = time.monotonic() + RELOAD_S
        self._tell(RELOAD)

    def _settle_reload(self) -> None:
        """Once every worker has read the file: workers to come get what those that live have taken."""
        if self._next is None:
            return
        waiting = any(worker.took_reload is None and worker.ready for worker in self._workers.values())
        if waiting and time.monotonic() < self._reload_until:
            return
        if all(worker.took_reload is not False for worker in self._workers.values()):
            self._settings = self._next
            configure(self._settings.log.level, self._settings.log.format)
        self._next = None
        notify("READY=1")

    # ── workers that end, and what they stand on ────────────────────────────────────────────────────────────────────

    def _bury(self) -> None:
        """Take note of workers that ended; one that was not told to is restarted, later the more often it died."""
        now = time.monotonic()
        for worker in list(self._workers.values()):
            if self._watch_s is not None and worker.silent_s(now) > 2 * self._watch_s:
                log.error("worker %d hangs and is killed", worker.index)
                worker.kill()
            code = worker.exit_code()
            if code is None:
                continue
            del self._workers[worker.pid]
            worker.channel.close()
            if self._stopping_since is not None:
                continue
            if code == CAN_NOT_START and not self._been_ready:
                self._exit_code = CAN_NOT_START
                self._stop(now)
                continue
            deaths = 0 if now - worker.born > LONG_LIFE_S else self._deaths.get(worker.index, 0)
            self._deaths[worker.index] = deaths + 1
            delay_s = BACKOFF_S[min(deaths, len(BACKOFF_S) - 1)]
            self._due[worker.index] = now + delay_s
            log.error("worker %d ended (%d); it is restarted in %.1f s", worker.index, code, delay_s)

    def _revive(self) -> None:
        now = time.monotonic()
        for index in [index for index, due in self._due.items() if due <= now]:
            del self._due[index]
            try:
                self._fork(index)
            except OSError as error:  # no memory, no process: the others go on
                self._due[index] = now + BACKOFF_S[-1]
                log.error("worker %d can not be started: %s", index, error)

    def _tend_redis(self) -> None:
        redis, now = self._redis, time.monotonic()
        if redis is None or redis.running or self._redis_due > now:
            return
        log.error("the private redis-server ended; it is restarted")
        try:
            redis.start()
        except OSError as error:
            self._redis_due = now + BACKOFF_S[-1]
            log.error("%s", error)

    def _tell_systemd(self) -> None:
        now = time.monotonic()
        if self._watch_s is not None and now >= self._alive_at:
            self._alive_at = now + self._watch_s
            alive()
        if not self._been_ready and len(self._workers) == self._settings.server.workers:
            self._been_ready = all(worker.ready for worker in self._workers.values())
            if self._been_ready:
                notify("READY=1")
                log.info("%d workers are ready", len(self._workers))
