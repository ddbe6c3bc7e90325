"""The splitter against a naive parser that follows WHATWG HTML section 9.2 byte by byte, at every cut."""

from collections.abc import Iterable, Iterator
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from soloflight.core.sse import MAX_EVENT, Event, Splitter

C02 = (
    b'data: {"id":"c1",\r\ndata: "choices":[{"index":0,"delta":{},"finish_reason":null}]}\r\n\r\n'
    b'data: {"id":"c1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\r\r'
    b"data: [DONE]\r\n\r\n"
)
C01 = 'data: {"content":"\U0001f30d \u0085 \u2028 \u2029 \x0b\x0c\x1c\x1d\x1e \u4f60"}\n\ndata: [DONE]\n\n'.encode()


def lines_of(stream: bytes) -> Iterator[bytes]:
    """The lines that have an end, read one byte at a time."""
    line = bytearray()
    after_cr = False
    for byte in stream.removeprefix(b"\xef\xbb\xbf"):
        if byte == 0x0A and after_cr:
            after_cr = False
            continue
        after_cr = byte == 0x0D
        if byte in (0x0A, 0x0D):
            yield bytes(line)
            line.clear()
        else:
            line.append(byte)


def reference(stream: bytes) -> list[tuple[bytes, bytes]]:
    """Names and data of the events that section 9.2.6 dispatches."""
    events = []
    name, data = b"", b""
    for line in lines_of(stream):
        if not line:
            if data:
                events.append((name, data[:-1]))
            name, data = b"", b""
            continue
        field, colon, value = line.partition(b":")
        if colon and not field:
            continue
        if value[:1] == b" ":
            value = value[1:]
        if field == b"event":
            name = value
        elif field == b"data":
            data += value + b"\n"
    return events


def cut(stream: bytes, places: Iterable[int]) -> list[bytes]:
    edges = [0, *sorted(places), len(stream)]
    return [stream[start:end] for start, end in pairwise(edges)]


def byte_by_byte(stream: bytes) -> list[bytes]:
    return cut(stream, range(len(stream)))


def split(pieces: Iterable[bytes], max_event: int = MAX_EVENT) -> list[Event]:
    splitter = Splitter(max_event)
    return [event for piece in pieces for event in splitter.feed(piece)]


def told(events: Iterable[Event]) -> list[tuple[bytes, bytes, bool]]:
    """Events without their offset, which may or may not count the LF of a CRLF that was cut."""
    return [(event.name, event.data, event.oversize) for event in events]


def plain(events: Iterable[Event]) -> list[tuple[bytes, bytes]]:
    return [(event.name, event.data) for event in events]


# Few symbols, so that line ends, fields and their prefixes meet in every way.
SYMBOLS = [b"\n", b"\r", b"\r\n", b":", b" ", b"data", b"data: ", b"data:x", b"event: e", b"event", b"id: 1", b"x"]
SYMBOLS += [b"\xef\xbb\xbf", b"\xef", b"\xc2\x85", b"\xe2\x80\xa8", b"\x00", b"datax: y", b": note"]
streams = st.lists(st.sampled_from(SYMBOLS), max_size=40).map(b"".join)


@pytest.mark.parametrize("at", range(len(C02) + 1))
def test_c02_has_three_events_at_every_cut(at: int) -> None:
    events = split(cut(C02, [at]))
    assert [event.data for event in events] == [
        b'{"id":"c1",\n"choices":[{"index":0,"delta":{},"finish_reason":null}]}',
        b'{"id":"c1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}',
        b"[DONE]",
    ]


@pytest.mark.parametrize("at", range(len(C01) + 1))
def test_c01_nel_and_line_separators_are_text_at_every_cut(at: int) -> None:
    events = split(cut(C01, [at]))
    assert plain(events) == [(b"", C01[6 : C01.index(b"\n")]), (b"", b"[DONE]")]


@given(streams)
@example(b"\xef\xbb\xbfdata: x\n\n")
@example(b"\xef\xbbdata: x\n\n")
@example(b"\r\n\r\ndata\r\rdata:\n\r\n")
@example(b"data: a\r\n\n\rdata: b\n\r")
@example(b"data: a\ndata: b\r\n\r\n")
@example(b"event: e\n\ndata: x\n\n")
@example(b"event:  e\ndata:  x\ndata:   \n\n")
def test_whole_streams_read_as_the_standard_says(stream: bytes) -> None:
    assert plain(split([stream])) == reference(stream)


@given(streams, st.data())
def test_any_cuts_give_the_same_events(stream: bytes, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, len(stream)), max_size=8))
    assert plain(split(cut(stream, places))) == reference(stream)


@given(streams)
def test_one_byte_at_a_time_gives_the_same_events(stream: bytes) -> None:
    assert plain(split(byte_by_byte(stream))) == reference(stream)


@given(streams, st.integers(1, 12), st.data())
@example(b"data: 7\r\n\r\n", 7, None)
@example(b"data: 7\n\n", 7, None)
def test_which_events_are_oversize_does_not_depend_on_the_cuts(
    stream: bytes, max_event: int, data: st.DataObject | None
) -> None:
    whole = told(split([stream], max_event))
    places = data.draw(st.lists(st.integers(0, len(stream)), max_size=8)) if data else range(len(stream))
    assert told(split(cut(stream, places), max_event)) == whole


@given(streams)
def test_events_within_the_bound_are_those_of_no_bound(stream: bytes) -> None:
    kept = [event for event in split([stream], 12) if not event.oversize]
    everything = split([stream])
    assert [event for event in everything if event in kept] == kept


@given(streams, st.data())
def test_end_is_the_offset_behind_the_blank_line(stream: bytes, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, len(stream)), max_size=4))
    for number, event in enumerate(split(cut(stream, places)), 1):
        assert len(reference(stream[: event.end])) == number
        assert len(reference(stream[: event.end - 1])) in (number - 1, number)  # number: the LF of a CRLF
        if len(reference(stream[: event.end - 1])) == number:
            assert stream[event.end - 2 : event.end] == b"\r\n"


@given(streams, st.data())
def test_at_a_boundary_another_event_is_read_as_its_own(stream: bytes, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, len(stream)), max_size=4))
    splitter = Splitter()
    for piece in cut(stream, places):
        splitter.feed(piece)
    if splitter.at_boundary:
        assert reference(stream + b"event: error\ndata: e\n\n") == [*reference(stream), (b"error", b"e")]


@pytest.mark.parametrize(
    ("stream", "at_boundary"),
    [
        (b"", True),
        (b"\n", True),
        (b"\xef", False),
        (b"\xef\xbb\xbf", True),
        (b"data: x\n\n", True),
        (b"data: x\r\n\r", True),
        (b"data: x\n\n\r\n\n", True),
        (b"data: x\n", False),
        (b"data: x", False),
        (b"id: 7\n", False),
        (b"data: x\n\n: note\n\n", True),
        (b"data: x\n\n: note\n: more\r\n", True),
        (b"data: x\n\n: no", False),
        (b"data: x\n\n: note\nd", False),
    ],
)
@pytest.mark.parametrize("pieces", [1, 1000])
def test_at_boundary(stream: bytes, at_boundary: bool, pieces: int) -> None:
    splitter = Splitter()
    for piece in [stream] if pieces == 1 else byte_by_byte(stream):
        splitter.feed(piece)
    assert splitter.at_boundary is at_boundary


def test_an_lf_may_follow_the_cr_that_ended_an_event() -> None:
    splitter = Splitter()
    (done,) = splitter.feed(b"data: [DONE]\r\n\r")
    assert (done.end, splitter.offset, splitter.lf_may_follow) == (15, 15, True)
    assert splitter.feed(b"\n") == []
    assert (splitter.offset, splitter.lf_may_follow, splitter.at_boundary) == (16, False, True)


def test_end_counts_the_lf_that_came_along() -> None:
    assert [event.end for event in Splitter().feed(b"data: a\r\n\r\ndata: b\n\r\nxx")] == [11, 21]
    assert [event.end for event in split([b"data: a\r", b"\n\r\nxx"])] == [11]


def test_a_huge_event_passes_without_being_held_and_the_stream_goes_on() -> None:
    splitter = Splitter(max_event=1000)
    assert splitter.feed(b"event: big\ndata: ") == []
    held = 0
    for _ in range(1000):
        assert splitter.feed(b"x" * 1000) == []
        held = max(held, len(splitter.pending))
    assert held <= 1002
    assert not splitter.at_boundary
    assert "skipping" in repr(splitter)
    events = splitter.feed(b"\n\ndata: after\n\n")
    assert told(events) == [(b"big", b"", True), (b"", b"after", False)]
    assert events[0].end == 17 + 1_000_000 + 2
    assert splitter.oversize == 1


def test_behind_a_huge_event_others_are_read_in_pieces_too() -> None:
    assert told(split(byte_by_byte(b"data: too long\n\ndata: x\n\n"), 7)) == [(b"", b"", True), (b"", b"x", False)]


def test_half_a_name_of_a_huge_event_is_no_name() -> None:
    stream = b"event: completed\ndata: x\n\n"
    for pieces in ([stream], byte_by_byte(stream)):
        assert told(split(pieces, 10)) == [(b"", b"", True)]
        assert told(split(pieces, 17)) == [(b"completed", b"", True)]


def test_a_huge_event_in_one_feed_is_oversize_as_well() -> None:
    splitter = Splitter(max_event=1000)
    stream = b"event: big\r\ndata: " + b"x" * 1000 + b"\r\n\r\ndata: " + b"y" * 1000 + b"\n\ndata: z\n\n"
    assert told(splitter.feed(stream)) == [(b"big", b"", True), (b"", b"", True), (b"", b"z", False)]
    assert splitter.oversize == 2


def test_an_event_of_too_many_lines_is_oversize_since_lines_cost_more_than_bytes() -> None:
    splitter = Splitter()
    few, many = b"data\n" * 65_536, b"data\r\n" * 65_537
    assert told(splitter.feed(few + b"\n" + many + b"\r\n")) == [(b"", b"\n" * 65_535, False), (b"", b"", True)]


def test_a_line_longer_than_the_near_look_is_read_all_the_same() -> None:
    stream = b"data: " + b"x" * 10_000 + b"\r\n\r\n"
    assert plain(Splitter().feed(stream * 2)) == [(b"", b"x" * 10_000)] * 2


def test_repr_tells_where_the_stream_stands() -> None:
    splitter = Splitter()
    assert repr(splitter) == "Splitter(between, offset=0, pending=0, oversize=0)"
    splitter.feed(b"data: x\n\ndata")
    assert repr(splitter) == "Splitter(inside, offset=13, pending=4, oversize=0)"
    assert splitter.pending == b"data"
