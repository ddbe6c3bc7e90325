"""Every error the proxy makes itself: one table, one value type, one exception.

Rule 1: an upstream's own error status is a result, not a Fault.
Rule 2: a Fault carries fixed text; it never quotes a credential, a prompt or an upstream address.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Code(Enum):
    """Error codes of contract section 5: (code, HTTP status, RFC 9209 error type, retry hint).

    The hint is what ``x-should-retry`` says: True, False, or None where the field is not sent.
    """

    BAD_REQUEST = ("bad_request", 400, "http_request_error", None)
    UNAUTHORIZED = ("unauthorized", 401, "http_request_denied", None)
    SESSION_BUSY = ("session_busy", 409, "http_request_denied", False)
    REQUEST_TIMEOUT = ("request_timeout", 408, "http_request_error", None)
    BODY_TOO_LARGE = ("body_too_large", 413, "http_request_error", None)
    IDEMPOTENCY_MISMATCH = ("idempotency_mismatch", 422, "http_request_error", None)
    HEADERS_TOO_LARGE = ("headers_too_large", 431, "http_request_error", None)
    INTERNAL = ("internal_error", 500, "proxy_internal_error", None)
    UPSTREAM_UNREACHABLE = ("upstream_unreachable", 502, "connection_refused", None)
    UPSTREAM_INVALID = ("upstream_invalid", 502, "http_protocol_error", None)
    UPSTREAM_TRUNCATED = ("upstream_truncated", 502, "http_response_incomplete", None)
    ATTEMPTS_EXHAUSTED = ("attempts_exhausted", 502, "proxy_internal_error", False)
    SATURATED = ("saturated", 503, "connection_limit_reached", None)
    DRAINING = ("draining", 503, "proxy_internal_response", None)
    BACKEND_UNAVAILABLE = ("backend_unavailable", 503, "proxy_internal_error", None)
    FOLLOWER_TIMEOUT = ("follower_timeout", 504, "http_response_timeout", True)
    UPSTREAM_TIMEOUT = ("upstream_timeout", 504, "http_response_timeout", False)
    NOT_CACHED = ("not_cached", 504, "proxy_configuration_error", False)
    OWNER_LOST = ("owner_lost", 502, "http_response_incomplete", None)
    ABANDONED = ("abandoned", 503, "proxy_internal_response", None)
    ABORTED = ("aborted", 503, "proxy_internal_response", False)

    def __init__(self, code: str, status: int, proxy_status: str, should_retry: bool | None) -> None:
        self.code = code
        self.status = status
        self.proxy_status = proxy_status
        self.should_retry = should_retry


ADMISSION = frozenset({Code.SESSION_BUSY, Code.SATURATED, Code.BACKEND_UNAVAILABLE})
"""Faults that are the owner's alone: a follower elsewhere asks anew rather than inherit them (contract section 4)."""


@dataclass(frozen=True, slots=True)
class Fault:
    """An error as a value: what listeners are told. ``retry_after_s`` becomes ``Retry-After`` (whole seconds)."""

    code: Code
    message: str
    retry_after_s: int | None = None


class SoloflightError(Exception):
    """The one exception that carries a Fault up to the door that answers with it."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault

    @property
    def status_hint(self) -> int:
        """The HTTP status that fits this error."""
        return self.fault.code.status


def fail(code: Code, message: str, retry_after_s: int | None = None) -> SoloflightError:
    """Build the exception for ``code``; the caller raises it."""
    return SoloflightError(Fault(code, message, retry_after_s))
