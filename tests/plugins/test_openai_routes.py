"""What is shareable by method and raw path, and which API a path is."""

import pytest

from soloflight_openai import Bodies
from soloflight_openai.routes import Api, api_of

SHAREABLE = [
    ("/v1/chat/completions", Api.CHAT),
    ("/openai/deployments/gpt-4o/chat/completions", Api.CHAT),
    ("/api/v1/chat/completions", Api.CHAT),
    ("/chat/completions", Api.CHAT),
    ("/v1/completions", Api.COMPLETIONS),
    ("/v1/embeddings", Api.EMBEDDINGS),
    ("/v1/responses", Api.RESPONSES),
    ("/openai/v1/responses", Api.RESPONSES),
    ("/v1/messages", Api.MESSAGES),
    ("/anthropic/v1/messages", Api.MESSAGES),
    ("/v1/moderations", Api.MODERATIONS),
    ("/v1/rerank", Api.RERANK),
    ("/v2/rerank", Api.RERANK),
    ("/v1/images/generations", Api.IMAGES),
    ("/v1/audio/transcriptions", Api.TRANSCRIPTION),
    ("/v1/audio/translations", Api.TRANSLATION),
    ("/v1/audio/speech", Api.SPEECH),
]
NOT_SHAREABLE = [
    "/v1/threads/thread_1/messages",
    "/threads/thread_1/messages",
    "/v1/threads/thread_1/runs",
    "/v1/messages/count_tokens",
    "/v1/messages/batches",
    "/messages",
    "/v1/chat/completions/chatcmpl-1",
    "/v1/chat/completions/",
    "/v1/chat/Completions",
    "/v1/chat%2Fcompletions",
    "/v1/chatcompletions",
    "/openai/responses",
    "/v1/responses/resp_1",
    "/v1/responses/resp_1/cancel",
    "/v1/responses/resp_1/input_items",
    "/v1/images/edits",
    "/v1/images/variations",
    "/v1/files",
    "/v1/uploads",
    "/v1/batches",
    "/v1/fine_tuning/jobs",
    "/v1/realtime",
    "/v1/audio/voices",
    "/v1/models",
    "/",
    "",
]


@pytest.mark.parametrize(("path", "api"), SHAREABLE)
def test_a_post_to_a_listed_path_is_shareable(path: str, api: Api) -> None:
    assert Bodies().shareable("POST", path)
    assert api_of(path) is api


@pytest.mark.parametrize("path", NOT_SHAREABLE)
def test_a_post_to_any_other_path_is_not(path: str) -> None:
    assert not Bodies().shareable("POST", path)


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "post", ""])
@pytest.mark.parametrize("path", [path for path, _ in SHAREABLE])
def test_no_other_method_is_shareable_there(method: str, path: str) -> None:
    assert not Bodies().shareable(method, path)


@pytest.mark.parametrize(
    ("method", "path", "shareable"),
    [
        ("GET", "/v1/models", True),
        ("GET", "/models", True),
        ("GET", "/openai/v1/models", True),
        ("HEAD", "/v1/models", False),
        ("GET", "/v1/models/gpt-4o", False),
        ("DELETE", "/v1/models", False),
        ("GET", "/v1/files", False),
    ],
)
def test_of_the_gets_only_models_is_shareable(method: str, path: str, shareable: bool) -> None:
    assert Bodies().shareable(method, path) is shareable


@pytest.mark.parametrize(
    ("path", "api"),
    [
        ("/v1/models", Api.MODELS),
        ("/openai/responses", Api.RESPONSES),
        ("/v1/images/edits", Api.IMAGES),
        ("/v1/threads/thread_1/messages", Api.OTHER),
        ("/v1/files", Api.OTHER),
        ("", Api.OTHER),
    ],
)
def test_a_path_that_is_not_shareable_has_an_api_all_the_same(path: str, api: Api) -> None:
    assert api_of(path) is api


def test_repr() -> None:
    assert repr(Bodies()) == "Bodies()"
