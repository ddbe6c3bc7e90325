"""Answers of a chat API, as bytes: the events and bodies that tests and the demo are made of. No IO here."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from soloflight.testing import script

if TYPE_CHECKING:
    from soloflight.testing.received import Received
    from soloflight.testing.script import Script

DONE = b"data: [DONE]\n\n"


def event(value: Any) -> bytes:
    """One ``data:`` event with ``value`` as compact JSON."""
    return b"data: " + json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


def chunk_object(delta: dict[str, Any], finish_reason: str | None = None, index: int = 0) -> dict[str, Any]:
    """The JSON of one ``chat.completion.chunk`` with one choice."""
    choice = {"index": index, "delta": delta, "finish_reason": finish_reason}
    return {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def content(text: str, index: int = 0) -> bytes:
    """A chunk event that adds ``text`` to choice ``index``."""
    return event(chunk_object({"content": text}, index=index))


def finish(reason: str = "stop", index: int = 0) -> bytes:
    """The chunk event that ends choice ``index``."""
    return event(chunk_object({}, reason, index))


CH = content("x")
FIN = finish()


def completion_object(text: str = "x", finish_reason: str = "stop") -> dict[str, Any]:
    """The JSON of a whole ``chat.completion`` with one choice and a usage of 3 tokens."""
    message = {"role": "assistant", "content": text}
    return {
        "id": "c1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
        "usage": {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3},
    }


def answer(received: Received, *, events: int = 3, pause_s: float = 0.0) -> Script:
    """What a healthy chat upstream says: a stream of ``events`` chunks if asked for one, else JSON."""
    if b'"stream":true' not in received.body.replace(b" ", b""):
        return [pause_s * events, script.json(completion_object("x" * events))]
    steps: list[script.Step] = []
    for _ in range(events):
        steps += [CH, pause_s]
    return script.sse(*steps, FIN, DONE)
