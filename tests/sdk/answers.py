"""Answers of the APIs whose SDKs are used here, as bytes and as plain values."""

import base64
import json
import struct
from typing import Any

TEXT = "Grüße, 世界 \U0001f30d"


def event(value: dict[str, Any], name: str | None = None) -> bytes:
    """One event with ``value`` as JSON, under a name where the API gives one."""
    field = f"event: {name}\n" if name else ""
    return f"{field}data: {json.dumps(value, ensure_ascii=False)}\n\n".encode()


MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude",
    "content": [{"type": "text", "text": TEXT}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 3, "output_tokens": 2},
}
_STARTED = {**MESSAGE, "content": [], "stop_reason": None}
MESSAGE_EVENTS = [
    event({"type": kind, **value}, kind)
    for kind, value in (
        ("message_start", {"message": _STARTED}),
        ("content_block_start", {"index": 0, "content_block": {"type": "text", "text": ""}}),
        ("ping", {}),
        ("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": TEXT[:5]}}),
        ("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": TEXT[5:]}}),
        ("content_block_stop", {"index": 0}),
        ("message_delta", {"delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": {"output_tokens": 2}}),
        ("message_stop", {}),
    )
]

RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "status": "completed",
    "model": "m",
    "output": [
        {
            "id": "item_1",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": TEXT, "annotations": []}],
        }
    ],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "usage": {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 5,
    },
}
_PLACE = {"item_id": "item_1", "output_index": 0, "content_index": 0}
RESPONSE_EVENTS = [
    event({"type": kind, "sequence_number": number, **value}, kind)
    for number, (kind, value) in enumerate(
        (
            ("response.created", {"response": {**RESPONSE, "status": "in_progress", "output": []}}),
            ("response.output_text.delta", {**_PLACE, "delta": TEXT[:5], "logprobs": []}),
            ("response.output_text.delta", {**_PLACE, "delta": TEXT[5:], "logprobs": []}),
            ("response.completed", {"response": RESPONSE}),
        )
    )
]

VECTOR = [0.25, -0.5, 1.0, 0.0]


def embeddings(encoding: str | None) -> dict[str, Any]:
    """What an embeddings API says to a request with ``encoding_format``."""
    packed = base64.b64encode(struct.pack(f"<{len(VECTOR)}f", *VECTOR)).decode()
    return {
        "object": "list",
        "model": "e",
        "data": [{"object": "embedding", "index": 0, "embedding": packed if encoding == "base64" else VECTOR}],
        "usage": {"prompt_tokens": 1, "total_tokens": 1},
    }
