"""Answers that are no event streams: JSON documents, text, audio, errors."""

from collections.abc import Iterable
from sys import getrefcount

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soloflight.core.answer import Facts, Judge, Reason, Usage, Verdict
from soloflight.core.frames import Head
from soloflight.core.stage import Stage
from soloflight_openai import Rules

CHAT = "/v1/chat/completions"
JSON = b"application/json"

COMPLETION = (
    b'{"id":"c1","object":"chat.completion","choices":[{"index":0,"message":{"content":"x"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":2,"completion_tokens":1,"total_tokens":3}}'
)
STREAM = b'data: {"choices":[{"index":0,"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


def judge_of(
    kind: bytes | None = JSON,
    *,
    path: str = CHAT,
    status: int = 200,
    stream: bool = False,
    delimited: bool = True,
    keep_incomplete: bool = False,
    max_recording: int = 32 << 20,
    fields: tuple[tuple[bytes, bytes], ...] = (),
) -> Judge:
    typed = () if kind is None else ((b"Content-Type", kind),)
    head = Head(status, b"", typed + fields, delimited=delimited)
    rules = Rules(Stage(max_recording=max_recording))
    return rules.judge(path, Facts(stream=stream), head, keep_incomplete=keep_incomplete)


def run(judge: Judge, pieces: Iterable[bytes], *, transport_whole: bool = True) -> Verdict:
    for piece in pieces:
        assert judge.feed(piece) == len(piece)
    assert (judge.complete, judge.ended) == (False, False)
    return judge.end(transport_whole=transport_whole)


@pytest.mark.parametrize(
    ("body", "kept", "whole"),
    [
        (COMPLETION, None, True),
        (b' \n{"object":"list","data":[]}\n', None, True),
        (b"[]", None, True),
        (b"7", None, True),
        (b'{"error":null}', None, True),
        (b'{"id":"r1","status":"completed","error":null,"incomplete_details":null}', None, True),
        (b'{"status":200}', None, True),
        (b'{"choices":[{"finish_reason":null}]}', None, True),
        (b'{"choices":[null,7,{"finish_reason":["length"]}]}', None, True),
        (b'{"choices":"length"}', None, True),
        (b'{"stop_reason":"end_turn"}', None, True),
        (b"", Reason.INCOMPLETE, False),
        (b" ", Reason.INCOMPLETE, False),
        (COMPLETION[:-1], Reason.INCOMPLETE, False),
        (COMPLETION + b"}", Reason.INCOMPLETE, False),
        (b'{"a":NaN}', Reason.INCOMPLETE, False),
        (b'{"a":"\xff"}', Reason.INCOMPLETE, False),
        (b"[" * 100_000, Reason.INCOMPLETE, False),
        (b'{"error":{"message":"boom"}}', Reason.ERROR, True),
        (b'{"error":"boom"}', Reason.ERROR, True),
        (b'{"type":"error","error":{"type":"overloaded_error"}}', Reason.ERROR, True),
        (b'{"object":"error","message":"boom"}', Reason.ERROR, True),
        (b'{"status":"failed","error":null}', Reason.ERROR, True),
        (b'{"choices":[{"finish_reason":"error"}]}', Reason.ERROR, True),
        (b'{"status":"queued"}', Reason.PENDING, True),
        (b'{"status":"in_progress"}', Reason.PENDING, True),
        (b'{"status":"cancelled"}', Reason.INCOMPLETE, True),
        (b'{"status":"incomplete"}', Reason.LENGTH, True),
        (b'{"choices":[{"finish_reason":"stop"},{"finish_reason":"length"}]}', Reason.LENGTH, True),
        (b'{"type":"message","stop_reason":"max_tokens"}', Reason.LENGTH, True),
    ],
)
@pytest.mark.parametrize("kind", [JSON, b"application/json; charset=utf-8", b"application/problem+json", b"Text/JSON"])
def test_json(kind: bytes, body: bytes, kept: Reason | None, whole: bool) -> None:
    for pieces in ([body], [body[:3], body[3:]]):
        verdict = run(judge_of(kind), pieces)
        assert (verdict.kept, verdict.whole) == (kept, whole)


@pytest.mark.parametrize(
    "body", [b'{"status":"incomplete"}', b'{"choices":[{"finish_reason":"length"}]}', b'{"stop_reason":"max_tokens"}']
)
def test_keep_incomplete(body: bytes) -> None:
    assert run(judge_of(keep_incomplete=True), [body]).kept is None


@pytest.mark.parametrize(
    ("body", "usage"),
    [
        (COMPLETION, Usage(2, 1)),
        (b'{"object":"list","data":[],"usage":{"prompt_tokens":8,"total_tokens":8}}', Usage(8, 0)),
        (b'{"usage":{"input_tokens":3,"cache_read_input_tokens":4,"output_tokens":5}}', Usage(7, 5)),
        (b'{"usage":{"prompt_tokens":true,"completion_tokens":-1}}', Usage()),
        (b'{"usage":{"prompt_tokens":"9","completion_tokens":1.5}}', Usage()),
        (b'{"usage":null}', Usage()),
        (b'{"usage":7}', Usage()),
        (b"[]", Usage()),
    ],
)
def test_usage(body: bytes, usage: Usage) -> None:
    assert run(judge_of(), [body]).usage == usage


def test_a_stream_that_was_asked_for_and_answered_with_json_is_judged_as_json() -> None:
    assert run(judge_of(stream=True), [COMPLETION]) == Verdict(None, True, Usage(2, 1))


@pytest.mark.parametrize(
    ("body", "kept", "whole"),
    [
        (COMPLETION, None, True),
        (COMPLETION[:-1], Reason.INCOMPLETE, False),
        (b"", Reason.INCOMPLETE, False),
        (b"12", Reason.UNDELIMITED, None),  # of 123, perhaps
    ],
)
def test_json_ended_by_the_close_only_is_whole_by_itself(body: bytes, kept: Reason | None, whole: bool | None) -> None:
    verdict = run(judge_of(delimited=False), [body], transport_whole=False)
    assert (verdict.kept, verdict.whole) == (kept, whole)


def test_json_shorter_than_declared_is_truncated_even_if_it_can_be_read() -> None:
    assert run(judge_of(), [COMPLETION], transport_whole=False) == Verdict(Reason.TRUNCATED)


def test_a_document_over_max_recording_is_not_held() -> None:
    judge = judge_of(max_recording=100)
    piece = bytes(bytearray(60))
    ours = getrefcount(piece)
    judge.feed(piece)
    assert getrefcount(piece) == ours + 1  # a reference, no copy
    judge.feed(piece)
    assert getrefcount(piece) == ours
    assert judge.feed(piece) == len(piece)
    assert getrefcount(piece) == ours
    assert judge.end(transport_whole=True) == Verdict(Reason.TOO_LARGE)


@pytest.mark.parametrize("kind", [b"audio/mpeg", b"application/zip", b"application/x-ndjson", b"image/png"])
@pytest.mark.parametrize("body", [b"\x00\xff" * 10, b"", b'{"error":"not read"}'])
def test_other_types_are_whole_by_length_or_chunks_only(kind: bytes, body: bytes) -> None:
    assert run(judge_of(kind), [body]) == Verdict(None)
    assert run(judge_of(kind, delimited=False), [body], transport_whole=False) == Verdict(Reason.UNDELIMITED)
    assert run(judge_of(kind), [body], transport_whole=False) == Verdict(Reason.TRUNCATED)


TEXTS = [b"text/plain", b"text/plain; charset=utf-8", b"text/vtt", b"application/octet-stream", None]


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("body", [b"1\n00:00:00,000 --> 00:00:01,000\nHi\n", b'[music] {"', b"{braces}", b"data: x"])
def test_text_is_whole_by_length_or_chunks_only(kind: bytes | None, body: bytes) -> None:
    assert run(judge_of(kind), [body]) == Verdict(None)
    assert run(judge_of(kind, delimited=False), [body], transport_whole=False) == Verdict(Reason.UNDELIMITED)
    assert run(judge_of(kind), [body], transport_whole=False) == Verdict(Reason.TRUNCATED)


@pytest.mark.parametrize("kind", TEXTS)
def test_json_under_another_name_is_judged_as_json(kind: bytes | None) -> None:
    assert run(judge_of(kind), [b'{"error":{"message":"boom"}}']) == Verdict(Reason.ERROR, True)
    assert run(judge_of(kind, delimited=False), [COMPLETION], transport_whole=False).kept is None
    assert run(judge_of(kind), [COMPLETION], transport_whole=False).kept is Reason.TRUNCATED


@pytest.mark.parametrize("kind", [JSON, *TEXTS])
def test_a_stream_under_another_name_is_judged_as_a_stream_if_one_was_asked_for(kind: bytes | None) -> None:
    cut = STREAM.partition(b"\n\n")[0] + b"\n\n"
    assert run(judge_of(kind, stream=True), [STREAM[:9], STREAM[9:]]) == Verdict(None, True)
    assert run(judge_of(kind, stream=True), [cut]) == Verdict(Reason.INCOMPLETE, False)
    assert run(judge_of(kind), [cut]) == (Verdict(Reason.INCOMPLETE, False) if kind == JSON else Verdict(None))


def test_an_empty_text_is_an_answer_and_an_empty_nothing_is_none() -> None:
    assert run(judge_of(b"text/plain"), []) == Verdict(None)
    assert run(judge_of(None), []) == Verdict(Reason.INCOMPLETE)
    assert run(judge_of(None, status=204), []) == Verdict(Reason.INCOMPLETE)


@pytest.mark.parametrize("status", [199, 206, 300, 304, 400, 401, 404, 429, 500, 503])
@pytest.mark.parametrize("kind", [JSON, b"text/event-stream", b"audio/mpeg", None])
def test_a_status_that_is_no_plain_success_is_not_kept_and_not_read(status: int, kind: bytes | None) -> None:
    fields = ((b"Vary", b"*"), (b"Content-Encoding", b"gzip"))
    judge = judge_of(kind, status=status, fields=fields, keep_incomplete=True)
    assert run(judge, [COMPLETION], transport_whole=False) == Verdict(Reason.STATUS)


@pytest.mark.parametrize("status", [200, 201, 202, 203, 299])
def test_other_successes_are_kept(status: int) -> None:
    assert run(judge_of(status=status), [COMPLETION]).kept is None


@pytest.mark.parametrize(
    ("coding", "kept"),
    [
        (b"gzip", Reason.CODING),
        (b"identity, br", Reason.CODING),
        (b"identity", None),
        (b"", None),
        (b" Identity ", None),
    ],
)
def test_bytes_that_are_still_coded_are_not_read(coding: bytes, kept: Reason | None) -> None:
    fields = ((b"Content-Encoding", coding),)
    assert run(judge_of(fields=fields), [COMPLETION]).kept is kept
    garbled = run(judge_of(fields=fields), [b"\x1f\x8b\x08"])
    assert garbled == (Verdict(kept) if kept else Verdict(Reason.INCOMPLETE, False))


@given(
    st.lists(st.binary(max_size=30) | st.just(COMPLETION)), st.booleans(), st.sampled_from([JSON, None, b"text/plain"])
)
def test_no_bytes_raise(pieces: list[bytes], transport_whole: bool, kind: bytes | None) -> None:
    run(judge_of(kind, stream=True), pieces, transport_whole=transport_whole)


def test_repr() -> None:
    assert repr(judge_of()) == "DocumentJudge(complete=False, ended=False)"
