"""One browser for all tests of the page, and the world as processes."""

from collections.abc import Iterator

import pytest

from harness.browser import Browser, browser
from harness.fixtures import redis_process, redis_server, start_proxy

__all__ = ["redis_process", "redis_server", "start_proxy"]


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A window of 1280 × 900, light."""
    with browser(tmp_path_factory.mktemp("chromium")) as window:
        yield window


@pytest.fixture
def page(chromium: Browser) -> Iterator[Browser]:
    """The same window, empty and as at first; what a test leaves on the console is that test's fault."""
    chromium.window(1280, 900)
    chromium.complaints()
    yield chromium
    complaints = chromium.complaints()
    chromium.open("about:blank")
    assert complaints == []
