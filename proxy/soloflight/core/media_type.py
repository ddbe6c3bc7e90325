"""Content-Type and its parameters, read strictly (RFC 9110 section 8.3.1): what is open to two readings is not read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

Parameters: TypeAlias = tuple[tuple[bytes, bytes], ...]
"""(name in lower case, value as written), in order."""

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_ESSENCE = re.compile(rb"[ \t]*(" + _TOKEN + rb"/" + _TOKEN + rb")[ \t]*")
# An unquoted value may hold more than a token (`boundary=----=_Part:1`): clients send that, servers read it.
_PARAMETER = re.compile(rb";[ \t]*(?:(" + _TOKEN + rb')=("(?:[^"\\]|\\.)*"|[^\s;,"\\]+)[ \t]*)?', re.DOTALL)


@dataclass(frozen=True, slots=True)
class MediaType:
    """``essence`` is type/subtype in lower case."""

    essence: bytes
    parameters: Parameters = ()

    def get(self, name: bytes) -> bytes | None:
        """Parameter ``name`` (lower case) without its quotes; None if it is absent, repeated or has escapes."""
        return parameter(self.parameters, name)

    def without(self, name: bytes) -> tuple[bytes, ...]:
        """The parts of this media type but parameter ``name``: essence, then names and values in turn."""
        kept = (pair for pair in self.parameters if pair[0] != name)
        return (self.essence, *(part for pair in kept for part in pair))

    @property
    def is_json(self) -> bool:
        """Whether the type says JSON (RFC 6839 section 3.1), in UTF-8 (RFC 8259 section 8.1)."""
        if self.essence != b"application/json" and not self.essence.endswith(b"+json"):
            return False
        charset = self.get(b"charset") or b""
        return charset.lower() in (b"utf-8", b"utf8") or not any(key == b"charset" for key, _ in self.parameters)


def read_media_type(field: bytes) -> MediaType | None:
    """Read a Content-Type value; None where it does not follow the grammar (two joined values do not)."""
    essence = _ESSENCE.match(field)
    if essence is None:
        return None
    parameters = read_parameters(field, essence.end())
    return None if parameters is None else MediaType(essence[1].lower(), parameters)


def read_parameters(field: bytes, start: int) -> Parameters | None:
    """The parameters that fill ``field`` from ``start`` (a semicolon, or the end) on; None where they do not."""
    parameters = []
    while start < len(field):
        found = _PARAMETER.match(field, start)
        if found is None:
            return None
        if found[1] is not None:
            parameters.append((found[1].lower(), found[2]))
        start = found.end()
    return tuple(parameters)


def parameter(parameters: Parameters, name: bytes) -> bytes | None:
    """Parameter ``name`` (lower case) without its quotes; None if it is absent, repeated or has escapes."""
    values = [value for key, value in parameters if key == name]
    if len(values) != 1 or b"\\" in values[0]:
        return None
    return values[0].strip(b'"')
