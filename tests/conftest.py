"""What holds for every test: the folder says what kind a test is, and hypothesis knows no deadline.

Fixtures live in the conftest of the folder that uses them, so that a test's world is in sight of it.
"""

from pathlib import Path

import pytest
from hypothesis import settings

TESTS = Path(__file__).parent

MARKER_OF_FOLDER = {
    "bench": "bench",
    "cases": "system",
    "fleet": "system",
    "governance": "system",
    "sdk": "system",
    "system": "system",
}

# A slow example is not a fault on a shared machine: pytest's own timeout is the bound.
settings.register_profile("house", deadline=None, print_blob=True)
settings.load_profile("house")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        marker = MARKER_OF_FOLDER.get(item.path.relative_to(TESTS).parts[0])
        if marker is not None:
            item.add_marker(marker)
