"""What an API's rules say about a request and its answer: facts, verdicts, and the judge that reads a side copy.

The rules themselves live in plugins (``plugins/soloflight_openai``); the words they answer with live here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from soloflight.core.frames import NO_USAGE, Head, Usage

__all__ = ["AnswerRules", "Facts", "Judge", "Reason", "Usage", "Verdict"]


@dataclass(frozen=True, slots=True)
class Facts:
    """What the proxy needs to know of a request body; read once, from a side copy.

    ``sampled``: the API samples and neither ``temperature`` 0 nor a ``seed`` was given.
    ``stateful``: state at the upstream stands behind it (``conversation``, ``background: true``).
    ``choices``: how many choices the request asked for (``n``).
    """

    model: str | None = None
    stream: bool = False
    sampled: bool = False
    stateful: bool = False
    choices: int = 1


class Reason(Enum):
    """Why an answer is not kept for replay; a closed set, used as a metric label."""

    STATUS = "status"  # not a 2xx, or 206
    INCOMPLETE = "incomplete"  # not complete by the API's own rule
    TRUNCATED = "truncated"  # cut by the upstream or the network
    ERROR = "error"  # an error inside a 200 stream
    LENGTH = "length"  # finish_reason length / response.incomplete, and keep_incomplete is off
    PENDING = "pending"  # a status like queued or in_progress
    VARY = "vary"  # Vary names a field outside the key
    CODING = "coding"  # a content coding that could not be decoded
    UNDELIMITED = "undelimited"  # only the close ended it
    TOO_LARGE = "too_large"  # over max_recording
    MEMORY = "memory"  # over max_memory
    NO_RETENTION = "no_retention"  # the stage keeps nothing
    ABANDONED = "abandoned"  # the last listener left and policy ended the flight
    BACKEND = "backend"  # the coordinator refused or was away


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judge's last word. ``kept`` is None for an answer that may be replayed, else why it may not.

    ``whole`` is True where the API's own rule says that the answer is complete; for a body that only the close of
    the connection ended it tells a truncated stream from a finished one (None: the rules do not know this type).
    """

    kept: Reason | None
    whole: bool | None = None
    usage: Usage = NO_USAGE


class Judge(Protocol):
    """Reads a side copy of one answer as it passes. Never raises on odd bytes; bounded memory whatever comes."""

    def feed(self, data: bytes) -> int:
        """Take the next body bytes; returns how many of them belong to the answer.

        Fewer than ``len(data)`` only behind the API's last word (``[DONE]``): what follows is no part of the answer.
        """

    @property
    def complete(self) -> bool:
        """The API's terminal event was seen; only a trailer (a late ``[DONE]``) may still follow."""

    @property
    def ended(self) -> bool:
        """Nothing more can belong to the answer: the flight may be sealed without waiting for the upstream to close."""

    def end(self, *, transport_whole: bool) -> Verdict:
        """The verdict, once no more bytes come. ``transport_whole``: length or chunks proved the end."""


class AnswerRules(Protocol):
    """One API family's rules for answers."""

    def judge(self, path: str, facts: Facts, head: Head, *, keep_incomplete: bool) -> Judge:
        """A fresh judge for one answer to a request for ``path`` (without query) with these facts."""

    def error_event(self, path: str, code: str, message: str) -> bytes:
        """One complete SSE event in the API's own form that tells a streaming client of a cut (contract section 5)."""
