"""Plain answers: what is read without a parser is what aiohttp's parser reads; what is not plain is left to it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_parser import HttpResponseParser
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from soloflight.core.frames import Head
from soloflight.core.plain import HEAD_LIMIT, MAX_FIELDS, read_plain
from soloflight.flow.exchange import _head

BODY = b'{"a": 1}'


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def answer(*fields: bytes, line: bytes = b"HTTP/1.1 200 OK", body: bytes = BODY) -> bytes:
    return b"\r\n".join([line, *fields]) + b"\r\n\r\n" + body


def parsed(loop: asyncio.AbstractEventLoop, data: bytes) -> tuple[Head, bytes] | None:
    """What the parser makes of it, where that is one whole answer and its connection may be used again."""
    protocol = ResponseHandler(loop)
    parser = HttpResponseParser(
        protocol, loop, 1 << 18, read_until_eof=True, auto_decompress=False, max_line_size=1 << 18,
        max_field_size=1 << 18, max_headers=512,
    )  # fmt: skip
    protocol._parser = parser
    messages, upgraded, _ = parser.feed_data(data)
    if len(messages) != 1 or upgraded or messages[0][0].should_close or not messages[0][1].is_eof():
        return None
    message, payload = messages[0]
    if parser.feed_eof() is not None:
        return None
    return _head(message, bodyless=False), payload.read_nowait(-1)


PLAIN = [
    answer(b"Content-Length: 8"),
    answer(b"Content-Length:8", b"X-A: \t odd \t ", b"X-B:", b"x-b: \xfc\xff", b"Connection: keep-alive"),
    answer(b"Date: x", b"content-length: 8", b"Set-Cookie: a=1", b"Set-Cookie: b=2", line=b"HTTP/1.1 404 Not  Found "),
    answer(b"Content-Length: 0", b"Keep-Alive: timeout=5", line=b"HTTP/1.1 500 ", body=b""),
    answer(b"Content-Length: 0008", b"Content-Encoding: gzip", line=b"HTTP/1.1 299 a\tb"),
]


@pytest.mark.parametrize("data", PLAIN)
def test_a_plain_answer_is_read_as_the_parser_reads_it(loop: asyncio.AbstractEventLoop, data: bytes) -> None:
    plain = read_plain(data)
    assert plain is not None
    assert plain == parsed(loop, data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r",
        answer(),
        answer(b"Content-Length: 9"),
        answer(b"Content-Length: 7"),
        answer(b"Content-Length: +8"),
        answer(b"Content-Length: 8, 8"),
        answer(b"Content-Length: \xb2"),
        answer(b"Content-Length: " + b"0" * 9 + b"8"),
        answer(b"Content-Length: 8", b"Content-Length: 8"),
        answer(b"Content-Length: 8", b"Connection: close"),
        answer(b"Content-Length: 8", b"Connection: keep-alive, x"),
        answer(b"Content-Length: 8", b"Upgrade: h2c"),
        answer(b"Transfer-Encoding: chunked", body=b"8\r\n" + BODY + b"\r\n0\r\n\r\n"),
        answer(b"Content-Length: 8", b"Transfer-Encoding: chunked"),
        answer(b"Content-Length: 8", b" folded"),
        answer(b"Content-Length: 8", b"X Y: 1"),
        answer(b"Content-Length: 8", b"no colon"),
        answer(b"Content-Length: 8", b": no name"),
        answer(b"Content-Length: 8", b"X: \x00"),
        answer(b"Content-Length: 8", b"X: a\rb"),
        answer(b"Content-Length: 8", b"X: a\nb"),
        answer(b"Content-Length: 8", b"X\xfc: 1"),
        answer(b"Content-Length: 8", line=b"HTTP/1.0 200 OK"),
        answer(b"Content-Length: 8", line=b"HTTP/1.1 200"),
        answer(b"Content-Length: 8", line=b"HTTP/1.1 100 Continue"),
        answer(b"Content-Length: 8", line=b"HTTP/1.1 204 None"),
        answer(b"Content-Length: 8", line=b"HTTP/1.1 205 Reset"),
        answer(b"Content-Length: 8", line=b"HTTP/1.1 304 Same"),
        answer(b"Content-Length: 8", line=b"HTTP/1.1 200 \xfc"),
        answer(b"Content-Length: 8", line=b"HTTP/1.1 2000 OK"),
        answer(b"Content-Length: 8", line=b"\r\nHTTP/1.1 200 OK"),
        answer(b"Content-Length: 8", *[b"X: 1"] * MAX_FIELDS),
        answer(b"Content-Length: 8", b"X: " + b"x" * HEAD_LIMIT),
        b"HTTP/1.1 200 OK\n\nx\r\n\r\n",
    ],
)
def test_anything_else_is_left_to_the_parser(data: bytes) -> None:
    assert read_plain(data) is None


NAMES = st.sampled_from(
    [
        b"X-A",
        b"content-length",
        b"Content-Length",
        b"Connection",
        b"Transfer-Encoding",
        b"Upgrade",
        b"Trailer",
        b"Te",
        b"a b",
        b"",
    ]
)
VALUES = st.one_of(
    st.sampled_from([b"8", b" 8 ", b"keep-alive", b"Keep-Alive", b"close", b"chunked", b"0", b""]),
    st.binary(max_size=6),
)
LINES = st.sampled_from(
    [b"HTTP/1.1 200 OK"] * 8
    + [
        b"HTTP/1.1 500 ",
        b"HTTP/1.1 404 \xff",
        b"HTTP/1.0 200 OK",
        b"HTTP/1.1 204 x",
        b"HTTP/1.1 101 x",
        b"HTTP/1.1 200",
    ]
)
GAPS = st.sampled_from([b":"] * 6 + [b": ", b" :", b":\t", b""])


@settings(max_examples=600, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    line=LINES,
    fields=st.lists(st.tuples(NAMES, GAPS, VALUES), max_size=4),
    body=st.sampled_from([BODY, b"", BODY + b"HTTP/1.1 200 OK\r\n\r\n", b"8\r\n" + BODY + b"\r\n0\r\n\r\n"]),
)
def test_whatever_is_read_as_plain_the_parser_reads_alike(
    loop: asyncio.AbstractEventLoop, line: bytes, fields: list[Any], body: bytes
) -> None:
    data = answer(*(b"".join(field) for field in fields), b"Content-Length: 8", line=line, body=body)
    for text in (data, data.replace(b"\r\nContent-Length: 8", b"", 1)):
        plain = read_plain(text)
        if plain is not None:
            assert plain == parsed(loop, text)
