"""C20: HEAD, 204, 304 and 1xx.

Source: aio-libs/aiohttp#4901, #7756 and #505, vm0-ai/vm0#25111, oven-sh/bun#34919.
Right: RFC 9110 sections 6.4.1, 8.6 and 9.3.2, RFC 9112 section 6.3: a length is kept for HEAD and 304, there is
none on 204; no body byte follows, so the next answer on the connection is right. HEAD and GET share neither
flight nor entry. An upstream connection with stray bytes is not used again.
"""

import pytest

from harness.client import RawClient, ask, connect, request
from harness.proxy import Proxy
from soloflight.testing.script import head, json, raw
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

KEY = "Authorization: Bearer k1"
NEXT = request("GET", "/v1/files/next", KEY)


async def assert_next_is_right(client: RawClient) -> None:
    """The next request on this client's connection gets its own answer."""
    assert client.parser.rest == b""
    answer = await client.ask(NEXT)
    assert (answer.status, answer.body, answer.complete) == (200, b"next", True)


async def test_head_keeps_its_length(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(head(200, "Content-Type: text/x", "Content-Length: 1234"), raw(b"next"))
    async with connect(proxy.port) as client:
        answer = await client.ask(request("HEAD", "/v1/files/x", KEY))
        assert (answer.status, answer.get("Content-Length")) == (200, "1234")
        assert answer.get("Content-Type") == "text/x"
        assert answer.get("Transfer-Encoding") is None
        await assert_next_is_right(client)
    assert [received.method for received in upstream.requests] == ["HEAD", "GET"]


async def test_204_has_no_length_and_no_body(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(head(204, "X-Deleted: yes"), raw(b"next"))
    async with connect(proxy.port) as client:
        answer = await client.ask(request("DELETE", "/v1/files/x", KEY))
        assert (answer.status, answer.get("X-Deleted")) == (204, "yes")
        assert answer.get("Content-Length") is None
        assert answer.get("Transfer-Encoding") is None
        await assert_next_is_right(client)


async def test_304_keeps_its_fields(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(head(304, 'ETag: "v1"', "Content-Length: 1234"), raw(b"next"))
    async with connect(proxy.port) as client:
        answer = await client.ask(request("GET", "/v1/models", KEY, 'If-None-Match: "v1"'))
        assert (answer.status, answer.get("ETag")) == (304, '"v1"')
        assert answer.get("Content-Length") == "1234"
        assert answer.get("Transfer-Encoding") is None
        await assert_next_is_right(client)
    assert upstream.requests[0].field(b"if-none-match") == b'"v1"'


async def test_early_hints_do_not_stand_for_the_answer(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    hints = head(103, "Link: </x>; rel=preload", reason="Early Hints")
    upstream.play(hints + raw(b"real"), raw(b"next"))
    async with connect(proxy.port) as client:
        answer = await client.ask(request("GET", "/v1/files/x", KEY))
        assert (answer.status, answer.body) == (200, b"real")
        assert answer.get("Link") is None
        await assert_next_is_right(client)


async def test_stray_bytes_are_nobodys_answer(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(head(204) + raw(b"stray"), raw(b"next"))
    async with connect(proxy.port) as client:
        answer = await client.ask(request("DELETE", "/v1/files/x", KEY))
        assert answer.status == 204
        await assert_next_is_right(client)
    first, second = upstream.requests
    assert first.connection != second.connection


async def test_head_and_get_do_not_share(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    target = "/c20/models"
    upstream.play(lambda received: head(200, "Content-Length: 11") if received.method == "HEAD" else json({"data": []}))
    got = [await ask(proxy.port, request("GET", target, KEY)) for _ in range(2)]
    assert [answer.role for answer in got] == ["owner", "replay"]
    headed = await ask(proxy.port, request("HEAD", target, KEY))
    assert (headed.role, headed.get("Content-Length"), headed.body) == ("bypass", "11", b"")
    assert (await ask(proxy.port, request("GET", target, KEY))).body == b'{"data": []}'
    assert [received.method for received in upstream.requests] == ["GET", "HEAD"]
