"""The client's trace context (W3C Trace Context), as far as events carry it: what the fields said, not judged here.

The fields themselves go upstream untouched; this is a copy for observers.
"""

from __future__ import annotations

from typing import NamedTuple

from soloflight.core.request import Request

PARENT, STATE = b"traceparent", b"tracestate"
MAX_PARENT, MAX_STATE = 256, 512
"""Characters. Version 00 of the parent has 55, a later one may have more; 512 of the state must be kept (section 3.3.1.5)."""


class Trace(NamedTuple):
    """``parent`` and ``state`` as sent; ``state`` is "" where there is none, or where it is too long to be carried."""

    parent: str
    state: str = ""


def trace_of(request: Request) -> Trace | None:
    """The trace context that ``request`` brings. None: it has no traceparent, more than one (section 3.2.1), or one too long."""
    parent = b""
    states: list[bytes] = []
    for name, value in request.fields:
        if len(name) != len(PARENT) and len(name) != len(STATE):
            continue
        lower = name.lower()
        if lower == PARENT:
            if parent:
                return None
            parent = value
        elif lower == STATE:
            states.append(value)
    if not parent or len(parent) > MAX_PARENT:
        return None
    state = b",".join(states)
    return Trace(parent.decode("latin-1"), state.decode("latin-1") if len(state) <= MAX_STATE else "")
