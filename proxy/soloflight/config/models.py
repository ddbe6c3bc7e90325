"""The settings' shapes and defaults, named as in the file. Stage rules are in ``stage_rules``.

Rule 1: a model judges one value at a time; what binds several keys together is in ``checks``.
Rule 2: a secret is a ``SecretStr`` or stays out of the repr.
Durations are seconds (float), sizes bytes (int).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from soloflight.config import kinds
from soloflight.config.addresses import Listen, parse_admin_listen, parse_listen
from soloflight.config.stage_rules import StageRules, StageSettings

FROZEN = ConfigDict(frozen=True, extra="forbid", validate_default=False)
NO_SECRET = SecretStr("")


class Server(BaseModel):
    """``[server]``: the public and the admin listener, and the bounds of one process."""

    model_config = FROZEN

    listen: kinds.ListenText = "127.0.0.1:8080"
    admin_listen: kinds.AdminListenText = "127.0.0.1:8081"
    admin_token: SecretStr = NO_SECRET
    client_keys: kinds.ClientKeys = ()
    allow_open: kinds.Switch = False
    workers: kinds.Number = 1
    drain_timeout: kinds.Duration = 30.0
    drain_delay: kinds.Duration = 0.0
    max_body: kinds.Room = 1 << 30
    max_shared_body: kinds.Size = 32 << 20
    max_memory: kinds.Room = 1 << 30
    header_timeout: kinds.Span = 15.0
    body_timeout: kinds.Span = 60.0
    write_timeout: kinds.Span = 60.0
    trusted_proxies: tuple[kinds.Network, ...] = ("127.0.0.1/32", "::1/128")
    recognise: kinds.Switch = True
    scope_key: SecretStr = NO_SECRET

    @property
    def public(self) -> Listen:
        """Where the public listener binds."""
        return parse_listen(self.listen)

    @property
    def admin(self) -> Listen | None:
        """Where the admin listener binds; None where it is off."""
        return parse_admin_listen(self.admin_listen)


class Upstream(BaseModel):
    """``[upstream]`` and ``[upstreams.NAME]``: one origin and how it is called."""

    model_config = FROZEN

    url: kinds.Origin
    headers: dict[kinds.OwnFieldName, kinds.FieldValue] = Field(default_factory=dict)
    connect_timeout: kinds.Span = 5.0
    max_connections: kinds.Count = 0
    verify_tls: kinds.VerifyTls = True
    proxy: kinds.HttpProxy = Field(default="", repr=False)
    forwarded: Literal["off", "x-forwarded", "rfc7239"] = "off"


class DefaultUpstream(Upstream):
    """``[upstream]``: the one that has a default URL."""

    url: kinds.Origin = "https://api.openai.com"


class Coordination(BaseModel):
    """``[coordination]``: who decides which process owns a flight."""

    model_config = FROZEN

    backend: kinds.Name = "memory"
    on_backend_error: Literal["local", "reject"] = "local"
    command_timeout: kinds.Span = 0.5


class Redis(BaseModel):
    """``[redis]``: read by the coordinator of that name."""

    model_config = FROZEN

    url: kinds.RedisUrl = Field(default="redis://127.0.0.1:6379/0", repr=False)
    prefix: kinds.Prefix = "soloflight"
    encryption_key: SecretStr = NO_SECRET
    encryption_key_previous: SecretStr = NO_SECRET


class Log(BaseModel):
    """``[log]``: what the process writes to standard error."""

    model_config = FROZEN

    level: Annotated[Literal["debug", "info", "warning", "error"], kinds.Lowered] = "info"
    format: Annotated[Literal["text", "json"], kinds.Lowered] = "text"


class Plugins(BaseModel):
    """``[plugins]``: which are left out; each ``[plugins.NAME]`` table is free-form and that plugin's own."""

    model_config = ConfigDict(frozen=True, extra="allow")

    __pydantic_extra__: dict[str, dict[str, Any]] = Field(init=False)

    disabled: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Plugins(disabled={self.disabled!r}, sections={sorted(self.sections)})"

    @property
    def sections(self) -> Mapping[str, Mapping[str, Any]]:
        """Every ``[plugins.NAME]`` table by name."""
        return MappingProxyType(self.__pydantic_extra__ or {})

    def section(self, name: str) -> Mapping[str, Any]:
        """The table ``[plugins.NAME]``, empty where there is none. Its values are not checked here."""
        return MappingProxyType(self.sections.get(name, {}))


class Prices(BaseModel):
    """One model's price per 1,000,000 tokens, in the currency that the status page's reader thinks in."""

    model_config = FROZEN

    input: kinds.Price = 0.0
    output: kinds.Price = 0.0


class Settings(BaseModel):
    """Everything that may be set, by the file's keys. ``stages(settings)`` has the stages resolved."""

    model_config = FROZEN

    server: Server = Server()
    upstream: DefaultUpstream = DefaultUpstream()
    upstreams: dict[kinds.Name, Upstream] = Field(default_factory=dict)
    coordination: Coordination = Coordination()
    redis: Redis = Redis()
    log: Log = Log()
    plugins: Plugins = Plugins()
    prices: dict[str, Prices] = Field(default_factory=dict)
    stage_defaults: StageRules = StageRules()
    stage: tuple[StageSettings, ...] = ()

    def upstream_called(self, name: str) -> Upstream:
        """The upstream of that name; ``default`` is ``[upstream]``. KeyError for any that is not set."""
        return self.upstream if name == "default" else self.upstreams[name]
