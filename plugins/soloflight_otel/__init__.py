"""The observer that traces: what the proxy reports becomes OpenTelemetry spans. Needs the extra ``soloflight[otel]``.

Nothing here imports OpenTelemetry before traces are asked for, so that the plugin is harmless where it is not installed.
docs/tracing.md says which spans there are and how they hang together. A map:

    settings     whether traces are asked for, and the fault in that
    identity     which trace and span a flight's call is, computed by every node alike
    attributes   events -> names, attributes and statuses of spans
    tracer       OpenTelemetry's provider, told ids, times and parents after the fact
    observer     events -> spans, parents and links
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

from soloflight import hookimpl
from soloflight_otel.settings import Wish, wish_of

if TYPE_CHECKING:
    from soloflight_otel.observer import OtelObserver

__all__ = ["soloflight_observer"]

log = logging.getLogger("soloflight.otel")


@hookimpl
def soloflight_observer(settings: Any) -> OtelObserver | None:
    """None, and nothing imported, unless traces are asked for. What stands in their way is told in one line, and stops nothing."""
    wish = wish_of(settings.plugins.section("otel"), os.environ)
    if isinstance(wish, str):
        log.error("no traces: %s", wish)
        return None
    return _observer(wish) if wish.enabled else None


def _observer(wish: Wish) -> OtelObserver | None:
    try:
        from soloflight_otel.observer import OtelObserver
        from soloflight_otel.tracer import over_http
    except ImportError as missing:
        log.error("no traces: %s; pip install 'soloflight[otel]' brings what they need", missing)
        return None
    try:
        return OtelObserver(over_http(wish.endpoint))
    except Exception as error:  # the environment's OTEL_ variables are read there, and judged by the library
        log.error("no traces: OpenTelemetry can not be set up: %s: %s", type(error).__name__, error)
        return None
