"""A request as the proxy sees it: a frozen value read from raw bytes. No body, no connection."""

from __future__ import annotations

from dataclasses import dataclass

from soloflight.core.frames import Field


@dataclass(frozen=True, slots=True)
class Request:
    """Request line and fields. ``target`` is origin-form as received (path and query, bytes untouched)."""

    method: str
    target: str
    fields: tuple[Field, ...]
    peer: str = ""
    trusted: bool = False

    @property
    def path(self) -> str:
        """The raw path, without the query."""
        return self.target.partition("?")[0]

    def get(self, name: bytes) -> bytes | None:
        """First value of field ``name`` (lower case), or None."""
        for key, value in self.fields:
            if key.lower() == name:
                return value
        return None

    def all(self, name: bytes) -> list[bytes]:
        """All values of field ``name`` (lower case), in order."""
        return [value for key, value in self.fields if key.lower() == name]
