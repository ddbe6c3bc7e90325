"""What OpenAI-like and Anthropic APIs promise: what is shareable, when an answer is complete, its cost.

Here live the routes, completeness rules and usage parsing of those APIs. It does no IO, and only judges
bytes it is given. A map:

    routes     method and path -> what is shareable, and which API it is
    facts      request body    -> model, stream, sampled, stateful, choices
    rules      answer's head   -> the judge for it
    judges       event streams, documents, and all else
    events       the terminal events of each API
    documents    what a JSON answer says of itself
    usage        tokens
    vary         Vary against the key
    cuts         the error event that tells a client of a cut

Both hooks are the last to be asked: a plugin of yours that has an opinion goes first.
"""

from __future__ import annotations

from soloflight import hookimpl
from soloflight.core.stage import Stage
from soloflight_openai.facts import Bodies
from soloflight_openai.rules import Rules

__all__ = ["Bodies", "Rules", "soloflight_answer_rules", "soloflight_fingerprinter"]


@hookimpl(trylast=True)
def soloflight_fingerprinter(stage: Stage) -> Bodies:
    """The same for every stage: what may be shared is told by the path, what a body says by its members."""
    return Bodies()


@hookimpl(trylast=True)
def soloflight_answer_rules(stage: Stage) -> Rules:
    """The stage's ``scope`` and ``key_headers`` say what ``Vary`` may name, ``max_recording`` what is read."""
    return Rules(stage)
