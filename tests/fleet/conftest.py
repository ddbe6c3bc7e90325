"""One fleet for a module, whole again before each test."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from fleet.clients import Clients
from fleet.nodes import Fleet
from fleet.witness import Witness, witness
from harness.fixtures import start_proxy, start_redis, upstream, upstream_port

__all__ = ["clients", "fleet", "fleet_process", "history", "start_proxy", "start_redis", "upstream", "upstream_port"]


@pytest.fixture(scope="module")
def fleet_process(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, upstream_port: int
) -> Iterator[Fleet]:
    """The module's fleet; its ``FLEET`` dict says how large and with which config. Use ``fleet``."""
    fleet = Fleet(tmp_path_factory.mktemp("fleet"), upstream_port, **getattr(request.module, "FLEET", {}))
    try:
        yield fleet
    finally:
        fleet.close()


@pytest.fixture
def fleet(fleet_process: Fleet) -> Iterator[Fleet]:
    """The module's fleet, whole, with nothing stored but its scope key."""
    fleet_process.forget()
    yield fleet_process
    fleet_process.mend()


@pytest_asyncio.fixture
async def clients(fleet: Fleet) -> AsyncIterator[Clients]:
    """Clients of the fleet, closed after the test."""
    async with AsyncExitStack() as stack:
        yield Clients(fleet, stack)


@pytest.fixture
def history(fleet: Fleet) -> Iterator[Witness]:
    """What Redis tells during the test."""
    with witness(fleet.redis) as seen:
        yield seen


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "/fleet/" in str(item.path):
            item.add_marker("redis")
