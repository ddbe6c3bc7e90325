"""What a hook implementation must look like, read from ``hookspecs``, and one line for each that is refused.

Pure: looks at functions and calls none. pluggy checks some of this too; it tells less, and not all at once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches

from soloflight import hookspecs

__all__ = ["HookInfo", "Implementation", "PluginError", "PluginFault", "hooks", "implementations", "refusals"]

PROJECT = "soloflight"
IMPL_MARK = f"{PROJECT}_impl"
SPEC_MARK = f"{PROJECT}_spec"


@dataclass(frozen=True, slots=True)
class HookInfo:
    """One hook: its name, its signature as it is written, whether the first answer wins, and its contract."""

    name: str
    signature: str
    firstresult: bool
    contract: str
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PluginFault:
    """Why a plugin is refused. ``hook`` or ``plugin`` is empty where it is not about one."""

    plugin: str
    hook: str
    problem: str

    def __str__(self) -> str:
        who = f"plugin {self.plugin}" if self.plugin else "plugins"
        return f"{who}: {self.hook and self.hook + ': '}{self.problem}"


class PluginError(Exception):
    """Plugins that can not be used, or a question that no plugin answers; ``faults`` has every reason."""

    def __init__(self, faults: Iterable[PluginFault]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(str(fault) for fault in self.faults))


@dataclass(frozen=True, slots=True)
class Implementation:
    """One function of a plugin that is, or was meant to be, a hook. ``hook`` is the hook it names."""

    hook: str
    function: Callable[..., object]
    marked: bool
    optional: bool


def hooks() -> list[HookInfo]:
    """Every hook, in the order of ``hookspecs``."""
    return [
        _hook(name, function)
        for name, function in vars(hookspecs).items()
        if inspect.isfunction(function) and hasattr(function, SPEC_MARK)
    ]


def implementations(plugin: object) -> Iterator[Implementation]:
    """What in ``plugin`` (a module or an object) carries the mark of a hook, or the name of one."""
    for name in dir(plugin):
        function = inspect.getattr_static(plugin, name)
        function = getattr(function, "__func__", function)  # a static or class method's own function
        marks = getattr(function, IMPL_MARK, None)
        if isinstance(marks, dict):
            hook = marks.get("specname") or name
            yield Implementation(hook, function, marked=True, optional=bool(marks.get("optionalhook")))
        elif name.startswith(f"{PROJECT}_") and inspect.isfunction(function) and not hasattr(function, SPEC_MARK):
            yield Implementation(name, function, marked=False, optional=False)


def refusals(plugin_name: str, plugin: object) -> Iterator[PluginFault]:
    """Every reason why ``plugin`` is refused; nothing for one that is as its hooks' contracts say."""
    known = {hook.name: hook for hook in hooks()}
    for found in implementations(plugin):
        problem = _problem(found, known)
        if problem is not None:
            yield PluginFault(plugin_name, found.hook, problem)


def _problem(found: Implementation, known: dict[str, HookInfo]) -> str | None:
    hook = known.get(found.hook)
    if hook is None:
        if found.optional:
            return None
        return f"there is no such hook (nearest: {get_close_matches(found.hook, known, n=1, cutoff=0.0)[0]})"
    if not found.marked:
        return "is not marked with @soloflight.hookimpl"
    function = inspect.unwrap(found.function)
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return "is async def, but hooks are called without await: return an object with async methods instead"
    positional, keyword_only = _arguments(function)
    if keyword_only:
        return f"takes {', '.join(keyword_only)} by keyword only, but hooks are called by position"
    strange = [name for name in positional if name not in hook.arguments]
    if strange:
        return f"takes {', '.join(strange)}, but the hook is {hook.name}{hook.signature}"
    return None


def _arguments(function: Callable[..., object]) -> tuple[list[str], list[str]]:
    """Names without a default: those that pluggy fills (no method's ``self``), and keyword-only ones."""
    needed = [one for one in inspect.signature(function).parameters.values() if one.default is one.empty]
    positional = [one.name for one in needed if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    is_method = "." in function.__qualname__.rpartition("<locals>.")[2]
    if is_method and positional[:1] in (["self"], ["cls"]):
        del positional[0]
    return positional, [one.name for one in needed if one.kind is one.KEYWORD_ONLY]


def _hook(name: str, function: Callable[..., object]) -> HookInfo:
    signature = inspect.signature(function)
    written = ", ".join(f"{one.name}: {one.annotation}" for one in signature.parameters.values())
    return HookInfo(
        name=name,
        signature=f"({written}) -> {signature.return_annotation}",
        firstresult=bool(getattr(function, SPEC_MARK)["firstresult"]),
        contract=inspect.getdoc(function) or "",
        arguments=tuple(signature.parameters),
    )
