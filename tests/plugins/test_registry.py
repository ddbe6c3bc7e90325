"""Plugins are found through entry points, none is privileged, and each refusal is one readable line."""

from types import SimpleNamespace
from typing import Any

import pytest

from soloflight import hookimpl
from soloflight.core.stage import Stage
from soloflight.plugins import PluginError, Plugins
from soloflight.plugins.registry import Registry

COORDINATOR = """
class Coordinator:
    def __init__(self, settings):
        self.settings = settings

@hookimpl
def soloflight_coordinator(name, settings):
    return Coordinator(settings) if name == "acme" else None
"""


def refusals(**options: Any) -> list[str]:
    with pytest.raises(PluginError) as caught:
        Plugins.load(**options)
    lines = [str(fault) for fault in caught.value.faults]
    assert str(caught.value).splitlines() == lines
    return lines


def test_a_strangers_plugin_is_found_and_asked(install: Any) -> None:
    install("acme", COORDINATOR)
    plugins = Plugins.load()
    settings = SimpleNamespace(answer=42)
    coordinator: Any = plugins.coordinator("acme", settings)
    assert type(coordinator).__name__ == "Coordinator"
    assert coordinator.settings is settings


def test_what_is_known_of_a_strangers_plugin(install: Any) -> None:
    install("acme", COORDINATOR)
    info = next(info for info in Plugins.load().describe() if info.name == "acme")
    assert (info.distribution, info.version) == ("acme-plugin", "1.2.3")
    assert info.location.endswith("acme_module.py")
    assert info.hooks == ("soloflight_coordinator",)


def test_the_plugins_of_this_tree_are_found_the_same_way() -> None:
    found = {info.name: info for info in Plugins.load().describe()}
    assert {"memory", "openai"} <= found.keys()
    assert {found[name].distribution for name in ("memory", "openai")} == {"soloflight"}
    assert [info.name for info in Plugins.load(discover=False).describe()] == []


def test_a_disabled_plugin_is_not_even_imported(install: Any) -> None:
    install("broken", "raise RuntimeError('never')")
    plugins = Plugins.load(["broken"])
    assert "broken" not in [info.name for info in plugins.describe()]
    with pytest.raises(PluginError, match="RuntimeError: never"):
        Plugins.load()


def test_plugins_of_this_tree_can_be_disabled_too() -> None:
    plugins = Plugins.load(["memory"])
    assert "memory" not in [info.name for info in plugins.describe()]
    with pytest.raises(PluginError, match=r'none answers to coordination.backend = "memory"'):
        plugins.coordinator("memory", None)


def test_a_stranger_can_take_the_place_of_a_plugin_of_this_tree(install: Any) -> None:
    install("acme", COORDINATOR.replace('"acme"', '"memory"'))
    assert type(Plugins.load().coordinator("memory", None)).__module__ == "acme_module"


ASYNC = """
@hookimpl
async def soloflight_coordinator(name, settings):
    return None
"""
WRAPPED_ASYNC = """
import functools

async def inner(name, settings): ...

@hookimpl
@functools.wraps(inner)
def soloflight_coordinator(name, settings): ...
"""
ASYNC_GENERATOR = """
@hookimpl
async def soloflight_observer(settings):
    yield None
"""
AS_ASYNC = "is async def, but hooks are called without await: return an object with async methods instead"

REFUSED = [
    (ASYNC, f"soloflight_coordinator: {AS_ASYNC}"),
    (WRAPPED_ASYNC, f"soloflight_coordinator: {AS_ASYNC}"),
    (ASYNC_GENERATOR, f"soloflight_observer: {AS_ASYNC}"),
    (
        "@hookimpl\ndef soloflight_cordinator(name, settings): ...",
        "soloflight_cordinator: there is no such hook (nearest: soloflight_coordinator)",
    ),
    (
        "def soloflight_cordinator(name, settings): ...",
        "soloflight_cordinator: there is no such hook (nearest: soloflight_coordinator)",
    ),
    (
        "@hookimpl\ndef on_event(event): ...",
        "on_event: there is no such hook (nearest: soloflight_observer)",
    ),
    (
        "@hookimpl(specname='soloflight_stages')\ndef choose(request): ...",
        "soloflight_stages: there is no such hook (nearest: soloflight_stage)",
    ),
    (
        "def soloflight_coordinator(name, settings): ...",
        "soloflight_coordinator: is not marked with @soloflight.hookimpl",
    ),
    (
        "@hookimpl\ndef soloflight_fingerprinter(stage, path, request): ...",
        "soloflight_fingerprinter: takes path, request,"
        " but the hook is soloflight_fingerprinter(stage: Stage) -> Fingerprinter | None",
    ),
    (
        "@hookimpl\ndef soloflight_fingerprinter(*, stage): ...",
        "soloflight_fingerprinter: takes stage by keyword only, but hooks are called by position",
    ),
    (
        "@hookimpl(wrapper=True)\ndef soloflight_fingerprinter(stage): return None",
        "Plugin 'acme' for hook 'soloflight_fingerprinter' hookimpl definition: soloflight_fingerprinter(stage)"
        " Declared as wrapper=True or hookwrapper=True but function is not a generator function",
    ),
    (
        "import not_there",
        "can not be imported (acme_module): ModuleNotFoundError: No module named 'not_there'",
    ),
    ("1 /", "can not be imported (acme_module): SyntaxError: invalid syntax (acme_module.py, line 2)"),
]


@pytest.mark.parametrize(("source", "line"), REFUSED)
def test_what_is_refused_is_told_in_one_line(install: Any, source: str, line: str) -> None:
    install("acme", source)
    assert refusals() == [f"plugin acme: {line}"]


def test_an_entry_point_to_nothing_is_refused(install: Any) -> None:
    install("acme", "", value="acme_module:missing")
    (line,) = refusals()
    assert line.startswith("plugin acme: can not be imported (acme_module:missing): AttributeError: ")


def test_every_refusal_of_every_plugin_is_told_at_once(install: Any) -> None:
    install("one", ASYNC + "@hookimpl\ndef soloflight_x(): ...")
    install("two", "import not_there")
    assert sorted(line.partition(": ")[2].partition(":")[0] for line in refusals()) == [
        "can not be imported (two_module)",
        "soloflight_coordinator",
        "soloflight_x",
    ]


def test_two_distributions_with_one_plugin_name(install: Any) -> None:
    install("acme", COORDINATOR)
    install("acme", COORDINATOR, distribution="other")
    (line,) = refusals()
    assert line.startswith("plugin acme: both ")
    assert "acme-plugin" in line
    assert "other-plugin" in line


ACCEPTED = """
import functools
import soloflight_memory
from soloflight.hookspecs import soloflight_stage

soloflight_note = "no function, no hook"

@hookimpl
def soloflight_fingerprinter(): return None

@hookimpl(optionalhook=True)
def soloflight_of_a_later_version(anything): ...

@hookimpl(specname="soloflight_observer", trylast=True)
def watch(settings, color="blue", **more): return None
"""


def test_what_is_accepted(install: Any) -> None:
    install("acme", ACCEPTED)
    info = next(info for info in Plugins.load().describe() if info.name == "acme")
    assert info.hooks == ("soloflight_fingerprinter", "soloflight_observer", "soloflight_of_a_later_version")


class Object:
    """A plugin that is an object: methods, static methods, class methods."""

    @hookimpl
    def soloflight_fingerprinter(self, stage: Stage) -> Any:
        return (self, stage)

    @staticmethod
    @hookimpl
    def soloflight_answer_rules(stage: Stage) -> Any:
        return stage

    @classmethod
    @hookimpl
    def soloflight_coordinator(cls, name: str) -> Any:
        return name


def test_an_object_can_be_a_plugin() -> None:
    plugin, stage = Object(), Stage()
    plugins = Plugins.load(extra=[("mine", plugin)], discover=False)
    assert plugins.fingerprinter(stage) == (plugin, stage)
    assert plugins.answer_rules(stage) is stage
    assert plugins.coordinator("x", None) == "x"
    (info,) = plugins.describe()
    assert (info.distribution, info.version) == ("", "")
    assert info.location.endswith("test_registry.Object")


class Wrong:
    """A plugin with a method that takes too much."""

    @hookimpl
    def soloflight_fingerprinter(self, stage: Stage, path: str) -> Any: ...


def test_a_wrong_object_is_refused_like_a_module() -> None:
    (line,) = refusals(extra=[("mine", Wrong())], discover=False)
    assert line.startswith("plugin mine: soloflight_fingerprinter: takes path, but the hook is ")


def test_a_name_is_handed_over_once() -> None:
    (line,) = refusals(extra=[("mine", Object()), ("mine", Object())], discover=False)
    assert line.startswith("plugin mine: Plugin name already registered: mine=")
    assert len(line) < 200


def test_nothing_is_shared_between_two_sets_of_plugins() -> None:
    with_one = Plugins.load(extra=[("mine", Object())], discover=False)
    without = Plugins.load(discover=False)
    assert (repr(with_one), repr(without)) == ("Plugins(mine)", "Plugins()")


def test_a_registry_tells_whom_it_has() -> None:
    registry = Registry()
    registry.add("mine", Object())
    assert repr(registry) == "Registry(mine)"
