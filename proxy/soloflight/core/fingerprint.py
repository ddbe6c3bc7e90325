"""The fingerprint: which requests are the same request (contract section 3), as one digest.

Rule 1: the encoding is injective. Every value goes in behind its type and its length, and absent is not empty; so two
        requests have one key only if each part of the key is equal.
Rule 2: stable across processes and versions. A change of what is hashed is a new SCHEMA; tests/core holds vectors.
Rule 3: in doubt two requests differ: that costs one upstream call; the other error gives away a person's answer.
Rule 4: no credential and no prompt can be guessed from a key: the scope in it is keyed with a secret.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256
from operator import itemgetter
from typing import TypeAlias

from soloflight.core.canonical import Json, read_json
from soloflight.core.frames import Field
from soloflight.core.media_type import read_media_type
from soloflight.core.multipart import Form, read_form
from soloflight.core.request import Request

SCHEMA = 1
"""Version of all that is hashed here. Processes of different schemas never share."""

KEY_BYTES = 24
"""Digest bytes in a key's text: 192 bits, so that 2**96 requests would have to be tried for two with one key."""

KEYED_FIELDS = (
    b"origin",
    b"openai-organization",
    b"openai-project",
    b"openai-beta",
    b"anthropic-version",
    b"anthropic-beta",
    b"content-encoding",
)
"""Request fields in every key, byte for byte. Content-Type and Accept are there in a reduced form."""

_CREDENTIAL = re.compile(rb"auth|key|token|secret|cookie")
_NEVER_CREDENTIAL = re.compile(rb"x-soloflight-|x-stainless-|(?:idempotency-key|proxy-auth(?:orization|enticate))\Z")
_OBJECT = re.compile(rb"[ \t\r\n]*\{")

Item: TypeAlias = "bytes | Sequence[Item] | None"
"""What ``encode`` takes: bytes, nothing, or a sequence of such."""


class Kind(Enum):
    """How a body goes into the key."""

    JSON = "json"  # by its canonical text
    MULTIPART = "multipart"  # by its parts
    RAW = "raw"  # byte for byte


@dataclass(frozen=True, slots=True)
class Document:
    """A request body as the fingerprint sees it; without the body itself, so that a memo can hold it.

    ``value`` is what ``Fingerprinter.facts`` reads: the JSON object, the form values, or None. It is there for JSON
    under another content type too (``curl -d`` says urlencoded), although such a body is keyed on its bytes. It is
    shared by all who ask: read only.
    """

    kind: Kind
    value: dict[str, object] | None = field(default=None, repr=False)
    content: Json | Form | bytes = field(default=b"", repr=False)
    _digests: dict[tuple[str, ...], bytes] = field(default_factory=dict, init=False, repr=False, compare=False)

    def digest(self, ignore_fields: tuple[str, ...] = ()) -> bytes:
        """SHA-256 of the body and its kind. ``ignore_fields``: dotted names of JSON members that do not count."""
        known = self._digests.get(ignore_fields)
        if known is None:
            known = self._digests[ignore_fields] = sha256(encode(self._item(ignore_fields))).digest()
        return known

    def _item(self, ignore_fields: tuple[str, ...]) -> Item:
        kind = self.kind.value.encode()
        if isinstance(self.content, Json):
            names = sorted(set(ignore_fields))
            return (kind, tuple(map(_bytes, names)), sha256(self.content.text(names)).digest())
        if isinstance(self.content, Form):
            form = self.content
            return (kind, form.preamble, tuple((part.fields, part.digest) for part in form.parts), form.epilogue)
        return (kind, self.content)


@dataclass(frozen=True, slots=True)
class FlightKey:
    """``text`` is what the coordinator stores under: 48 hexadecimal digits.

    ``payload`` is "" unless an Idempotency-Key names the operation: then it tells one body from another (422).
    """

    text: str
    payload: str = ""


def encode(item: Item) -> bytes:
    """An injective encoding: type tag, length in bytes (or count of items), ``:``, content."""
    if item is None:
        return b"n"
    if isinstance(item, bytes):
        return b"b%d:%b" % (len(item), item)
    return b"t%d:%b" % (len(item), b"".join(map(encode, item)))


def read_body(type_field: bytes | None, body: bytes) -> Document:
    """Read a whole, decoded request body; ``type_field`` as ``content_type`` gives it. Never raises.

    JSON counts as such where the type says so, or where none is given: servers commonly read it then. Under any other
    type the bytes are what they are, but facts are read from them all the same.
    """
    media_type = None if type_field is None else read_media_type(type_field)
    if media_type is not None and media_type.essence == b"multipart/form-data":
        form = read_form(media_type.get(b"boundary") or b"", body)
        if form is None:
            return Document(Kind.RAW, None, sha256(body).digest())
        return Document(Kind.MULTIPART, {**form.values()}, form)
    is_json = type_field is None or (media_type is not None and media_type.is_json)
    json = read_json(body) if is_json or _OBJECT.match(body) else None
    value = json.value if json is not None and isinstance(json.value, dict) else None
    if json is None or not is_json:
        return Document(Kind.RAW, value, sha256(body).digest())
    return Document(Kind.JSON, value, json)


def content_type(request: Request) -> bytes | None:
    """The Content-Type for ``read_body``; of several, their list (RFC 9110 section 5.3), which is no type."""
    values = request.all(b"content-type")
    return b", ".join(values) if values else None


def scope_digest(fields: Iterable[Field], scope_key: bytes) -> str:
    """Keyed digest (HMAC-SHA-256, hex) over every credential field: who asks, without saying who.

    Names count in lower case and in sorted order, values byte for byte, several of one name in their order.
    """
    named = ((name.lower(), value) for name, value in fields)
    credentials = [field for field in named if is_credential(field[0])]
    return _scope(scope_key, b"credential", sorted(credentials, key=itemgetter(0)))


def request_scope(request: Request, rule: str, scope_key: bytes) -> str:
    """The scope of ``request`` under a stage's ``scope`` rule: ``credential``, ``everyone`` or ``header:NAME``.

    The header is believed from a trusted proxy only; else, and where it is missing or empty, the credential counts.
    """
    if rule == "everyone":
        return _scope(scope_key, b"everyone", ())
    kind, _, name = rule.partition(":")
    if kind == "header" and request.trusted:
        header = _bytes(name.lower())
        values = request.all(header)
        if any(values):
            return _scope(scope_key, b"header", [(header, value) for value in values])
    return scope_digest(request.fields, scope_key)


def is_credential(name: bytes) -> bool:
    """Whether field ``name`` (lower case) may tell who asks; control and hop-by-hop fields aside."""
    return _CREDENTIAL.search(name) is not None and _NEVER_CREDENTIAL.match(name) is None


class KeyMaker:
    """Makes the keys of requests with one head, whose bodies are of one kind: all but the body is hashed once.

    With an Idempotency-Key, scope and that key name the operation: it stands in the place of the body, whose
    digest is returned beside it. ``upstream`` is whatever tells upstreams apart for the whole fleet.
    """

    __slots__ = ("_hash", "_operation", "_scope")

    def __init__(
        self,
        request: Request,
        *,
        stage: str,
        scope: str,
        upstream: str,
        kind: Kind,
        key_headers: Iterable[str] = (),
    ) -> None:
        parts = key_parts(
            request, stage=stage, scope=scope, upstream=upstream, kind=kind, digest=b"", key_headers=key_headers
        )
        self._scope = _bytes(scope)
        self._operation = None if (operation := parts.pop("operation", None)) is None else encode(operation)
        parts.pop("body", None)
        # As ``encode`` of the whole tuple would begin: what its last item is comes with each body.
        head = _head_of_key(parts)
        self._hash = sha256(b"t%d:" % (len(head) + 1))
        for item in head:
            self._hash.update(encode(item))

    def __repr__(self) -> str:
        return f"KeyMaker({'operation' if self._operation is not None else 'body'})"

    def key(self, digest: bytes) -> FlightKey:
        """The key for a body with this ``digest`` (see ``Document``)."""
        hashed = self._hash.copy()
        hashed.update(encode((b"body", digest)) if self._operation is None else self._operation)
        text = hashed.digest()[:KEY_BYTES].hex()
        if self._operation is None:
            return FlightKey(text)
        return FlightKey(text, sha256(encode((b"soloflight payload", self._scope, digest))).hexdigest())


def key_parts(
    request: Request,
    *,
    stage: str,
    scope: str,
    upstream: str,
    kind: Kind,
    digest: bytes,
    key_headers: Iterable[str] = (),
) -> dict[str, Item]:
    """All that a KeyMaker hashes, by name and in that order; the last one is ``body``, or ``operation`` in its place.

    For those who ask why two requests do not share: their keys differ if, and only if, one of these does.
    """
    fields = _by_name(request.fields)
    operation = fields.get(b"idempotency-key")
    extra = sorted({_bytes(name.lower()) for name in key_headers})
    parts: dict[str, Item] = {
        "stage": _bytes(stage),
        "scope": _bytes(scope),
        "upstream": _bytes(upstream),
        "method": _bytes(request.method),
        "target": _bytes(request.target),
        "content-type": _content_type(fields.get(b"content-type", []), kind),
        "accept": b"event-stream" if accepts_event_stream(fields.get(b"accept", ())) else None,
        "fields": tuple((name, *fields[name]) for name in KEYED_FIELDS if name in fields),
        "key_headers": tuple((name, *fields[name]) for name in extra if name in fields),
    }
    if operation is None:
        parts["body"] = (b"body", digest)
    else:
        parts["operation"] = (b"operation", *operation)
    return parts


def key_text(parts: Mapping[str, Item]) -> str:
    """The text of the key that is made of these parts."""
    return sha256(encode(_head_of_key(parts))).digest()[:KEY_BYTES].hex()


def _head_of_key(parts: Mapping[str, Item]) -> tuple[Item, ...]:
    return (b"soloflight flight key", b"%d" % SCHEMA, *parts.values())


def accepts_event_stream(values: Iterable[bytes]) -> bool:
    """Whether Accept names ``text/event-stream``: all of Accept that is in the key."""
    for value in values:
        for element in value.split(b","):
            if element.partition(b";")[0].strip().lower() == b"text/event-stream":
                return True
    return False


def _by_name(fields: Iterable[Field]) -> dict[bytes, list[bytes]]:
    """Values of each field name (lower case), in order."""
    values: dict[bytes, list[bytes]] = {}
    for name, value in fields:
        values.setdefault(name.lower(), []).append(value)
    return values


def _content_type(values: list[bytes], kind: Kind) -> Item:
    """Content-Type for the key: as it is, but without the boundary where the body is keyed on its parts."""
    media_type = read_media_type(values[0]) if kind is Kind.MULTIPART and len(values) == 1 else None
    return tuple(values) if media_type is None else (media_type.without(b"boundary"),)


def _scope(scope_key: bytes, tag: bytes, fields: Sequence[Field]) -> str:
    return hmac.digest(scope_key, encode((b"soloflight scope", b"%d" % SCHEMA, tag, fields)), "sha256").hex()


def _bytes(text: str) -> bytes:
    """``text`` as bytes; surrogates, which stand for bytes that are not UTF-8, are kept apart."""
    return text.encode("utf-8", "surrogatepass")
