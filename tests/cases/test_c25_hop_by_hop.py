"""C25: hop-by-hop fields, and field values that are odd but legal.

Source: johnjoeallen/grip#37, TykTechnologies/tyk#2076, envoyproxy/envoy#46818, karpetrosyan/httpx-aiohttp#28,
aio-libs/aiohttp#5355.
Right: RFC 9110 section 7.6.1: known hop-by-hop fields, and those that Connection names, stop at the proxy in both
directions; all others keep order, number and bytes. No kept answer holds one.
"""

import pytest

from harness.client import ask, chat, connect, fresh, request
from harness.proxy import Proxy
from harness.wire import Response
from soloflight.testing.chat import completion_object
from soloflight.testing.script import LAST_CHUNK, Script, chunk, head
from soloflight.testing.script import json as json_answer
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

HOPS = [
    "Connection: X-Hop, close",
    "X-Hop: 1",
    "TE: trailers",
    "Keep-Alive: 5",
    "Proxy-Authorization: Basic eDp5",
    "Proxy-Connection: keep-alive",
]
ON = ["X-Multi: b", "x-odd: caf\xe9 \t z", "X-Multi: a", "X-Empty:", "Accept: */*"]
ANSWER_ON = [
    b"Content-Type: application/json",
    b'Content-Disposition: attachment; filename="f\xfcr.txt"',
    b"X-Multi: 2",
    b"x-Case: kept",
    b"X-Multi: 1",
    b"X-Empty:",
]
COOKIES = [b"Set-Cookie: a=1; Path=/", b"Set-Cookie: b=2"]
ANSWER_HOPS = [
    b"Connection: X-Priv",
    b"X-Priv: 1",
    b"Keep-Alive: timeout=5",
    b"Proxy-Authenticate: Basic",
    b"Trailer: X-Checksum",
]
STOPPED = {"connection", "x-priv", "keep-alive", "proxy-authenticate", "trailer", "x-checksum"}
BODY = json_answer(completion_object()).partition(b"\r\n\r\n")[2]


def answer() -> Script:
    fields = [
        *ANSWER_HOPS[:3],
        *ANSWER_ON[:3],
        *COOKIES,
        *ANSWER_ON[3:],
        *ANSWER_HOPS[3:],
        b"Transfer-Encoding: chunked",
    ]
    return [head(200, *fields), chunk(BODY), LAST_CHUNK.removesuffix(b"\r\n") + b"X-Checksum: 1\r\n\r\n"]


def lines(fields: list[str] | list[bytes]) -> list[tuple[bytes, bytes]]:
    raw = [field.encode("latin-1") if isinstance(field, str) else field for field in fields]
    return [(name, value.strip(b" \t")) for name, _, value in (line.partition(b":") for line in raw)]


def upstreams_own(response: Response, names: set[bytes]) -> list[tuple[bytes, bytes]]:
    return [field for field in response.fields if field[0].lower() in names]


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "alone"])
async def test_what_goes_upstream(shared: bool, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(answer())
    mixed = [*HOPS[:3], *ON[:2], *HOPS[3:], *ON[2:]]
    sent = chat(fresh(stream=False), *mixed) if shared else request("GET", "/v1/files/f1", *mixed)
    async with connect(proxy.port) as client:
        assert (await client.ask(sent)).status == 200
        assert await client.ended() == "fin"  # Connection: close was for this hop
    seen = upstream.requests[0]
    names = {name.lower() for name, _ in seen.fields}
    assert names.isdisjoint(
        {b"x-hop", b"te", b"keep-alive", b"proxy-authorization", b"proxy-connection", b"connection"}
    )
    ours = {b"x-multi", b"x-odd", b"x-empty", b"accept"}
    assert [field for field in seen.fields if field[0].lower() in ours] == lines(ON)


async def test_what_comes_back(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(answer())
    body = chat(fresh(stream=False))
    owner, replay = await ask(proxy.port, body), await ask(proxy.port, body)
    alone = await ask(proxy.port, request("GET", "/v1/files/f1"))
    assert [response.role for response in (owner, replay, alone)] == ["owner", "replay", "bypass"]
    names = {name.lower() for name, _ in lines(ANSWER_ON)} | {b"set-cookie"}
    with_cookies = lines([*ANSWER_ON[:3], *COOKIES, *ANSWER_ON[3:]])
    for response, expected in ((owner, with_cookies), (alone, with_cookies), (replay, lines(ANSWER_ON))):
        assert response.body == BODY
        assert response.complete
        assert upstreams_own(response, names) == expected
        assert STOPPED.isdisjoint(name.decode("latin-1").lower() for name, _ in response.fields)
        assert b"X-Checksum" not in response.raw_body


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "alone"])
async def test_connection_can_not_take_away_what_the_message_needs(
    shared: bool, proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    """Hop-by-hop abuse: a client that names an end-to-end field would send its request without it."""
    upstream.play(json_answer(completion_object()))
    abuse = "Connection: Host, Authorization, Content-Length, Content-Type, keep-alive"
    body = chat(fresh(stream=False), abuse, target="/v1/chat/completions" if shared else "/v1/unknown")
    assert (await ask(proxy.port, body)).status == 200
    seen = upstream.requests[0]
    assert seen.field(b"authorization") == b"Bearer k1"
    assert seen.field(b"host") == f"127.0.0.1:{upstream.port}".encode()
    assert seen.field(b"content-type") == b"application/json"
    assert seen.body_complete
    assert seen.body == body.partition(b"\r\n\r\n")[2]
