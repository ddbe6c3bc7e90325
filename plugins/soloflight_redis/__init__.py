"""The Redis coordinator: the ledger of ``core.ledger`` as Lua, for a fleet of nodes. docs/redis.md describes it.

    lua/          one script per operation, behind what its folder shares: flight, session, fleet
    scripts       the scripts, built and named        operations   a flight's operations ↔ their words
    keys          names of keys and channels          sessions     the same of a session's lock
    codec         frames ↔ bytes, believing nothing   notices      what is published, read
    cipher        version byte, AES-GCM               breaker      closed, open, half-open
    topology      what a URL names, and its dialer    servers      which lane a command takes (cluster: by slot)
    wire          one connection for many commands    ear          one connection for many channels
    backend       bound, re-send, breaker, probe      hearing      listeners, rings, delivery probe
    scope         the fleet's scope key               coordinator  the port

It has no privilege over a stranger's backend: it is found by entry point and sees hookimpl, ports, core and flow.tasks.
"""

from __future__ import annotations

from typing import Any

from soloflight import hookimpl
from soloflight_redis.coordinator import Options, RedisCoordinator

__all__ = ["Options", "RedisCoordinator", "soloflight_coordinator"]


@hookimpl
def soloflight_coordinator(name: str, settings: Any) -> RedisCoordinator | None:
    """The coordinator for ``backend = "redis"``. Raises ValueError for a ``redis.url`` that can not be meant."""
    if name != "redis":
        return None
    redis, coordination = settings.redis, settings.coordination
    reject = coordination.on_backend_error == "reject"
    options = Options(
        url=redis.url,
        prefix=redis.prefix,
        encryption_key=redis.encryption_key.get_secret_value(),
        encryption_key_previous=redis.encryption_key_previous.get_secret_value(),
        bound_s=coordination.command_timeout,
        otherwise="answering 503" if reject else "going on in this process alone",
    )
    return RedisCoordinator(options)
