"""Where values come from: the file's text, ``${NAME}`` in it, and the flags and variables that go before it.

Works on plain documents (what tomllib returns); shapes and defaults are the models' business. The
environment is an argument: nothing here reads the process's own.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from soloflight.config.addresses import MASK
from soloflight.config.faults import ConfigError, ConfigFault, Loc

Document = dict[str, Any]

_VARIABLE = re.compile(r"\$\$\{|\$\{([^}]*)\}?")
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Override:
    """A key that can be set from outside the file: by ``flag`` (if any), else by the first variable set."""

    loc: tuple[str, str]
    flag: str
    variables: tuple[str, ...]


OVERRIDES = (
    Override(("upstream", "url"), "upstream", ("SOLOFLIGHT_UPSTREAM",)),
    Override(("server", "listen"), "listen", ("SOLOFLIGHT_LISTEN",)),
    Override(("server", "admin_listen"), "admin_listen", ("SOLOFLIGHT_ADMIN_LISTEN",)),
    Override(("coordination", "backend"), "backend", ("SOLOFLIGHT_BACKEND",)),
    Override(("redis", "url"), "redis_url", ("SOLOFLIGHT_REDIS_URL", "REDIS_URL")),
    Override(("server", "workers"), "workers", ("SOLOFLIGHT_WORKERS",)),
    Override(("log", "level"), "log_level", ("SOLOFLIGHT_LOG_LEVEL",)),
    Override(("log", "format"), "log_format", ("SOLOFLIGHT_LOG_FORMAT",)),
    Override(("server", "admin_token"), "", ("SOLOFLIGHT_ADMIN_TOKEN",)),
    Override(("server", "client_keys"), "", ("SOLOFLIGHT_CLIENT_KEYS",)),
    Override(("server", "scope_key"), "", ("SOLOFLIGHT_SCOPE_KEY",)),
    Override(("redis", "encryption_key"), "", ("SOLOFLIGHT_REDIS_ENCRYPTION_KEY",)),
)


@dataclass(frozen=True, slots=True)
class Given:
    """A value from a flag or a variable, and where it is from."""

    value: object
    source: str


def config_path(path: Path | None, env: Mapping[str, str]) -> Path | None:
    """The file to read: the one that was named, else ``SOLOFLIGHT_CONFIG``, else none."""
    named = env.get("SOLOFLIGHT_CONFIG", "")
    return path if path is not None or not named else Path(named)


def read(path: Path) -> Document:
    """The file's document. Raises ConfigError if it can not be read or is no TOML."""
    try:
        return tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        problem = ("a file that can be read", (error.strerror or type(error).__name__).lower())
    except UnicodeDecodeError as error:
        problem = ("UTF-8", f"the byte 0x{error.object[error.start]:02x} at offset {error.start}")
    except tomllib.TOMLDecodeError as error:
        problem = ("TOML", f"a fault: {str(error)[:1].lower()}{str(error)[1:]}")
    raise ConfigError([ConfigFault(str(path), "", *problem)])


def given(env: Mapping[str, str], flags: Mapping[str, object]) -> dict[Loc, Given]:
    """What flags and environment set, by place. An empty variable is not set, a flag of None not given."""
    found: dict[Loc, Given] = {}
    for override in OVERRIDES:
        variable = next((name for name in override.variables if env.get(name)), None)
        if flags.get(override.flag) is not None:
            found[override.loc] = Given(flags[override.flag], f"flag --{override.flag.replace('_', '-')}")
        elif variable is not None:
            found[override.loc] = Given(env[variable], f"environment {variable}")
    return found


def overlay(document: Document, over: Mapping[Loc, Given]) -> Document:
    """A copy of ``document`` in which ``over`` goes first. What is no table stays: the models tell of it."""
    merged: Document = {key: dict(value) if isinstance(value, dict) else value for key, value in document.items()}
    for (section, key), one in over.items():
        table = merged.setdefault(str(section), {})
        if isinstance(table, dict):
            table[str(key)] = one.value
    return merged


class Substitution:
    """Replaces ``${NAME}`` in every string of a document; ``$${`` stands for a plain ``${``.

    ``missing`` collects what could not be replaced: (place, expected, found).
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self.missing: list[tuple[Loc, str, str]] = []

    def __repr__(self) -> str:
        return f"Substitution(missing={len(self.missing)})"

    def apply(self, value: Any, *, skip: Collection[Loc] = (), loc: Loc = ()) -> Any:
        """``value`` with every string in it replaced. What can not be is noted; ``skip`` stays as it is."""
        match value:
            case _ if loc in skip:
                return value
            case dict():
                return {key: self.apply(item, skip=skip, loc=(*loc, key)) for key, item in value.items()}
            case list():
                return [self.apply(item, skip=skip, loc=(*loc, index)) for index, item in enumerate(value)]
            case str():
                return self._text(value, loc)
            case _:
                return value

    def _text(self, text: str, loc: Loc) -> str:
        if MASK in text:
            self.missing.append((loc, "the secret itself", f"{MASK}, which stands for one"))
            return text
        problems = list(self._problems(text))
        self.missing += [(loc, *problem) for problem in problems]
        if problems:
            return text
        return _VARIABLE.sub(lambda found: "${" if found[1] is None else self._env[found[1]], text)

    def _problems(self, text: str) -> Iterator[tuple[str, str]]:
        for found in _VARIABLE.finditer(text):
            name = found[1]
            if name is None:
                continue
            if not found[0].endswith("}") or not _VARIABLE_NAME.fullmatch(name):
                yield "${NAME}, or $${ for a plain ${", "something else after ${"
            elif name not in self._env:
                yield f"the environment variable {name} to be set", "none of that name"
