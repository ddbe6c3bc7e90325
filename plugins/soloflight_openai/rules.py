"""The answer rules: from an answer's head to the judge for its body.

The real answer decides, not the request's ``stream``, which only helps where the answer does not tell its type.
"""

from __future__ import annotations

from soloflight.core.answer import Facts, Judge, Reason
from soloflight.core.frames import Head
from soloflight.core.stage import Stage
from soloflight_openai.cuts import error_event
from soloflight_openai.events import progress_of
from soloflight_openai.judges import DocumentJudge, OpaqueJudge, RefusedJudge, StreamJudge, Terms, TextJudge
from soloflight_openai.routes import api_of
from soloflight_openai.vary import KeyFields

_UNTOLD = (b"", b"application/octet-stream")


class Rules:
    """The rules for one stage's answers."""

    def __init__(self, stage: Stage) -> None:
        self._limit = stage.max_recording
        self._key_fields = KeyFields(stage)

    def __repr__(self) -> str:
        return f"Rules({self._key_fields!r}, limit={self._limit})"

    def judge(self, path: str, facts: Facts, head: Head, *, keep_incomplete: bool) -> Judge:
        """A fresh judge for one answer to a request for ``path`` (without query) with these facts."""
        against = self._against(head)
        terms = Terms(against, head.delimited, keep_incomplete, self._limit)
        if against in (Reason.STATUS, Reason.CODING):
            return RefusedJudge(terms)
        kind = _essence(head)
        if kind == b"text/event-stream":
            return StreamJudge(terms, progress_of(api_of(path), facts.choices))
        stream = StreamJudge(terms, progress_of(api_of(path), facts.choices)) if facts.stream else None
        if _is_json(kind):
            return DocumentJudge(terms, stream)
        if kind in _UNTOLD or kind.startswith(b"text/"):
            return TextJudge(terms, stream, typed=kind not in _UNTOLD)
        return OpaqueJudge(terms)

    def error_event(self, path: str, code: str, message: str) -> bytes:
        """One whole event in the form of ``path``'s API that tells a streaming client of a cut."""
        return error_event(api_of(path), code, message)

    def _against(self, head: Head) -> Reason | None:
        """What the head alone speaks against."""
        if not 200 <= head.status < 300 or head.status == 206:
            return Reason.STATUS
        if _is_coded(head):
            return Reason.CODING
        return None if self._key_fields.cover(head) else Reason.VARY


def _essence(head: Head) -> bytes:
    """Type and subtype in lower case, parameters off; empty where the answer has none."""
    return (head.get(b"content-type") or b"").partition(b";")[0].strip().lower()


def _is_json(kind: bytes) -> bool:
    return kind in (b"application/json", b"text/json") or kind.endswith(b"+json")


def _is_coded(head: Head) -> bool:
    """The bytes are still coded: what could be decoded was, and the field is then gone."""
    values = (value for name, value in head.fields if name.lower() == b"content-encoding")
    return any(value.strip().lower() not in (b"", b"identity") for value in values)
