"""Events as names, attributes and statuses of spans. No credential, prompt or query is in an event, so none can be in here.

Names follow OpenTelemetry's semantic conventions for HTTP and generative AI where these have one, else ``soloflight.*``.
A span's name is made of small closed sets; what a client makes (paths, models) is an attribute, and bounded.
"""

from __future__ import annotations

from typing import TypeAlias

from opentelemetry.trace import Status, StatusCode

from soloflight.core.errors import Code
from soloflight.ports import CallEnded, RequestEnded, Role

Attributes: TypeAlias = dict[str, str | int | float | bool]

METHODS = frozenset({"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"})
MAX_TEXT = 256
CALLED = frozenset({Code.UPSTREAM_UNREACHABLE, Code.UPSTREAM_INVALID, Code.UPSTREAM_TRUNCATED, Code.UPSTREAM_TIMEOUT})
"""Faults of a request alone that mean that its upstream was called, or tried; the others came before."""


def request_name(event: RequestEnded) -> str:
    """The method and the stage."""
    return f"{event.method if event.method in METHODS else 'HTTP'} {event.stage}".rstrip()


def request_attributes(event: RequestEnded) -> Attributes:
    """What a server span tells."""
    known = event.method in METHODS
    found: Attributes = {
        "http.request.method": event.method if known else "_OTHER",
        "url.path": event.path[:MAX_TEXT],
        "http.response.body.size": event.sent,
        "soloflight.role": event.role.value,
        "soloflight.request_id": event.request_id,
        "soloflight.first_byte_s": event.first_byte_s,
        "soloflight.overhead_s": event.overhead_s,
    }
    if event.status:
        found["http.response.status_code"] = event.status
    for name, text in (
        ("soloflight.stage", event.stage),
        ("soloflight.flight", event.flight),
        ("soloflight.reason", event.reason),
        ("soloflight.upstream_request_id", event.upstream_id),
        ("gen_ai.request.model", event.model or ""),
        ("error.type", event.code.code if event.code is not None else ""),
    ):
        if text:
            found[name] = text[:MAX_TEXT]
    if event.cut:
        found["soloflight.cut"] = True
    if event.usage.prompt or event.usage.completion:
        found["gen_ai.usage.input_tokens"] = event.usage.prompt
        found["gen_ai.usage.output_tokens"] = event.usage.completion
    return found


def request_status(event: RequestEnded) -> Status | None:
    """Error for an answer that was cut, or of class 5xx: a 4xx is the client's own, seen from a server. None: unset."""
    if event.code is not None and (event.cut or event.status >= 500):
        return Status(StatusCode.ERROR, event.code.code)
    return Status(StatusCode.ERROR) if event.status >= 500 else None


def alone_called(event: RequestEnded) -> bool:
    """Whether a request that went alone made an upstream call."""
    return event.role is Role.BYPASS and (event.code is None or event.code in CALLED)


def alone_attributes(event: RequestEnded) -> Attributes:
    """What the client span of a request that went alone tells."""
    outcome = "fault" if event.code else "abandoned" if event.cut else "complete" if event.status < 400 else "error"
    return _call(event.stage, "", outcome, 0 if event.code and not event.cut else event.status, event.code)


def call_name(stage: str) -> str:
    """A client span's name."""
    return f"upstream {stage}"


def call_attributes(event: CallEnded) -> Attributes:
    """What the client span of a flight's call tells."""
    found = _call(event.stage, event.flight, event.outcome, event.status, event.code)
    found["soloflight.attempt"] = event.attempt
    return found


def call_status(attributes: Attributes) -> Status | None:
    """Error for a fault, and for an upstream's 4xx or 5xx, seen from its client. None: unset."""
    failed = attributes["soloflight.outcome"] in {"fault", "error"}
    return Status(StatusCode.ERROR, str(attributes.get("error.type", ""))) if failed else None


def _call(stage: str, flight: str, outcome: str, status: int, code: Code | None) -> Attributes:
    found: Attributes = {"soloflight.stage": stage, "soloflight.outcome": outcome}
    if flight:
        found["soloflight.flight"] = flight
    if status:
        found["http.response.status_code"] = status
    if code is not None:
        found["error.type"] = code.code
    elif status >= 400:
        found["error.type"] = str(status)
    return found
