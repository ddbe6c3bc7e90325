"""Bytes of answers: how a body is framed for each client, what the proxy adds, and how its own errors look."""

from __future__ import annotations

import json
import re
import time
from email.utils import parsedate_to_datetime

import pytest

from harness.wire import Response, ResponseParser
from soloflight.core.errors import Code, Fault
from soloflight.core.frames import Field, Head, Recording
from soloflight.flow.shelf import Replay
from soloflight.ports import Role
from soloflight.web.prepared import CODED_COPY_LIMIT, Prepared, prepared
from soloflight.web.wire import (
    Client,
    Framing,
    Marks,
    between_events,
    error_answer,
    framing,
    head_bytes,
    http_date,
    is_event_stream,
    marked,
)

TYPE = (b"Content-Type", b"text/plain")
DATE = (b"Date", b"Sat, 26 Sep 2026 10:00:00 GMT")


def head(how: str, status: int = 200, *fields: Field) -> Head:
    """A head whose body was framed by length (5), by chunks, or by the close."""
    length = 5 if how == "length" else None
    framed: tuple[Field, ...] = ((b"Content-Length", b"5"),) if length else ()
    return Head(status, b"Some Reason", (TYPE, DATE, *framed, *fields), length, delimited=how != "close")


def client(method: str = "GET", version: str = "1.1", *, keep: bool = True) -> Client:
    return Client(method, version == "1.1", keep)


def written(of: Head, to: Client, *body: bytes, whole: bool) -> tuple[Response, bytes]:
    """The answer as a client reads it by its framing alone, and what it has left over."""
    frame = framing(of, to, known_size=sum(map(len, body)) if whole else None)
    data = head_bytes(of, of.fields, frame, to, [])
    if not frame.empty:
        data += b"".join(map(frame.body, body)) + frame.end()
    parser = ResponseParser(to.method).feed(data)
    parser.end("fin")
    return parser.response, parser.rest


# ── framing ─────────────────────────────────────────────────────────────────────────────────────────────────────────

# (upstream's framing, client's version, is the body there already) -> framing written. RFC 9112 section 6.3.
TABLE = {
    ("length", "1.1", False): "length",
    ("length", "1.1", True): "length",
    ("length", "1.0", False): "length",
    ("length", "1.0", True): "length",
    ("chunked", "1.1", False): "chunked",
    ("chunked", "1.1", True): "chunked",
    ("chunked", "1.0", False): "close",
    ("chunked", "1.0", True): "length",
    ("close", "1.1", False): "close",
    ("close", "1.1", True): "length",
    ("close", "1.0", False): "close",
    ("close", "1.0", True): "length",
}


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("status", [200, 404, 503])
@pytest.mark.parametrize(("how", "version", "whole"), TABLE)
def test_a_body_is_framed_by_what_the_client_can_read(
    how: str, version: str, whole: bool, status: int, method: str
) -> None:
    expected = TABLE[how, version, whole]
    response, rest = written(head(how, status), client(method, version), b"hel", b"lo", whole=whole)
    assert (response.framing, bytes(response.kept), rest) == (expected, b"hello", b"")
    assert response.ended == ("fin" if expected == "close" else "complete")
    assert response.all("Content-Length") == (["5"] if expected == "length" else [])
    assert response.all("Transfer-Encoding") == (["chunked"] if expected == "chunked" else [])
    if expected == "chunked":
        assert response.chunks == [b"hel", b"lo"]


@pytest.mark.parametrize(
    ("method", "status", "length"),
    [("HEAD", 200, ["5"]), ("HEAD", 404, ["5"]), ("GET", 304, ["5"]), ("GET", 204, []), ("HEAD", 204, [])],
)
@pytest.mark.parametrize("version", ["1.1", "1.0"])
@pytest.mark.parametrize("how", ["length", "chunked", "close"])
def test_what_has_no_body_gets_none(how: str, version: str, method: str, status: int, length: list[str]) -> None:
    for whole in (True, False):
        response, rest = written(head(how, status), client(method, version), whole=whole)
        assert (response.framing, response.ended, rest) == ("none", "complete", b"")
        assert response.all("Content-Length") == (length if how == "length" else [])
        assert response.all("Transfer-Encoding") == []


@pytest.mark.parametrize("how", ["chunked", "close"])
@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_an_empty_body_that_is_known_is_an_end_of_its_own(how: str, version: str) -> None:
    response, rest = written(head(how), client(version=version), whole=True)
    assert (response.ended, bytes(response.kept), rest) == ("complete", b"", b"")


@pytest.mark.parametrize(
    ("version", "keep", "how", "connection"),
    [
        ("1.1", True, "length", []),
        ("1.1", True, "chunked", []),
        ("1.1", True, "close", ["close"]),
        ("1.1", False, "length", ["close"]),
        ("1.0", True, "length", ["keep-alive"]),
        ("1.0", True, "chunked", ["close"]),
        ("1.0", False, "length", ["close"]),
    ],
)
def test_connection_says_whether_it_can_be_used_again(
    version: str, keep: bool, how: str, connection: list[str]
) -> None:
    response, _ = written(head(how), client("GET", version, keep=keep), b"hello", whole=False)
    assert response.all("Connection") == connection


def test_status_reason_and_fields_are_passed_on_byte_for_byte() -> None:
    odd = ((b"x-a", b"1"), (b"X-A", b"\xfc"), (b"X-Empty", b""))
    response, _ = written(Head(299, b"Sehr \xfc", odd, 5), client(), b"hello", whole=False)
    assert response.raw_head.startswith(b"HTTP/1.1 299 Sehr \xfc\r\nx-a: 1\r\nX-A: \xfc\r\nX-Empty: \r\n")


def test_a_frame_that_only_the_close_ends_has_no_end_of_its_own() -> None:
    assert Framing().until_close
    assert Framing().end() == b""
    assert not Framing(empty=True).until_close
    assert not Framing(length=0).until_close
    assert Framing(chunked=True).body(b"x" * 255) == b"ff\r\n" + b"x" * 255 + b"\r\n"


# ── what the proxy adds ─────────────────────────────────────────────────────────────────────────────────────────────


def fields_for(of: Head, marks: Marks) -> dict[str, list[bytes]]:
    kept, own = marked(of, marks)
    found: dict[str, list[bytes]] = {}
    for name, value in [*kept, *own]:
        found.setdefault(name.decode("latin-1").lower(), []).append(value)
    return found


@pytest.mark.parametrize(
    ("marks", "status"),
    [
        (Marks(Role.OWNER, "id"), b"soloflight; fwd=miss"),
        (Marks(Role.OWNER, "id", refresh=True), b"soloflight; fwd=request"),
        (Marks(Role.FOLLOWER, "id"), b"soloflight; fwd=miss; collapsed"),
        (Marks(Role.REPLAY, "id", ttl_s=7.9), b"soloflight; hit; ttl=7"),
        (Marks(Role.BYPASS, "id", reason="method"), b"soloflight; fwd=method"),
        (Marks(Role.BYPASS, "id", reason="no-store"), b"soloflight; fwd=bypass; detail=no-store"),
    ],
)
def test_cache_status_tells_what_happened_and_is_appended_to_the_upstreams(marks: Marks, status: bytes) -> None:
    assert fields_for(head("length"), marks)["cache-status"] == [status]
    upstreams = head("length", 200, (b"CACHE-STATUS", b"cdn; hit"))
    assert fields_for(upstreams, marks)["cache-status"] == [b"cdn; hit, " + status]


def test_every_role_says_who_it_is() -> None:
    for role in (Role.OWNER, Role.FOLLOWER, Role.REPLAY, Role.BYPASS):
        found = fields_for(head("length"), Marks(role, "id-1", "flight-1", age_s=3.9))
        assert found["x-soloflight-role"] == [role.value.encode()]
        assert found["x-soloflight-request-id"] == [b"id-1"]
        assert found["x-soloflight-flight"] == [b"flight-1"]
        assert found.get("age") == ([b"3"] if role is Role.REPLAY else None)
    assert "x-soloflight-flight" not in fields_for(head("length"), Marks(Role.BYPASS, "id-1"))


def test_an_upstream_can_not_speak_for_the_proxy() -> None:
    lying = head("length", 200, (b"X-Soloflight-Role", b"owner"), (b"x-soloflight-Else", b"1"), (b"Age", b"9"))
    found = fields_for(lying, Marks(Role.REPLAY, "id", age_s=1))
    assert (found["x-soloflight-role"], found.get("x-soloflight-else"), found["age"]) == ([b"replay"], None, [b"1"])
    assert fields_for(lying, Marks(Role.OWNER, "id"))["age"] == [b"9"]


@pytest.mark.parametrize("value", [b"text/event-stream", b"Text/Event-Stream; charset=utf-8", b" text/event-stream "])
def test_event_streams_ask_proxies_in_front_not_to_buffer(value: bytes) -> None:
    streamed = Head(200, b"OK", ((b"content-type", value), (b"X-Accel-Buffering", b"yes")))
    assert is_event_stream(streamed)
    assert fields_for(streamed, Marks(Role.OWNER, "id"))["x-accel-buffering"] == [b"no"]
    assert fields_for(streamed, Marks(Role.BYPASS, "id"))["x-accel-buffering"] == [b"yes"]
    assert "x-accel-buffering" not in fields_for(head("length"), Marks(Role.OWNER, "id"))
    assert not is_event_stream(Head(200, b"OK", ()))


def test_a_date_of_the_upstreams_is_kept_whoever_gets_it() -> None:
    for role in (Role.OWNER, Role.FOLLOWER, Role.REPLAY, Role.BYPASS):
        assert fields_for(head("length"), Marks(role, "id", age_s=60))["date"] == [DATE[1]]


def test_an_answer_without_a_date_gets_the_one_it_came_at() -> None:
    undated = Head(200, b"OK", (TYPE,), 5)
    for role, age_s in ((Role.OWNER, 0.0), (Role.BYPASS, 0.0), (Role.REPLAY, 3600.0)):
        [value] = fields_for(undated, Marks(role, "id", age_s=age_s))["date"]
        came = parsedate_to_datetime(value.decode()).timestamp()
        assert abs(came - (time.time() - age_s)) < 2


def test_a_date_is_an_imf_fixdate_of_its_second() -> None:
    assert http_date(784111777.999) == b"Sun, 06 Nov 1994 08:49:37 GMT"
    assert http_date(784111778.0) == b"Sun, 06 Nov 1994 08:49:38 GMT"


# ── the form that is held ready ─────────────────────────────────────────────────────────────────────────────────────


def replay_of(of: Head, *body: bytes, age_s: float = 0.0) -> Replay:
    now = time.monotonic()
    return Replay(Recording(of, body, sum(map(len, body))), "flight-1", 1, now - age_s, now + 100, now + 100)


STREAM = Head(200, b"OK", ((b"content-type", b"text/event-stream"), (b"Cache-Status", b"cdn; hit"), (b"Age", b"9")))


def undated(response: Response) -> list[Field]:
    """Its fields but for the Date, which a second may part."""
    return sorted(field for field in response.fields if field[0] != b"Date")


@pytest.mark.parametrize("of", [head("length"), head("chunked"), head("close"), STREAM, head("length", 204)])
def test_the_prepared_answer_is_the_one_that_is_written_field_by_field(of: Head) -> None:
    body = () if of.status == 204 else (b"hel", b"lo")
    replay = replay_of(of, *body, age_s=12.0)
    data = Prepared(replay).whole("id-1", 12.5, 80.9)
    assert data is not None
    prepared_one = ResponseParser("POST").feed(data)
    to = Client("POST", http11=True, keep_alive=True)
    frame = framing(of, to, known_size=5)
    fields, own = marked(of, Marks(Role.REPLAY, "id-1", "flight-1", age_s=12.5, ttl_s=80.9))
    plain = ResponseParser("POST").feed(
        head_bytes(of, fields, frame, to, own) + b"".join(map(frame.body, body)) + frame.end()
    )
    assert undated(prepared_one.response) == undated(plain.response)
    came, expected = (parsedate_to_datetime(one.response.get("Date") or "") for one in (prepared_one, plain))
    assert abs((came - expected).total_seconds()) <= 1
    assert prepared_one.response.status_line == plain.response.status_line
    assert prepared_one.response.raw_body == plain.response.raw_body
    assert (prepared_one.rest, prepared_one.response.ended) == (b"", "complete")


def test_a_large_body_is_not_held_twice() -> None:
    form = Prepared(replay_of(head("chunked"), b"x" * (CODED_COPY_LIMIT + 1)))
    assert form.whole("id", 0, 0) is None
    assert form.head("id", 0, 0).endswith(b"\r\n\r\n")
    assert Prepared(replay_of(head("chunked"), b"x" * CODED_COPY_LIMIT)).whole("id", 0, 0) is not None


def test_the_form_is_made_once() -> None:
    replay = replay_of(head("length", 200, (b"x-request-id", b"up-1")), b"hello")
    assert prepared(replay) is prepared(replay)
    assert (prepared(replay).upstream_id, repr(prepared(replay))) == ("up-1", "Prepared(5 bytes)")


# ── errors ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("code", Code)
def test_an_error_is_what_sdks_understand(code: Code) -> None:
    data = error_answer(Fault(code, "why – “so”"), "id-1", keep_alive=True, flight="f-1")
    parser = ResponseParser("POST").feed(data)
    response = parser.response
    assert (response.status, response.ended, parser.rest) == (code.status, "complete", b"")
    assert json.loads(response.kept) == {
        "error": {"message": "why – “so”", "type": "soloflight_error", "code": code.code, "param": None}
    }
    assert response.get("Content-Type") == "application/json"
    assert response.get("Cache-Control") == "no-store"
    assert (response.get("X-Soloflight-Request-Id"), response.get("X-Soloflight-Flight")) == ("id-1", "f-1")
    # RFC 9209: the error type is a token, details are a string.
    assert re.fullmatch(r'soloflight; error=[a-z_]+; details="[a-z_]+"', response.get("Proxy-Status") or "")
    assert response.get("x-should-retry") == {True: "true", False: "false", None: None}[code.should_retry]
    assert response.get("Retry-After") == ("1" if code.status == 503 else None)
    assert abs(parsedate_to_datetime(response.get("Date") or "").timestamp() - time.time()) < 2
    assert response.get("Connection") is None


def test_an_error_says_when_to_come_again_and_when_the_connection_closes() -> None:
    data = error_answer(Fault(Code.SESSION_BUSY, "x", 0), "", keep_alive=False)
    response = ResponseParser().feed(data).response
    assert (response.get("Retry-After"), response.get("Connection")) == ("0", "close")
    assert response.get("X-Soloflight-Request-Id") is None
    assert (
        ResponseParser()
        .feed(error_answer(Fault(Code.SATURATED, "x", 9), "", keep_alive=True))
        .response.get("Retry-After")
        == "9"
    )


def test_an_error_for_a_head_request_has_no_body_but_its_length() -> None:
    data = error_answer(Fault(Code.BAD_REQUEST, "x"), "id", keep_alive=True, empty=True)
    assert data.endswith(b"\r\n\r\n")
    parser = ResponseParser("HEAD").feed(data)
    assert (parser.rest, int(parser.response.get("Content-Length") or 0) > 0) == (b"", True)


@pytest.mark.parametrize(
    ("tail", "between"),
    [
        (b"data: x\n\n", True),
        (b"data: x\r\n\r\n", True),
        (b"data: x\r\r", True),
        (b"data: x\n\r\n", True),
        (b"data: x\r\n\n", True),
        (b"data: x\n\r", True),
        (b"data: x\r\r\n", True),
        (b"data: x\n", False),
        (b"data: x\r\n", False),
        (b"data: x", False),
        (b"data: x\n\ndata", False),
        (b"", False),
    ],
)
def test_where_an_event_stream_stands_between_two_events(tail: bytes, between: bool) -> None:
    assert between_events(tail) is between
