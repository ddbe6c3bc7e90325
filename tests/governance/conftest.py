"""One site for each backend and all of these tests, an upstream for each of them."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from governance.stages import CONFIG
from harness.fixtures import start_proxy, start_redis, upstream
from harness.ports import free_port
from harness.process import wait_until
from harness.site import BACKENDS, Site, open_site

__all__ = ["site", "site_process", "start_proxy", "start_redis", "upstream", "upstream_port"]


@pytest.fixture(scope="session")
def upstream_port() -> int:
    """The port on which the upstreams of these tests listen, one after the other."""
    return free_port()


@pytest.fixture(scope="session", params=BACKENDS)
def site_process(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, upstream_port: int
) -> Iterator[Site]:
    """The site of one backend. Use ``site``."""
    with ExitStack() as stack:
        yield open_site(request.param, tmp_path_factory.mktemp(request.param), upstream_port, CONFIG, stack)


@pytest.fixture
def site(site_process: Site) -> Iterator[Site]:
    """The site. Behind the test everything must come to rest by itself."""
    yield site_process
    wait_until(site_process.at_rest, within_s=15, what="no flight runs and no session is locked")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "/governance/" in str(item.path) and "redis" in item.nodeid:
            item.add_marker("redis")
