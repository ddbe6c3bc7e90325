"""The world of these tests: apps in this process (``nodes.house``), in front of a scripted upstream."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest_asyncio

from nodes.house import House, OpenHouse, settings_for
from soloflight.testing.upstream import ScriptedUpstream


@pytest_asyncio.fixture
async def upstream() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream() as server:
        yield server


@pytest_asyncio.fixture
async def open_house(upstream: ScriptedUpstream) -> AsyncIterator[OpenHouse]:
    """``await open_house({"server": {...}})``: an app with this configuration, closed after the test."""
    async with AsyncExitStack() as stack:

        async def start(config: dict[str, Any] | None = None) -> House:
            house = House(settings_for(upstream, config or {}))
            stack.push_async_callback(house.app.close)
            return await house.open()

        yield start


@pytest_asyncio.fixture
async def house(open_house: OpenHouse) -> House:
    """One with the defaults."""
    return await open_house()
