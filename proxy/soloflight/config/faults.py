"""What is wrong with a configuration, as values: one readable line each, and never a secret in one.

Here pydantic's errors become faults. What is found is shown as it was written in the file, before
``${NAME}`` was replaced, so that a secret from the environment can not reach a terminal or a log.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from soloflight.config.addresses import mask_url
from soloflight.config.models import (
    Coordination,
    DefaultUpstream,
    Log,
    Plugins,
    Prices,
    Redis,
    Server,
    Settings,
)
from soloflight.config.models import Upstream as FurtherUpstream
from soloflight.config.stage_rules import MatchSettings, StageRules, StageSettings

Loc = tuple[str | int, ...]

SHAPES: Mapping[Loc, type[BaseModel]] = {
    (): Settings,
    ("server",): Server,
    ("upstream",): DefaultUpstream,
    ("upstreams", "*"): FurtherUpstream,
    ("coordination",): Coordination,
    ("redis",): Redis,
    ("log",): Log,
    ("plugins",): Plugins,
    ("prices", "*"): Prices,
    ("stage_defaults",): StageRules,
    ("stage", "*"): StageSettings,
    ("stage", "*", "match"): MatchSettings,
}
SECRET_KEYS = frozenset(
    {"admin_token", "client_keys", "encryption_key", "encryption_key_previous", "headers", "scope_key"}
)
NAMED_TABLES = ("stage", "upstreams", "prices")
"""Tables whose members are named by the user: the shape of each member is under ``*``."""
EXPECTED = {
    "dict_type": "a table",
    "missing": "a value",
    "model_attributes_type": "a table",
    "model_type": "a table",
    "string_type": "text",
    "tuple_type": "a list",
}
_LOOKS_SECRET = re.compile(r"\b(?:sk|rk|pk|bearer|basic)[-_ ]\S+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ConfigFault:
    """One fault. ``source`` is the file, ``environment NAME`` or ``flag --name``; ``key`` is dotted."""

    source: str
    key: str
    expected: str
    found: str

    def __str__(self) -> str:
        line = f"{self.source}: {self.key and self.key + ': '}expected {self.expected}, found {self.found}"
        return "".join(char if char.isprintable() else repr(char)[1:-1] for char in line)


class ConfigError(Exception):
    """The configuration can not be used; ``faults`` has every reason, at least one."""

    def __init__(self, faults: Iterable[ConfigFault]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(str(fault) for fault in self.faults))


def loc_of(error: ErrorDetails) -> Loc:
    """Where in the document: pydantic's mark for a table's key taken off."""
    return tuple(part for part in error["loc"] if part != "[key]")


def expectation(error: ErrorDetails) -> str:
    """What was expected instead of what ``error`` is about."""
    loc = loc_of(error)
    if error["type"] == "extra_forbidden" or (len(loc) == 2 and loc[0] == "plugins" and loc[1] != "disabled"):
        return _nearest(loc)  # [plugins] takes any table; a value of another type is a misspelt key
    context = error.get("ctx", {})
    if error["type"] == "expected":
        return str(context["what"])
    if error["type"] == "literal_error":
        return str(context["expected"]).replace("'", '"')
    return EXPECTED.get(error["type"], error["msg"].lower())


def finding(error: ErrorDetails, document: object) -> str:
    """What was found, fit to be shown; ``document`` is the file as it was read."""
    loc = loc_of(error)
    if error["type"] == "missing":
        return "nothing"
    if error["type"] == "extra_forbidden":
        return f"the unknown key {shown(loc[-1])}"
    if error["loc"][-1] == "[key]":
        return shown(loc[-1])
    if SECRET_KEYS.intersection(map(str, loc)):
        return "a value that is not shown"
    return shown(at(document, loc))


def at(document: object, loc: Loc) -> object:
    """The value at ``loc``; None where there is none (a key that only a flag or the environment set)."""
    for part in loc:
        if isinstance(document, dict):
            document = document.get(part)
        elif isinstance(document, list) and isinstance(part, int):
            document = document[part]
        else:
            return None
    return document


def shown(value: object) -> str:
    """A short form of any value of a file, without what looks like a secret."""
    match value:
        case dict():
            return "a table"
        case list():
            return f"a list of {len(value)}"
        case bool():
            return str(value).lower()
        case str():
            text = _LOOKS_SECRET.sub("…", mask_url(value, whole_query=True))
            return repr(text if len(text) <= 80 else text[:79] + "…").replace("'", '"')
        case _:
            return str(value)


def dotted(loc: Loc, document: object) -> str:
    """The key as people say it: a stage by its name if it has one, ``[0]`` for a list's first item."""
    text = ""
    for depth, part in enumerate(loc):
        name = at(document, (*loc[: depth + 1], "name")) if depth == 1 and loc[0] == "stage" else None
        if isinstance(part, int) and not (isinstance(name, str) and name):
            text += f"[{part}]"
        else:
            text += f".{name or part}" if text else str(part)
    return text


def _nearest(loc: Loc) -> str:
    """Words that lead from an unknown key to a known one: the same key elsewhere, else a similar one."""
    *table, key = loc
    here = (table[0], "*", *table[2:]) if table and table[0] in NAMED_TABLES else tuple(table)
    for there, model in SHAPES.items():
        if key in model.model_fields and "*" not in there:
            return f"a known key (nearest: {'.'.join(map(str, (*there, key)))})"
    near = get_close_matches(str(key), list(SHAPES[here].model_fields), n=1, cutoff=0.0)
    return f"a known key (nearest: {near[0]})"
