"""From entry points to plugins in a pluggy manager: imported, checked, registered; or every fault at once.

The order in which plugins are asked is fixed: those handed over by the embedder first (the last one before
the others), then the installed ones by name. ``tryfirst`` and ``trylast`` of hookimpl go before that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

import pluggy

from soloflight import hookspecs
from soloflight.plugins.contract import PROJECT, PluginError, PluginFault, implementations, refusals

__all__ = ["PluginInfo", "Registry"]


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """One plugin: where it is from, and its hooks. ``distribution`` is empty for one handed over."""

    name: str
    distribution: str
    version: str
    location: str
    hooks: tuple[str, ...]


class Registry:
    """One composition root's plugins."""

    def __init__(self) -> None:
        self.manager = pluggy.PluginManager(PROJECT)
        self.manager.add_hookspecs(hookspecs)
        self.found: list[PluginInfo] = []
        self.disabled: tuple[str, ...] = ()
        self._faults: list[PluginFault] = []

    def __repr__(self) -> str:
        return f"Registry({', '.join(info.name for info in self.found)})"

    def discover(self, disabled: Collection[str]) -> None:
        """Register every installed plugin that is not disabled. ``finish`` tells what went wrong."""
        installed = sorted(entry_points(group=PROJECT), key=lambda point: point.name, reverse=True)
        self.disabled = tuple(sorted({point.name for point in installed if point.name in disabled}))
        for point in installed:
            if point.name not in disabled:
                self._load(point)

    def add(self, name: str, plugin: object, *, distribution: str = "", version: str = "") -> None:
        """Register ``plugin`` (a module, or an object with hookimpl methods) as ``name``."""
        faults = list(refusals(name, plugin))
        if not faults:
            try:
                self.manager.register(plugin, name)
            except (pluggy.PluginValidationError, ValueError) as error:
                faults = [PluginFault(name, "", _one_line(error))]
        if faults:
            self._faults += faults
            return
        hooks = tuple(sorted({one.hook for one in implementations(plugin)}))
        self.found.append(PluginInfo(name, distribution, version, _location(plugin), hooks))

    def finish(self) -> None:
        """Raise PluginError if any plugin was refused."""
        if self._faults:
            raise PluginError(self._faults)
        self.manager.check_pending()

    def _load(self, point: EntryPoint) -> None:
        distribution = point.dist.name if point.dist else ""
        version = point.dist.version if point.dist else ""
        if self.manager.has_plugin(point.name):
            other = next(info for info in self.found if info.name == point.name)
            problem = f"both {other.distribution} and {distribution} install one of that name"
            self._faults.append(PluginFault(point.name, "", problem))
            return
        try:
            plugin = point.load()
        except Exception as error:  # whatever a stranger's module raises is its fault, and told as such
            problem = f"can not be imported ({point.value}): {type(error).__name__}: {_one_line(error)}"
            self._faults.append(PluginFault(point.name, "", problem))
            return
        self.add(point.name, plugin, distribution=distribution, version=version)


def build(disabled: Collection[str], extra: Iterable[tuple[str, object]], *, discover: bool) -> Registry:
    """A registry of the installed plugins (if ``discover``) and those handed over. Raises PluginError."""
    registry = Registry()
    if discover:
        registry.discover(disabled)
    for name, plugin in extra:
        registry.add(name, plugin)
    registry.finish()
    return registry


def _location(plugin: object) -> str:
    """The file of a module, or the module and class of an object."""
    file = getattr(plugin, "__file__", None)
    return file if isinstance(file, str) else f"{type(plugin).__module__}.{type(plugin).__qualname__}"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
