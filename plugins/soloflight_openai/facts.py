"""What a request's body says: model, stream, sampled, stateful, choices. Read once, never changed, never refused.

A value is JSON as parsed (a number may be ``int``, ``float`` or an object whose ``str()`` is its literal) or form
fields, which are text. Odd types count as absent: the upstream says what is wrong with them, not the proxy.

What counts as sampled (contract section 2: ``temperature`` not 0 and no ``seed``, on APIs that sample):

- chat, completions, responses, images: unless ``temperature`` is 0 (absent is not 0) or a ``seed`` is given.
- messages: unless ``temperature`` is 0; the API has no seed, so a member of that name says nothing.
- transcription, translation: only where a ``temperature`` other than 0 is given; their default is 0.
- paths of no known API (a stage widened to them): the same, since nothing says that they sample.
- embeddings, moderations, rerank, speech, models: never.

What counts as stateful is what the contract names: ``conversation`` and ``background: true``. Not so
``previous_response_id``: it names a stored response, which does not change.
"""

from __future__ import annotations

from collections.abc import Mapping

from soloflight.core.answer import Facts
from soloflight_openai.routes import Api, api_of, shareable

_SAMPLES = frozenset({Api.CHAT, Api.COMPLETIONS, Api.RESPONSES, Api.MESSAGES, Api.IMAGES})
_SAMPLES_ON_REQUEST = frozenset({Api.TRANSCRIPTION, Api.TRANSLATION, Api.OTHER})
_HAS_NO_SEED = frozenset({Api.MESSAGES})
_HAS_CHOICES = frozenset({Api.CHAT, Api.COMPLETIONS, Api.IMAGES})

_LONGEST_NUMBER = 64
"""Characters of a number in text form; longer ones are taken for no number."""


class Bodies:
    """The fingerprinter for OpenAI-like and Anthropic APIs."""

    def __repr__(self) -> str:
        return "Bodies()"

    def shareable(self, method: str, path: str) -> bool:
        """Whether requests with this method and raw path (no query) may share flights by default."""
        return shareable(method, path)

    def facts(self, path: str, value: Mapping[str, object] | None) -> Facts:
        """The facts of a request for ``path`` with this JSON object or form; None: a body that is neither."""
        api = api_of(path)
        body: Mapping[str, object] = value if isinstance(value, Mapping) else {}
        model = body.get("model")
        return Facts(
            model=model if isinstance(model, str) else None,
            stream=_is_true(body.get("stream")),
            sampled=_is_sampled(api, body),
            stateful=body.get("conversation") is not None or _is_true(body.get("background")),
            choices=_choices(api, body),
        )


def _is_sampled(api: Api, body: Mapping[str, object]) -> bool:
    temperature = body.get("temperature")
    if api in _SAMPLES_ON_REQUEST:
        if temperature is None:
            return False
    elif api not in _SAMPLES:
        return False
    seeded = body.get("seed") is not None and api not in _HAS_NO_SEED
    return not seeded and _number(temperature) != 0


def _choices(api: Api, body: Mapping[str, object]) -> int:
    """How many choices the answer must have: ``n``, for each prompt of a list (of texts or of token lists)."""
    if api not in _HAS_CHOICES:
        return 1
    number = _number(body.get("n"))
    count = int(number) if number is not None and 1 <= number < 1e9 else 1
    prompt = body.get("prompt")
    if api is Api.COMPLETIONS and isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        count *= len(prompt)
    return count


def _is_true(value: object) -> bool:
    """JSON ``true``, or what a form writes for it."""
    return value is True or (isinstance(value, str) and value.strip().lower() in ("true", "1"))


def _number(value: object) -> float | None:
    """The number that ``value`` is or writes, or None."""
    if value is None or isinstance(value, bool | list | tuple | Mapping):
        return None
    try:
        text = str(value)
        return float(text) if len(text) <= _LONGEST_NUMBER else None
    except ValueError:
        return None
