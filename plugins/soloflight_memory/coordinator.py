"""The port of the memory coordinator: one façade per node over a store that the nodes of a process share."""

from __future__ import annotations

import time
from collections.abc import Callable

from soloflight.core.flight import Notice, Operation, Reply
from soloflight.core.frames import Recording
from soloflight.core.session import SessionOperation, SessionReply
from soloflight.ports import Batch, OnSession, OnWord, Subscription
from soloflight_memory.store import Store


def monotonic_ms() -> int:
    """This process's monotonic clock in whole ms, never 0."""
    return time.monotonic_ns() // 1_000_000 + 1


class MemorySubscription:
    """A listener at one key; ``close`` ends it. ``siblings``: all subscriptions of its node."""

    __slots__ = ("_key", "_siblings", "_store")

    def __init__(
        self,
        store: Store,
        key: str,
        listener: Callable[[Notice], None],
        siblings: set[MemorySubscription],
    ) -> None:
        self._store = store
        self._key = key
        self._siblings = siblings
        store.listeners.setdefault(key, {})[self] = listener
        siblings.add(self)

    def __repr__(self) -> str:
        return f"MemorySubscription({self._key!r})"

    async def close(self) -> None:
        """End it; idempotent."""
        self._siblings.discard(self)
        listeners = self._store.listeners.get(self._key, {})
        listeners.pop(self, None)
        if not listeners:
            self._store.listeners.pop(self._key, None)


class MemoryNode:
    """``ports.Coordinator`` for one node over a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._node: str | None = None
        self._subscriptions: set[MemorySubscription] = set()
        self._on_word: OnWord | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}(node={self._node!r}, {self._store!r})"

    @property
    def shared(self) -> bool:
        """No other process can see it."""
        return False

    @property
    def up(self) -> bool:
        """Always: there is nothing to lose contact with."""
        return True

    async def open(self, node: str, on_ring: Callable[[str], None], on_session: OnSession | None = None) -> None:
        """Start as ``node``; ``on_ring(key)`` is called when another node joined a flight owned here,
        ``on_session(key, notice)`` for notices of session locks."""
        self._node = node
        self._store.ringers[node] = on_ring
        if on_session is not None:
            self._store.on_session[node] = on_session
        if self._on_word is not None:
            self._store.on_word[node] = self._on_word

    async def close(self) -> None:
        """Stop: no ring and no notice reaches this node any more. Records stay, for other nodes."""
        if self._node is not None:
            self._store.ringers.pop(self._node, None)
            self._store.on_session.pop(self._node, None)
            self._store.on_word.pop(self._node, None)
        for subscription in list(self._subscriptions):
            await subscription.close()

    async def step(self, key: str, op: Operation) -> Reply:
        """Execute one operation; listeners have been called when this returns."""
        return self._store.execute(key, op)

    async def session_step(self, key: str, op: SessionOperation) -> SessionReply:
        """Execute one operation of a session lock; the nodes concerned have been told when this returns."""
        return self._store.execute_session(key, op)

    async def result(self, key: str, number: int) -> Recording | None:
        """The sealed result of attempt ``number``, or None where it is gone."""
        entry = self._store.entries.get(key)
        return entry.results.get(number) if entry else None

    async def log(self, key: str, number: int, after: int) -> list[Batch]:
        """Published batches of attempt ``number`` with index > ``after``."""
        entry = self._store.entries.get(key)
        return entry.logs.get(number, [])[after:] if entry else []

    async def subscribe(self, key: str, listener: Callable[[Notice], None]) -> Subscription:
        """Deliver notices of ``key`` from now on. None is ever missed, so there is no gap to tell of."""
        return MemorySubscription(self._store, key, listener, self._subscriptions)

    def hear(self, on_word: OnWord) -> None:
        """Tell ``on_word`` every word, from ``open`` on. None is ever missed."""
        self._on_word = on_word

    async def tell(self, word: str) -> None:
        """Say ``word`` to every open node; they have been told when this returns."""
        self._store.tell(word)

    async def mark(self, name: str) -> None:
        """Remember this moment under ``name``."""
        self._store.mark(name)

    async def marks(self) -> dict[str, int]:
        """How many ms ago each mark was made."""
        return self._store.marks()

    async def scope_key(self) -> bytes:
        """32 random bytes, made with the store."""
        return self._store.scope_key

    async def purge(self, key: str) -> bool:
        """Forget the kept answer of ``key``; True if there was one."""
        return self._store.purge(key)


class MemoryCoordinator(MemoryNode):
    """The coordinator of a process, and its store. Other nodes of that process get theirs by ``node()``.

    max_bytes   bound of all stored results together, by ``Recording.cost``
    clock       ms, > 0; a test gives its own
    """

    def __init__(self, max_bytes: int, clock: Callable[[], int] = monotonic_ms) -> None:
        super().__init__(Store(max_bytes, clock))

    def node(self) -> MemoryNode:
        """Another node's face of the same store; not opened yet."""
        return MemoryNode(self._store)
