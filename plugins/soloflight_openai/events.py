"""The terminal events of each API's streams, and what is read on the way to them.

Rule 1: state is small and does not grow with the stream.
Rule 2: ``[DONE]`` is the last word wherever it comes; a named terminal event may be followed by one.
Rule 3: what can not be read says nothing; the answer is then incomplete, which costs a call and no truth.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from soloflight.core.answer import Reason, Usage
from soloflight.core.sse import Event
from soloflight_openai.documents import is_error, of_finish, read_object, reason_in
from soloflight_openai.routes import Api
from soloflight_openai.usage import read_usage

_DONE = b"[DONE]"
_UNNAMED = (b"", b"message")
_UNFINISHED = frozenset({"", "null"})
_MOST_CHOICES = 1 << 16


class Progress(ABC):
    """How far one stream has come: what every API's have in common.

    ``known``: the API is one whose end these rules know. ``terminal``: its terminal event came. ``last``: ``[DONE]``
    came, behind which nothing belongs to the answer. ``failed``: an error came in the place of the answer.
    """

    known = True

    def __init__(self) -> None:
        self.terminal = False
        self.last = False
        self.failed = False
        self.usage = Usage()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(terminal={self.terminal}, last={self.last}, failed={self.failed})"

    @property
    @abstractmethod
    def reason(self) -> Reason | None:
        """Why a stream that has ended is not to be kept, or None."""

    @abstractmethod
    def take(self, event: Event) -> None:
        """Learn from the next event."""


class Choices(Progress):
    """Chat and completions: every choice gets a ``finish_reason``, then ``[DONE]``."""

    def __init__(self, choices: int) -> None:
        super().__init__()
        self._asked = choices
        self._seen = {0}
        self._finished: set[int] = set()
        self._against: Reason | None = None

    @property
    def reason(self) -> Reason | None:
        if len(self._finished) < self._asked or self._finished != self._seen:
            return Reason.INCOMPLETE
        return self._against

    def take(self, event: Event) -> None:
        if event.data.startswith(_DONE):
            self.terminal = self.last = True
            return
        if not event.name and _says_nothing(event.data):
            return
        chunk = read_object(event.data)
        if event.name == b"error" or (chunk is not None and is_error(chunk)):
            self.failed = True
        elif chunk is not None:
            self._read(chunk)

    def _read(self, chunk: dict[str, object]) -> None:
        choices = chunk.get("choices")
        if isinstance(choices, list):
            for position, choice in enumerate(choices):
                if isinstance(choice, dict) and position < _MOST_CHOICES:
                    self._see(choice, choice.get("index", position))
        if chunk.get("usage") is not None:
            self.usage = read_usage(chunk, self.usage)

    def _see(self, choice: dict[str, object], index: object) -> None:
        if not isinstance(index, int) or not 0 <= index < _MOST_CHOICES:
            index = _MOST_CHOICES  # seen and never finished
        self._seen.add(index)
        finish = choice.get("finish_reason")
        if isinstance(finish, str) and finish not in _UNFINISHED and index != _MOST_CHOICES:
            self._finished.add(index)
            self._against = self._against or of_finish(finish)


def _says_nothing(chunk: bytes) -> bool:
    """A chunk of choice 0 alone that goes on, known without parsing (most are; those of spaced JSON are parsed).

    A member's name in its quotes can not stand inside a JSON string, where quotes are escaped.
    """
    return (
        chunk.rfind(b'"finish_reason":null') > 0
        and chunk.count(b'"index"') == 1
        and b'"index":0,' in chunk
        and chunk.rfind(b'"error"') < 0
        and (chunk.rfind(b'"usage"') < 0 or chunk.rfind(b'"usage":null') > 0)
    )


class Named(Progress):
    """APIs whose events have names: the one that ends the answer is in ``ends``, with what it speaks against.

    A name stands in the ``event`` field, or, from servers that leave it out, in the JSON's ``type``.
    ``times``: how often the terminal event comes (once for each image).
    """

    reads: tuple[bytes, ...] = ()
    """Names of further events worth reading."""

    def __init__(self, ends: Mapping[str, Reason | None], times: int = 1) -> None:
        super().__init__()
        self._ends = ends
        self._matters = frozenset({*_UNNAMED, b"error", *(name.encode() for name in ends), *self.reads})
        self._left = times
        self._against: Reason | None = None

    @property
    def reason(self) -> Reason | None:
        return self._against

    def take(self, event: Event) -> None:
        if event.data.startswith(_DONE):
            self.last = True
            return
        if event.name not in self._matters:
            return
        document = {} if event.oversize else read_object(event.data)
        if event.name == b"error" or (document is not None and is_error(document)):
            self.failed = True
        elif document is not None:
            kind = str(document.get("type")) if event.name in _UNNAMED else event.name.decode()
            if kind in self._ends:
                self._end(kind, document)
            else:
                self._read(kind, document)

    def _end(self, kind: str, document: dict[str, object]) -> None:
        answer = document.get("response", document)
        self.usage = read_usage(answer, self.usage)
        self._against = self._against or self._ends[kind] or reason_in(answer)
        self._left -= 1
        self.terminal = self._left <= 0

    def _read(self, kind: str, document: dict[str, object]) -> None:
        """Learn from an event that ends nothing."""


class Messages(Named):
    """Anthropic's messages: usage at both ends, the ``stop_reason`` shortly before ``message_stop``."""

    reads = (b"message_start", b"message_delta")

    def __init__(self) -> None:
        super().__init__({"message_stop": None})

    def _read(self, kind: str, document: dict[str, object]) -> None:
        if kind == "message_start":
            self.usage = read_usage(document.get("message"), self.usage)
        elif kind == "message_delta":
            self.usage = read_usage(document, self.usage)
            delta = document.get("delta")
            if isinstance(delta, dict):
                self._against = self._against or of_finish(delta.get("stop_reason"))


class Unknown(Progress):
    """A stream of no known API: nobody can say when it is complete, only that it failed."""

    known = False

    @property
    def reason(self) -> Reason | None:
        return Reason.INCOMPLETE

    def take(self, event: Event) -> None:
        if event.name == b"error":
            self.failed = True
        elif b'"error"' in event.data:
            document = read_object(event.data)
            self.failed = self.failed or (document is not None and is_error(document))


_ENDS: dict[Api, Mapping[str, Reason | None]] = {
    Api.RESPONSES: {
        "response.completed": None,
        "response.incomplete": Reason.LENGTH,
        "response.failed": Reason.ERROR,
        "response.cancelled": Reason.INCOMPLETE,
    },
    Api.IMAGES: {"image_generation.completed": None, "image_edit.completed": None},
    Api.TRANSCRIPTION: {"transcript.text.done": None},
    Api.TRANSLATION: {"transcript.text.done": None},
    Api.SPEECH: {"speech.audio.done": None},
}


def progress_of(api: Api, choices: int) -> Progress:
    """A fresh ``Progress`` for a stream of this API, of which ``choices`` were asked for."""
    if api in (Api.CHAT, Api.COMPLETIONS):
        return Choices(choices)
    if api is Api.MESSAGES:
        return Messages()
    if api in _ENDS:
        return Named(_ENDS[api], choices)
    return Unknown()
