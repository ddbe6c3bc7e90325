"""What Redis told everybody: the history of each key, and the invariants that it must show."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby

import redis

from harness.process import eventually, wait_until
from harness.redis import RedisServer
from soloflight.core.flight import NoticeKind
from soloflight.core.frames import Body
from soloflight_redis.cipher import Clear
from soloflight_redis.notices import read_notice

CHANNELS = "soloflight:*:notices"
NAME = "witness"
MARKS = "witness:marks"
"""A channel of its own."""


@dataclass(frozen=True)
class Told:
    """One notice. ``size``: body bytes of a batch, or of the sealed result."""

    at: float
    key: str
    kind: NoticeKind
    number: int
    index: int
    size: int


class Witness:
    """Listens to all keys' notices, from before the test's first request to its end."""

    def __init__(self, server: RedisServer) -> None:
        self.history: list[Told] = []
        self.rings = 0
        self._ending = False
        self._marks = 0
        self._server = server

    def of(self, kind: NoticeKind) -> list[Told]:
        """All notices of one kind."""
        return [told for told in self.history if told.kind is kind]

    async def saw(self, kind: NoticeKind, count: int = 1) -> None:
        """Wait until ``count`` notices of this kind have been told."""
        await eventually(lambda: len(self.of(kind)) >= count)

    async def told(self, kind: NoticeKind, count: int) -> None:
        """``count`` notices of this kind have been told, and not one more by now."""
        await self.saw(kind, count)
        await self.caught_up()
        assert len(self.of(kind)) == count, self.of(kind)

    async def caught_up(self) -> None:
        """Wait until all that has been published is heard: what is published now is heard behind it."""
        before = self._marks
        self._server.command("PUBLISH", MARKS, "mark")
        await eventually(lambda: self._marks > before)

    def check(self, *, sizes: bool = True) -> None:
        """I1, I2, I3 (with ``sizes``: every log was published to its end) and I6 of each key."""
        by_key: Callable[[Told], str] = lambda told: told.key  # noqa: E731
        for key, history in groupby(sorted(self.history, key=by_key), by_key):
            _check_key(key, list(history), sizes=sizes)

    def _listen(self, server: RedisServer, ready: threading.Event) -> None:
        with redis.Redis(port=server.port, client_name=NAME) as client, client.pubsub() as pubsub:
            pubsub.psubscribe(CHANNELS, "soloflight:*:node:*", MARKS)
            while not self._ending:
                try:
                    message = pubsub.get_message(timeout=0.1)
                except redis.RedisError:
                    return  # the server is gone: so is history
                if message is None:
                    continue
                if message["type"] == "psubscribe":
                    ready.set()
                elif message["type"] == "pmessage":
                    self._hear(message["channel"].decode(), message["data"])

    def _hear(self, channel: str, said: bytes) -> None:
        found = re.search(r"\{(.*)\}:notices$", channel)
        if channel == MARKS:
            self._marks += 1
        elif found is None:
            self.rings += said[:1] == b"r"
        elif said[:1] != b"p":
            notice = read_notice(found[1], said, Clear())
            size = sum(len(frame.data) for frame in notice.frames if isinstance(frame, Body))
            if notice.kind is NoticeKind.SEALED:
                size = notice.index
            self.history.append(Told(time.monotonic(), found[1], notice.kind, notice.number, notice.index, size))


def _check_key(key: str, history: list[Told], *, sizes: bool) -> None:
    newest, sealed, batches, published = 0, 0, 0, 0
    for told in history:
        assert told.number >= newest, f"I6: {told} after {newest}"
        if told.number > newest:
            newest, batches, published = told.number, 0, 0
        if told.kind is NoticeKind.APPENDED:
            assert told.number != sealed, f"I2: {told} after its seal"
            assert told.index == batches + 1, f"I2: {told} after batch {batches}"
            batches, published = told.index, published + told.size
        elif told.kind is NoticeKind.SEALED:
            assert told.number > sealed, f"I1: {told} sealed again"
            sealed = told.number
            if batches and sizes:
                assert told.size == published, f"I3: {told}, and {published} bytes were published"


@contextmanager
def witness(server: RedisServer) -> Iterator[Witness]:
    """A witness for the length of a block; its checks are the test's to call."""
    seen, ready = Witness(server), threading.Event()
    thread = threading.Thread(target=seen._listen, args=(server, ready), name=NAME)
    thread.start()
    try:
        wait_until(ready.is_set, within_s=5, what="the witness listens")
        yield seen
    finally:
        seen._ending = True
        thread.join(5)
