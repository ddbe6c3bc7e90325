"""What a request's body says, by tables; and that no body whatever raises."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soloflight.core.answer import Facts
from soloflight_openai import Bodies
from soloflight_openai.routes import ROUTES

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
EMBEDDINGS = "/v1/embeddings"
IMAGES = "/v1/images/generations"
TRANSCRIPTION = "/v1/audio/transcriptions"


class Literal:
    """A number as some parsers keep it: its text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text


def facts(path: str, value: Mapping[str, object] | None) -> Facts:
    return Bodies().facts(path, value)


@pytest.mark.parametrize(
    ("path", "value", "sampled"),
    [
        (CHAT, {}, True),
        (CHAT, None, True),
        (CHAT, {"temperature": None}, True),
        (CHAT, {"temperature": 0}, False),
        (CHAT, {"temperature": 0.0}, False),
        (CHAT, {"temperature": -0.0}, False),
        (CHAT, {"temperature": "0"}, False),
        (CHAT, {"temperature": Literal("0.00")}, False),
        (CHAT, {"temperature": Literal("0e5")}, False),
        (CHAT, {"temperature": Literal("1e-9")}, True),
        (CHAT, {"temperature": Literal("0" * 1000)}, True),
        (CHAT, {"temperature": 1}, True),
        (CHAT, {"temperature": 0.7}, True),
        (CHAT, {"temperature": False}, True),
        (CHAT, {"temperature": "cold"}, True),
        (CHAT, {"temperature": []}, True),
        (CHAT, {"temperature": {}}, True),
        (CHAT, {"temperature": float("nan")}, True),
        (CHAT, {"temperature": 10**5000}, True),
        (CHAT, {"temperature": 1, "seed": 7}, False),
        (CHAT, {"seed": 0}, False),
        (CHAT, {"seed": None}, True),
        (COMPLETIONS, {}, True),
        (COMPLETIONS, {"temperature": 0}, False),
        (RESPONSES, {}, True),
        (RESPONSES, {"temperature": 0}, False),
        (MESSAGES, {}, True),
        (MESSAGES, {"temperature": 0}, False),
        (MESSAGES, {"temperature": 1, "seed": 7}, True),
        (IMAGES, {"prompt": "a cat"}, True),
        (IMAGES, {"prompt": "a cat", "seed": 1}, False),
        (EMBEDDINGS, {}, False),
        (EMBEDDINGS, {"temperature": 1}, False),
        ("/v1/moderations", {}, False),
        ("/v1/rerank", {}, False),
        ("/v1/audio/speech", {}, False),
        ("/v1/models", None, False),
        (TRANSCRIPTION, {"model": "whisper-1"}, False),
        (TRANSCRIPTION, {"temperature": "0"}, False),
        (TRANSCRIPTION, {"temperature": "0.4"}, True),
        ("/v1/audio/translations", {"temperature": "0.4"}, True),
        ("/api/generate", {"model": "m"}, False),
        ("/api/generate", {"temperature": 0.4}, True),
        ("/api/generate", {"temperature": 0.4, "seed": 1}, False),
    ],
)
def test_sampled(path: str, value: Mapping[str, object] | None, sampled: bool) -> None:
    assert facts(path, value).sampled is sampled


@pytest.mark.parametrize(
    ("value", "stateful"),
    [
        ({}, False),
        ({"conversation": None}, False),
        ({"conversation": "conv_1"}, True),
        ({"conversation": {"id": "conv_1"}}, True),
        ({"background": True}, True),
        ({"background": False}, False),
        ({"background": None}, False),
        ({"background": "transparent"}, False),  # of an image
        ({"previous_response_id": "resp_1"}, False),
    ],
)
def test_stateful(value: Mapping[str, object], stateful: bool) -> None:
    assert facts(RESPONSES, value).stateful is stateful


@pytest.mark.parametrize(
    ("value", "stream"),
    [
        ({}, False),
        ({"stream": True}, True),
        ({"stream": False}, False),
        ({"stream": None}, False),
        ({"stream": "true"}, True),  # of a form
        ({"stream": " True"}, True),
        ({"stream": "1"}, True),
        ({"stream": "false"}, False),
        ({"stream": []}, False),
    ],
)
def test_stream(value: Mapping[str, object], stream: bool) -> None:
    assert facts(TRANSCRIPTION, value).stream is stream


@pytest.mark.parametrize(
    ("value", "model"),
    [({"model": "gpt-4o"}, "gpt-4o"), ({}, None), ({"model": 4}, None), ({"model": ["m"]}, None), (None, None)],
)
def test_model(value: Mapping[str, object] | None, model: str | None) -> None:
    assert facts(CHAT, value).model == model


@pytest.mark.parametrize(
    ("path", "value", "choices"),
    [
        (CHAT, {}, 1),
        (CHAT, {"n": None}, 1),
        (CHAT, {"n": 3}, 3),
        (CHAT, {"n": 2.0}, 2),
        (CHAT, {"n": Literal("2")}, 2),
        (CHAT, {"n": "2"}, 2),
        (CHAT, {"n": 0}, 1),
        (CHAT, {"n": -1}, 1),
        (CHAT, {"n": True}, 1),
        (CHAT, {"n": "many"}, 1),
        (CHAT, {"n": 10**5000}, 1),
        (CHAT, {"n": float("inf")}, 1),
        (CHAT, {"prompt": ["a", "b"]}, 1),
        (COMPLETIONS, {"prompt": "a", "n": 2}, 2),
        (COMPLETIONS, {"prompt": ["a", "b"], "n": 2}, 4),
        (COMPLETIONS, {"prompt": [[1, 2], [3]]}, 2),
        (COMPLETIONS, {"prompt": [1, 2, 3]}, 1),
        (COMPLETIONS, {"prompt": []}, 1),
        (IMAGES, {"n": 2}, 2),
        (RESPONSES, {"n": 2}, 1),
        (MESSAGES, {"n": 2}, 1),
    ],
)
def test_choices(path: str, value: Mapping[str, object], choices: int) -> None:
    assert facts(path, value).choices == choices


@pytest.mark.parametrize("value", [[], "text", 7, True])
def test_a_value_that_is_no_object_says_nothing(value: Any) -> None:
    assert facts(EMBEDDINGS, value) == Facts()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
members = st.sampled_from(
    ["model", "stream", "temperature", "seed", "n", "prompt", "conversation", "background", "input", "messages"]
)


@given(st.sampled_from([route.suffix for route in ROUTES] + ["/x"]), st.dictionaries(members, json_values))
def test_no_body_raises(path: str, value: dict[str, object]) -> None:
    read = facts(path, value)
    assert read.choices >= 1
    assert read.model is None or isinstance(read.model, str)
