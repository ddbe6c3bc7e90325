"""Frames, recordings and faults as msgpack, and back: what is read is believed only as far as it was checked.

Rule 1: reading raises Unreadable, whatever the bytes are, and nothing else; it allocates in proportion to them.
Rule 2: what could break an HTTP message (CR, LF, NUL, a bad name or status) is never given out.
Encryption and the version byte are the cipher's affair.

    head    [status, reason, [[name, value], …], length or nil, delimited]
    frame   bin = Body | head = Head | nil = End | [fault] = End with a fault
    fault   [code, message, seconds or nil]
    result  [key, number, head, [bin, …], size, [prompt tokens, completion tokens]]
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import msgpack  # type: ignore[import-untyped]  # it has no stubs

from soloflight.core.errors import Code, Fault
from soloflight.core.frames import Body, End, Field, Frame, Head, Recording, Usage

MAX_FIELDS = 1_000
MAX_HEAD_BYTES = 1 << 20
MAX_MESSAGE = 4_096

_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")  # RFC 9110 section 5.6.2: token
_UNSAFE = re.compile(rb"[\r\n\0]")
_CODES = {code.code: code for code in Code}


class Unreadable(Exception):
    """A stored or published value that is not what it should be. The text says what, never a content."""


# ── frames ──────────────────────────────────────────────────────────────────────────────────────────────────


def pack_frames(frames: Iterable[Frame]) -> bytes:
    """One batch of a log."""
    return _pack([_frame_out(frame) for frame in frames])


def unpack_frames(data: bytes) -> tuple[Frame, ...]:
    """Read a batch: at least one frame. Raises Unreadable."""
    found = _list(_unpack(data), "batch")
    if not found:
        raise Unreadable("an empty batch")
    return tuple(_frame_in(item) for item in found)


def _frame_out(frame: Frame) -> object:
    if isinstance(frame, Body):
        return frame.data
    if isinstance(frame, Head):
        return _head_out(frame)
    return None if frame.fault is None else [_fault_out(frame.fault)]


def _frame_in(item: object) -> Frame:
    if isinstance(item, bytes):
        return Body(_body(item))
    if item is None:
        return End()
    if isinstance(item, tuple) and len(item) == 1:
        return End(_fault_in(item[0]))
    return _head_in(item)


# ── results ─────────────────────────────────────────────────────────────────────────────────────────────────


def pack_result(key: str, number: int, result: Recording) -> bytes:
    """A sealed result, bound to its flight key and attempt."""
    usage = [result.usage.prompt, result.usage.completion]
    return _pack([key, number, _head_out(result.head), result.body, result.size, usage])


def unpack_result(data: bytes, key: str, number: int) -> Recording:
    """Read the result of attempt ``number`` of ``key``. Raises Unreadable, also where it is another one's."""
    of_key, of_number, head, body, size, usage = _list(_unpack(data), "result", 6)
    if of_key != key or of_number != number:
        raise Unreadable("the result of another attempt")
    parts = tuple(_body(part) for part in _list(body, "body"))
    if not _is_count(size) or sum(map(len, parts)) != size:
        raise Unreadable("a body that is not as long as it says")
    tokens = _list(usage, "usage", 2)
    if not all(map(_is_count, tokens)):
        raise Unreadable("a usage that is none")
    return Recording(_head_in(head), parts, size, Usage(*tokens))


def _body(data: object) -> bytes:
    if not isinstance(data, bytes) or not data:
        raise Unreadable("a body frame without bytes")
    return data


# ── heads ───────────────────────────────────────────────────────────────────────────────────────────────────


def _head_out(head: Head) -> list[object]:
    return [head.status, head.reason, head.fields, head.length, head.delimited]


def _head_in(item: object) -> Head:
    status, reason, fields, length, delimited = _list(item, "head", 5)
    if not _is_count(status) or not 100 <= status <= 999:
        raise Unreadable("a status that is none")
    if not isinstance(delimited, bool) or not (length is None or _is_count(length)):
        raise Unreadable("a head that does not say how it ends")
    lines = _list(fields, "fields")
    if len(lines) > MAX_FIELDS:
        raise Unreadable("too many fields")
    read = tuple(_field_in(line) for line in lines)
    if len(_text(reason)) + sum(len(name) + len(value) for name, value in read) > MAX_HEAD_BYTES:
        raise Unreadable("a head that is too large")
    return Head(status, reason, read, length, delimited)


def _field_in(item: object) -> Field:
    name, value = _list(item, "field", 2)
    if not isinstance(name, bytes) or not _NAME.fullmatch(name):
        raise Unreadable("a field name that is none")
    return name, _text(value)


def _text(value: object) -> bytes:
    """Bytes that may stand in a head."""
    if not isinstance(value, bytes) or _UNSAFE.search(value):
        raise Unreadable("bytes that may not stand in a head")
    return value


# ── faults ──────────────────────────────────────────────────────────────────────────────────────────────────


@lru_cache(64)
def pack_fault(fault: Fault) -> bytes:
    """A fault as it stands in a record."""
    return _pack(_fault_out(fault))


def unpack_fault(data: bytes) -> Fault:
    """Read a fault. Raises Unreadable."""
    return _fault_in(_unpack(data))


def _fault_out(fault: Fault) -> list[object]:
    return [fault.code.code, fault.message, fault.retry_after_s]


def _fault_in(item: object) -> Fault:
    code, message, retry_after_s = _list(item, "fault", 3)
    if not isinstance(code, str) or code not in _CODES:
        raise Unreadable("an error code that is none")
    if not isinstance(message, str) or len(message) > MAX_MESSAGE:
        raise Unreadable("an error without a message")
    if not (retry_after_s is None or _is_count(retry_after_s)):
        raise Unreadable("a time to wait that is none")
    return Fault(_CODES[code], message, retry_after_s)


# ── msgpack ─────────────────────────────────────────────────────────────────────────────────────────────────


def _pack(value: object) -> bytes:
    packed = msgpack.packb(value, use_bin_type=True)
    assert isinstance(packed, bytes)
    return packed


def _unpack(data: bytes) -> object:
    try:
        return msgpack.unpackb(
            data, use_list=False, raw=False, max_map_len=0, max_ext_len=0, max_str_len=4 * MAX_MESSAGE
        )
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException):
        raise Unreadable("bytes that are not msgpack") from None


def _list(value: object, what: str, length: int | None = None) -> tuple[Any, ...]:
    if not isinstance(value, tuple) or (length is not None and len(value) != length):
        raise Unreadable(f"a {what} of another shape")
    return value


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0
