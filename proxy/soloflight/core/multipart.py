"""multipart/form-data from bytes (RFC 7578, RFC 2046 section 5.1): its parts, for the key and for facts.

Rule 1: only a body that every reader divides alike is divided here. Each occurrence of the dash-boundary must be a
        proper delimiter line; a body where one stands anywhere else is malformed, and keyed on its raw bytes.
Rule 2: bounded (parts, fields of a part, length of a field block), and contents are hashed in place, never copied.
Rule 3: a part is what its fields and content are, byte for byte: unknown fields count, quoting counts.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from hashlib import sha256

from soloflight.core.frames import Field
from soloflight.core.media_type import parameter, read_parameters

MAX_PARTS = 1024
MAX_PART_FIELDS = 32
MAX_FIELD_BLOCK = 16 << 10
MAX_TEXT = 64 << 10
"""Longest content in bytes that is read as a form value."""

_BOUNDARY = re.compile(rb"[0-9A-Za-z'()+_,\-./:=? ]{0,69}[0-9A-Za-z'()+_,\-./:=?]")  # RFC 2046 section 5.1.1
_LINE_END = re.compile(rb"[ \t]*\r\n")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n\0]*)")


@dataclass(frozen=True, slots=True)
class Part:
    """One part: its fields (names in lower case, values as written), and its content by digest and size.

    ``name`` and ``filename`` are read from Content-Disposition. ``text`` is the content of a short UTF-8 part
    without a file name, else None.
    """

    fields: tuple[Field, ...]
    digest: bytes
    size: int
    name: str | None = None
    filename: str | None = None
    text: str | None = None

    @property
    def content_type(self) -> bytes | None:
        """The part's Content-Type as written, or None."""
        return next((value for name, value in self.fields if name == b"content-type"), None)


@dataclass(frozen=True, slots=True)
class Form:
    """Parts in order, and what stood before the first and behind the last delimiter (mostly nothing)."""

    parts: tuple[Part, ...]
    preamble: bytes = b""
    epilogue: bytes = b""

    def values(self) -> dict[str, str]:
        """Form values by name. A name that comes twice is left out: readers differ in which one counts."""
        count = Counter(part.name for part in self.parts)
        return {
            part.name: part.text
            for part in self.parts
            if part.name is not None and part.text is not None and count[part.name] == 1
        }


def read_form(boundary: bytes, body: bytes) -> Form | None:
    """Divide ``body`` at ``boundary``; None if malformed, beyond a bound, or open to two readings."""
    if not _BOUNDARY.fullmatch(boundary):
        return None
    delimiter = b"--" + boundary
    first = body.find(delimiter)
    if first < 0 or (first and body[first - 2 : first] != b"\r\n"):
        return None
    parts: list[Part] = []
    position = first + len(delimiter)
    while not body.startswith(b"--", position):
        line_end = _LINE_END.match(body, position)
        following = body.find(delimiter, position)
        if line_end is None or following < 0 or len(parts) == MAX_PARTS:
            return None
        part = _read_part(body, line_end.end(), following)
        if part is None:
            return None
        parts.append(part)
        position = following + len(delimiter)
    position += 2
    if body.find(delimiter, position) >= 0:
        return None
    epilogue = _read_epilogue(body, position)
    return None if epilogue is None else Form(tuple(parts), body[:first], epilogue)


def _read_epilogue(body: bytes, start: int) -> bytes | None:
    """What follows the close delimiter and its line end; None where the rest of its line is not blank."""
    line_end = _LINE_END.match(body, start)
    if line_end is not None:
        return body[line_end.end() :]
    return None if body[start:].strip(b" \t") else b""


def _read_part(body: bytes, start: int, end: int) -> Part | None:
    """The part whose field block begins at ``start`` and whose delimiter stands at ``end``."""
    if body.startswith(b"\r\n", start):  # no fields at all
        block, content = b"", start + 2
    else:
        found = body.find(b"\r\n\r\n", start, min(end, start + MAX_FIELD_BLOCK))
        block, content = body[start:found], found + 4
        if found < 0:
            return None
    # The line end before a delimiter belongs to the delimiter.
    if end - 2 < content or body[end - 2 : end] != b"\r\n":
        return None
    fields = _read_fields(block)
    return None if fields is None else _describe(fields, memoryview(body)[content : end - 2])


def _read_fields(block: bytes) -> tuple[Field, ...] | None:
    fields: list[Field] = []
    for line in block.split(b"\r\n", MAX_PART_FIELDS - 1) if block else ():
        found = _FIELD.fullmatch(line)  # refuses folded lines, bare CR and LF, and lines past the bound
        if found is None:
            return None
        fields.append((found[1].lower(), found[2]))
    return tuple(fields)


def _describe(fields: tuple[Field, ...], content: memoryview) -> Part:
    name, filename, is_file = _disposition([value for key, value in fields if key == b"content-disposition"])
    text = None if is_file or len(content) > MAX_TEXT else _text(content)
    return Part(fields, sha256(content).digest(), len(content), name, filename, text)


def _disposition(values: list[bytes]) -> tuple[str | None, str | None, bool]:
    """Name, file name, and whether there is any: for facts only. Nothing is read where it could be read in two ways."""
    parameters = read_parameters(values[0], len(values[0].partition(b";")[0])) if len(values) == 1 else None
    if parameters is None:
        return None, None, False
    is_file = any(key in (b"filename", b"filename*") for key, _ in parameters)
    return _text(parameter(parameters, b"name")), _text(parameter(parameters, b"filename")), is_file


def _text(content: bytes | memoryview | None) -> str | None:
    """``content`` as UTF-8; None where it is none."""
    try:
        return None if content is None else str(content, "utf-8")
    except UnicodeDecodeError:
        return None
