"""What binds several keys together. A table of checks; each yields conflicts and judges nothing alone.

A check is asked only about keys that could be read: ``involved`` names them, so that a mistake is told once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from soloflight.config.models import Settings, Upstream
from soloflight.config.stage_rules import resolve, stages
from soloflight.core.fields import CREDENTIAL_FORMS
from soloflight.core.stage import Stage

__all__ = ["Conflict", "conflicts"]

# Contract section 3: besides the known forms, any field "whose name contains" one of these.
CREDENTIAL_WORDS = (b"auth", b"key", b"token", b"secret", b"cookie")
LEASES = ("pending_lease", "running_lease")


@dataclass(frozen=True, slots=True)
class Conflict:
    """Keys that do not go together. ``key`` is the one to tell of, ``involved`` are the others."""

    key: str
    expected: str
    found: str
    involved: tuple[str, ...] = ()


def conflicts(settings: Settings) -> Iterator[Conflict]:
    """Every conflict, in the order of the file's sections."""
    yield from _listeners(settings)
    yield from _admin_token(settings)
    yield from _open_relay(settings)
    yield from _upstream_names(settings)
    yield from _header_twice(settings)
    yield from _stage_names(settings)
    yield from _default_matches_all(settings)
    yield from _stage_upstreams(settings)
    yield from _leases(settings)


def _listeners(settings: Settings) -> Iterator[Conflict]:
    server = settings.server
    if server.public == server.admin and server.public.port:
        yield Conflict(
            "server.admin_listen",
            "another address than server.listen",
            server.admin_listen,
            ("server.listen",),
        )


def _admin_token(settings: Settings) -> Iterator[Conflict]:
    admin = settings.server.admin
    if admin is not None and not admin.is_local and not settings.server.admin_token.get_secret_value():
        yield Conflict(
            "server.admin_listen",
            "a loopback address, or server.admin_token to be set",
            settings.server.admin_listen,
            ("server.admin_token",),
        )


def _open_relay(settings: Settings) -> Iterator[Conflict]:
    """Contract section 2, "open relay": who reaches the listener would spend the configured credential."""
    server = settings.server
    if server.public.is_local or server.client_keys or server.allow_open:
        return
    for place, upstream in _upstreams(settings):
        name = next((name for name in upstream.headers if _is_credential(name, upstream)), None)
        if name is not None:
            yield Conflict(
                "server.listen",
                f"a loopback address, server.client_keys, or server.allow_open = true,"
                f" because {place}.headers has a credential ({name})",
                server.listen,
                ("server.client_keys", "server.allow_open", f"{place}.headers"),
            )
            return


def _upstream_names(settings: Settings) -> Iterator[Conflict]:
    if "default" in settings.upstreams:
        yield Conflict("upstreams.default", "another name ([upstream] is the default one)", '"default"')


def _header_twice(settings: Settings) -> Iterator[Conflict]:
    for place, upstream in _upstreams(settings):
        for name, count in Counter(name.lower() for name in upstream.headers).items():
            if count > 1:
                yield Conflict(f"{place}.headers", f"{name} once", f"{count} spellings of it")


def _stage_names(settings: Settings) -> Iterator[Conflict]:
    for name, count in Counter(stage.name for stage in settings.stage).items():
        if count > 1:
            yield Conflict(f"stage.{name}.name", "a name of its own for each stage", f'{count} called "{name}"')


def _default_matches_all(settings: Settings) -> Iterator[Conflict]:
    for stage in settings.stage:
        if stage.name == "default" and stage.match.model_fields_set:
            yield Conflict("stage.default.match", "no match (the default stage takes all that is left)", "a match")


def _stage_upstreams(settings: Settings) -> Iterator[Conflict]:
    known = {"default", *settings.upstreams}
    for place, stage in _places(settings, ("upstream",)):
        if stage.upstream not in known:
            names = ", ".join(sorted(f'"{name}"' for name in known))
            yield Conflict(
                f"{place}.upstream",
                f"the name of an upstream ({names})",
                f'"{stage.upstream}"',
                (f"upstreams.{stage.upstream}",),
            )


def _leases(settings: Settings) -> Iterator[Conflict]:
    """A lease outlives two lost renewals: contract section 2, ``heartbeat``."""
    for place, stage in _places(settings, ("heartbeat", *LEASES)):
        for lease in LEASES:
            lease_s = getattr(stage, lease)
            if 3 * stage.heartbeat > lease_s + 1e-9:  # 3 * 0.1 is a little more than 0.3
                yield Conflict(
                    f"{place}.heartbeat",
                    f"at most a third of {lease} ({lease_s:g} s)",
                    f"{stage.heartbeat:g} s",
                    (f"{place}.{lease}", f"stage_defaults.{lease}", "stage_defaults.heartbeat"),
                )


def _places(settings: Settings, keys: tuple[str, ...]) -> Iterator[tuple[str, Stage]]:
    """Each place where one of ``keys`` was written, with the stage to judge."""
    defaults = settings.stage_defaults
    if defaults.model_fields_set.intersection(keys):
        yield "stage_defaults", stages(defaults, ()).default
    for table in settings.stage:
        if table.model_fields_set.intersection(keys):
            yield f"stage.{table.name}", resolve(table, defaults)


def _upstreams(settings: Settings) -> Iterator[tuple[str, Upstream]]:
    yield "upstream", settings.upstream
    for name, upstream in settings.upstreams.items():
        yield f"upstreams.{name}", upstream


def _is_credential(name: str, upstream: Upstream) -> bool:
    lower = name.lower().encode()
    named = lower in CREDENTIAL_FORMS or any(word in lower for word in CREDENTIAL_WORDS)
    return named and bool(upstream.headers[name].get_secret_value())
