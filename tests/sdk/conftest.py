"""The world of these tests: real SDKs before a real proxy, and behind it a scripted upstream or a stranger's mock.

No SDK retries by itself unless a test says so.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from anthropic import Anthropic, AsyncAnthropic
from openai import AsyncOpenAI, OpenAI

from harness.fixtures import proxy, start_proxy, upstream, upstream_port
from harness.proxy import Proxy

__all__ = ["proxy", "start_proxy", "upstream", "upstream_port"]


@pytest_asyncio.fixture
async def openai_async(proxy: Proxy) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(api_key="k1", base_url=f"{proxy.url}/v1", max_retries=0) as client:
        yield client


@pytest.fixture
def openai_sync(proxy: Proxy) -> Iterator[OpenAI]:
    """Call it by ``asyncio.to_thread``: the upstream lives in the test's loop."""
    with OpenAI(api_key="k1", base_url=f"{proxy.url}/v1", max_retries=0) as client:
        yield client


@pytest_asyncio.fixture
async def anthropic_async(proxy: Proxy) -> AsyncIterator[AsyncAnthropic]:
    async with AsyncAnthropic(api_key="k1", base_url=proxy.url, max_retries=0) as client:
        yield client


@pytest.fixture
def anthropic_sync(proxy: Proxy) -> Iterator[Anthropic]:
    """Call it by ``asyncio.to_thread``: the upstream lives in the test's loop."""
    with Anthropic(api_key="k1", base_url=proxy.url, max_retries=0) as client:
        yield client


@pytest.fixture
def gate() -> asyncio.Event:
    """A step of a script that waits until the test sets it."""
    return asyncio.Event()
