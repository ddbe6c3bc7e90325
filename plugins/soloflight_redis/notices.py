"""Notices as they are published, and back. The scripts write them: "KIND NUMBER[ INDEX]", for a batch "\\n" and its bytes.

A ring is "r" and the key, on the owner's node channel (what begins with "s" there is of a session lock: see ``sessions``);
a word is "w" and its text, on the fleet's; a probe is "p" and anything, on any channel, for nobody.
"""

from __future__ import annotations

import re

from soloflight.core.flight import Notice, NoticeKind
from soloflight.ports import Batch
from soloflight_redis.cipher import Cipher
from soloflight_redis.codec import Unreadable, unpack_frames
from soloflight_redis.operations import batch_context

RING = b"r"
PROBE = b"p"
WORD = b"w"
GAP = Notice(NoticeKind.RETRY, 0)
"""Told after notices may have been lost: look again."""

_PLAIN = re.compile(rb"([SDXQTA]) (\d{1,17})(?: (\d{1,17}))?")
_ENTRY = re.compile(rb"(\d{1,17}) (\d{1,17})\n", re.ASCII)


def read_notice(key: str, said: bytes, cipher: Cipher) -> Notice:
    """What a message on a key's channel says. Raises Unreadable."""
    if said[:2] == b"C ":
        number, batch = read_entry(key, said[2:], cipher)
        return Notice(NoticeKind.APPENDED, number, batch.index, batch.frames)
    found = _PLAIN.fullmatch(said)
    if found is None:
        raise Unreadable("a notice that is none")
    return Notice(NoticeKind(found[1].decode()), int(found[2]), int(found[3] or 0))


def read_entry(key: str, entry: bytes, cipher: Cipher) -> tuple[int, Batch]:
    """An entry of a log, or of the notice that tells of it: the attempt's number, and the batch. Raises Unreadable."""
    found = _ENTRY.match(entry)
    if found is None:
        raise Unreadable("a log entry that is none")
    number, index = int(found[1]), int(found[2])
    data = cipher.unlock(entry[found.end() :], batch_context(key, number, index))
    return number, Batch(index, unpack_frames(data))
