"""The version byte in front of every stored value, and AES-GCM where ``redis.encryption_key`` is set.

The key is any text. It is stretched by scrypt (N = 2^14, r = 8, p = 1, a fixed salt, so that every node of the fleet gets the
same 256 bits), once at start. Each value is encrypted under a subkey of its own, HMAC-SHA-256(key, context), with a random
96-bit nonce: however many frames a fleet publishes, no key ever sees enough of them for a nonce to repeat. The context (what
it is, flight key, attempt, index) is the associated data as well: a value that was moved elsewhere can not be opened.

Rule: with a key, what is not encrypted is unreadable. Without one, what is encrypted is.
"""

from __future__ import annotations

import hmac
from hashlib import scrypt
from os import urandom
from typing import TYPE_CHECKING, Protocol

from soloflight_redis.codec import Unreadable

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

CLEAR = b"\x01"
ENCRYPTED = b"\x02"
NONCE_BYTES = 12
SALT = b"soloflight redis 1"


class Cipher(Protocol):
    """How values are written and read."""

    def lock(self, data: bytes, context: bytes) -> bytes:
        """The value to store for ``data``."""

    def unlock(self, value: bytes, context: bytes) -> bytes:
        """The data of a stored value. Raises Unreadable."""


def make_cipher(key: str, previous: str = "") -> Cipher:
    """The cipher for ``redis.encryption_key`` ("": none) and ``redis.encryption_key_previous``."""
    return AesGcm(*[stretched(text) for text in (key, previous) if text]) if key else Clear()


def stretched(text: str) -> bytes:
    """256 bits for any text; takes some 50 ms and 16 MiB, on purpose."""
    return scrypt(text.encode(), salt=SALT, n=1 << 14, r=8, p=1, maxmem=1 << 26, dklen=32)


def context(*parts: str | int) -> bytes:
    """What a value is and where it belongs, injectively: each part with its length."""
    texts = [str(part).encode() for part in parts]
    return b"".join(b"%d:%s" % (len(text), text) for text in texts)


class Clear:
    """No encryption: the version byte and the data."""

    def __repr__(self) -> str:
        return "Clear()"

    def lock(self, data: bytes, context: bytes) -> bytes:
        return CLEAR + data

    def unlock(self, value: bytes, context: bytes) -> bytes:
        if value[:1] != CLEAR:
            raise Unreadable("a value that is encrypted, or of another version")
        return value[1:]


class AesGcm:
    """AES-256-GCM: writes with ``key``, reads with it and with ``others``."""

    def __init__(self, key: bytes, *others: bytes) -> None:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._keys = (key, *others)
        self._aead = AESGCM
        self._wrong: type[Exception] = InvalidTag

    def __repr__(self) -> str:
        return f"AesGcm(keys={len(self._keys)})"

    def lock(self, data: bytes, context: bytes) -> bytes:
        nonce = urandom(NONCE_BYTES)
        return ENCRYPTED + nonce + self._subkey(self._keys[0], context).encrypt(nonce, data, context)

    def unlock(self, value: bytes, context: bytes) -> bytes:
        if value[:1] != ENCRYPTED:
            raise Unreadable("a value that is not encrypted, or of another version")
        nonce, locked = value[1 : 1 + NONCE_BYTES], value[1 + NONCE_BYTES :]
        for key in self._keys:
            try:
                return self._subkey(key, context).decrypt(nonce, locked, context)
            except (self._wrong, ValueError):
                continue
        raise Unreadable("a value that was encrypted with another key, or changed")

    def _subkey(self, key: bytes, context: bytes) -> AESGCM:
        return self._aead(hmac.digest(key, context, "sha256"))
