"""What the nodes of one process share: records, logs, results and listeners, each under its key.

Rule 1: nothing here awaits, so every operation is atomic as it stands.
Rule 2: values are kept by reference. They are immutable; nothing is serialised or copied.
Rule 3: what happens to a flight is the ledger's word alone; here it is only carried out.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from secrets import token_bytes
from typing import ParamSpec

from soloflight.core.flight import Append, Done, Flight, Notice, Operation, Reply, Seal
from soloflight.core.frames import Recording
from soloflight.core.ledger import KEY, Transition, collect_at, referenced, step, without_answer
from soloflight.core.session import SessionOperation, SessionReply
from soloflight.core.session_table import SessionTable
from soloflight.ports import Batch, OnSession, OnWord
from soloflight_memory.collection import Collection

LOG = logging.getLogger("soloflight.memory")

Listener = Callable[[Notice], None]
P = ParamSpec("P")


class Entry:
    """All that is stored under one key. ``logs`` and ``results`` are by attempt number."""

    __slots__ = ("flight", "logs", "results")

    def __init__(self, flight: Flight) -> None:
        self.flight = flight
        self.logs: dict[int, list[Batch]] = {}
        self.results: dict[int, Recording] = {}

    def __repr__(self) -> str:
        return f"Entry({self.flight.state.name}, logs={list(self.logs)}, results={list(self.results)})"


class Store:
    """Executes the ledger. ``clock`` gives ms, > 0; ``max_bytes`` bounds all results by their cost."""

    def __init__(self, max_bytes: int, clock: Callable[[], int]) -> None:
        self.scope_key = token_bytes(32)
        self.entries: dict[str, Entry] = {}
        self.listeners: dict[str, dict[object, Listener]] = {}
        self.ringers: dict[str, Callable[[str], None]] = {}
        self.on_session: dict[str, OnSession] = {}
        self.on_word: dict[str, OnWord] = {}
        self._marks: dict[str, int] = {}
        self.sessions = SessionTable()
        self.result_bytes = 0
        self._max_bytes = max_bytes
        self._clock = clock
        self._sealed: OrderedDict[tuple[str, int], int] = OrderedDict()  # cost; least recently sealed first
        self._collection = Collection()

    def __repr__(self) -> str:
        return (
            f"Store(flights={len(self.entries)}, results={len(self._sealed)}, "
            f"bytes={self.result_bytes}/{self._max_bytes}, listeners={len(self.listeners)}, {self.sessions!r})"
        )

    def execute(self, key: str, op: Operation) -> Reply:
        """One operation: the ledger's step, what it stores, what it makes garbage, and whom it tells."""
        now = self._clock()
        entry = self.entries.get(key)
        before = entry.flight if entry else None
        taken = step(before, op, now)
        if taken.flight is not before:
            self._write(key, op, taken)
            self._collect(now)
        self._tell(key, taken)
        return taken.reply

    def execute_session(self, key: str, op: SessionOperation) -> SessionReply:
        """One operation of a session lock, and whom it tells."""
        reply, notices = self.sessions.execute(key, op, self._clock())
        for node, notice in notices:
            if node in self.on_session:
                _call(self.on_session[node], key, notice)
        return reply

    def tell(self, word: str) -> None:
        """Say ``word`` to every node."""
        for on_word in list(self.on_word.values()):
            _call(on_word, word)

    def mark(self, name: str) -> None:
        """Remember this moment."""
        self._marks[name] = self._clock()

    def marks(self) -> dict[str, int]:
        """How many ms ago each mark was made."""
        now = self._clock()
        return {name: max(0, now - then) for name, then in self._marks.items()}

    def purge(self, key: str) -> bool:
        """Forget the kept answer of ``key``; True if there was one."""
        entry = self.entries.get(key)
        if entry is None:
            return False
        rest, there = without_answer(entry.flight, self._clock())
        self._put(key, rest)
        return there

    def _write(self, key: str, op: Operation, taken: Transition) -> None:
        self._put(key, taken.flight)
        if taken.flight is None or not isinstance(taken.reply, Done) or taken.reply.duplicate:
            return
        entry, number = self.entries[key], taken.flight.fence.number
        if isinstance(op, Append):
            entry.logs.setdefault(number, []).append(Batch(op.index, op.frames))
        elif isinstance(op, Seal):
            self._keep(key, entry, number, op.result)

    def _put(self, key: str, flight: Flight | None) -> None:
        """Store the record and drop the logs and results that it no longer needs."""
        if flight is None:
            self._drop(key)
            return
        entry = self.entries.get(key)
        if entry is None:
            self.entries[key] = entry = Entry(flight)
        entry.flight = flight
        needed = referenced(flight)
        for number in entry.logs.keys() - {needed.log}:
            del entry.logs[number]
        for number in entry.results.keys() - set(needed.results):
            self._release(key, entry, number)
        self._collection.put(key, collect_at(flight))

    def _drop(self, key: str) -> None:
        entry = self.entries.pop(key)
        for number in list(entry.results):
            self._release(key, entry, number)
        self._collection.forget(key)

    def _keep(self, key: str, entry: Entry, number: int, result: Recording) -> None:
        entry.results[number] = result
        self._sealed[key, number] = result.cost
        self.result_bytes += result.cost
        while self.result_bytes > self._max_bytes:
            self._evict(*next(iter(self._sealed)))

    def _release(self, key: str, entry: Entry, number: int) -> None:
        del entry.results[number]
        self.result_bytes -= self._sealed.pop((key, number))

    def _evict(self, key: str, number: int) -> None:
        """Give back a result's bytes before its time; with the result goes the answer that promised it."""
        entry = self.entries[key]
        self._release(key, entry, number)
        if entry.flight.answer is not None and entry.flight.answer.number == number:
            rest, _ = without_answer(entry.flight, self._clock())
            self._put(key, rest)

    def _collect(self, now: int) -> None:
        for key in self._collection.take(now):
            self._drop(key)

    def _tell(self, key: str, taken: Transition) -> None:
        for address, notice in taken.notices:
            if address == KEY:
                for listener in list(self.listeners.get(key, {}).values()):
                    _call(listener, notice)
            elif address in self.ringers:
                _call(self.ringers[address], key)


def _call(callback: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
    """Call somebody else's code. What it raises is its own affair: the operation has been executed."""
    try:
        callback(*args, **kwargs)
    except Exception:
        LOG.exception("a listener of the memory coordinator raised")
