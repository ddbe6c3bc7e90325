"""The world of these tests: nodes in this process, see ``nodes``."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from nodes import Town


@pytest_asyncio.fixture
async def town() -> AsyncIterator[Town]:
    async with Town() as town:
        yield town
