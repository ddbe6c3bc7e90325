"""The canonical text of a JSON body: the same bytes for the same value, other bytes for any other value.

Member order, white space and string escapes do not matter (RFC 8259 section 4); everything else does. Numbers
keep the text they were written in: ``1``, ``1.0`` and ``1e0`` stay apart, integers are exact, however long.

Rule 1: what can be read in two ways (duplicate names, lone surrogates, NaN, a byte order mark) is refused:
        ``read_json`` answers None and the body is keyed on its raw bytes.
Rule 2: nothing here raises on odd bytes, and the depth of a body can not exhaust the stack.
Rule 3: the canonical text is for the key only. It never goes upstream.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NoReturn

import orjson

MAX_INT_DIGITS = 300
"""Longer integers are floats in ``Json.value``: ``int`` refuses more than 4,300 digits, ``float`` does not."""


@dataclass(frozen=True, slots=True)
class Json:
    """A readable JSON text: ``value`` is plain Python, to read facts from.

    ``exact`` is the canonical text where ``value`` has lost something (the text of a number), else None.
    """

    value: object
    exact: bytes | None = None

    def text(self, ignore_fields: Iterable[str] = ()) -> bytes:
        """The canonical UTF-8 text, without the members in ``ignore_fields`` (dotted: ``metadata.user``)."""
        names = tuple(ignore_fields)
        if self.exact is not None and not names:
            return self.exact
        tree = self.value if self.exact is None else _exact_tree(self.exact.decode())
        for name in names:
            tree = _without(tree, name.split("."))
        return orjson.dumps(tree, option=orjson.OPT_SORT_KEYS)


def read_json(raw: bytes) -> Json | None:
    """Read ``raw`` as UTF-8 JSON text, or None where it is none or could be read in two ways.

    A text that orjson writes back byte for byte has no duplicate name (they would be gone), no number that changed on
    the way (big integers turn into floats, ``-0`` into ``0``), no escape and no space that it would not write itself:
    then the quick reading lost nothing. Compact bodies, as SDKs send them, take this path.
    """
    value: object = None
    quick = False
    try:
        value = orjson.loads(raw)
        quick = True
        if orjson.dumps(value) == raw:
            return Json(value)
    except (ValueError, TypeError):  # not JSON to orjson; or deeper than it writes
        pass
    return _read_exactly(raw, value, quick)


def _read_exactly(raw: bytes, value: object, quick: bool) -> Json | None:
    """The slow reading: numbers keep their text. ``value``, if ``quick``, is the plain reading already made."""
    try:
        text = raw.decode("utf-8")
        # Writing refuses lone surrogates, and what lies deeper than the quick path can write.
        exact = orjson.dumps(_exact_tree(text), option=orjson.OPT_SORT_KEYS)
        if not quick:  # a number beyond float64, which orjson refuses
            value = json.loads(text, parse_int=_integer)
    except (ValueError, TypeError, RecursionError):
        return None
    # A copy, because what orjson returns keeps its whole write buffer: many times the text.
    return Json(value, bytes(memoryview(exact)))


def _exact_tree(text: str) -> object:
    """The parsed ``text`` with each number as a piece of text that orjson writes as it is."""
    return json.loads(
        text,
        object_pairs_hook=_members,
        parse_int=orjson.Fragment,
        parse_float=orjson.Fragment,
        parse_constant=_refuse,
    )


def _members(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """One object; duplicate names are refused, because readers differ in which one counts."""
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("duplicate member name")
    return members


def _refuse(constant: str) -> NoReturn:
    """NaN, Infinity and -Infinity: Python reads them, RFC 8259 section 6 does not know them."""
    raise ValueError(constant)


def _integer(text: str) -> int | float:
    return int(text) if len(text) <= MAX_INT_DIGITS else float(text)


def _without(tree: object, path: list[str]) -> object:
    """``tree`` without the member at ``path``; what is changed is a copy, the rest is shared."""
    if not isinstance(tree, dict) or path[0] not in tree:
        return tree
    name, rest = path[0], path[1:]
    if rest:
        return tree | {name: _without(tree[name], rest)}
    return {key: member for key, member in tree.items() if key != name}
