"""From file, environment and flags to Settings, or to every fault at once.

The order is: read the file, let flags and environment go before it, replace ``${NAME}``, judge each
value, judge what binds values together. A value that could not be read is left out, so that the rest is
judged all the same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from soloflight.config import stage_rules
from soloflight.config.checks import conflicts
from soloflight.config.faults import (
    NAMED_TABLES,
    ConfigError,
    ConfigFault,
    Loc,
    dotted,
    expectation,
    finding,
    loc_of,
)
from soloflight.config.models import Settings
from soloflight.config.sources import Document, Given, Substitution, config_path, given, overlay, read
from soloflight.core.stage import Stages

__all__ = ["load", "stages"]

DEFAULTS = "defaults"
"""The source that a fault names where there is no file."""

NEEDED = (("name",), ("url",))


def load(path: Path | None, env: Mapping[str, str], flags: Mapping[str, object]) -> Settings:
    """Settings by flag > environment > file > default. Raises ConfigError with every fault.

    ``path``: the file, or None for ``SOLOFLIGHT_CONFIG`` or none at all. ``flags``: by the names
    of ``serve``'s options, with underscores (``admin_listen``); None means not given.
    """
    file = config_path(path, env)
    written = read(file) if file is not None else {}
    over = given(env, flags)
    found = _Reading(str(file or DEFAULTS), overlay(written, over), over)
    return found.settings(env)


def stages(settings: Settings) -> Stages:
    """The stages, resolved: each with the defaults under it, ``default`` last and always there."""
    return stage_rules.stages(settings.stage_defaults, settings.stage)


class _Reading:
    """One attempt to read one configuration: collects faults as it goes."""

    def __init__(self, source: str, document: Document, over: Mapping[Loc, Given]) -> None:
        self._source = source
        self._document = document
        self._over = over
        self._faults: list[ConfigFault] = []
        self._left_out: set[Loc] = set()

    def __repr__(self) -> str:
        return f"_Reading({self._source!r}, faults={len(self._faults)})"

    def settings(self, env: Mapping[str, str]) -> Settings:
        substitution = Substitution(env)
        replaced = substitution.apply(self._document, skip=self._over)
        for loc, expected, found in substitution.missing:
            self._fault(loc, expected, found)
        self._values(replaced, noted={loc for loc, _, _ in substitution.missing})
        settings = Settings.model_validate(without(replaced, self._left_out))
        self._conflicts(settings)
        if self._faults:
            raise ConfigError(self._faults)
        return settings

    def _values(self, document: Document, noted: Collection[Loc]) -> None:
        """Note each value that its model refuses, but for places that are ``noted`` already."""
        try:
            Settings.model_validate(document)
        except ValidationError as refused:
            for error in refused.errors(include_url=False):
                loc = loc_of(error)
                if not any(loc[: len(place)] == place for place in noted):
                    self._fault(loc, expectation(error), finding(error, self._document))

    def _conflicts(self, settings: Settings) -> None:
        unread = [dotted(loc, self._document) for loc in self._left_out]
        for conflict in conflicts(settings):
            involved = (conflict.key, *conflict.involved)
            if not any(_touch(key, other) for key in involved for other in unread):
                self._faults.append(
                    ConfigFault(self._source_of(conflict.key), conflict.key, conflict.expected, conflict.found)
                )

    def _fault(self, loc: Loc, expected: str, found: str) -> None:
        key = dotted(loc, self._document)
        self._faults.append(ConfigFault(self._source_of(key), key, expected, found))
        self._left_out.add(_removable(loc))

    def _source_of(self, key: str) -> str:
        for loc, one in self._over.items():
            name = dotted(loc, None)
            if key == name or key.startswith((f"{name}.", f"{name}[")):
                return one.source
        return self._source


def without(value: Any, left_out: Collection[Loc], at: Loc = ()) -> Any:
    """A copy of a document that lacks the places in ``left_out``."""
    match value:
        case dict():
            places = {key: (*at, key) for key in value}
            return {key: without(value[key], left_out, loc) for key, loc in places.items() if loc not in left_out}
        case list():
            places = {index: (*at, index) for index in range(len(value))}
            return [without(value[index], left_out, loc) for index, loc in places.items() if loc not in left_out]
        case _:
            return value


def _removable(loc: Loc) -> Loc:
    """The least place around ``loc`` that can be left out: a key, or the item that needs it."""
    least = loc[: 3 if loc[0] in NAMED_TABLES else 2]
    return least[:2] if least[2:] in NEEDED else least


def _touch(key: str, other: str) -> bool:
    return key == other or key.startswith(f"{other}.") or other.startswith(f"{key}.")
