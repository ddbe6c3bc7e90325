"""The world of a system test: a proxy for the module, an upstream for the test, and Redis where it is asked for."""

from harness.fixtures import (
    proxy,
    redis_process,
    redis_server,
    start_proxy,
    start_redis,
    upstream,
    upstream_port,
)

__all__ = [
    "proxy",
    "redis_process",
    "redis_server",
    "start_proxy",
    "start_redis",
    "upstream",
    "upstream_port",
]
