"""multipart/form-data: divided only where every reader divides alike; each part by its fields and content."""

from __future__ import annotations

import tracemalloc
from email import message_from_bytes
from email.message import Message
from email.policy import HTTP
from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bodies.forms import Written, field, file, form
from soloflight.core.media_type import read_media_type
from soloflight.core.multipart import (
    MAX_FIELD_BLOCK,
    MAX_PART_FIELDS,
    MAX_PARTS,
    MAX_TEXT,
    Form,
    read_form,
)

BOUNDARIES = st.from_regex(
    r"[0-9A-Za-z'()+_,\-./:=? ]{0,69}[0-9A-Za-z'()+_,\-./:=?]", fullmatch=True, alphabet="'()+_,-./:=? 09AZaz"
)
LINES = st.lists(
    st.sampled_from([b"X-Odd: 1", b'Content-Disposition: form-data; name="a"', b"content-type:  text/x ", b"A:"]),
    max_size=3,
)


def read(boundary: bytes, body: bytes) -> Form:
    found = read_form(boundary, body)
    assert found is not None
    return found


def test_a_transcription_as_an_sdk_sends_it() -> None:
    audio = bytes(range(256)) * 40
    got = read(
        b"b1", form(b"b1", field("model", "whisper-1"), file("file", "audio.wav", audio), field("language", "de"))
    )
    model, upload, language = got.parts
    assert (model.name, model.filename, model.text, model.content_type) == ("model", None, "whisper-1", None)
    assert (upload.name, upload.filename, upload.text) == ("file", "audio.wav", None)
    assert (upload.digest, upload.size, upload.content_type) == (sha256(audio).digest(), 10240, b"audio/wav")
    assert got.values() == {"model": "whisper-1", "language": "de"}
    assert (got.preamble, got.epilogue) == (b"", b"")
    assert language.text == "de"


@given(BOUNDARIES, st.lists(st.tuples(LINES, st.binary(max_size=200)), max_size=5))
@settings(max_examples=500)
def test_what_was_put_in_comes_out(boundary: str, parts: list[Written]) -> None:
    body = form(boundary.encode(), *parts)
    if body.count(b"--" + boundary.encode()) != len(parts) + 1:  # a content holds the boundary by chance
        return
    got = read(boundary.encode(), body)
    assert [(part.digest, part.size) for part in got.parts] == [(sha256(c).digest(), len(c)) for _, c in parts]
    wanted = [[line.partition(b":")[0].lower() for line in lines] for lines, _ in parts]
    assert [[name for name, _ in part.fields] for part in got.parts] == wanted


@given(st.lists(st.tuples(LINES, st.text("ab\r\n-:", max_size=12).map(str.encode)), min_size=1, max_size=3))
@settings(max_examples=500)
def test_the_standard_library_divides_alike(parts: list[Written]) -> None:
    body = form(b"XX", *parts)
    message = message_from_bytes(b'Content-Type: multipart/form-data; boundary="XX"\r\n\r\n' + body, policy=HTTP)
    payload = message.get_payload()
    assert isinstance(payload, list)
    theirs = [part.get_payload() for part in payload if isinstance(part, Message)]
    ours = read(b"XX", body).parts
    assert [part.text for part in ours] == [content.decode() for _, content in parts]
    assert len(ours) == len(theirs)
    # It reads a line break as text; what it cuts a part at is what we compare.
    assert [part.size for part in ours] == [len(str(text).encode()) for text in theirs]


@given(st.binary(max_size=80), st.integers(0, 500))
@settings(max_examples=500)
def test_no_debris_raises(debris: bytes, place: int) -> None:
    body = form(b"b", field("model", "m"), file("file", "f", b"x\r\n--\r\ny"))
    at = place % (len(body) + 1)
    read_form(b"b", body[:at] + debris + body[at:])
    read_form(b"b", body[:at])
    read_form(b"b", debris)


def test_every_cut_of_a_body_is_malformed() -> None:
    body = form(b"b", field("model", "m"), file("file", "f", b"abc"), epilogue=b"")
    whole = [cut for cut in range(len(body)) if read_form(b"b", body[:cut]) is not None]
    assert whole == []


@pytest.mark.parametrize(
    ("boundary", "body"),
    [
        (b"", b"----\r\n"),
        (b"b" * 71, form(b"b" * 71)),
        (b"b ", form(b"b ")),
        (b'b"c', form(b'b"c')),
        (b"b\r\n", form(b"b\r\n")),
        (b"b", b""),
        (b"b", b"--b"),
        (b"b", b"x--b--"),
        (b"b", b"xx--b--\r\n"),
        (b"b", b"--b\n\r\nx\r\n--b--"),
        (b"b", b"--b\r\n\r\nx\n--b--"),
        (b"b", b"--b\r\nA: 1\r\nx\r\n--b--"),
        (b"b", b"--b\r\n A: 1\r\n\r\nx\r\n--b--"),
        (b"b", b"--b\r\nA: 1\r\n folded\r\n\r\nx\r\n--b--"),
        (b"b", b"--b\r\nA : 1\r\n\r\nx\r\n--b--"),
        (b"b", b"--b\r\nA: 1\n\r\n\r\nx\r\n--b--"),
        (b"b", b"--b\r\nA: \0\r\n\r\nx\r\n--b--"),
        (b"b", b"--b\r\nA: 1\r\n\r\n--b--"),
        (b"b", b"--b\r\n\r\n--b--"),
        (b"b", b"--b\r\n\r\nx\r\n--b-- junk\r\n"),
        (b"b", b"--b--\r\n--b--\r\n"),
        (b"b", b"--b--\r\ntext\r\n--b\r\n\r\nx\r\n--b--"),
        (b"b", b"--b\r\n\r\nx\r\n--bb\r\ny\r\n--b--"),
        (b"b", b"--b\r\n\r\nx --b y\r\n--b--"),
        (b"b", b"--b\r\n\r\nx\r\n---b\r\n--b--"),
        (b"b", b"--bb\r\n\r\nx\r\n--bb--"),
    ],
)
def test_what_could_be_divided_in_two_ways_is_refused(boundary: bytes, body: bytes) -> None:
    assert read_form(boundary, body) is None


def test_lines_that_look_like_another_boundary_are_content() -> None:
    content = b"\r\n--other\r\nA: 1\r\n\r\nx\r\n--other--\r\n--\r\n--a"
    assert read(b"b", form(b"b", field("x", content))).parts[0].digest == sha256(content).digest()


def test_preamble_epilogue_and_padding() -> None:
    plain = form(b"b", field("x", "1"), epilogue=b"")
    for body, preamble, epilogue in [
        (plain, b"", b""),
        (plain + b"\r\n", b"", b""),
        (plain + b" \t", b"", b""),
        (plain + b" \r\nafter\r\n", b"", b"after\r\n"),
        (b"\r\n" + plain, b"\r\n", b""),
        (b"before\r\n" + plain, b"before\r\n", b""),
        (plain.replace(b"--b\r\n", b"--b \t\r\n", 1), b"", b""),
    ]:
        got = read(b"b", body)
        assert (got.parts, got.preamble, got.epilogue) == (read(b"b", plain).parts, preamble, epilogue)


def test_no_parts_and_no_fields() -> None:
    assert read(b"b", b"--b--\r\n") == Form(())
    part = read(b"b", b"--b\r\n\r\n\r\n--b--\r\n").parts[0]
    assert (part.fields, part.size, part.text, part.name) == ((), 0, "", None)


def test_bounds_are_exact() -> None:
    one = field("x", "1")
    assert len(read(b"b", form(b"b", *[one] * MAX_PARTS)).parts) == MAX_PARTS
    assert read_form(b"b", form(b"b", *[one] * (MAX_PARTS + 1))) is None
    lines = [b"X-%d: 1" % n for n in range(MAX_PART_FIELDS)]
    assert len(read(b"b", form(b"b", (lines, b""))).parts[0].fields) == MAX_PART_FIELDS
    assert read_form(b"b", form(b"b", ([*lines, b"X: 1"], b""))) is None
    longest = b"X: " + b"x" * (MAX_FIELD_BLOCK - len("X: \r\n\r\n"))
    assert read(b"b", form(b"b", ([longest], b"y"))).parts[0].size == 1
    assert read_form(b"b", form(b"b", ([longest + b"x"], b"y"))) is None
    assert read(b"b", form(b"b", field("x", b"x" * MAX_TEXT))).parts[0].text == "x" * MAX_TEXT
    assert read(b"b", form(b"b", field("x", b"x" * (MAX_TEXT + 1)))).parts[0].text is None


@pytest.mark.parametrize(
    ("disposition", "name", "filename", "has_text"),
    [
        (b'form-data; name="a"', "a", None, True),
        (b"form-data; name=a", "a", None, True),
        (b'form-data; NAME="a"; Filename="f"', "a", "f", False),
        (b'form-data; name="a"; filename=""', "a", "", False),
        ('form-data; name="é"; filename="ü"'.encode(), "é", "ü", False),
        (b"form-data; name=\"a\"; filename*=UTF-8''f", "a", None, False),
        (b'form-data; name="a"; name="b"', None, None, True),
        (b'form-data; name="a\\"b"', None, None, True),
        (b'form-data; name="a', None, None, True),
        (b'form-data; name="\xff"', None, None, True),
        (b"form-data", None, None, True),
    ],
)
def test_names_are_read_where_there_is_one_reading(
    disposition: bytes, name: str | None, filename: str | None, has_text: bool
) -> None:
    part = read(b"b", form(b"b", ([b"Content-Disposition: " + disposition], b"text"))).parts[0]
    assert (part.name, part.filename, part.text) == (name, filename, "text" if has_text else None)


def test_values_leave_out_what_is_doubtful() -> None:
    twice = [b'Content-Disposition: form-data; name="z"'] * 2
    got = read(
        b"b",
        form(
            b"b",
            field("model", "m"),
            field("twice", "1"),
            field("twice", "2"),
            field("bytes", b"\xff"),
            file("file", "f", b"1"),
            (twice, b"1"),
            ([], b"nameless"),
        ),
    )
    assert got.values() == {"model": "m"}


def test_a_large_upload_is_not_copied() -> None:
    body = form(b"b", field("model", "m"), file("file", "f", b"\r\n--" * (4 << 20)))
    tracemalloc.start()
    try:
        read(b"b", body)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("value", "boundary"),
    [
        (b"multipart/form-data; boundary=abc", b"abc"),
        (b'Multipart/Form-Data;boundary="a b(c):?=/,\'"', b"a b(c):?=/,'"),
        (b"multipart/form-data; charset=utf-8; BOUNDARY=----=_Part:1/2?x;", b"----=_Part:1/2?x"),
        (b'multipart/form-data; x="; boundary=no"; boundary=yes', b"yes"),
        (b'multipart/form-data; x="\\"; boundary=no"; boundary=yes ', b"yes"),
        (b"multipart/form-data; boundary=a; boundary=b", None),
        (b'multipart/form-data; boundary="a\\b"', None),
        (b"multipart/form-data", None),
    ],
)
def test_the_boundary_parameter(value: bytes, boundary: bytes | None) -> None:
    media_type = read_media_type(value)
    assert media_type is not None
    assert media_type.essence == b"multipart/form-data"
    assert media_type.get(b"boundary") == boundary


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"json",
        b"a/b, a/b",
        b"a/b; x",
        b"a/b; x=",
        b'a/b; x="y',
        b"a/b x=y",
        b"a/b; =y",
        b"a/b; x =y",
        b"a/b; x=y,z",
    ],
)
def test_a_content_type_off_the_grammar_is_none(value: bytes) -> None:
    assert read_media_type(value) is None


@pytest.mark.parametrize(
    ("value", "is_json"),
    [
        (b"application/json", True),
        (b" Application/JSON ; charset=UTF-8", True),
        (b'application/json; charset="utf8"; x=1', True),
        (b"application/vnd.api+json", True),
        (b"application/json;", True),
        (b"application/json; charset=latin-1", False),
        (b"application/json; charset=utf-16", False),
        (b"application/json; charset=utf-8; charset=utf-16", False),
        (b"text/json5", False),
        (b"text/plain", False),
    ],
)
def test_json_types_are_those_in_utf_8(value: bytes, is_json: bool) -> None:
    media_type = read_media_type(value)
    assert media_type is not None
    assert media_type.is_json is is_json


def test_a_type_without_its_boundary_keeps_the_rest() -> None:
    media_type = read_media_type(b'Multipart/form-data; A="x"; boundary=b; c=D')
    assert media_type is not None
    assert media_type.without(b"boundary") == (b"multipart/form-data", b"a", b'"x"', b"c", b"D")
