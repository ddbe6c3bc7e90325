"""JSON texts for tests: models that know what their canonical text is, and a strict reader that shares no code with ours."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import TypeAlias

from hypothesis import strategies as st


@dataclass(frozen=True)
class Number:
    """A number as it is written."""

    text: str


Model: TypeAlias = "dict[str, Model] | list[Model] | str | Number | bool | None"

NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.from_regex(
        r"-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?", fullmatch=True, alphabet="-+.eE0123456789"
    ),
    st.sampled_from(["0", "-0", "1", "1.0", "1e0", "1E0", "-0.0", "0.10", "1e400", "18446744073709551616", "9" * 400]),
).map(Number)

STRINGS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    ["", "a", "é", "e\u0301", "\0", '"\\/', "😀"]
)

MODELS: st.SearchStrategy[Model] = st.recursive(
    st.none() | st.booleans() | NUMBERS | STRINGS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(STRINGS, inner, max_size=4),
    max_leaves=12,
)


def canonical(model: Model) -> str:
    """The one text for ``model``: no space, members by code point, only the escapes that RFC 8259 section 7 demands."""
    if isinstance(model, dict):
        return "{" + ",".join(f"{quoted(name)}:{canonical(model[name])}" for name in sorted(model)) + "}"
    if isinstance(model, list):
        return "[" + ",".join(map(canonical, model)) + "]"
    if isinstance(model, str):
        return quoted(model)
    if isinstance(model, Number):
        return model.text
    return {None: "null", True: "true", False: "false"}[model]


SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def quoted(text: str) -> str:
    return '"' + "".join(SHORT.get(char) or (f"\\u{ord(char):04x}" if char < " " else char) for char in text) + '"'


def written(model: Model, chance: random.Random) -> str:
    """``model`` as some client may write it: any member order, white space and escapes."""
    space = chance.choice(["", "", " ", "\n", "\t \r\n"])
    if isinstance(model, dict):
        names = chance.sample(sorted(model), len(model))
        inner = ",".join(f"{space}{escaped(name, chance)}{space}:{written(model[name], chance)}" for name in names)
        return space + "{" + inner + space + "}"
    if isinstance(model, list):
        return "[" + f"{space},".join(written(item, chance) for item in model) + space + "]" + space
    if isinstance(model, str):
        return space + escaped(model, chance)
    return space + canonical(model) + space


def escaped(text: str, chance: random.Random) -> str:
    out = []
    for char in text:
        units = char.encode("utf-16-be")
        full = "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))
        must = char < " " or char in '"\\'
        choices = [SHORT.get(char, full), full, full.upper().replace("\\U", "\\u")]
        out.append(chance.choice(choices if must else [char, char, *choices, *(["\\/"] if char == "/" else [])]))
    return '"' + "".join(out) + '"'


class Unreadable(Exception):
    """Not JSON, or JSON that could be read in two ways."""


NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
SPACE = re.compile(r"[ \t\n\r]*")
UNITS = re.compile(r"\\u([0-9a-fA-F]{4})")


class Reader:
    """A strict recursive reader, written from RFC 8259 alone; slow and plain, to hold the quick one against."""

    def __init__(self, raw: bytes) -> None:
        try:
            self.text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise Unreadable from error
        self.at = 0

    def read(self) -> Model:
        model = self.value()
        if self.at != len(self.text):
            raise Unreadable
        return model

    def skip(self) -> str:
        found = SPACE.match(self.text, self.at)
        assert found is not None
        self.at = found.end()
        return self.text[self.at : self.at + 1]

    def take(self, *wanted: str) -> str:
        char = self.skip()
        if char not in wanted or not char:
            raise Unreadable
        self.at += 1
        return char

    def value(self) -> Model:
        char = self.skip()
        model: Model
        if char == "{":
            model = self.members()
        elif char == "[":
            model = self.items()
        elif char == '"':
            model = self.string()
        else:
            model = self.scalar()
        self.skip()
        return model

    def members(self) -> Model:
        self.take("{")
        model: dict[str, Model] = {}
        if self.skip() == "}":
            self.at += 1
            return model
        while True:
            self.skip()
            name = self.string()
            self.take(":")
            if name in model:
                raise Unreadable
            model[name] = self.value()
            if self.take(",", "}") == "}":
                return model

    def items(self) -> Model:
        self.take("[")
        model: list[Model] = []
        if self.skip() == "]":
            self.at += 1
            return model
        while True:
            model.append(self.value())
            if self.take(",", "]") == "]":
                return model

    def string(self) -> str:
        self.take('"')
        units: list[str] = []
        while True:
            char = self.text[self.at : self.at + 1]
            self.at += 1
            if char == '"':
                break
            if char < " ":  # the end of the text, too
                raise Unreadable
            units.append(self.escape() if char == "\\" else char)
        return self.joined("".join(units))

    def escape(self) -> str:
        char = self.text[self.at : self.at + 1]
        self.at += 1
        if char == "u":
            found = UNITS.match(self.text, self.at - 2)
            if found is None:
                raise Unreadable
            self.at += 4
            return chr(int(found[1], 16))
        plain = dict(zip('"\\/bfnrt', '"\\/\b\f\n\r\t', strict=True)).get(char)
        if not plain:
            raise Unreadable
        return plain

    def joined(self, text: str) -> str:
        try:
            return text.encode("utf-16-be", "surrogatepass").decode("utf-16-be")
        except UnicodeDecodeError as error:
            raise Unreadable from error

    def scalar(self) -> Model:
        for word, constant in (("null", None), ("true", True), ("false", False)):
            if self.text.startswith(word, self.at):
                self.at += len(word)
                return constant
        found = NUMBER.match(self.text, self.at)
        if found is None:
            raise Unreadable
        self.at = found.end()
        return Number(found[0])
