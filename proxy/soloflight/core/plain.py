"""Whole answers in the plainest form there is, read without a parser: one block, HTTP/1.1, a Content-Length that is all here.

Most JSON answers come like this. Whatever is only a little less plain is left to the parser (None): this reads a subset of what
it takes, in the same way (tests/core/test_plain.py puts both side by side).
"""

from __future__ import annotations

import re

from soloflight.core.fields import BODYLESS, HOP_BY_HOP
from soloflight.core.frames import Field, Head

HEAD_LIMIT = 16 * 1024
MAX_FIELDS = 100
# RFC 9110 sections 5.1 and 5.5, RFC 9112 section 4: tokens, visible bytes, blanks; no folding, no control bytes.
_DECISIVE = frozenset({b"transfer-encoding", b"upgrade"})
_STATUS = re.compile(rb"HTTP/1\.1 ([2-5][0-9]{2}) ([\t -~]*)")
_FIELDS = re.compile(rb"(?:\r\n[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~\x80-\xff]*)*")
_NO_BODY = BODYLESS | {205}  # RFC 9110 section 15.3.6: parsers differ on what a Content-Length means there


def read_plain(data: bytes) -> tuple[Head, bytes] | None:
    """(head, body) of the one whole answer to a request other than HEAD that ``data`` is; None: ask the parser."""
    end = data.find(b"\r\n\r\n", 0, HEAD_LIMIT)
    first = data.find(b"\r\n", 0, end + 2)
    if end < 0 or (line := _STATUS.fullmatch(data, 0, first)) is None or _FIELDS.fullmatch(data, first, end) is None:
        return None
    status, length = int(line[1]), None
    fields: list[Field] = []
    lines = data[first + 2 : end].split(b"\r\n") if end > first else []
    if status in _NO_BODY or len(lines) > MAX_FIELDS:
        return None
    for text in lines:
        name, _, value = text.partition(b":")
        value = value.strip(b" \t")
        lower = name.lower()
        if lower == b"content-length":
            if length is not None or not value.isdigit() or len(value) > 9:
                return None
            length = int(value)
        elif lower in HOP_BY_HOP:
            if lower in _DECISIVE or (lower == b"connection" and value.lower() != b"keep-alive"):
                return None
            continue
        fields.append((name, value))
    body = data[end + 4 :]
    if length != len(body):
        return None
    return Head(status, line[2], tuple(fields), length), body
