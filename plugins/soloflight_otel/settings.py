"""``[plugins.otel]`` and the environment: whether traces are asked for. Everything else is in OpenTelemetry's own variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
KEYS = ("enabled", "endpoint")


@dataclass(frozen=True, slots=True)
class Wish:
    """``endpoint``: the collector's origin, or "" where the environment (or the default, localhost:4318) names it."""

    enabled: bool = False
    endpoint: str = ""


def wish_of(section: Mapping[str, object], environment: Mapping[str, str]) -> Wish | str:
    """What is wished for, or the line that says what is wrong with it.

    Without ``enabled`` an endpoint in the environment is the wish; OTEL_SDK_DISABLED=true takes it back.
    """
    for key in section:
        if key not in KEYS:
            return f"plugins.otel.{key}: unknown key (nearest: {get_close_matches(key, KEYS, n=1, cutoff=0.0)[0]})"
    enabled, endpoint = section.get("enabled"), section.get("endpoint", "")
    if enabled is not None and not isinstance(enabled, bool):
        return "plugins.otel.enabled: expected true or false"
    if not isinstance(endpoint, str) or not (endpoint == "" or endpoint.startswith(("http://", "https://"))):
        return "plugins.otel.endpoint: expected the URL of an OTLP/HTTP collector, such as http://127.0.0.1:4318"
    if enabled is None:
        enabled = bool(endpoint) or any(environment.get(name) for name in ENDPOINTS)
    off = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    return Wish(enabled and not off, endpoint)
