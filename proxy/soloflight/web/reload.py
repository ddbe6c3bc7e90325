"""What a reload can change: all rules for requests to come. What was bound, connected or divided up at the start stays."""

from __future__ import annotations

from pydantic import BaseModel

from soloflight.config.models import Settings

FIXED_AT_START = (
    "server.listen",
    "server.admin_listen",
    "server.admin_token",
    "server.workers",
    "server.max_memory",
    "server.header_timeout",
    "server.trusted_proxies",
    "server.scope_key",
    "coordination",
    "redis",
    "plugins",
)


def with_fixed(new: Settings, old: Settings) -> tuple[Settings, list[str]]:
    """``new`` but for what stays as it is in ``old``, and the names of what would have changed there."""
    changed = [name for name in FIXED_AT_START if _at(new, name) != _at(old, name)]
    settings = new
    for name in changed:
        room, _, key = name.rpartition(".")
        if room:
            inner: BaseModel = getattr(settings, room)
            settings = settings.model_copy(update={room: inner.model_copy(update={key: _at(old, name)})})
        else:
            settings = settings.model_copy(update={name: _at(old, name)})
    return settings, changed


def _at(settings: Settings, name: str) -> object:
    value: object = settings
    for part in name.split("."):
        value = getattr(value, part)
    return value
