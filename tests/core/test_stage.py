"""How a request finds its stage: first match wins, a stage without match is reached by name alone."""

from __future__ import annotations

import pytest

from soloflight.core.errors import Code, SoloflightError
from soloflight.core.stage import Match, Stage, Stages

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("match", "method", "path", "model", "holds"),
    [
        (Match(paths=(CHAT,)), "POST", CHAT, None, True),
        (Match(paths=("/v1/*",)), "POST", CHAT, None, True),
        (Match(paths=("*/completions",)), "POST", CHAT, None, True),
        (Match(paths=("/V1/*",)), "POST", CHAT, None, False),
        (Match(paths=("/v2/*", "/v1/chat/*")), "POST", CHAT, None, True),
        (Match(paths=("/v1/chat",)), "POST", CHAT, None, False),
        (Match(methods=("POST",)), "POST", CHAT, None, True),
        (Match(methods=("POST",)), "post", CHAT, None, False),
        (Match(methods=("GET", "HEAD")), "POST", CHAT, None, False),
        (Match(models=("gpt-4o*",)), "POST", CHAT, "gpt-4o-mini", True),
        (Match(models=("gpt-4o*",)), "POST", CHAT, "GPT-4o", False),
        (Match(models=("gpt-4o*",)), "POST", CHAT, None, False),
        (Match(models=("*",)), "POST", CHAT, None, False),
        (Match(models=("*",)), "POST", CHAT, "", True),
        (Match(paths=(CHAT,), models=("a",), methods=("POST",)), "POST", CHAT, "a", True),
        (Match(paths=(CHAT,), models=("a",), methods=("POST",)), "POST", CHAT, "b", False),
        (Match(paths=(CHAT,), models=("a",), methods=("POST",)), "POST", "/", "a", False),
        (Match(paths=(CHAT,), models=("a",), methods=("POST",)), "GET", CHAT, "a", False),
    ],
)
def test_all_that_is_given_must_hold(match: Match, method: str, path: str, model: str | None, holds: bool) -> None:
    assert match
    assert match.holds(method, path, model) is holds


EVALUATION = Stage(name="evaluation", match=Match(paths=(CHAT,), models=("gpt-4o*",)))
CHATS = Stage(name="chats", match=Match(paths=(CHAT,)))
HIDDEN = Stage(name="hidden", selectable=False)
NAMED = Stage(name="named")
STAGES = Stages([EVALUATION, NAMED, CHATS, HIDDEN])


@pytest.mark.parametrize(
    ("path", "model", "name"),
    [(CHAT, "gpt-4o", "evaluation"), (CHAT, "o1", "chats"), (CHAT, None, "chats"), ("/v1/models", None, "default")],
)
def test_the_first_match_wins_and_default_takes_the_rest(path: str, model: str | None, name: str) -> None:
    assert STAGES.match("POST", path, model).name == name


def test_a_client_may_choose_by_name_what_is_selectable() -> None:
    assert STAGES.chosen("named") is NAMED
    assert STAGES.chosen("evaluation") is EVALUATION
    assert STAGES.chosen("default") is STAGES.default


@pytest.mark.parametrize("name", ["hidden", "unknown", "", "Named"])
def test_what_clients_may_not_choose_and_what_is_not_there_sound_alike(name: str) -> None:
    with pytest.raises(SoloflightError) as caught:
        STAGES.chosen(name)
    assert caught.value.fault.code is Code.BAD_REQUEST
    assert caught.value.fault.message == "X-Soloflight-Stage names no stage that clients may choose"


def test_default_is_always_there_and_last() -> None:
    assert [stage.name for stage in Stages([])] == ["default"]
    own = Stage(name="default", retention=1.0)
    stages = Stages([own, NAMED])
    assert [stage.name for stage in stages] == ["named", "default"]
    assert stages.default is own is stages.get("default")
    assert stages.get("none") is None
    assert repr(stages) == "Stages(named, default)"
