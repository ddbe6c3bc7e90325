"""A memo of bodies that were read, so that a repeated body is not parsed again.

Rule 1: a hit means the same bytes under the same content type: the memo is keyed on their SHA-256.
Rule 2: bounded by count and by bytes; what was used least recently goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import sha256
from typing import Generic, TypeVar

from soloflight.core.fingerprint import Document, encode, read_body
from soloflight.core.multipart import Form, Part

K = TypeVar("K")
V = TypeVar("V")

ENTRY_COST = 1000
"""Bytes that an entry costs whatever its body: key, dictionary slot, document, digest."""

MARK_COSTS = {b"{": 250, b"[": 100, b":": 80, b",": 80}
"""Bytes that what follows each mark costs beside its text (CPython: dict, list, object with its slot)."""

PART_COST = 800
PART_FIELD_COST = 150


class Memo(Generic[K, V]):
    """The last ``max_entries`` verdicts, oldest first to go: for values that a key alone decides."""

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        # An OrderedDict finds its oldest entry at once; a dict walks over all that was deleted before it.
        self._entries: OrderedDict[K, V] = OrderedDict()
        self.get = self._entries.get

    def __repr__(self) -> str:
        return f"Memo({len(self._entries)}/{self._max_entries})"

    def put(self, key: K, value: V) -> None:
        """Remember ``value``."""
        if len(self._entries) >= self._max_entries:
            self._entries.popitem(last=False)
        self._entries[key] = value


class BodyMemo:
    """``read_body`` with a memory: at most ``max_entries`` documents, which hold about ``max_bytes`` at most."""

    def __init__(self, max_entries: int = 4096, max_bytes: int = 32 << 20) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._entries: OrderedDict[bytes, tuple[Document, int]] = OrderedDict()
        self.size = 0
        self.hits = 0

    def __repr__(self) -> str:
        return (
            f"BodyMemo({len(self)}/{self._max_entries} bodies, {self.size}/{self._max_bytes} bytes, {self.hits} hits)"
        )

    def __len__(self) -> int:
        return len(self._entries)

    def read(self, type_field: bytes | None, body: bytes) -> Document:
        """The document of ``body``; arguments as for ``read_body``. The same object for the same body."""
        hashed = sha256(encode((type_field,)))
        hashed.update(body)
        key = hashed.digest()
        if (entry := self._entries.get(key)) is not None:
            self._entries.move_to_end(key)
            self.hits += 1
            return entry[0]
        document = read_body(type_field, body)
        self._keep(key, document, _cost(document, body))
        return document

    def _keep(self, key: bytes, document: Document, cost: int) -> None:
        self._entries[key] = (document, cost)
        self.size += cost
        while self.size > self._max_bytes or len(self._entries) > self._max_entries:
            _, (_, freed) = self._entries.popitem(last=False)
            self.size -= freed


def _cost(document: Document, body: bytes) -> int:
    """About how many bytes ``document`` holds: read off the body's bytes, to be quick, and rather too many."""
    if isinstance(document.content, Form):
        return ENTRY_COST + sum(map(_part_cost, document.content.parts))
    if document.value is None and isinstance(document.content, bytes):
        return ENTRY_COST
    # A str takes up to 4 bytes per character, and keeps its UTF-8 once written; the canonical text is one more copy.
    per_byte = 2 if body.isascii() and b"\\u" not in body else 7
    return ENTRY_COST + len(body) * per_byte + sum(body.count(mark) * cost for mark, cost in MARK_COSTS.items())


def _part_cost(part: Part) -> int:
    fields = sum(PART_FIELD_COST + len(name) + len(value) for name, value in part.fields)
    return PART_COST + fields + 4 * len(part.text or "")
