"""The hooks of soloflight: each docstring is the hook's contract and says what None means.

Hooks are synchronous and run at start-up; they return objects whose methods may be async. An ``async def`` hook, an unknown
``soloflight_*`` name or a wrong argument is refused at registration with the plugin's name. Entry-point group: ``soloflight``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    import click

    from soloflight.core.request import Request
    from soloflight.core.stage import Stage, Stages
    from soloflight.ports import AnswerRules, Coordinator, Fingerprinter, Observer

hookspec = pluggy.HookspecMarker("soloflight")


@hookspec(firstresult=True)
def soloflight_coordinator(name: str, settings: Any) -> Coordinator | None:
    """The coordinator for ``coordination.backend = name``. ``settings`` is the whole validated configuration.

    None: this plugin does not answer to that name. If nobody does, ``serve`` exits with 2. Not opened yet when returned.
    ValueError: settings that can not be meant; its text is told, and ``serve`` exits with 2.
    """


@hookspec(firstresult=True)
def soloflight_fingerprinter(stage: Stage) -> Fingerprinter | None:
    """What requests of ``stage`` may be shared and how their bodies are read. None: no opinion, the next plugin is asked."""


@hookspec(firstresult=True)
def soloflight_answer_rules(stage: Stage) -> AnswerRules | None:
    """When an answer of ``stage`` is complete and may be kept. None: no opinion, the next plugin is asked."""


@hookspec(firstresult=True)
def soloflight_stage(request: Request, body: object, stages: Stages) -> str | None:
    """Name of the stage for ``request``, or None for no opinion (then ``match`` decides).

    Asked on every request whose client did not name a stage itself. ``body`` is the parsed JSON object where the route is
    shareable and the body is JSON, else None. Must be fast and must not raise; a name that does not exist is an error.
    """


@hookspec
def soloflight_observer(settings: Any) -> Observer | None:
    """An observer of every event. All plugins are asked; None: this one watches nothing."""


@hookspec
def soloflight_cli(group: click.Group) -> None:
    """Add commands to the ``soloflight`` command line. Called once, before arguments are parsed; returns nothing."""
