"""Just enough TOML writing for config files: tables, arrays of tables, scalars, lists and inline tables."""

import json
from typing import Any


def dump(config: dict[str, Any]) -> str:
    """``config`` as TOML text."""
    return "\n".join(_table(config, ())) + "\n"


def _table(table: dict[str, Any], path: tuple[str, ...]) -> list[str]:
    lines = [f"{_key(key)} = {_value(value)}" for key, value in table.items() if not _is_block(value)]
    for key, value in table.items():
        name = ".".join(_key(part) for part in (*path, key))
        if isinstance(value, dict):
            lines += ["", f"[{name}]", *_table(value, (*path, key))]
        elif _is_block(value):
            for item in value:
                lines += ["", f"[[{name}]]", *_table(item, (*path, key))]
    return lines


def _is_block(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and bool(value) and isinstance(value[0], dict))


def _key(key: str) -> str:
    return json.dumps(key)


def _value(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    return json.dumps(value)  # strings, numbers and booleans are written as in JSON
