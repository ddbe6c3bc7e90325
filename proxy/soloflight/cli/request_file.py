"""A request written in a file: as it goes over the wire, or as a JSON object.

Raw: request line, fields, an empty line, the body; line ends may be LF. The body is what follows the empty line (of it
Content-Length bytes, if that field is there; else without one line end at the very end, which editors add).

    POST /v1/chat/completions HTTP/1.1
    Authorization: Bearer k1
    Content-Type: application/json

    {"model": "m", "messages": []}

JSON: ``url`` (or ``path``) is needed; ``method`` is POST with a body, else GET; ``headers`` maps names to a text or a list of
texts; ``body`` is a text, or anything else that is then sent as JSON with its Content-Type.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import orjson

from soloflight.core.frames import Field

REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) (\S+)(?: HTTP/[0-9.]+)?")
FIELD_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(.*?)[ \t]*")


class Unreadable(ValueError):
    """The file holds no request; the text says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Written:
    """A request as it was written. ``target`` may still be in absolute form."""

    method: str
    target: str
    fields: tuple[Field, ...]
    body: bytes


def read_request_file(data: bytes) -> Written:
    """The request in ``data``. Raises Unreadable."""
    if data.lstrip()[:1] == b"{":
        return _from_json(data)
    return _from_wire(data)


def _from_wire(data: bytes) -> Written:
    head, _, body = _at_empty_line(data)
    lines = [line.removesuffix(b"\r") for line in head.split(b"\n")]
    first = REQUEST_LINE.fullmatch(lines[0])
    if first is None:
        raise Unreadable("its first line is no request line (METHOD TARGET HTTP/1.1)")
    fields: list[Field] = []
    for number, line in enumerate(lines[1:], start=2):
        found = FIELD_LINE.fullmatch(line)
        if found is None:
            raise Unreadable(f"line {number} is no header field (Name: value)")
        fields.append((found[1], found[2]))
    return Written(first[1].decode(), first[2].decode("latin-1"), tuple(fields), _body(fields, body))


def _at_empty_line(data: bytes) -> tuple[bytes, bytes, bytes]:
    found = re.search(rb"\r?\n\r?\n", data)
    if found is None:
        return data.rstrip(b"\r\n"), b"", b""
    return data[: found.start()], found[0], data[found.end() :]


def _body(fields: list[Field], body: bytes) -> bytes:
    length = next((value for name, value in fields if name.lower() == b"content-length"), None)
    if length is None:
        return body.removesuffix(b"\n").removesuffix(b"\r")
    if not length.isdigit() or int(length) > len(body):
        raise Unreadable("its body is shorter than its Content-Length")
    return body[: int(length)]


def _from_json(data: bytes) -> Written:
    try:
        said = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise Unreadable(f"it begins like JSON, and is none: {error}") from None
    strange = sorted(said.keys() - {"method", "url", "path", "headers", "body"})
    if strange:
        raise Unreadable(f"{strange[0]!r} is none of method, url, path, headers, body")
    target = said.get("url") or said.get("path")
    if not isinstance(target, str):
        raise Unreadable("it has neither url nor path")
    body = said.get("body")
    fields = _fields(said.get("headers", {}))
    if body is None or isinstance(body, str):
        raw = (body or "").encode()
    else:
        raw = orjson.dumps(body)
        if not any(name.lower() == b"content-type" for name, _ in fields):
            fields.append((b"Content-Type", b"application/json"))
    method = said.get("method", "GET" if body is None else "POST")
    return Written(str(method), target, tuple(fields), raw)


def _fields(headers: Any) -> list[Field]:
    if not isinstance(headers, dict):
        raise Unreadable("headers is no object")
    fields: list[Field] = []
    for name, values in headers.items():
        for value in values if isinstance(values, list) else [values]:
            if not isinstance(value, str):
                raise Unreadable(f"the header {name} is no text")
            fields.append((name.encode(), value.encode()))
    return fields
