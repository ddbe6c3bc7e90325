"""The effective configuration as TOML, secrets masked: what ``check`` prints and ``load`` reads again."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from pydantic import BaseModel, SecretStr

from soloflight.config import stage_rules
from soloflight.config.addresses import MASK, is_secret_name, mask_url
from soloflight.config.kinds import DurationUnit, SizeUnit
from soloflight.config.models import Settings
from soloflight.config.stage_rules import StageRules, StageSettings
from soloflight.config.units import format_duration, format_size

__all__ = ["effective", "toml_value"]

URLS_WITH_SECRETS = ("url", "proxy")

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def effective(settings: Settings) -> str:
    """All settings as TOML, defaults included and every stage resolved, without any secret.

    Loaded again it gives the same settings, but for the masked secrets, which are refused.
    """
    tables: list[tuple[str, Iterator[str]]] = [
        ("[server]", _lines(settings.server)),
        ("[upstream]", _lines(settings.upstream)),
        *((f"[upstreams.{_key(name)}]", _lines(one)) for name, one in settings.upstreams.items()),
        ("[coordination]", _lines(settings.coordination)),
        ("[redis]", _lines(settings.redis)),
        ("[log]", _lines(settings.log)),
        ("[plugins]", _lines(settings.plugins)),
        *((f"[plugins.{_key(name)}]", _free(one)) for name, one in settings.plugins.sections.items()),
        *((f"[prices.{_key(name)}]", _lines(one)) for name, one in settings.prices.items()),
        ("[stage_defaults]", _lines(settings.stage_defaults)),
        *(("[[stage]]", lines) for lines in _stages(settings)),
    ]
    return "\n".join("\n".join([header, *lines, ""]) for header, lines in tables)


def toml_value(value: object) -> str:
    """Any value that a TOML file can hold, in TOML; a ``${`` in it is not taken for a variable."""
    match value:
        case SecretStr():
            return _text(MASK if value.get_secret_value() else "")
        case str():
            return _text(value)
        case bool():
            return str(value).lower()
        case Mapping():
            inner = ", ".join(f"{_key(key)} = {toml_value(item)}" for key, item in value.items())
            return f"{{ {inner} }}" if inner else "{}"
        case list() | tuple():
            return f"[{', '.join(toml_value(item) for item in value)}]"
        case int() | float():
            return repr(value)
        case _:  # tomllib's dates and times print as TOML writes them
            return str(value)


def _lines(model: BaseModel) -> Iterator[str]:
    """``key = value`` for each field that has a value."""
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        if value is not None:
            yield f"{name} = {_field(name, value, field.metadata)}"


def _field(name: str, value: Any, metadata: list[Any]) -> str:
    if any(isinstance(mark, DurationUnit) for mark in metadata):
        return f'"{format_duration(value)}"' if value else "0"
    if any(isinstance(mark, SizeUnit) for mark in metadata):
        return f'"{format_size(value)}"' if value else "0"
    return toml_value(mask_url(value) if name in URLS_WITH_SECRETS else value)


def _stages(settings: Settings) -> Iterator[Iterator[str]]:
    """Each stage with everything it inherits."""
    for stage in stage_rules.stages(settings.stage_defaults, settings.stage):
        values = asdict(stage)
        match = {key: globs for key, globs in values.pop("match").items() if globs}
        yield _stage_lines(values, match)


def _stage_lines(values: Mapping[str, Any], match: Mapping[str, Any]) -> Iterator[str]:
    yield f"name = {toml_value(values['name'])}"
    if match:
        yield f"match = {toml_value(match)}"
    for name in StageRules.model_fields:
        yield f"{name} = {_field(name, values[name], StageSettings.model_fields[name].metadata)}"


def _free(table: Mapping[str, Any]) -> Iterator[str]:
    """A plugin's own table: what its names tell to be secret is masked, and passwords in URLs."""
    for name, value in table.items():
        yield f"{_key(name)} = {toml_value(_masked(name, value))}"


def _masked(name: str, value: Any) -> Any:
    match value:
        case dict():
            return {key: _masked(key, item) for key, item in value.items()}
        case list():
            return [_masked(name, item) for item in value]
        case str():
            return MASK if value and is_secret_name(name) else mask_url(value)
        case _:
            return value


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _quoted(name)


def _text(value: str) -> str:
    return _quoted(value.replace("${", "$${"))


def _quoted(value: str) -> str:
    """A basic string: JSON's escapes are TOML's, but for DEL, which JSON leaves as it is."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
