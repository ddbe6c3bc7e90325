"""Stage tables of the file, and how they become the core's stages.

Defaults are those of ``core.stage.Stage``: nothing is said twice. Rules take effect in core and flow.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ConfigDict

from soloflight.config import kinds
from soloflight.core.stage import Match, OnAbandon, Replay, Session, Share, Stage, Stages

DEFAULT = Stage()


class MatchSettings(BaseModel):
    """``match``: globs; all that are given must hold."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    paths: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    methods: tuple[kinds.Method, ...] = ()


class StageRules(BaseModel):
    """``[stage_defaults]``: the rules that a stage can have. Only what was written counts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    selectable: kinds.Switch | None = None
    share: Share = DEFAULT.share
    replay: Replay = DEFAULT.replay
    retention: kinds.Duration = DEFAULT.retention
    sampled_retention: kinds.Duration = DEFAULT.sampled_retention
    idempotency_retention: kinds.Duration = DEFAULT.idempotency_retention
    local_retention: kinds.Duration = DEFAULT.local_retention
    local_max_bytes: kinds.Size = DEFAULT.local_max_bytes
    heartbeat: kinds.Span = DEFAULT.heartbeat
    pending_lease: kinds.Span = DEFAULT.pending_lease
    running_lease: kinds.Span = DEFAULT.running_lease
    first_byte_timeout: kinds.Span = DEFAULT.first_byte_timeout
    progress_timeout: kinds.Span = DEFAULT.progress_timeout
    flight_deadline: kinds.Span = DEFAULT.flight_deadline
    max_attempts: kinds.Number = DEFAULT.max_attempts
    poison_ttl: kinds.Duration = DEFAULT.poison_ttl
    follower_wait: kinds.Span = DEFAULT.follower_wait
    on_abandon: OnAbandon = DEFAULT.on_abandon
    abandon_grace: kinds.Duration = DEFAULT.abandon_grace
    max_abandoned: kinds.Duration = DEFAULT.max_abandoned
    max_abandoned_stream: kinds.Duration = DEFAULT.max_abandoned_stream
    session: Session = DEFAULT.session
    session_wait: kinds.Duration = DEFAULT.session_wait
    max_upstream: kinds.Count = DEFAULT.max_upstream
    queue_wait: kinds.Duration = DEFAULT.queue_wait
    max_recording: kinds.Size = DEFAULT.max_recording
    scope: kinds.Scope = DEFAULT.scope
    ignore_fields: tuple[str, ...] = DEFAULT.ignore_fields
    key_headers: tuple[kinds.FieldName, ...] = DEFAULT.key_headers
    keep_incomplete: kinds.Switch = DEFAULT.keep_incomplete
    upstream: str = DEFAULT.upstream
    allow_client_control: kinds.Switch = DEFAULT.allow_client_control

    def written(self) -> dict[str, Any]:
        """The rules that were written, by key."""
        return {key: getattr(self, key) for key in StageRules.model_fields if key in self.model_fields_set}


class StageSettings(StageRules):
    """One ``[[stage]]``: its name, its match, and where it differs from the defaults."""

    name: kinds.Name
    match: MatchSettings = MatchSettings()


def resolve(stage: StageSettings, defaults: StageRules) -> Stage:
    """The core's stage: what it says itself, else what ``defaults`` says, else the core's default.

    A stage that shares with everyone, or spends another upstream's credential, is chosen by clients only if
    it says so. L1 keeps nothing longer than the longest retention; each answer's own bounds it further.
    """
    rules = defaults.written() | stage.written()
    selectable = rules.pop("selectable", None)
    match = Match(stage.match.paths, stage.match.models, stage.match.methods)
    resolved = replace(Stage(name=stage.name, match=match), **rules)
    if selectable is None:
        selectable = resolved.scope != "everyone" and resolved.upstream == DEFAULT.upstream
    longest = max(resolved.retention, resolved.sampled_retention, resolved.idempotency_retention)
    return replace(
        resolved,
        selectable=selectable,
        local_retention=min(resolved.local_retention, longest),
        key_headers=tuple(name.lower() for name in resolved.key_headers),
    )


def stages(defaults: StageRules, tables: Iterable[StageSettings]) -> Stages:
    """All stages in order, resolved; ``default`` is added where the file does not name it."""
    resolved = [resolve(table, defaults) for table in tables]
    if all(stage.name != DEFAULT.name for stage in resolved):
        resolved.append(resolve(StageSettings(name=DEFAULT.name), defaults))
    return Stages(resolved)
