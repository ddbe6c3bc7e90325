"""The fleet's secret for credential scopes: 32 random bytes under one key, made by whoever comes first.

Who starts while Redis is away takes random bytes of its own, so that it can serve, and offers them to Redis on its return. If
the fleet has others by then, those are given out to who asks from then on; whoever goes on with the first ones has scopes of
its own, and shares with no other process. That is safe, and it is told in the log. Encrypted where ``redis.encryption_key`` is set.
"""

from __future__ import annotations

import logging
from secrets import token_bytes

from soloflight.flow.tasks import Tasks
from soloflight.ports import BackendError
from soloflight_redis.backend import Backend
from soloflight_redis.cipher import Cipher, context
from soloflight_redis.codec import Unreadable
from soloflight_redis.keys import Names

log = logging.getLogger("soloflight.redis")

BYTES = 32
CONTEXT = context("scope")


class ScopeKey:
    """The secret, as far as this node knows it."""

    def __init__(self, backend: Backend, names: Names, cipher: Cipher, tasks: Tasks) -> None:
        self._backend = backend
        self._name = names.scope
        self._cipher = cipher
        self._tasks = tasks
        self._key = token_bytes(BYTES)
        self._settled = False

    def __repr__(self) -> str:
        return f"ScopeKey({'the fleet' if self._settled else 'this process'}'s)"

    async def get(self) -> bytes:
        """The secret: the fleet's, or, while Redis is away, this process's own."""
        if not self._settled:
            try:
                await self._settle()
            except BackendError:
                if self._again not in self._backend.on_return:
                    self._backend.on_return.append(self._again)
                    log.warning("redis is away: credential scopes are this process's own until it is back")
        return self._key

    async def _settle(self) -> None:
        """Offer our bytes, and take what the fleet has. Raises BackendError."""
        await self._backend.command(self._name, "SET", self._name, self._cipher.lock(self._key, CONTEXT), "NX")
        value = await self._backend.command(self._name, "GET", self._name)
        try:
            key = self._cipher.unlock(value if isinstance(value, bytes) else b"", CONTEXT)
            if len(key) < BYTES:
                raise Unreadable("too short")
        except Unreadable as error:
            log.error("the fleet's scope key can not be read (%s): this process shares with no other", error)
            key = self._key
        self._key, self._settled = key, True

    def _again(self) -> None:
        if not self._settled:
            self._tasks.spawn(self._late(), "redis scope key")

    async def _late(self) -> None:
        own = self._key
        try:
            await self._settle()
        except BackendError:
            return
        if self._key != own:
            log.error(
                "the fleet has another scope key than this process started with: restart it, or it shares with no other"
            )
