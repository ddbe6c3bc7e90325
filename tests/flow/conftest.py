"""The world of these tests: nodes in this process, see ``nodes``."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from nodes import Town


@pytest_asyncio.fixture
async def town(request: pytest.FixtureRequest) -> AsyncIterator[Town]:
    async with Town(lapsing=request.node.get_closest_marker("lapse") is not None) as town:
        yield town
