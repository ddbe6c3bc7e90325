"""Content-Type, read strictly (RFC 9110 section 8.3.1): what could be read in two ways is not read at all."""

from __future__ import annotations

import re
from dataclasses import dataclass

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_ESSENCE = re.compile(rb"[ \t]*(" + _TOKEN + rb"/" + _TOKEN + rb")[ \t]*")
# An unquoted value may hold more than a token (`boundary=----=_Part:1`): clients send that, servers read it.
_PARAMETER = re.compile(rb";[ \t]*(?:(" + _TOKEN + rb')=("(?:[^"\\]|\\.)*"|[^\s;,"\\]+)[ \t]*)?', re.DOTALL)


@dataclass(frozen=True, slots=True)
class MediaType:
    """``essence`` is type/subtype in lower case; parameters are (name in lower case, value as written), in order."""

    essence: bytes
    parameters: tuple[tuple[bytes, bytes], ...] = ()

    def get(self, name: bytes) -> bytes | None:
        """Parameter ``name`` (lower case) without its quotes; None if it is absent, repeated or has escapes."""
        values = [value for key, value in self.parameters if key == name]
        if len(values) != 1 or b"\\" in values[0]:
            return None
        return values[0].strip(b'"')

    def has(self, name: bytes) -> bool:
        """Whether parameter ``name`` (lower case) is there, readable or not."""
        return any(key == name for key, _ in self.parameters)

    def without(self, name: bytes) -> tuple[bytes, ...]:
        """The parts of this media type but parameter ``name``: essence, then names and values in turn."""
        kept = (pair for pair in self.parameters if pair[0] != name)
        return (self.essence, *(part for pair in kept for part in pair))

    @property
    def is_json(self) -> bool:
        """Whether the type says JSON (RFC 6839 section 3.1), in UTF-8 (RFC 8259 section 8.1)."""
        if self.essence != b"application/json" and not self.essence.endswith(b"+json"):
            return False
        return not self.has(b"charset") or (self.get(b"charset") or b"").lower() in (b"utf-8", b"utf8")


def read_media_type(field: bytes) -> MediaType | None:
    """Read a Content-Type value; None where it does not follow the grammar (two joined values do not)."""
    start = _ESSENCE.match(field)
    if start is None:
        return None
    parameters = []
    position = start.end()
    while position < len(field):
        found = _PARAMETER.match(field, position)
        if found is None:
            return None
        if found[1] is not None:
            parameters.append((found[1].lower(), found[2]))
        position = found.end()
    return MediaType(start[1].lower(), tuple(parameters))
