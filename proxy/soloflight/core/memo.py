"""A memo of what was read from request bodies, so that a repeated body is not parsed again.

Rule 1: a hit means the same bytes under the same content type and context: the memo is keyed on their SHA-256.
Rule 2: bounded by count and by bytes; what was used least recently goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import sha256
from typing import Generic, TypeVar

from soloflight.core.fingerprint import encode

T = TypeVar("T")

ENTRY_COST = 400
"""Bytes that an entry costs beside its value: key, dictionary slot, link, pair."""


def memo_key(content_type: bytes | None, body: bytes, *context: bytes) -> bytes:
    """What a body's facts depend on, as a digest. ``context``: what else decides (path, stage)."""
    digest = sha256(encode((content_type, *context)))
    digest.update(body)  # last, and not copied
    return digest.digest()


class BodyMemo(Generic[T]):
    """Values by ``memo_key``, least recently used first out. Holds at most ``max_entries`` and ``max_bytes``."""

    def __init__(self, max_entries: int = 4096, max_bytes: int = 16 << 20) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._entries: OrderedDict[bytes, tuple[T, int]] = OrderedDict()
        self.size = 0

    def __repr__(self) -> str:
        return f"BodyMemo({len(self._entries)} of {self._max_entries}, {self.size} of {self._max_bytes} bytes)"

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: bytes) -> T | None:
        """The value put under ``key``, or None."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: bytes, value: T, cost: int) -> None:
        """Keep ``value``, which holds about ``cost`` bytes. What does not fit alone is not kept."""
        self._forget(key)
        cost += ENTRY_COST
        if cost > self._max_bytes or not self._max_entries:
            return
        self._entries[key] = (value, cost)
        self.size += cost
        while self.size > self._max_bytes or len(self._entries) > self._max_entries:
            self._forget(next(iter(self._entries)))

    def _forget(self, key: bytes) -> None:
        _, cost = self._entries.pop(key, (None, 0))
        self.size -= cost
