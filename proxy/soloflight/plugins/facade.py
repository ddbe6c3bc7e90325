"""``Plugins``: the hooks as typed methods. What the hooks promise is in ``hookspecs``; here it is held.

A question that somebody must answer raises PluginError where nobody does. Observers are isolated: one that
fails to start is told of in the log and left out.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from soloflight.core.errors import Code, fail
from soloflight.plugins.contract import PluginError, PluginFault
from soloflight.plugins.registry import PluginInfo, Registry, build

if TYPE_CHECKING:
    import click

    from soloflight.core.request import Request
    from soloflight.core.stage import Stage, Stages
    from soloflight.ports import AnswerRules, Coordinator, Fingerprinter, Observer

logger = logging.getLogger(__name__)


class Plugins:
    """The plugins of one composition root, asked through typed methods."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._hook = registry.manager.hook
        self._chooses_stages = bool(self._hook.soloflight_stage.get_hookimpls())

    @classmethod
    def load(
        cls,
        disabled: Collection[str] = (),
        extra: Iterable[tuple[str, object]] = (),
        *,
        discover: bool = True,
    ) -> Plugins:
        """All installed plugins but the disabled ones, and ``extra`` ones as (name, module or object).

        ``discover=False`` leaves the installed ones out. Raises PluginError with one fault for each refusal.
        """
        return cls(build(disabled, extra, discover=discover))

    def __repr__(self) -> str:
        return f"Plugins({', '.join(info.name for info in self.describe())})"

    def describe(self) -> list[PluginInfo]:
        """Every plugin in use, by name."""
        return sorted(self._registry.found, key=lambda info: info.name)

    def strangers(self, names: Iterable[str]) -> list[tuple[str, str]]:
        """Those of ``names`` that no plugin has, in use or disabled, each with the nearest name (or "")."""
        known = [info.name for info in self.describe()] + list(self._registry.disabled)
        return [(name, next(iter(get_close_matches(name, known, n=1)), "")) for name in names if name not in known]

    def coordinator(self, name: str, settings: Any) -> Coordinator:
        """The coordinator that answers to ``name``, not opened yet. Raises PluginError where none does, or its settings are bad."""
        try:
            coordinator: Coordinator | None = self._hook.soloflight_coordinator(name=name, settings=settings)
        except ValueError as error:
            raise PluginError([PluginFault("", "soloflight_coordinator", str(error))]) from error
        if coordinator is None:
            raise self._unanswered("soloflight_coordinator", f'coordination.backend = "{name}"')
        return coordinator

    def fingerprinter(self, stage: Stage) -> Fingerprinter:
        """What may be shared in ``stage``. Raises PluginError where no plugin has an opinion."""
        fingerprinter: Fingerprinter | None = self._hook.soloflight_fingerprinter(stage=stage)
        if fingerprinter is None:
            raise self._unanswered("soloflight_fingerprinter", f'stage "{stage.name}"')
        return fingerprinter

    def answer_rules(self, stage: Stage) -> AnswerRules:
        """When an answer is complete in ``stage``. Raises PluginError where no plugin has an opinion."""
        rules: AnswerRules | None = self._hook.soloflight_answer_rules(stage=stage)
        if rules is None:
            raise self._unanswered("soloflight_answer_rules", f'stage "{stage.name}"')
        return rules

    def stage(self, request: Request, body: object, stages: Stages) -> str | None:
        """The stage that a plugin chose by name, or None. Raises ``internal_error`` for one unknown."""
        if not self._chooses_stages:
            return None
        name: str | None = self._hook.soloflight_stage(request=request, body=body, stages=stages)
        if name is not None and stages.get(name) is None:
            logger.error("soloflight_stage answered %r, which is no stage", name)
            raise fail(Code.INTERNAL, "a plugin chose a stage that does not exist")
        return name

    def observers(self, settings: Any) -> tuple[Observer, ...]:
        """Every plugin's observer; a hook that raises is logged and left out."""
        observers: list[Observer] = []
        for info in self.describe():
            if "soloflight_observer" not in info.hooks:
                continue
            try:
                observers += self._only(info, "soloflight_observer")(settings=settings)
            except Exception:  # the contract: observers are isolated, never fatal
                logger.exception("plugin %s: soloflight_observer failed; it observes nothing", info.name)
        return tuple(observers)

    def cli(self, group: click.Group) -> None:
        """Let every plugin add its commands. Raises PluginError that names the plugin whose hook fails."""
        for info in self.describe():
            if "soloflight_cli" in info.hooks:
                try:
                    self._only(info, "soloflight_cli")(group=group)
                except Exception as error:
                    problem = f"{type(error).__name__}: {error}"
                    raise PluginError([PluginFault(info.name, "soloflight_cli", problem)]) from error

    def _only(self, info: PluginInfo, hook: str) -> Any:
        """The hook's caller for one plugin alone."""
        manager = self._registry.manager
        others = [plugin for name, plugin in manager.list_name_plugin() if name != info.name and plugin is not None]
        return manager.subset_hook_caller(hook, others)

    def _unanswered(self, hook: str, question: str) -> PluginError:
        able = ", ".join(info.name for info in self.describe() if hook in info.hooks) or "none"
        return PluginError([PluginFault("", hook, f"none answers to {question} (asked: {able})")])
