"""The hooks as typed methods: who is asked first, who wins, and what happens when nobody answers or somebody fails."""

from typing import Any

import click
import pytest

from soloflight import hookimpl
from soloflight.core.errors import Code, SoloflightError
from soloflight.core.request import Request
from soloflight.core.stage import Stage, Stages
from soloflight.plugins import PluginError, Plugins

REQUEST = Request("POST", "/v1/chat/completions", ())
STAGES = Stages([Stage(name="a")])


class Answers:
    """Answers every deciding hook with the same value."""

    def __init__(self, answer: object) -> None:
        self.answer = answer
        self.asked: list[object] = []

    @hookimpl
    def soloflight_coordinator(self, name: str, settings: object) -> Any:
        self.asked.append((name, settings))
        return self.answer

    @hookimpl
    def soloflight_fingerprinter(self, stage: Stage) -> Any:
        self.asked.append(stage)
        return self.answer

    @hookimpl
    def soloflight_answer_rules(self, stage: Stage) -> Any:
        self.asked.append(stage)
        return self.answer

    @hookimpl
    def soloflight_stage(self, request: Request, body: object, stages: Stages) -> Any:
        self.asked.append((request, body, stages))
        return self.answer


class Last:
    """Has a fingerprinter for those that nobody else wants."""

    @hookimpl(trylast=True)
    def soloflight_fingerprinter(self, stage: Stage) -> Any:
        return "last"


def loaded(*plugins: object) -> Plugins:
    return Plugins.load(extra=[(f"p{number}", plugin) for number, plugin in enumerate(plugins)], discover=False)


def test_the_last_one_handed_over_is_asked_first_and_the_first_answer_wins() -> None:
    silent, second, never = Answers(None), Answers("second"), Answers("never")
    plugins = loaded(never, second, silent)
    assert plugins.coordinator("x", "settings") == "second"
    assert plugins.fingerprinter(STAGES.default) == "second"
    assert plugins.answer_rules(STAGES.default) == "second"
    assert silent.asked == second.asked == [("x", "settings"), STAGES.default, STAGES.default]
    assert never.asked == []


def test_trylast_is_asked_after_the_others() -> None:
    assert loaded(Answers("mine"), Last()).fingerprinter(STAGES.default) == "mine"
    assert loaded(Answers(None), Last()).fingerprinter(STAGES.default) == "last"


def test_installed_plugins_are_asked_by_name_after_those_handed_over(install: Any) -> None:
    source = "@hookimpl\ndef soloflight_fingerprinter(stage): return {!r}"
    install("a-first", source.format("a-first"))
    install("b-second", source.format("b-second"))
    assert Plugins.load().fingerprinter(STAGES.default) == "a-first"
    assert Plugins.load(["a-first"]).fingerprinter(STAGES.default) == "b-second"
    assert Plugins.load(extra=[("z", Answers("mine"))]).fingerprinter(STAGES.default) == "mine"


@pytest.mark.parametrize(
    ("ask", "line"),
    [
        (
            lambda plugins: plugins.coordinator("nosuch", None),
            'plugins: soloflight_coordinator: none answers to coordination.backend = "nosuch" (asked: p0)',
        ),
        (
            lambda plugins: plugins.fingerprinter(Stage(name="a")),
            'plugins: soloflight_fingerprinter: none answers to stage "a" (asked: p0)',
        ),
        (
            lambda plugins: plugins.answer_rules(Stage(name="a")),
            'plugins: soloflight_answer_rules: none answers to stage "a" (asked: p0)',
        ),
    ],
)
def test_a_question_that_nobody_answers_names_who_was_asked(ask: Any, line: str) -> None:
    with pytest.raises(PluginError) as caught:
        ask(loaded(Answers(None)))
    assert str(caught.value) == line


def test_if_nobody_can_be_asked_that_is_told_too() -> None:
    with pytest.raises(PluginError, match=r"\(asked: none\)"):
        loaded().coordinator("x", None)


def test_a_plugin_chooses_a_stage() -> None:
    chooser = Answers("a")
    assert loaded(chooser).stage(REQUEST, {"model": "m"}, STAGES) == "a"
    assert chooser.asked == [(REQUEST, {"model": "m"}, STAGES)]


def test_no_plugin_chooses_a_stage() -> None:
    assert loaded().stage(REQUEST, None, STAGES) is None
    assert loaded(Answers(None)).stage(REQUEST, None, STAGES) is None


def test_a_stage_that_does_not_exist_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(SoloflightError) as caught:
        loaded(Answers("b")).stage(REQUEST, None, STAGES)
    assert caught.value.fault.code is Code.INTERNAL
    assert caplog.messages == ["soloflight_stage answered 'b', which is no stage"]


class Watches:
    """Gives an observer, or fails to."""

    def __init__(self, observer: object, fault: Exception | None = None) -> None:
        self.observer = observer
        self.fault = fault

    @hookimpl
    def soloflight_observer(self, settings: object) -> Any:
        if self.fault:
            raise self.fault
        return self.observer


def test_every_observer_is_there_but_none_where_a_plugin_watches_nothing() -> None:
    plugins = loaded(Watches("one"), Watches(None), Answers("no observer"), Watches("two"))
    assert plugins.observers("settings") == ("one", "two")


def test_an_observer_that_fails_to_start_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    plugins = loaded(Watches("one"), Watches(None, RuntimeError("boom")), Watches("two"))
    assert plugins.observers("settings") == ("one", "two")
    assert caplog.messages == ["plugin p1: soloflight_observer failed; it observes nothing"]


class Commands:
    """Adds a command, or fails to."""

    def __init__(self, name: str) -> None:
        self.name = name

    @hookimpl
    def soloflight_cli(self, group: click.Group) -> None:
        if not self.name:
            raise RuntimeError("boom")
        group.add_command(click.Command(self.name))


def test_every_plugin_adds_its_commands() -> None:
    group = click.Group()
    loaded(Commands("one"), Answers(None), Commands("two")).cli(group)
    assert list(group.commands) == ["one", "two"]


def test_a_plugin_that_fails_to_add_its_commands_is_named() -> None:
    with pytest.raises(PluginError) as caught:
        loaded(Commands("one"), Commands("")).cli(click.Group())
    assert str(caught.value) == "plugin p1: soloflight_cli: RuntimeError: boom"


def test_names_that_no_plugin_has() -> None:
    plugins = Plugins.load(["openai"])
    assert plugins.strangers(["memory", "openai", "memroy", "xyz"]) == [("memroy", "memory"), ("xyz", "")]


def test_settings_that_a_coordinator_refuses_are_one_line() -> None:
    class Refuses:
        @hookimpl
        def soloflight_coordinator(self, name: str, settings: object) -> Any:
            raise ValueError("mine.url: no such thing")

    with pytest.raises(PluginError) as refused:
        loaded(Refuses()).coordinator("x", None)
    assert str(refused.value) == "plugins: soloflight_coordinator: mine.url: no such thing"
