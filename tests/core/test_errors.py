"""The errors that the proxy makes itself, held against contract section 5 and the registries they borrow from."""

from __future__ import annotations

from http import HTTPStatus

import pytest

from soloflight.core.errors import Code, Fault, SoloflightError, fail

# Contract section 5, and what HTTP asks for beside it: (code, status, x-should-retry).
PROMISED = {
    ("bad_request", 400, None),
    ("unauthorized", 401, None),
    ("request_timeout", 408, None),
    ("session_busy", 409, False),
    ("body_too_large", 413, None),
    ("idempotency_mismatch", 422, None),
    ("headers_too_large", 431, None),
    ("internal_error", 500, None),
    ("upstream_unreachable", 502, None),
    ("upstream_invalid", 502, None),
    ("upstream_truncated", 502, None),
    ("owner_lost", 502, None),
    ("attempts_exhausted", 502, False),
    ("saturated", 503, None),
    ("draining", 503, None),
    ("backend_unavailable", 503, None),
    ("abandoned", 503, None),
    ("aborted", 503, False),
    ("follower_timeout", 504, True),
    ("upstream_timeout", 504, False),
    ("not_cached", 504, False),
}

# "HTTP Proxy Error Types", IANA, as of RFC 9209 section 2.3.
REGISTERED = {
    "dns_timeout",
    "dns_error",
    "destination_not_found",
    "destination_unavailable",
    "destination_ip_prohibited",
    "destination_ip_unroutable",
    "connection_refused",
    "connection_terminated",
    "connection_timeout",
    "connection_read_timeout",
    "connection_write_timeout",
    "connection_limit_reached",
    "tls_protocol_error",
    "tls_certificate_error",
    "tls_alert_received",
    "http_request_error",
    "http_request_denied",
    "http_response_incomplete",
    "http_response_header_section_size",
    "http_response_header_size",
    "http_response_body_size",
    "http_response_trailer_section_size",
    "http_response_trailer_size",
    "http_response_transfer_coding",
    "http_response_content_coding",
    "http_response_timeout",
    "http_upgrade_failed",
    "http_protocol_error",
    "proxy_internal_response",
    "proxy_internal_error",
    "proxy_configuration_error",
    "proxy_loop_detected",
}


def test_the_codes_are_the_promised_ones() -> None:
    assert {(code.code, code.status, code.should_retry) for code in Code} == PROMISED


@pytest.mark.parametrize("code", Code)
def test_each_has_a_real_status_and_a_registered_error_type(code: Code) -> None:
    assert 400 <= HTTPStatus(code.status) <= 599
    assert code.proxy_status in REGISTERED


def test_an_error_carries_its_fault_to_the_door() -> None:
    error = fail(Code.SATURATED, "no room", 7)
    assert isinstance(error, SoloflightError)
    assert (error.fault, error.status_hint, str(error)) == (Fault(Code.SATURATED, "no room", 7), 503, "no room")
    assert fail(Code.INTERNAL, "x").fault.retry_after_s is None
