"""The tests' own response and event stream parsers, against the examples of the specifications."""

import tomllib

import pytest

from harness import toml
from harness.wire import Event, ResponseParser, parse_events

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\n\r\n\r\n0\r\n\r\n"
COUNTED = b"HTTP/1.1 404 Not Here\r\nX-A:  b \r\nx-a: c\r\ncontent-length: 5\r\n\r\nhello"


@pytest.mark.parametrize("cut", range(1, len(CHUNKED)))
def test_a_chunked_response_at_every_cut(cut: int) -> None:
    parser = ResponseParser().feed(CHUNKED[:cut])
    assert not parser.done
    assert parser.response.last_chunk_seen is False
    response = parser.feed(CHUNKED[cut:] + b"next").response
    assert (response.status, response.body, response.chunks) == (200, b"abc\r\n", [b"abc", b"\r\n"])
    assert (response.framing, response.ended, response.last_chunk_seen) == ("chunked", "complete", True)
    assert bytes(response.raw_body) == CHUNKED.partition(b"\r\n\r\n")[2]
    assert parser.rest == b"next"


@pytest.mark.parametrize("cut", range(1, len(COUNTED)))
def test_a_counted_response_at_every_cut(cut: int) -> None:
    parser = ResponseParser().feed(COUNTED[:cut])
    assert not parser.done
    response = parser.feed(COUNTED[cut:]).response
    assert (response.reason, response.body, response.complete) == (b"Not Here", b"hello", True)
    assert response.all("X-A") == ["b", "c"]


def test_a_cut_response_is_not_complete() -> None:
    for whole in (CHUNKED, COUNTED):
        response = ResponseParser().feed(whole[:-1]).end("rst").response
        assert (response.ended, response.complete, response.last_chunk_seen) == ("rst", False, False)


def test_bodyless_responses() -> None:
    for method, status in (("HEAD", 200), ("GET", 204), ("GET", 304)):
        parser = ResponseParser(method).feed(b"HTTP/1.1 %d X\r\nContent-Length: 9\r\n\r\nstray" % status)
        assert (parser.response.framing, parser.response.body, parser.rest) == ("none", b"", b"stray")


def test_interim_responses_are_kept_apart() -> None:
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    response = ResponseParser().feed(hints + COUNTED).response
    assert (response.informational, response.status) == ([hints], 404)


def test_the_close_delimits() -> None:
    parser = ResponseParser().feed(b"HTTP/1.0 200 OK\r\n\r\nall")
    assert (parser.done, parser.response.framing) == (False, "close")
    assert parser.end("fin").response.complete


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\n\ndata: b\r\n\r\ndata: c\r\rdata: d\n", ["a", "b", "c"]),
        (b"data\n\ndata\ndata\n\ndata:", ["", "\n"]),
        (b"data:x\n\ndata:  y\n\n", ["x", " y"]),
        (b": only a comment\n\nid: 1\n\n", []),
        ("data: a\u0085b\u2028c\n\n".encode(), ["a\u0085b\u2028c"]),
        (b"\xef\xbb\xbfdata: bom\n\n", ["bom"]),
    ],
)
def test_events_as_the_specification_reads_them(stream: bytes, events: list[str]) -> None:
    assert [event.data for event in parse_events(stream)] == events


def test_event_names_and_ids() -> None:
    stream = b"event: add\nid: 7\ndata: 1\n\ndata: 2\n\n"
    assert parse_events(stream) == [Event("1", "add", "7"), Event("2", "message", "7")]


def test_config_is_written_as_toml() -> None:
    config = {
        "server": {"listen": 'a"b', "workers": 2, "allow_open": True, "trusted": ["x"]},
        "upstreams": {"azure": {"url": "http://x"}},
        "plugins": {"disabled": []},
        "stage": [{"name": "a", "match": {"paths": ["/v1/*"]}}, {"name": "b", "retention": 1.5}],
    }
    assert tomllib.loads(toml.dump(config)) == config
