"""Why a request shares or not, and why two do not share with each other: the parts of their keys, laid side by side.

The verdict is Admission's own. Values are compared, never told: what is named is where two requests differ.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from soloflight.core.canonical import Json
from soloflight.core.coding import decoded_pieces
from soloflight.core.errors import Fault, SoloflightError
from soloflight.core.fields import end_to_end
from soloflight.core.fingerprint import (
    Document,
    Item,
    content_type,
    is_credential,
    key_parts,
    key_text,
    read_body,
    request_scope,
)
from soloflight.core.frames import Field
from soloflight.core.multipart import Form, Part
from soloflight.core.request import Request
from soloflight.core.stage import Stage
from soloflight.flow.admit import Admission
from soloflight.flow.flights import Call
from soloflight.flow.plan import Alone, Target

MOST_PLACES = 12
"""Differences named within one body; there may be more."""


@dataclass(frozen=True, slots=True)
class Explained:
    """One request judged. ``parts`` (of its key) and ``document`` are there where it may share; ``fault``: it is refused.

    ``scope`` is a keyed digest; ``credentials`` names the fields that it was made of.
    """

    request: Request
    stage: Stage | None = None
    verdict: Call | Alone | None = None
    fault: Fault | None = None
    scope: str = ""
    parts: Mapping[str, Item] = field(default_factory=dict, repr=False)
    document: Document | None = field(default=None, repr=False)

    @property
    def key(self) -> str:
        """The flight key, "" for a request that goes alone or is refused."""
        return self.verdict.key if isinstance(self.verdict, Call) else ""

    @property
    def credentials(self) -> list[str]:
        """Names of the credential fields, in lower case."""
        return sorted(
            {name.lower().decode("latin-1") for name, _ in self.request.fields if is_credential(name.lower())}
        )


class Explainer:
    """Judges requests as a proxy with this admission would; ``scope_key`` and ``targets`` are those it was made with."""

    def __init__(self, admission: Admission, scope_key: bytes, targets: Mapping[str, Target], limit: int) -> None:
        self._admission = admission
        self._scope_key = scope_key
        self._targets = targets
        self._limit = limit

    def __repr__(self) -> str:
        return f"Explainer({self._admission!r})"

    async def explain(self, request: Request, body: bytes) -> Explained:
        """Judge one whole request. Does not raise: a refusal is an explanation, too."""
        try:
            verdict = await self._verdict(request, body)
        except SoloflightError as error:
            return Explained(request, fault=error.fault)
        stage = verdict.stage
        scope = request_scope(request, stage.scope, self._scope_key)
        if isinstance(verdict, Alone):
            return Explained(request, stage, verdict, scope=scope)
        document = read_body(content_type(request), self._plain(request, body))
        parts = key_parts(
            replace(request, fields=tuple(end_to_end(request.fields))),
            stage=stage.name,
            scope=scope,
            upstream=self._targets[stage.upstream].identity,
            kind=document.kind,
            digest=document.digest(stage.ignore_fields),
            key_headers=stage.key_headers,
        )
        assert key_text(parts) == verdict.key, "the explanation is of another key"
        return Explained(request, stage, verdict, scope=scope, parts=parts, document=document)

    async def _verdict(self, request: Request, body: bytes) -> Call | Alone:
        plan = self._admission.plan(request)
        if plan.alone is not None:
            return plan.alone
        if len(body) > self._limit:
            return self._admission.too_large(plan)
        if plan.coded:
            return await self._admission.decide_coded(plan, body, self._limit)
        return self._admission.decide(plan, body)

    def _plain(self, request: Request, body: bytes) -> bytes:
        codings = b", ".join(request.all(b"content-encoding"))
        pieces = decoded_pieces(codings, body, self._limit) if codings else None
        return body if pieces is None else b"".join(pieces)


def differences(one: Explained, other: Explained) -> list[str]:
    """Where two requests' keys differ, each place by name; empty where the two have one key.

    Of two that both may share; for others their verdicts are the reason.
    """
    names = [*one.parts, *(name for name in other.parts if name not in one.parts)]
    found: list[str] = []
    for name in names:
        if one.parts.get(name) != other.parts.get(name):
            found += _places(name, one, other)
    return found


def _places(name: str, one: Explained, other: Explained) -> Iterator[str]:
    """The places within one differing part."""
    if name == "scope":
        yield from (f"scope: {place}" for place in _scope_places(one, other))
    elif name == "target":
        same_path = one.request.path == other.request.path
        yield "query" if same_path else "path"
    elif name in ("fields", "key_headers"):
        yield from (f"field: {place}" for place in _field_places(one.parts[name], other.parts[name]))
    elif name == "operation":
        yield "idempotency-key"
    elif name != "body":
        yield name
    elif name in one.parts and name in other.parts:
        yield from (f"body: {place}" for place in _body_places(one, other))


def _scope_places(one: Explained, other: Explained) -> list[str]:
    mine, theirs = _credentials(one.request), _credentials(other.request)
    names = [name for name in sorted({*mine, *theirs}) if mine.get(name) != theirs.get(name)]
    return [name.decode("latin-1") for name in names] or ["the stage's scope rule"]


def _credentials(request: Request) -> dict[bytes, list[bytes]]:
    return _values(field for field in request.fields if is_credential(field[0].lower()))


def _values(fields: Iterator[Field]) -> dict[bytes, list[bytes]]:
    values: dict[bytes, list[bytes]] = {}
    for name, value in fields:
        values.setdefault(name.lower(), []).append(value)
    return values


def _field_places(one: Item, other: Item) -> list[str]:
    mine, theirs = _by_name(one), _by_name(other)
    return [name.decode("latin-1") for name in sorted({*mine, *theirs}) if mine.get(name) != theirs.get(name)]


def _by_name(item: Item) -> dict[bytes, tuple[Item, ...]]:
    assert isinstance(item, tuple)
    found: dict[bytes, tuple[Item, ...]] = {}
    for entry in item:
        assert isinstance(entry, tuple)
        assert isinstance(entry[0], bytes)
        found[entry[0]] = entry[1:]
    return found


def _body_places(one: Explained, other: Explained) -> list[str]:
    mine, theirs = one.document, other.document
    assert mine is not None
    assert theirs is not None
    if mine.kind is not theirs.kind:
        return [f"it is keyed as {mine.kind.value} here, as {theirs.kind.value} there"]
    if isinstance(mine.content, Json) and isinstance(theirs.content, Json):
        ignored = one.stage.ignore_fields if one.stage is not None else ()
        return _first(_json_places(_tree(mine.content, ignored), _tree(theirs.content, ignored), ""))
    if isinstance(mine.content, Form) and isinstance(theirs.content, Form):
        return _first(_form_places(mine.content, theirs.content))
    return ["its bytes"]


def _first(places: Iterator[str]) -> list[str]:
    named = [place for place, _ in zip(places, range(MOST_PLACES + 1), strict=False)]
    return named if len(named) <= MOST_PLACES else [*named[:MOST_PLACES], "and more"]


def _tree(content: Json, ignored: tuple[str, ...]) -> object:
    """The parsed canonical text, each number as its text: 1 and 1.0 are two numbers here."""
    return json.loads(content.text(ignored), parse_int=_Number, parse_float=_Number)


class _Number(str):
    """A number as it is written; unlike any string."""

    __slots__ = ()


def _json_places(one: object, other: object, path: str) -> Iterator[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        for name in [*one, *(name for name in other if name not in one)]:
            place = f"{path}.{name}" if path else name
            if name in one and name in other:
                yield from _json_places(one[name], other[name], place)
            else:
                yield f"{place} ({'only in the first' if name in one else 'only in the second'})"
    elif isinstance(one, list) and isinstance(other, list):
        for index, (mine, theirs) in enumerate(zip(one, other, strict=False)):
            yield from _json_places(mine, theirs, f"{path}[{index}]")
        if len(one) != len(other):
            yield f"{path or 'the list'} ({len(one)} and {len(other)} items)"
    elif type(one) is not type(other) or one != other:
        yield path or "the value"


def _form_places(one: Form, other: Form) -> Iterator[str]:
    for index, (mine, theirs) in enumerate(zip(one.parts, other.parts, strict=False)):
        label = f"part {index + 1} ({mine.name or 'without a name'})"
        if mine.fields != theirs.fields:
            yield f"{label}: {_part_field(mine, theirs)}"
        if mine.digest != theirs.digest:
            yield f"{label}: content"
    if len(one.parts) != len(other.parts):
        yield f"{len(one.parts)} and {len(other.parts)} parts"
    if (one.preamble, one.epilogue) != (other.preamble, other.epilogue):
        yield "what stands around its parts"


def _part_field(mine: Part, theirs: Part) -> str:
    if mine.name != theirs.name:
        return "name"
    if mine.filename != theirs.filename:
        return "file name"
    return "type" if mine.content_type != theirs.content_type else "fields"
