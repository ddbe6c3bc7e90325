"""What a fingerprint costs, printed: run with ``pytest -m bench -s tests/bench/test_fingerprint_speed.py``."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable

import brotli  # type: ignore[import-untyped]
import orjson
import zstandard

from bodies.forms import field, file, form
from bodies.keys import CHAT, SCOPE_KEY, key
from soloflight.core.coding import decode_body
from soloflight.core.fingerprint import KeyMaker, read_body, request_scope
from soloflight.core.memo import BodyMemo
from soloflight.core.request import Request

JSON = b"application/json"
FIELDS = (
    (b"Host", b"127.0.0.1:8080"),
    (b"Authorization", b"Bearer sk-0123456789abcdef"),
    (b"User-Agent", b"OpenAI/Python 3.57.0"),
    (b"Content-Type", JSON),
    (b"Accept", b"application/json"),
    (b"Accept-Encoding", b"gzip, deflate"),
    (b"x-stainless-lang", b"python"),
    (b"x-stainless-retry-count", b"0"),
    (b"x-stainless-os", b"Linux"),
    (b"x-stainless-async", b"false"),
    (b"Connection", b"keep-alive"),
    (b"Content-Length", b"500"),
)


def cost(label: str, run: Callable[[], object]) -> None:
    """Print the best of several rounds, in µs."""
    best, rounds = float("inf"), 0
    end = time.perf_counter() + 0.4
    while time.perf_counter() < end or rounds < 3:
        started = time.perf_counter()
        for _ in range(10):
            run()
        best, rounds = min(best, (time.perf_counter() - started) / 10), rounds + 1
    print(f"{label:48} {best * 1e6:12.1f} µs")


def chat(size: int) -> dict[str, object]:
    content = "Tell me more about héron and stork. "
    turns = [{"role": "user", "content": content * 8} for _ in range(max(1, size // (len(content) * 8)))]
    return {"model": "gpt-4o", "messages": turns, "temperature": 0.7, "stream": True}


def test_fingerprint_costs() -> None:
    print()
    for size in (500, 8_000, 100_000, 1_000_000):
        compact, spaced = orjson.dumps(chat(size)), json.dumps(chat(size)).encode()
        memo = BodyMemo()
        cost(f"digest, {len(compact)} bytes, compact", lambda body=compact: read_body(JSON, body).digest())
        cost(f"digest, {len(spaced)} bytes, spaced and escaped", lambda body=spaced: read_body(JSON, body).digest())
        cost("  of these again, by the memo", lambda body=spaced, memo=memo: memo.read(JSON, body).digest())
    audio = form(b"b", field("model", "m"), file("file", "a.wav", bytes(range(256)) * 4096))
    cost("digest, a form with 1 MiB", lambda: read_body(b"multipart/form-data; boundary=b", audio).digest())
    request = Request("POST", CHAT, FIELDS)
    document = read_body(JSON, b"{}")
    cost("scope", lambda: request_scope(request, "credential", SCOPE_KEY))
    about = {"stage": "default", "scope": "s" * 64, "upstream": "u", "kind": document.kind}
    cost("flight key", lambda: KeyMaker(request, **about).key(document.digest()))  # type: ignore[arg-type]
    maker = KeyMaker(request, **about)  # type: ignore[arg-type]
    cost("flight key, behind a known head", lambda: maker.key(document.digest()))
    cost("all of it, with a small body", key)


def test_coding_costs() -> None:
    print()
    text = orjson.dumps(chat(1_000_000))
    for name, coded in (
        ("gzip", gzip.compress(text)),
        ("br", brotli.compress(text, quality=5)),
        ("zstd", zstandard.compress(text)),
    ):
        cost(f"{name}, {len(coded)} to {len(text)} bytes", lambda n=name, c=coded: decode_body(n.encode(), c, 8 << 20))
    bomb = gzip.compress(b"\0" * (64 << 20))
    assert decode_body(b"gzip", bomb, 64 << 20)
