"""What a JSON answer, or the JSON of one event, says of itself: an error, pending, cut by a limit."""

from __future__ import annotations

import orjson

from soloflight.core.answer import Reason

_STATUS = {
    "queued": Reason.PENDING,
    "pending": Reason.PENDING,
    "in_progress": Reason.PENDING,
    "running": Reason.PENDING,
    "processing": Reason.PENDING,
    "validating": Reason.PENDING,
    "finalizing": Reason.PENDING,
    "cancelling": Reason.PENDING,
    "requires_action": Reason.PENDING,
    "incomplete": Reason.LENGTH,
    "failed": Reason.ERROR,
    "error": Reason.ERROR,
    "cancelled": Reason.INCOMPLETE,
    "expired": Reason.INCOMPLETE,
}
"""A top-level ``status`` that tells of no finished answer."""

_FINISH = {
    "length": Reason.LENGTH,
    "max_tokens": Reason.LENGTH,
    "model_length": Reason.LENGTH,  # Mistral
    "model_context_window_exceeded": Reason.LENGTH,  # Anthropic
    "error": Reason.ERROR,  # OpenRouter
}
"""A ``finish_reason`` or ``stop_reason`` that tells of no answer in full; all others do."""


def read_object(data: bytes) -> dict[str, object] | None:
    """``data`` as a JSON object, or None."""
    try:
        value = orjson.loads(data)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def is_error(document: dict[str, object]) -> bool:
    """An error in the place of an answer: ``error`` is there and not null, or the object says that it is one."""
    return document.get("error") is not None or document.get("object") == "error" or document.get("type") == "error"


def of_finish(finish: object) -> Reason | None:
    """What a ``finish_reason`` or ``stop_reason`` speaks against, or None."""
    return _FINISH.get(finish) if isinstance(finish, str) else None


def reason_in(document: object) -> Reason | None:
    """Why this answer is not to be kept by what it says itself, or None."""
    if not isinstance(document, dict):
        return None
    if is_error(document):
        return Reason.ERROR
    status = document.get("status")
    choices = document.get("choices")
    reasons = [
        _STATUS.get(status) if isinstance(status, str) else None,
        of_finish(document.get("stop_reason")),
        *(of_finish(choice.get("finish_reason")) for choice in _objects(choices)),
    ]
    return next((reason for reason in reasons if reason is not None), None)


def _objects(value: object) -> list[dict[str, object]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
