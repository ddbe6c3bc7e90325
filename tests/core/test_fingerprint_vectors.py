"""Golden vectors: the keys of SCHEMA 1, letter by letter.

If one of these changes, requests of two versions of the proxy no longer meet, and what the old one kept is lost. That is
a decision: raise SCHEMA, write a line in the changelog, and only then new vectors.
"""

from __future__ import annotations

import pytest

from bodies.forms import field, file, form
from bodies.keys import BODY0, SCOPE_KEY, key
from soloflight.core.fingerprint import SCHEMA, FlightKey, read_body, scope_digest

FORM = form(b"BOUNDARY", field("model", "whisper-1"), file("file", "audio.wav", bytes(range(256))))

VECTORS = {
    "chat": (
        key(),
        "dd217adb614d1ec061fb4afd48535af2f3cd95bebe022519",
        "",
    ),
    "chat, written otherwise": (
        key(b'{ "temperature": 0, "messages": [{"content": "\\u0068i", "role": "user"}], "model": "m" }'),
        "dd217adb614d1ec061fb4afd48535af2f3cd95bebe022519",
        "",
    ),
    "numbers keep their text": (
        key(b'{"seed":9007199254740993,"temperature":1.0,"top_p":1e0,"big":18446744073709551616}'),
        "66b256e8376f475fdff6c0df4b82852d0015805b38eec3fb",
        "",
    ),
    "names by code point": (
        key('{"é":1,"z":2,"\\ud83d\\ude00":3,"\ufffd":4,"":5}'.encode()),
        "d15c2a8992fd28c0ede6e78049d0e009ce5e27f0989d6a40",
        "",
    ),
    "no JSON": (
        key(b"{bad1"),
        "443322d40ee56c6ed788aeac58a15db9d87e5cea6c5ecb0c",
        "",
    ),
    "no body": (
        key(b"", method="GET", target="/v1/models", type_field=None),
        "89e2dda4d2cc5e54beafef6741e3b128d62fcb28c0e74a73",
        "",
    ),
    "no credential": (
        key(credential=None),
        "8262ded8366789785c77aa409fafe6a4a8fcb2943640e526",
        "",
    ),
    "every field": (
        key(
            BODY0,
            (b"Origin", b"https://a.example"),
            (b"OpenAI-Organization", b"org"),
            (b"OpenAI-Project", b"proj"),
            (b"OpenAI-Beta", b"a"),
            (b"OpenAI-Beta", b"b"),
            (b"anthropic-version", b"2023-06-01"),
            (b"anthropic-beta", b"x"),
            (b"Content-Encoding", b"gzip"),
            (b"Accept", b"text/event-stream"),
            (b"X-Tenant", b"t\xe9"),
            key_headers=["X-Tenant"],
        ),
        "a0864a192f7388dedf0234d033aa88cd15ec579916987eb3",
        "",
    ),
    "another stage, upstream, path": (
        key(
            stage="evaluation",
            upstream="https://example.openai.azure.com",
            target="/openai/deployments/d/chat/completions?api-version=1",
        ),
        "c7d566de26ac9204b8ee3e049fd2ccbc6d9bb1283bf9b8c8",
        "",
    ),
    "form": (
        key(FORM, type_field=b"multipart/form-data; boundary=BOUNDARY", target="/v1/audio/transcriptions"),
        "df1fe62ad4d1a67048ba858c1b44d10aa58ab88ce9d60bc7",
        "",
    ),
    "form, malformed": (
        key(FORM[:-4], type_field=b"multipart/form-data; boundary=BOUNDARY", target="/v1/audio/transcriptions"),
        "0c7f80cbccd63f4222f8f03c0d61181ee8d557bbd7683073",
        "",
    ),
    "urlencoded": (
        key(b"a=1&b=2", type_field=b"application/x-www-form-urlencoded"),
        "b692d6c32843d4dcea816b2b5734dadac90f355ed9299b2d",
        "",
    ),
    "everyone": (
        key(scope="everyone"),
        "9b01f63f93c4866e75eab8173bf877089da88176029a84b9",
        "",
    ),
    "a trusted header": (
        key(BODY0, (b"X-Tenant", b"t1"), scope="header:x-tenant", trusted=True),
        "9418fd7c1015dbe4b057c63769b2c3907c6190af5d4f884a",
        "",
    ),
    "ignored fields": (
        key(b'{"user":"u","metadata":{"trace_id":1,"x":2}}', ignore_fields=("user", "metadata.trace_id")),
        "88d5854c49a44e1456509764ff7aa2bac010dce1b58dd677",
        "",
    ),
    "Idempotency-Key": (
        key(BODY0, (b"Idempotency-Key", b"8e03978e-40d5-43dd-bc93-6894a57f9324")),
        "db99b6bfb442da057ddb40cdbec237e46f4041aa07bc0752",
        "8564ed87e83135f30897d32e6bda29d2346ce7810b1cf9501614b02a92333d72",
    ),
}


def test_the_schema_of_these_vectors() -> None:
    assert SCHEMA == 1


@pytest.mark.parametrize(("found", "text", "payload"), VECTORS.values(), ids=list(VECTORS))
def test_keys(found: FlightKey, text: str, payload: str) -> None:
    assert (found.text, found.payload) == (text, payload)


def test_a_scope() -> None:
    fields = [(b"Authorization", b"Bearer K1"), (b"Cookie", b"a=1"), (b"X-Api-Key", b"K2"), (b"Host", b"x")]
    assert scope_digest(fields, SCOPE_KEY) == "e8c082f78e944059a6811628f68b29ea87a4d55d89dcf27e8cf6bf535e0d8524"


def test_a_digest() -> None:
    digest = read_body(b"application/json", BODY0).digest()
    assert digest.hex() == "eb62e76b7d7cbe8934c9f93ad686e8ae0c0825d7d01527c2daf9435b17ee4295"
