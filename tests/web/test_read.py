"""Reading a request: which targets are paths, and a body within its bounds."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.client import ask, chat, connect, fresh, request
from harness.process import eventually
from nodes.house import House, OpenHouse
from soloflight.core.errors import Code, SoloflightError
from soloflight.testing.chat import CH, DONE, FIN
from soloflight.testing.script import raw, sse
from soloflight.testing.upstream import ScriptedUpstream
from soloflight.web.read import READY_LIMIT, read_target


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/", "/"),
        ("/v1/models?a=b", "/v1/models?a=b"),
        ("/%23?%2F=%3F", "/%23?%2F=%3F"),
        ("//double//slash", "//double//slash"),
        ("/a/../b", "/a/../b"),
        ("/a:b@c", "/a:b@c"),
        ("/http://evil.example/", "/http://evil.example/"),
        ("http://evil.example/v1/models?a=b", "/v1/models?a=b"),
        ("HTTPS://evil.example:1/x", "/x"),
        ("http://evil.example", "/"),
        ("http://evil.example?a=/b", "/?a=/b"),
        ("http://user:pass@evil.example/x", "/x"),
        ("http:///x", "/x"),
        ("http://evil.example//x", "//x"),
    ],
)
def test_a_target_counts_by_its_path_and_query_byte_for_byte(target: str, path: str) -> None:
    assert read_target(target) == path


@pytest.mark.parametrize(
    "target",
    [
        "*",
        "",
        "v1/models",
        "evil.example:443",
        "ftp://a/b",
        "://a/b",
        "?a",
        "/a#b",
        "/#",
        "http://a/b#c",
        "http://a#b",
        "javascript:x",
    ],
)
def test_what_is_no_path_or_has_a_fragment_is_refused(target: str) -> None:
    with pytest.raises(SoloflightError) as caught:
        read_target(target)
    assert caught.value.fault.code is Code.BAD_REQUEST
    assert caught.value.fault.message in (
        "the request target must be a path",
        "the request target must not hold a fragment",
    )


@given(st.text(max_size=20))
def test_any_target_is_a_path_without_a_fragment_or_refused(target: str) -> None:
    try:
        path = read_target(target)
    except SoloflightError:
        return
    assert path.startswith("/")
    assert "#" not in path
    assert target.endswith((path, path[1:]))


async def test_only_the_configured_origin_is_dialled(house: House, upstream: ScriptedUpstream) -> None:
    upstream.play(raw(b"ok"))
    response = await ask(house.port, request("GET", "http://127.0.0.1:1/v1/files?a=%2F"))
    assert (response.status, upstream.requests[0].target) == (200, "/v1/files?a=%2F")
    assert upstream.requests[0].field(b"host") == upstream.url.partition("://")[2].encode()


# ── bodies ──────────────────────────────────────────────────────────────────────────────────────────────────────────

CHUNKED = ("Content-Type: application/json", "Authorization: Bearer k1", "Transfer-Encoding: chunked")


def in_chunks(body: bytes, size: int) -> bytes:
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


@pytest.mark.parametrize("size", [1, 7, 100_000])
async def test_a_chunked_body_is_one_body_and_shares_with_a_counted_one(
    house: House, upstream: ScriptedUpstream, size: int
) -> None:
    upstream.play(sse(CH, FIN, DONE))
    counted = chat(fresh())
    body = counted.partition(b"\r\n\r\n")[2]
    first = await ask(house.port, request("POST", "/v1/chat/completions", *CHUNKED) + in_chunks(body, size))
    second = await ask(house.port, counted)
    assert (first.role, second.role, first.body) == ("owner", "replay", second.body)
    assert (upstream.requests[0].body, upstream.requests[0].field(b"content-length")) == (body, b"%d" % len(body))


@pytest.mark.parametrize("extra", [-1, 0, 1, READY_LIMIT])
async def test_a_body_around_what_is_taken_at_once_arrives_whole(
    house: House, upstream: ScriptedUpstream, extra: int
) -> None:
    upstream.play(sse(CH, FIN, DONE))
    body = b"x" * (READY_LIMIT + extra)
    assert (await ask(house.port, chat(body))).status == 200
    assert upstream.requests[0].body == body


@pytest.mark.parametrize("coding", ["counted", "chunked"])
async def test_a_body_too_large_to_be_shared_streams_through_whole(
    open_house: OpenHouse, upstream: ScriptedUpstream, coding: str
) -> None:
    house = await open_house({"server": {"max_shared_body": 1000}})
    upstream.play(sse(CH, FIN, DONE))
    body = b"x" * 300_000
    block = (
        chat(body)
        if coding == "counted"
        else request("POST", "/v1/chat/completions", *CHUNKED) + in_chunks(body, 9_000)
    )
    response = await ask(house.port, block)
    assert (response.role, response.get("Cache-Status")) == ("bypass", "soloflight; fwd=bypass; detail=body")
    assert upstream.requests[0].body == body


async def test_a_body_is_relayed_while_it_comes(house: House, upstream: ScriptedUpstream) -> None:
    upstream.play(raw(b"ok"))
    async with connect(house.port) as client:
        await client.send(request("POST", "/v1/files", "Content-Length: 6") + b"abc")
        await upstream.wait_calls(1)
        await upstream.wait_until(lambda: upstream.requests[0].body_length in (0, 3))
        await client.send_more(b"def")
        assert (await client.finish()).body == b"ok"
    assert upstream.requests[0].body == b"abcdef"


@pytest.mark.parametrize("target", ["/v1/chat/completions", "/v1/files"])
@pytest.mark.parametrize("leave", ["fin", "reset"])
async def test_a_client_that_leaves_in_its_body_leaves_nothing_behind(
    house: House, upstream: ScriptedUpstream, target: str, leave: str
) -> None:
    async with connect(house.port) as client:
        await client.send(request("POST", target, "Content-Length: 100") + b"half")
        await asyncio.sleep(0.05)
        if leave == "reset":
            client.reset()
        else:
            client.close()
    await eventually(lambda: bool(house.requests))
    assert house.requests[0].cut
    assert house.app.front is not None
    assert house.app.front.running == 0
    assert all(not received.body_complete for received in upstream.requests)


async def test_what_is_no_valid_chunk_is_refused(house: House, upstream: ScriptedUpstream) -> None:
    async with connect(house.port) as client:
        await client.send(request("POST", "/v1/chat/completions", *CHUNKED) + b"5\r\nab")
        await asyncio.sleep(0.02)
        await client.send_more(b"cdeXX\r\n")
        response = await client.finish()
    assert (response.status, upstream.calls) == (400, 0)
