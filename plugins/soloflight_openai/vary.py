"""``Vary`` against the key: an answer that depends on a field outside it is not everybody's (contract section 5)."""

from __future__ import annotations

from soloflight.core.fingerprint import KEYED_FIELDS, is_credential
from soloflight.core.frames import Head
from soloflight.core.stage import Stage

# Shared work asks for identity whatever the client accepts; Accept is in the key as far as it chooses a stream.
_KEYED = frozenset({*KEYED_FIELDS, b"accept", b"accept-encoding", b"content-type"})


class KeyFields:
    """The request fields that are part of a stage's key."""

    def __init__(self, stage: Stage) -> None:
        named = {name.lower().encode("latin-1", "replace") for name in stage.key_headers}
        kind, _, header = stage.scope.partition(":")
        if kind == "header":
            named.add(header.lower().encode("latin-1", "replace"))
        self._fields = _KEYED | named
        self._credentials = stage.scope == "credential"

    def __repr__(self) -> str:
        return f"KeyFields({len(self._fields)}, credentials={self._credentials})"

    def cover(self, head: Head) -> bool:
        """Whether every field that the answer's ``Vary`` names is in the key; ``*`` never is (RFC 9110 12.5.5)."""
        return all(
            self._has(name.strip().lower())
            for field, value in head.fields
            if field.lower() == b"vary"
            for name in value.split(b",")
        )

    def _has(self, name: bytes) -> bool:
        return not name or name in self._fields or (self._credentials and is_credential(name))
