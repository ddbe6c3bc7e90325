"""The Lua scripts: read from the package, put together with what they begin with, known by their digest.

A script is: a few lines written here, common.lua, the shared.lua of its folder if there is one, and its own file.

Rule: what a script needs to know of this build stands in those first lines; the files are the same for everybody.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha1
from importlib.resources import files
from importlib.resources.abc import Traversable

from soloflight.core.session import REMEMBERED_MS as SESSION_REMEMBERED_MS
from soloflight.core.standing import REMEMBERED_MS

FOLDERS = ("flight", "session", "fleet")
SHARED = "shared.lua"

GARBAGE_MS = 15_000
"""How long after its last date Redis keeps what has become garbage: long enough to read what was just promised."""

INLINE_ENTRIES = 16
"""As many entries of a log, at most, come with the reply to a look."""

SERVER_CLOCK = "local time = redis.call('TIME') local now = time[1] * 1000 + math.floor(time[2] / 1000)"


@dataclass(frozen=True, slots=True)
class Script:
    """One script: its source, and the digest by which EVALSHA names it (40 hex digits)."""

    name: str
    source: str
    digest: str


def build(*, sharded: bool = False, clock_key: str = "") -> dict[str, Script]:
    """All scripts by name.

    sharded     notices of keys go out by SPUBLISH (a cluster)
    clock_key   a test's clock: a key that holds the time in ms, instead of the server's TIME
    """
    clock = f"local now = tonumber(redis.call('GET', '{clock_key}'))" if clock_key else SERVER_CLOCK
    first = [
        clock,
        f"local PUBLISH = '{'SPUBLISH' if sharded else 'PUBLISH'}'",
        f"local REMEMBERED_MS, SESSION_REMEMBERED_MS = {REMEMBERED_MS}, {SESSION_REMEMBERED_MS}",
        f"local GARBAGE_MS, INLINE_ENTRIES = {GARBAGE_MS}, {INLINE_ENTRIES}",
    ]
    root = files("soloflight_redis").joinpath("lua")
    start = "\n".join([*first, root.joinpath("common.lua").read_text("utf-8")])
    return {script.name: script for folder in FOLDERS for script in _folder(start, root.joinpath(folder))}


def _folder(start: str, folder: Traversable) -> list[Script]:
    sources = {file.name: file.read_text("utf-8") for file in folder.iterdir() if file.name.endswith(".lua")}
    start += "\n" + sources.pop(SHARED, "")
    return [_script(name.removesuffix(".lua"), f"{start}\n{source}") for name, source in sorted(sources.items())]


def _script(name: str, source: str) -> Script:
    # The digest is Redis's own name for a script; nothing rests on its strength.
    return Script(name, source, sha1(source.encode(), usedforsecurity=False).hexdigest())
