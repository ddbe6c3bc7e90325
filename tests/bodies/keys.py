"""From a request in short to its flight key."""

from __future__ import annotations

from collections.abc import Iterable

from soloflight.core.fingerprint import FlightKey, KeyMaker, content_type, read_body, request_scope
from soloflight.core.request import Request

SCOPE_KEY = bytes(range(32))
CHAT = "/v1/chat/completions"
AUTHORIZATION = (b"Authorization", b"Bearer K1")
BODY0 = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"temperature":0}'


def key(
    body: bytes = BODY0,
    *fields: tuple[bytes, bytes],
    target: str = CHAT,
    method: str = "POST",
    type_field: bytes | None = b"application/json",
    credential: tuple[bytes, bytes] | None = AUTHORIZATION,
    stage: str = "default",
    upstream: str = "https://api.openai.com",
    scope: str = "credential",
    trusted: bool = False,
    ignore_fields: tuple[str, ...] = (),
    key_headers: Iterable[str] = (),
) -> FlightKey:
    """The flight key of a request, through the same calls as admission makes."""
    typed = () if type_field is None else ((b"Content-Type", type_field),)
    known = () if credential is None else (credential,)
    request = Request(method, target, (*known, *typed, *fields), trusted=trusted)
    document = read_body(content_type(request), body)
    maker = KeyMaker(
        request,
        stage=stage,
        scope=request_scope(request, scope, SCOPE_KEY),
        upstream=upstream,
        kind=document.kind,
        key_headers=key_headers,
    )
    return maker.key(document.digest(ignore_fields))
