"""The judges: each reads a side copy of one kind of answer.

Rule 1: none raises on odd bytes.
Rule 2: memory is bounded: a stream's by one event, a document's by ``limit`` bytes, held by reference.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import orjson

from soloflight.core.answer import Reason, Usage, Verdict
from soloflight.core.sse import Splitter
from soloflight_openai.documents import reason_in
from soloflight_openai.events import Progress
from soloflight_openai.usage import read_usage

_STREAM_STARTS = (b"data:", b"event:", b"id:", b"retry:", b":")
_DOCUMENT_STARTS = (b"{", b"[")


@dataclass(frozen=True, slots=True)
class Terms:
    """What is known before the first body byte.

    ``against``: what the head alone speaks against; it counts where the body is good. ``delimited``: the end is
    told by length or chunks. ``limit``: bytes of a document that are held to be read.
    """

    against: Reason | None
    delimited: bool
    keep_incomplete: bool
    limit: int


class Judge(ABC):
    """What all judges share."""

    complete = False
    ended = False

    def __init__(self, terms: Terms) -> None:
        self._terms = terms

    def __repr__(self) -> str:
        return f"{type(self).__name__}(complete={self.complete}, ended={self.ended})"

    def feed(self, data: bytes) -> int:
        """Take the next body bytes; returns how many of them belong to the answer."""
        return len(data)

    @abstractmethod
    def end(self, *, transport_whole: bool) -> Verdict:
        """The verdict, once no more bytes come. Called once."""

    def _verdict(self, reason: Reason | None, whole: bool | None, usage: Usage | None = None) -> Verdict:
        if reason is Reason.LENGTH and self._terms.keep_incomplete:
            reason = None
        return Verdict(reason or self._terms.against, whole, usage or Usage())

    def _opaque(self, transport_whole: bool) -> Verdict:
        """The verdict on bytes that say nothing themselves: whole if the transport proved it."""
        return self._verdict(None if transport_whole else self._cut, None)

    @property
    def _cut(self) -> Reason:
        """What a body is called whose end the transport did not prove."""
        return Reason.TRUNCATED if self._terms.delimited else Reason.UNDELIMITED


class OpaqueJudge(Judge):
    """Audio, archives and all else that is not read."""

    def end(self, *, transport_whole: bool) -> Verdict:
        return self._opaque(transport_whole)


class RefusedJudge(Judge):
    """An answer that is not kept, whatever its body is: it is not read."""

    def end(self, *, transport_whole: bool) -> Verdict:
        return self._verdict(None, None)


class DocumentJudge(Judge):
    """A JSON document, read once, at its end.

    ``stream``: the judge for a stream, if one was asked for: some servers answer with it under another type.
    """

    def __init__(self, terms: Terms, stream: StreamJudge | None) -> None:
        super().__init__(terms)
        self._stream = stream
        self._size = 0
        self._parts: list[bytes] = []

    def feed(self, data: bytes) -> int:
        self._size += len(data)
        if self._size <= self._terms.limit:
            self._parts.append(data)
        else:
            self._parts.clear()
        return len(data)

    def end(self, *, transport_whole: bool) -> Verdict:
        if self._size > self._terms.limit:
            return self._verdict(Reason.TOO_LARGE, None)
        body = b"".join(self._parts)
        self._parts.clear()
        if self._stream is not None and _look(body).startswith(_STREAM_STARTS):
            self._stream.feed(body)
            return self._stream.end(transport_whole=transport_whole)
        return self._judge(body, transport_whole)

    def _judge(self, body: bytes, transport_whole: bool) -> Verdict:
        try:
            document = orjson.loads(body)
        except ValueError:
            return self._verdict(Reason.INCOMPLETE, False)
        if not transport_whole and (self._terms.delimited or not isinstance(document, dict | list)):
            return self._verdict(self._cut, None)  # 12 may be the start of 123
        return self._verdict(reason_in(document), True, read_usage(document, Usage()))


class TextJudge(DocumentJudge):
    """Text, or a body of no told type: its look says whether it is a document.

    ``typed``: the head says that it is text, which may be empty.
    """

    def __init__(self, terms: Terms, stream: StreamJudge | None, *, typed: bool) -> None:
        super().__init__(terms, stream)
        self._typed = typed

    def _judge(self, body: bytes, transport_whole: bool) -> Verdict:
        if _look(body).startswith(_DOCUMENT_STARTS):
            verdict = super()._judge(body, transport_whole)
            if verdict.whole:
                return verdict
        if not body and not self._typed:
            return self._verdict(Reason.INCOMPLETE, None)
        return self._opaque(transport_whole)


class StreamJudge(Judge):
    """An event stream: followed event by event; ``progress`` knows its API's terminal events."""

    def __init__(self, terms: Terms, progress: Progress) -> None:
        super().__init__(terms)
        self._progress = progress
        self._splitter = Splitter()
        self._framed = False
        self._lf_may_follow = False

    def __repr__(self) -> str:
        return f"StreamJudge({self._progress!r}, {self._splitter!r})"

    def feed(self, data: bytes) -> int:
        if self.ended:
            return 0
        if self._lf_may_follow and data:
            self.ended = True
            return 1 if data.startswith(b"\n") else 0
        before = self._splitter.offset
        progress = self._progress
        for event in self._splitter.feed(data):
            self._framed = True
            progress.take(event)
            if progress.last:
                return self._last_word(event.end - before, len(data))
        self.complete = progress.terminal or (progress.failed and progress.known)
        return len(data)

    def _last_word(self, end: int, size: int) -> int:
        """``[DONE]`` ended at ``end``; the LF of its last CRLF may be still to come."""
        self.complete = True
        self._lf_may_follow = end == size and self._splitter.lf_may_follow
        self.ended = not self._lf_may_follow
        return end

    def end(self, *, transport_whole: bool) -> Verdict:
        if not self._framed:
            return self._unframed()
        progress = self._progress
        reason: Reason | None
        whole: bool | None = None
        if not progress.known:
            reason = Reason.ERROR if progress.failed else progress.reason
        elif progress.failed:
            reason, whole = Reason.ERROR, True
        elif not progress.terminal:
            reason, whole = Reason.INCOMPLETE, False
        elif not (transport_whole or self.ended or self._splitter.at_boundary):
            reason, whole = Reason.TRUNCATED, True  # cut inside what followed
        else:
            reason, whole = progress.reason, True
        return self._verdict(reason, whole, progress.usage)

    def _unframed(self) -> Verdict:
        """No event at all: nothing, comments, or a document that says it is a stream. None of them is kept."""
        body = self._splitter.pending
        if _look(body).startswith(_DOCUMENT_STARTS):
            try:
                return Verdict(reason_in(orjson.loads(body)) or Reason.INCOMPLETE, True)
            except ValueError:
                pass
        return Verdict(Reason.INCOMPLETE, False if self._progress.known else None)


def _look(body: bytes) -> bytes:
    """The start of a body, by which its kind can be told."""
    return body[:64].lstrip()
