"""Tokens, from the ``usage`` member of an answer or event: OpenAI's names and Anthropic's."""

from __future__ import annotations

from soloflight.core.answer import Usage

# Anthropic counts what came from its prompt cache apart; OpenAI's prompt_tokens hold it already.
_PROMPT = ("prompt_tokens", "input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
MOST = 1 << 53
"""No count is believed beyond this: an upstream's number must fit wherever it is kept."""
_COMPLETION = ("completion_tokens", "output_tokens")


def read_usage(holder: object, before: Usage) -> Usage:
    """The usage in ``holder``'s ``usage`` member; what it does not say stays as it was ``before``."""
    usage = holder.get("usage") if isinstance(holder, dict) else None
    if not isinstance(usage, dict):
        return before
    prompt = sum(_count(usage.get(name)) for name in _PROMPT)
    completion = sum(_count(usage.get(name)) for name in _COMPLETION)
    return Usage(prompt=prompt or before.prompt, completion=completion or before.completion)


def _count(value: object) -> int:
    return min(value, MOST) if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
