"""The recorded units of one upstream answer: Head, Body, End.

Rule 1: frames are immutable; a log may hand the same object to any number of listeners.
Rule 2: bytes are the upstream's own. Nothing here decodes, folds, joins or re-orders them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from soloflight.core.errors import Fault

Field: TypeAlias = tuple[bytes, bytes]
"""One header field as it stood on the wire: name and value, case and bytes kept."""


@dataclass(frozen=True, slots=True)
class Head:
    """Status line and fields of an answer, hop-by-hop fields already removed.

    ``length`` is the body's size in bytes where the upstream declared one, else None.
    ``delimited`` tells whether the body's end is proven by length or chunks; False means
    that only the close of the connection ends it (RFC 9112 section 6.3, rule 8).
    """

    status: int
    reason: bytes
    fields: tuple[Field, ...]
    length: int | None = None
    delimited: bool = True

    def get(self, name: bytes) -> bytes | None:
        """The first value of field ``name`` (given in lower case), or None."""
        for key, value in self.fields:
            if key.lower() == name:
                return value
        return None

    def without(self, name: bytes) -> Head:
        """The head without the fields called ``name`` (lower case)."""
        if self.get(name) is None:
            return self
        return replace(self, fields=tuple(field for field in self.fields if field[0].lower() != name))


@dataclass(frozen=True, slots=True)
class Body:
    """A run of body bytes, never empty, as it came from the upstream in one read."""

    data: bytes


@dataclass(frozen=True, slots=True)
class End:
    """The explicit last frame. A log without an End is not finished, whatever happened to its writer.

    ``fault`` is None for an answer that came whole, else what cut it.
    """

    fault: Fault | None = None


Frame: TypeAlias = Head | Body | End


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens the upstream counted, from its ``usage`` member. Zero where it said nothing."""

    prompt: int = 0
    completion: int = 0


NO_USAGE = Usage()


@dataclass(frozen=True, slots=True)
class Recording:
    """A finished, complete answer: what is sealed, kept and replayed.

    ``body`` keeps the boundaries of the recorded Body frames; ``size`` is the sum of their bytes. ``usage`` was read from a
    side copy as they passed: whoever replays the answer knows what it did not cost without reading it.
    """

    head: Head
    body: tuple[bytes, ...]
    size: int
    usage: Usage = NO_USAGE

    @property
    def cost(self) -> int:
        """Bytes this recording is charged for in a byte-bounded store (payload plus bookkeeping)."""
        fields = sum(len(name) + len(value) + 120 for name, value in self.head.fields)
        return self.size + fields + 64 * len(self.body) + 512
