"""The fleet's secret for credential scopes: 32 random bytes under one key, made by whoever comes first.

Who asks while Redis is away is given random bytes of this process's own, so that it can serve; it asks again (the proxy does,
every second), and then these bytes are offered to Redis. If the fleet has others by then, those are given out: until then this
process shared with no other, which is safe, and told in the log. Encrypted where ``redis.encryption_key`` is set.
"""

from __future__ import annotations

import logging
from secrets import token_bytes

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

    def __init__(self, backend: Backend, names: Names, cipher: Cipher) -> None:
        self._backend = backend
        self._name = names.scope
        self._cipher = cipher
        self._key = token_bytes(BYTES)
        self._given_out = False
        self._settled = False

    def __repr__(self) -> str:
        return f"ScopeKey({'the fleet' if self._settled else 'this process'}'s)"

    async def get(self) -> bytes:
        """The secret: the fleet's, or, while Redis is away, this process's own."""
        if not self._settled:
            try:
                key = await self._agreed()
            except BackendError:
                if not self._given_out:
                    log.warning("redis is away: credential scopes are this process's own until it is back")
                self._given_out = True
                return self._key
            if self._given_out and key != self._key:
                log.warning("the fleet has another scope key than this process began with: from now on it shares")
            self._key, self._settled = key, True
        return self._key

    async def _agreed(self) -> bytes:
        """Offer our bytes, and read what the fleet has. Raises BackendError."""
        await self._backend.command(self._name, "SET", self._name, self._cipher.lock(self._key, CONTEXT), "NX")
        value = await self._backend.command(self._name, "GET", self._name)
        try:
            key = self._cipher.unlock(value if isinstance(value, bytes) else b"", CONTEXT)
            if len(key) < BYTES:
                raise Unreadable("too short")
        except Unreadable as error:
            log.error("the fleet's scope key can not be read (%s): this process shares with no other", error)
            return self._key
        return key
