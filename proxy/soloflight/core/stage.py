"""A stage: the rules of one class of requests, as a frozen value, and how a request finds its stage.

No reading of files or environment here: config/ builds these values, plugins may choose among them.
All times are seconds (float), all sizes bytes; contract section 2 gives the meaning of each key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

from soloflight.core.errors import Code, fail

Share = Literal["always", "deterministic", "never"]
Replay = Literal["always", "retries", "never"]
Session = Literal["off", "reject", "queue"]
OnAbandon = Literal["finish", "cancel"]


@dataclass(frozen=True, slots=True)
class Match:
    """What a request must show to fall into a stage; every tuple that is not empty must hold. Globs, case kept."""

    paths: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.paths or self.models or self.methods)

    def holds(self, method: str, path: str, model: str | None) -> bool:
        """Whether a request with this method, path (without query) and JSON ``model`` matches."""
        return (
            (not self.methods or method in self.methods)
            and (not self.paths or any(fnmatchcase(path, glob) for glob in self.paths))
            and (not self.models or (model is not None and any(fnmatchcase(model, glob) for glob in self.models)))
        )


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage's rules. Field names are the config keys; defaults are the contract's."""

    name: str = "default"
    match: Match = field(default_factory=Match)
    selectable: bool = True
    share: Share = "always"
    replay: Replay = "always"
    retention: float = 300.0
    sampled_retention: float = 30.0
    idempotency_retention: float = 86400.0
    local_retention: float = 30.0
    local_max_bytes: int = 64 << 20
    heartbeat: float = 1.0
    pending_lease: float = 5.0
    running_lease: float = 5.0
    first_byte_timeout: float = 600.0
    progress_timeout: float = 300.0
    flight_deadline: float = 3600.0
    max_attempts: int = 3
    poison_ttl: float = 30.0
    follower_wait: float = 65.0
    on_abandon: OnAbandon = "finish"
    abandon_grace: float = 2.0
    max_abandoned: float = 60.0
    max_abandoned_stream: float = 15.0
    session: Session = "off"
    session_wait: float = 65.0
    max_upstream: int = 0
    queue_wait: float = 10.0
    max_recording: int = 32 << 20
    scope: str = "credential"
    ignore_fields: tuple[str, ...] = ()
    key_headers: tuple[str, ...] = ()
    keep_incomplete: bool = False
    upstream: str = "default"
    allow_client_control: bool = True


class Stages:
    """The configured stages in order, ``default`` last and always there."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        named = {stage.name: stage for stage in stages}
        default = named.pop("default", None) or Stage()
        self._ordered = (*(stage for stage in stages if stage.name != "default"), default)
        self._by_name = {stage.name: stage for stage in self._ordered}
        self.default = default

    def __repr__(self) -> str:
        return f"Stages({', '.join(self._by_name)})"

    def __iter__(self) -> Iterator[Stage]:
        return iter(self._ordered)

    def get(self, name: str) -> Stage | None:
        """The stage called ``name``, or None."""
        return self._by_name.get(name)

    def chosen(self, name: str) -> Stage:
        """The stage a client asked for by name; raises ``bad_request`` if unknown or not selectable by clients."""
        stage = self._by_name.get(name)
        if stage is None or not stage.selectable:
            raise fail(Code.BAD_REQUEST, "X-Soloflight-Stage names no stage that clients may choose")
        return stage

    def match(self, method: str, path: str, model: str | None) -> Stage:
        """First stage whose ``match`` holds; a stage without ``match`` is reached only by name."""
        for stage in self._ordered:
            if stage.match and stage.match.holds(method, path, model):
                return stage
        return self.default
