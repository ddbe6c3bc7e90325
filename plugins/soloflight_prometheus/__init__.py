"""The observer that counts: what the proxy reports becomes what Prometheus scrapes.

Labels come from small closed sets (configured stages, roles, reasons); a value that a client chooses is never one.
A map:

    tallies      counters and histograms as plain numbers: what an event costs is an addition
    observer     events -> tallies
    exposition   tallies and gauges -> prometheus_client's metric families -> text
"""

from __future__ import annotations

from typing import Any

from soloflight import hookimpl
from soloflight_prometheus.observer import PrometheusObserver

__all__ = ["PrometheusObserver", "soloflight_observer"]


@hookimpl
def soloflight_observer(settings: Any) -> PrometheusObserver:
    """Counts for every configured stage from the start, so that a rate never begins with a hole."""
    return PrometheusObserver(["default", *(stage.name for stage in settings.stage)])
