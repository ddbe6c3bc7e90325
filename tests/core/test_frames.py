"""Frames are values: fields are found in any case, and a recording knows what it costs."""

from __future__ import annotations

import sys
from dataclasses import FrozenInstanceError

import pytest

from soloflight.core.frames import Body, End, Head, Recording

HEAD = Head(200, b"OK", ((b"X-A", b"1"), (b"x-a", b"2"), (b"Content-Type", b"text/plain")))


def test_a_field_is_found_in_any_case_and_the_first_counts() -> None:
    assert (HEAD.get(b"x-a"), HEAD.get(b"content-type"), HEAD.get(b"x-b")) == (b"1", b"text/plain", None)


def test_frames_can_not_be_changed() -> None:
    body = Body(b"a")
    with pytest.raises(FrozenInstanceError):
        body.data = b"b"  # type: ignore[misc]
    assert (body, End()) == (Body(b"a"), End(None))


def held(recording: Recording) -> int:
    """What the recording holds in memory, by the interpreter's own count."""
    parts = [part for field in recording.head.fields for part in (field, *field)]
    objects = [recording, recording.head, recording.head.reason, recording.head.fields, recording.body, *recording.body]
    return sum(map(sys.getsizeof, [*objects, *parts]))


@pytest.mark.parametrize(
    "body",
    [(), (b"x",), tuple(b"%d" % n for n in range(1000)), (b"x" * 1_000_000,)],
    ids=["empty", "one", "many", "large"],
)
def test_a_recording_costs_what_it_holds_and_not_much_more(body: tuple[bytes, ...]) -> None:
    recording = Recording(HEAD, body, sum(map(len, body)))
    assert held(recording) <= recording.cost <= 2 * held(recording)


def test_a_head_without_a_field() -> None:
    head = Head(200, b"OK", ((b"Set-Cookie", b"a"), (b"X", b"1"), (b"set-cookie", b"b")))
    assert head.without(b"set-cookie").fields == ((b"X", b"1"),)
    assert head.without(b"y") is head
