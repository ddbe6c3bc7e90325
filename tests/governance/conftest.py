"""One site for each backend and all of these tests, an upstream for each of them."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from governance.stages import CONFIG
from harness.fixtures import start_proxy, start_redis, upstream
from harness.ports import free_port
from harness.process import wait_until
from harness.site import BACKENDS, Site, open_site

__all__ = ["site", "sites", "start_proxy", "start_redis", "upstream", "upstream_port"]


@pytest.fixture(scope="session")
def upstream_port() -> int:
    """The port on which the upstreams of these tests listen, one after the other."""
    return free_port()


@pytest.fixture(scope="session")
def sites(tmp_path_factory: pytest.TempPathFactory, upstream_port: int) -> Iterator[Callable[[str], Site]]:
    """The site of each backend, opened when it is first asked for. Use ``site``."""
    opened: dict[str, Site] = {}
    with ExitStack() as stack:

        def of(backend: str) -> Site:
            if backend not in opened:
                opened[backend] = open_site(backend, tmp_path_factory.mktemp(backend), upstream_port, CONFIG, stack)
            return opened[backend]

        yield of


@pytest.fixture(params=BACKENDS)
def site(request: pytest.FixtureRequest, sites: Callable[[str], Site]) -> Iterator[Site]:
    """The site. Behind the test everything must come to rest by itself."""
    site = sites(request.param)
    yield site
    wait_until(site.at_rest, within_s=15, what="no flight runs and no session is locked")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "/governance/" in str(item.path) and "redis" in item.nodeid:
            item.add_marker("redis")
