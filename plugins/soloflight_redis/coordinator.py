"""The Redis coordinator: the port, put together from its parts."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from soloflight.core.flight import Abandon, Answered, Fail, Joined, Notice, Operation, Reply, Seal
from soloflight.core.frames import Recording
from soloflight.core.session import SessionOperation, SessionReply
from soloflight.flow.tasks import Tasks
from soloflight.ports import BackendError, Batch, OnSession, OnWord, Subscription
from soloflight_redis.backend import Backend, WritesRefused
from soloflight_redis.cipher import make_cipher
from soloflight_redis.cluster import Cluster
from soloflight_redis.codec import Unreadable, unpack_result
from soloflight_redis.hearing import Hearing
from soloflight_redis.keys import Names
from soloflight_redis.notices import WORD, read_entry
from soloflight_redis.operations import (
    Invocation,
    came_along,
    invocation,
    reply,
    result_context,
    seal_without_result,
)
from soloflight_redis.scope import ScopeKey
from soloflight_redis.scripts import INLINE_ENTRIES, build
from soloflight_redis.servers import Servers, Single
from soloflight_redis.sessions import session_invocation, session_reply
from soloflight_redis.topology import Dialer, Kind, read_url

log = logging.getLogger("soloflight.redis")

PAGE_BYTES = 1 << 20
MOST_BYTES = 512 << 20  # of one value in Redis
EXTRA_BYTES = 2 << 20  # what a stored result may have beside its body: its head, and …
FRAME_BYTES = 5  # … this for each frame, which has at least one byte
KEPT_ASIDE = 64
MARKS_KEPT_MS = 30 * 86_400_000  # longer than anything is retained


@dataclass(frozen=True, slots=True)
class Options:
    """What the coordinator is told. ``otherwise`` is what the log says happens while Redis is away.

    clock_key   for tests: a key that holds the time in ms, in place of the server's clock
    """

    url: str = field(repr=False)
    prefix: str = "soloflight"
    encryption_key: str = field(default="", repr=False)
    encryption_key_previous: str = field(default="", repr=False)
    bound_s: float = 0.5
    otherwise: str = "going on in this process alone"
    clock_key: str = ""


class RedisCoordinator:
    """``ports.Coordinator`` over Redis. Raises ValueError for a URL that can not be meant."""

    def __init__(self, options: Options) -> None:
        self._options = options
        try:
            self._target = read_url(options.url)
        except ValueError as error:
            raise ValueError(f"redis.url: {error}") from None
        self._names = Names(options.prefix)
        self._cipher = make_cipher(options.encryption_key, options.encryption_key_previous)
        self._scripts = build(sharded=self._target.kind is Kind.CLUSTER, clock_key=options.clock_key)
        self._tasks = Tasks("redis")
        self._aside: OrderedDict[tuple[type, str, int], Sequence[Any]] = OrderedDict()
        self._sizes: OrderedDict[tuple[str, int], int] = OrderedDict()
        self._backend: Backend | None = None
        self._hearing: Hearing | None = None
        self._scope: ScopeKey | None = None
        self._on_word: OnWord | None = None
        self.unreadable = 0

    def __repr__(self) -> str:
        return f"RedisCoordinator({self._backend or self._target.shown!r}, unreadable={self.unreadable})"

    @property
    def shared(self) -> bool:
        """Other processes see it."""
        return True

    @property
    def up(self) -> bool:
        """Whether Redis is reachable and takes writes, as far as known."""
        return self._backend is not None and self._backend.breaker.closed

    async def open(self, node: str, on_ring: Callable[[str], None], on_session: OnSession | None = None) -> None:
        """Start. Redis may be away: that is told in the log, and looked after."""
        options, bound_s = self._options, self._options.bound_s
        servers = self._servers()
        self._backend = backend = Backend(
            servers,
            self._scripts,
            self._names,
            bound_s=bound_s,
            shown=self._target.shown,
            otherwise=options.otherwise,
            tasks=self._tasks,
        )
        self._hearing = Hearing(backend, servers, self._names, self._cipher, self._tasks, bound_s)
        self._scope = ScopeKey(backend, self._names, self._cipher)
        self._hearing.on_word = self._on_word
        await backend.open()
        await self._hearing.open(node, on_ring, on_session)

    def _servers(self) -> Servers:
        dialer = Dialer(self._target, self._options.bound_s)
        several = Cluster if self._target.kind is Kind.CLUSTER else Single
        return several(dialer, self._tasks, self._options.bound_s)

    async def close(self) -> None:
        """Stop; idempotent."""
        if self._backend is None or self._hearing is None:
            return
        backend, hearing, self._backend, self._hearing = self._backend, self._hearing, None, None
        hearing.close()
        await backend.close()
        await self._tasks.close()

    # ── operations ──────────────────────────────────────────────────────────────────────────────────────────────

    async def step(self, key: str, op: Operation) -> Reply:
        """Execute one operation of the ledger atomically. Raises BackendError."""
        call = invocation(key, op, self._cipher)
        try:
            said = await self._said(key, op, call)
        except WritesRefused:
            await self._let_go(key, op)
            raise
        try:
            answer = reply(op, said)
        except Unreadable as error:
            raise BackendError(str(error)) from error
        if isinstance(answer, Answered | Joined):
            self._put_aside(key, answer, came_along(said))
        return answer

    async def _said(self, key: str, op: Operation, call: Invocation) -> list[Any]:
        """The script's reply. Raises BackendError."""
        try:
            return await self._flight(key, call)
        except WritesRefused:
            raise
        except BackendError:
            if not isinstance(op, Seal) or not call.large:
                raise
        # Too large for this Redis, or for its bound: the seal is worth more than the replay.
        said = await self._flight(key, seal_without_result(op))
        log.warning("a result of %d bytes could not be stored; it is told, and not kept", op.result.size)
        return said

    async def _flight(self, key: str, call: Invocation) -> list[Any]:
        return await self._open.script(self._names.flight(key), call)

    async def _let_go(self, key: str, op: Operation) -> None:
        """A full Redis takes no end of a flight; it can be dropped, so that nobody waits for its lease to lapse."""
        if isinstance(op, (Seal, Fail)):
            try:
                await self._flight(key, invocation(key, Abandon(op.fence, "", force=True), self._cipher))
            except BackendError:
                log.debug("a flight could not be dropped")

    def _put_aside(self, key: str, answer: Answered | Joined, found: Sequence[Any]) -> None:
        """Keep what ``result`` or ``log`` will be asked for next, if it came along; and how large a result may be."""
        if isinstance(answer, Answered):
            self._sizes[key, answer.number] = answer.size
        if found:
            self._aside[type(answer), key, answer.number] = found
        for kept in (self._sizes, self._aside):
            while len(kept) > KEPT_ASIDE:
                kept.popitem(last=False)

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def result(self, key: str, number: int) -> Recording | None:
        """The sealed result of attempt ``number``, or None where it is gone or unreadable. Raises BackendError."""
        size = self._sizes.get((key, number))
        found = self._aside.pop((Answered, key, number), None)
        if found is None:
            most = MOST_BYTES if size is None else size * (1 + FRAME_BYTES) + EXTRA_BYTES
            found = (await self._flight(key, Invocation("result", (number, most), large=True)))[1:]
        value = found[0] if found else None
        if not isinstance(value, bytes):
            return None
        try:
            return unpack_result(self._cipher.unlock(value, result_context(key, number)), key, number)
        except Unreadable as error:
            self._miss(error)
            return None

    async def log(self, key: str, number: int, after: int) -> list[Batch]:
        """Published batches of attempt ``number`` with index > ``after``, contiguous. Raises BackendError."""
        known = self._aside.pop((Joined, key, number), ())
        batches = self._contiguous(key, number, after, known[after:])
        if batches and len(known) < INLINE_ENTRIES:
            return batches  # all that there was came with the look
        while True:
            call = Invocation("log", (number, after + len(batches), PAGE_BYTES), large=True)
            _, total, *entries = await self._flight(key, call)
            page = self._contiguous(key, number, after + len(batches), entries)
            batches += page
            if not page or len(page) < len(entries) or after + len(batches) >= int(total):
                return batches

    def _contiguous(self, key: str, number: int, after: int, entries: Sequence[object]) -> list[Batch]:
        """The batches in these entries of a log, up to the first that is not the next one, or unreadable."""
        batches: list[Batch] = []
        for entry in entries:
            batch = self._batch(key, number, entry)
            if batch is None or batch.index != after + len(batches) + 1:
                break
            batches.append(batch)
        return batches

    def _batch(self, key: str, number: int, entry: object) -> Batch | None:
        try:
            of_number, batch = read_entry(key, bytes(entry) if isinstance(entry, bytes) else b"", self._cipher)
        except Unreadable as error:
            self._miss(error)
            return None
        return batch if of_number == number else None

    def _miss(self, error: Unreadable) -> None:
        self.unreadable += 1
        log.warning("a stored value is of no use: %s", error)

    async def subscribe(self, key: str, listener: Callable[[Notice], None]) -> Subscription:
        """Deliver notices of ``key``; a gap is told as RETRY of number 0. Raises BackendError."""
        if self._hearing is None:
            raise BackendError("not open")
        return await self._hearing.subscribe(key, listener)

    # ── session locks ───────────────────────────────────────────────────────────────────────────────────────────

    async def session_step(self, key: str, op: SessionOperation) -> SessionReply:
        """Execute one operation of a session lock atomically. Raises BackendError."""
        said = await self._open.script(self._names.session(key), session_invocation(op))
        try:
            return session_reply(op, said)
        except Unreadable as error:
            raise BackendError(str(error)) from error

    # ── the fleet ───────────────────────────────────────────────────────────────────────────────────────────────

    def hear(self, on_word: OnWord) -> None:
        """Tell ``on_word`` every word, from ``open`` on; "" after a lost connection."""
        self._on_word = on_word

    async def tell(self, word: str) -> None:
        """Say ``word`` to every open node. Raises BackendError."""
        await self._open.command(self._names.fleet, "PUBLISH", self._names.fleet, WORD + word.encode())

    async def mark(self, name: str) -> None:
        """Remember this moment under ``name``, for ``MARKS_KEPT_MS`` after the last mark. Raises BackendError."""
        await self._open.script(self._names.marks, Invocation("mark", (name, MARKS_KEPT_MS)))

    async def marks(self) -> dict[str, int]:
        """How many ms ago each mark was made. Raises BackendError."""
        said = await self._open.script(self._names.marks, Invocation("marks", ()))
        pairs = zip(said[1::2], said[2::2], strict=True)
        return {bytes(name).decode("utf-8", "replace"): int(age_ms) for name, age_ms in pairs}

    async def scope_key(self) -> bytes:
        """The fleet's secret for credential scopes; see ``scope``."""
        assert self._scope is not None
        return await self._scope.get()

    async def purge(self, key: str) -> bool:
        """Forget the kept answer of ``key``; True if there was one. Raises BackendError."""
        said = await self._flight(key, Invocation("purge", ()))
        return bool(int(said[1]))

    @property
    def _open(self) -> Backend:
        if self._backend is None:
            raise BackendError("not open")
        return self._backend
