"""soloflight: identical requests in flight make one upstream call.

A request either has an answer, joins the flight that is making it, or becomes that flight's owner; and
whoever listens reads the same log from byte 0.

A map of the building. Imports go down the floors only (`lint-imports` holds it):

    cli          F5  the commands: serve, check, demo, plugins, hooks
    web          F4  the doors: handlers, responses, health, admin
    flow         F3  the only asyncio logic: admit -> owner | follower -> log -> listen; tasks are made here
    plugins      F2  finds plugins and asks them;   config: reads and checks settings
    hookspecs    F1  what a plugin may answer;      ports: what the proxy asks of a coordinator and its kin
    core         F0  decisions without IO or clock: the ledger, logs, frames, fingerprints, answers, errors
    testing          for plugin authors: conformance suite, scripted upstream, fault proxy

Beside it stand the plugins (`soloflight_memory`, `soloflight_openai`, …), which are found through the
entry-point group `soloflight` and see only `hookimpl`, `hookspecs`, `ports` and `core`. Nothing calls back
up: web -> flow -> ports <- plugin, and frames return as an async iterator.

This module holds the version and the marker that plugins need. Nothing else may live here: it is imported
by everyone, so it imports nobody but pluggy.
"""

import pluggy

__all__ = ["__version__", "hookimpl"]

__version__ = "0.1.0"

hookimpl = pluggy.HookimplMarker("soloflight")
"""Marks a function of a plugin as the implementation of the hook of the same name."""
