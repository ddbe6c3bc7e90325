"""The event that tells a streaming client that its answer was cut, in the form of its API (contract section 5)."""

from __future__ import annotations

import orjson

from soloflight_openai.routes import Api


def error_event(api: Api, code: str, message: str) -> bytes:
    """One whole event. It is written between events only, and nothing follows it: no ``[DONE]``, no final chunk."""
    text = message.encode("utf-8", "replace").decode()  # JSON has no lone surrogates
    if api is Api.RESPONSES:
        return _event({"type": "error", "code": code, "message": text, "param": None}, b"error")
    if api is Api.MESSAGES:
        return _event({"type": "error", "error": {"type": "api_error", "message": text}}, b"error")
    return _event({"error": {"message": text, "type": "soloflight_error", "code": code, "param": None}})


def _event(document: dict[str, object], name: bytes = b"") -> bytes:
    field = b"event: " + name + b"\n" if name else b""
    return field + b"data: " + orjson.dumps(document) + b"\n\n"
