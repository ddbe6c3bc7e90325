"""What listeners have in common is made once, and never for another answer."""

from __future__ import annotations

from soloflight.core.frames import Body, End, Frame, Head
from soloflight.flow.listen import Listener
from soloflight.ports import Role
from soloflight.web.forms import Forms
from soloflight.web.wire import Client, Framing

CLIENT = Client("POST", http11=True, keep_alive=True)
OLD, NEW = Head(200, b"OK", ((b"X-A", b"old"),)), Head(201, b"OK", ((b"X-A", b"new"),))
CHUNKED = Framing(chunked=True)


def test_an_opening_is_made_once_and_anew_for_another_attempts_head() -> None:
    forms, listener = Forms(), Listener(flight_id="f")
    first = forms.opening(OLD, CLIENT, Role.FOLLOWER, None, listener)
    assert forms.opening(OLD, CLIENT, Role.FOLLOWER, None, listener) is first
    second = forms.opening(NEW, CLIENT, Role.FOLLOWER, None, listener)
    assert (b"X-A: old" in first.before, b"X-A: new" in second.before) == (True, True)
    assert second.before.startswith(b"HTTP/1.1 201 ")
    for client, role in ((Client("POST", http11=False, keep_alive=True), Role.FOLLOWER), (CLIENT, Role.OWNER)):
        other = forms.opening(NEW, client, role, None, listener)
        assert (other.before, other.frame) != (second.before, second.frame)


def test_a_run_of_frames_is_coded_once_and_anew_for_any_other() -> None:
    forms = Forms()
    frames: list[Frame] = [Body(b"ab"), Body(b"c"), End()]
    coded = forms.coded(frames, CHUNKED)
    assert (coded.data, coded.size, coded.tail, coded.ends) == (b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n", 3, b"abc", True)
    assert forms.coded(list(frames), CHUNKED) is coded
    for other, frame, data in (
        (frames[:2], CHUNKED, b"2\r\nab\r\n1\r\nc\r\n"),
        (frames[1:], CHUNKED, b"1\r\nc\r\n0\r\n\r\n"),
        ([Body(b"ab"), *frames[1:]], CHUNKED, coded.data),
        (frames, Framing(length=3), b"abc"),
    ):
        assert forms.coded(other, frame).data == data
        assert forms.coded(other, frame).first is other[0]
