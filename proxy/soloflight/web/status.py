"""The status page as it is sent: one file, and a policy that lets exactly its own style and script run, and talk to us alone."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from importlib.resources import files

PAGE = "status.html"
_INLINE = re.compile(r"<(style|script)>(.*?)</\1>", re.DOTALL)


class StatusPage:
    """Read once, when the admin listener is made."""

    def __init__(self) -> None:
        text = files("soloflight.web").joinpath(PAGE).read_text(encoding="utf-8")
        self.body = text.encode()
        self.headers = {
            "Content-Type": "text/html; charset=utf-8",
            "Content-Security-Policy": policy(text),
            "Cache-Control": "no-store",
        }

    def __repr__(self) -> str:
        return f"StatusPage({len(self.body)} bytes)"


def policy(page: str) -> str:
    """A Content-Security-Policy (CSP level 3) for a page whose style and script are inline: both by digest, all else refused."""
    digests: dict[str, list[str]] = {"style": [], "script": []}
    for kind, content in _INLINE.findall(page):
        digests[kind].append(f"'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'")
    rules = {
        "default-src": "'none'",
        "style-src": " ".join(digests["style"]),
        "script-src": " ".join(digests["script"]),
        "connect-src": "'self'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())
