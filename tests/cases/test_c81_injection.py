"""C81: CR, LF and NUL injected through copied field values.

Source: aio-libs/aiohttp#4818, #6724 and #7312.
Right: nothing that a client or an upstream sent becomes a field of its own: it is refused, encoded or hashed. An
upstream's malformed head is a 502 and not kept.
"""

import json
import re

import pytest

from harness.client import ask, connect, request
from harness.proxy import Proxy
from harness.refusals import refused
from harness.wire import Response
from soloflight.testing.chat import completion_object
from soloflight.testing.script import head, raw
from soloflight.testing.script import json as json_answer
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

KEY = "Authorization: Bearer k1"
NASTY = {
    "escaped": b"%0d%0aSet-Cookie:x=1",
    "CR": b"a\rSet-Cookie: x=1",
    "LF": b"a\nSet-Cookie: x=1",
    "CR LF": b"a\r\nSet-Cookie: x=1",
    "NUL": b"a\0b",
    "10 kB": b"a" * 10_000,
    "not latin-1": "ключ\u2028".encode(),
    "obs-text": b"caf\xe9",
    "quotes": b'a", x-soloflight-role="owner',
}
FIELDS = ["X-Soloflight-Session", "X-Soloflight-Stage", "Idempotency-Key", "X-Soloflight-Unknown", "X-Other"]
OWN_NAMES = {
    *("content-type", "content-length", "date", "cache-status", "cache-control", "connection", "retry-after"),
    *("proxy-status", "transfer-encoding", "x-should-retry"),
    *("x-soloflight-role", "x-soloflight-request-id", "x-soloflight-flight"),
}
FIELD_LINE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+: ?[\t -~\x80-\xff]*")


def assert_clean(answer: Response) -> None:
    """A head of which every line is one field, no name is foreign, and no value holds what was sent."""
    assert answer.status in (200, 400, 431)
    lines = answer.raw_head.removesuffix(b"\r\n\r\n").split(b"\r\n")[1:]
    for line in lines:
        assert FIELD_LINE.fullmatch(line), line
    names = [line.partition(b":")[0].lower().decode() for line in lines]
    assert set(names) <= OWN_NAMES
    assert len(names) == len(set(names))
    assert b"cookie" not in answer.raw_head.lower()
    if answer.status != 200:
        assert refused(answer) in ((400, "bad_request"), (431, "headers_too_large"))


async def whole_exchange(proxy: Proxy, data: bytes) -> None:
    """Every answer that comes on one connection is clean; a value with a line end makes two requests at most."""
    async with connect(proxy.port) as client:
        assert_clean(await client.ask(data))
        assert client.parser.rest == b""


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("value", NASTY)
async def test_a_field_of_the_client(value: str, name: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(json_answer(completion_object()))
    nasty = NASTY[value]
    field = name.encode() + b": " + nasty
    body = json.dumps({"model": "m", "messages": [], "temperature": 0, "user": f"{name} {value}"}).encode()
    await whole_exchange(proxy, request("POST", "/v1/chat/completions", KEY, field, body=body))
    for received in upstream.requests:
        assert not [pair for pair in received.fields if pair[0].lower().startswith(b"x-soloflight")]
        assert all(FIELD_LINE.fullmatch(line) for line in received.head.split(b"\r\n")[1:-2])
        assert value in ("escaped", "quotes", "not latin-1", "obs-text", "10 kB", "CR LF")


@pytest.mark.parametrize("value", NASTY)
async def test_a_model_name(value: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(json_answer(completion_object()))
    model = NASTY[value].decode("latin-1")
    body = json.dumps({"model": model, "messages": [], "temperature": 0, "n": list(NASTY).index(value)}).encode()
    await whole_exchange(proxy, request("POST", "/v1/chat/completions", KEY, body=body))
    assert upstream.requests[0].body == body


@pytest.mark.parametrize("target", ["/v1/files", "/v1/c81/models"])
@pytest.mark.parametrize("value", NASTY)
async def test_a_query(value: str, target: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(json_answer({"data": []}))
    line = b"GET " + target.encode() + b"?a=" + NASTY[value].replace(b" ", b"+") + b" HTTP/1.1\r\n"
    await whole_exchange(proxy, line + b"Host: proxy.test\r\n\r\n")
    for received in upstream.requests:
        assert received.request_line + b"\r\n" == line
        assert value not in ("CR", "LF", "CR LF", "NUL")
    assert "Set-Cookie: x" not in proxy.log


MALFORMED = {
    "bare CR in a value": head(200, b"X-A: b\rSet-Cookie: x=1", "Content-Length: 2") + b"{}",
    "bare CR at the end": head(200, b"X-A: b\r", "Content-Length: 2") + b"{}",
    "NUL": head(200, b"X-A: b\0c", "Content-Length: 2") + b"{}",
    "space in a name": head(200, "X A: b", "Content-Length: 2") + b"{}",
    "CR in a name": head(200, b"X\rA: b", "Content-Length: 2") + b"{}",
    "no colon": head(200, "X-A", "Content-Length: 2") + b"{}",
    "CR in the reason": head(200, "Content-Length: 2", reason="OK\rSet-Cookie: x=1") + b"{}",
    "NUL in the reason": head(200, "Content-Length: 2", reason="O\0K") + b"{}",
}


@pytest.mark.parametrize("target", ["/v1/chat/completions", "/v1/files"])
@pytest.mark.parametrize("what", MALFORMED)
async def test_a_malformed_head_of_the_upstream(
    what: str, target: str, proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    upstream.play(MALFORMED[what])
    body = json.dumps({"model": "m", "temperature": 0, "messages": [what, target]}).encode()
    for call in (1, 2):
        answer = await ask(proxy.port, request("POST", target, KEY, body=body))
        assert refused(answer) == (502, "upstream_invalid")
        assert upstream.calls == call


async def test_a_folded_line_of_the_upstream_is_one_field_or_refused(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    """Line folding (RFC 9112 section 5.2): a 502, or the fold replaced by a space."""
    upstream.play(head(200, "X-A: b\r\n Set-Cookie: x=1", "Content-Length: 2") + b"{}")
    answer = await ask(proxy.port, request("GET", "/v1/files"))
    if answer.status == 502:
        assert refused(answer) == (502, "upstream_invalid")
    else:
        assert not answer.all("Set-Cookie")
        assert re.fullmatch(r"b +Set-Cookie: x=1", answer.get("X-A") or "")


async def test_odd_but_legal_bytes_of_the_upstream_pass(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    odd = b"X-Odd: caf\xe9 \xd0\xba\t\"'"
    upstream.play(raw(b"{}", odd, status=200).replace(b"200 OK", b"200 \xd0\x9e\xd0\x9a caf\xe9"))
    answer = await ask(proxy.port, request("GET", "/v1/files"))
    assert answer.status == 200
    assert (b"X-Odd", odd.partition(b": ")[2]) in answer.fields
    assert answer.reason == b"\xd0\x9e\xd0\x9a caf\xe9"


async def test_an_empty_reason_passes(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    for status_line in (b"HTTP/1.1 200 ", b"HTTP/1.1 200"):
        upstream.play(raw(b"{}").replace(b"HTTP/1.1 200 OK", status_line))
        answer = await ask(proxy.port, request("GET", "/v1/files"))
        assert (answer.status_line, answer.body) == (b"HTTP/1.1 200 ", b"{}")
