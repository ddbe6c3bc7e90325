"""The suites that need a server share the session's."""

from harness.fixtures import redis_process, redis_server

__all__ = ["redis_process", "redis_server"]
