"""How a process serves: what it sets once for all requests to come."""

from __future__ import annotations

import json
import subprocess
import sys

from soloflight.web.serve import GC_THRESHOLDS

ASK = """
import gc, json
from soloflight.web import serve
serve.calm_collector()
print(json.dumps([gc.get_freeze_count(), gc.get_threshold()]))
"""


def test_the_collector_is_kept_from_walking_all_that_is_kept() -> None:
    """In a process of its own: what is frozen stays so."""
    done = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=True, timeout=30)
    frozen, thresholds = json.loads(done.stdout)
    assert frozen > 10_000
    assert tuple(thresholds) == GC_THRESHOLDS
    assert GC_THRESHOLDS[2] > 100 * 10, "a full collection is rare"
