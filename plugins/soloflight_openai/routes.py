"""Which API a path belongs to, and what is shareable: one table (contract section 3).

Paths are raw and without query.

Rule 1: a suffix counts byte for byte. Case, a trailing slash or a percent escape make another path.
Rule 2: a wrong "shareable" gives one call's effect to two callers, a wrong "not" costs one call. Nothing is
        guessed: what the table does not name passes through.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Api(Enum):
    """A family of requests whose bodies and answers follow the same rules."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    EMBEDDINGS = "embeddings"
    RESPONSES = "responses"
    MESSAGES = "messages"
    MODERATIONS = "moderations"
    RERANK = "rerank"
    IMAGES = "images"
    TRANSCRIPTION = "transcription"
    TRANSLATION = "translation"
    SPEECH = "speech"
    MODELS = "models"
    OTHER = "other"


class Route(NamedTuple):
    """Paths that end in ``suffix``. ``method``: requests with it are shareable by default; None: none is."""

    suffix: str
    api: Api
    method: str | None


# The first suffix that fits counts. Rows without a method are for stages that widen what is shared: their
# answers are judged by the same rules.
ROUTES = (
    Route("/chat/completions", Api.CHAT, "POST"),
    Route("/completions", Api.COMPLETIONS, "POST"),
    Route("/embeddings", Api.EMBEDDINGS, "POST"),
    Route("/v1/responses", Api.RESPONSES, "POST"),
    Route("/v1/messages", Api.MESSAGES, "POST"),  # with its v1, so not /threads/ID/messages
    Route("/moderations", Api.MODERATIONS, "POST"),
    Route("/rerank", Api.RERANK, "POST"),
    Route("/images/generations", Api.IMAGES, "POST"),
    Route("/audio/transcriptions", Api.TRANSCRIPTION, "POST"),
    Route("/audio/translations", Api.TRANSLATION, "POST"),
    Route("/audio/speech", Api.SPEECH, "POST"),
    Route("/models", Api.MODELS, "GET"),
    Route("/responses", Api.RESPONSES, None),  # Azure without v1
    Route("/images/edits", Api.IMAGES, None),
    Route("/images/variations", Api.IMAGES, None),
)


def api_of(path: str) -> Api:
    """The API of ``path``, whatever the method."""
    return next((route.api for route in ROUTES if path.endswith(route.suffix)), Api.OTHER)


def shareable(method: str, path: str) -> bool:
    """Whether requests with this method and path may share flights by default."""
    return any(method == route.method and path.endswith(route.suffix) for route in ROUTES)
