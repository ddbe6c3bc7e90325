"""Event streams: when they are complete, when they have ended, why they are not kept, what they cost.

Every script runs whole, byte by byte and at every single cut: a verdict does not depend on the cuts.
"""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soloflight.core.answer import Facts, Judge, Reason, Usage, Verdict
from soloflight.core.frames import Head
from soloflight.core.stage import Stage
from soloflight_openai import Rules

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
IMAGES = "/v1/images/generations"
TRANSCRIPTION = "/v1/audio/transcriptions"
SPEECH = "/v1/audio/speech"
OTHER = "/api/watch"

STREAM = ((b"Content-Type", b"text/event-stream; charset=utf-8"),)


def choice(index: object, finish: str, content: str = "x") -> str:
    return f'{{"index":{index},"delta":{{"content":"{content}"}},"finish_reason":{finish}}}'


def chunk(*choices: str, more: str = "") -> bytes:
    head = '{"id":"c1","object":"chat.completion.chunk","created":1,"model":"m","choices":['
    return f"data: {head}{','.join(choices)}]{more}}}\n\n".encode()


def named(name: str, data: str) -> bytes:
    return f"event: {name}\ndata: {data}\n\n".encode()


CH = chunk(choice(0, "null"))
CH_1 = chunk(choice(1, "null"))
FIN = chunk(choice(0, '"stop"'))
FIN_1 = chunk(choice(1, '"stop"'))
CUT = chunk(choice(0, '"length"'))
DONE = b"data: [DONE]\n\n"
COMMENT = b": OPENROUTER PROCESSING\n\n"
ERROR = b'data: {"error":{"message":"boom","type":"server_error","code":500}}\n\n'
USAGE = b'data: {"id":"c1","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":12,"total_tokens":21}}\n\n'

R_DELTA = named("response.output_text.delta", '{"type":"response.output_text.delta","delta":"x"}')
R_CREATED = named("response.created", '{"type":"response.created","response":{"status":"in_progress","error":null}}')


def r_end(kind: str, status: str, more: str = "") -> bytes:
    usage = '"usage":{"input_tokens":5,"output_tokens":6,"total_tokens":11}'
    return named(f"response.{kind}", f'{{"type":"response.{kind}","response":{{"status":"{status}",{usage}{more}}}}}')


R_DONE = r_end("completed", "completed", ',"error":null')
R_CUT = r_end("incomplete", "incomplete", ',"incomplete_details":{"reason":"max_output_tokens"}')
R_FAILED = r_end("failed", "failed", ',"error":{"code":"server_error","message":"x"}')
R_ERROR = named("error", '{"type":"error","code":"ERR","message":"x","param":null}')

M_START = named(
    "message_start",
    '{"type":"message_start","message":{"id":"m1","usage":{"input_tokens":25,"cache_read_input_tokens":100,'
    '"cache_creation_input_tokens":null,"output_tokens":1}}}',
)
M_PING = named("ping", '{"type":"ping"}')
M_DELTA = named("content_block_delta", '{"type":"content_block_delta","index":0,"delta":{"text":"x"}}')
M_STOP = named("message_stop", '{"type":"message_stop"}')
M_ERROR = named("error", '{"type":"error","error":{"type":"overloaded_error","message":"x"}}')


def m_end(stop: str) -> bytes:
    return named(
        "message_delta",
        f'{{"type":"message_delta","delta":{{"stop_reason":"{stop}"}},"usage":{{"output_tokens":15}}}}',
    )


M_END = m_end("end_turn")

IMAGE = named("image_generation.completed", '{"type":"image_generation.completed","b64_json":"eA=="}')
PARTIAL = named("image_generation.partial_image", '{"type":"image_generation.partial_image","b64_json":"eA=="}')
TEXT = b'data: {"type":"transcript.text.delta","delta":"x"}\n\n'
TEXT_DONE = b'data: {"type":"transcript.text.done","text":"x","usage":{"input_tokens":3,"output_tokens":4}}\n\n'
AUDIO = b'data: {"type":"speech.audio.delta","audio":"eA=="}\n\n'
AUDIO_DONE = b'data: {"type":"speech.audio.done","usage":{"input_tokens":3,"output_tokens":4}}\n\n'

KEPT = None
INCOMPLETE, ERR, LENGTH, PENDING = Reason.INCOMPLETE, Reason.ERROR, Reason.LENGTH, Reason.PENDING

# path, n, stream, why it is not kept, whether it is whole
SCRIPTS = {
    "healthy": (CHAT, 1, CH + CH + FIN + DONE, KEPT, True),
    "healthy completions": (
        COMPLETIONS,
        1,
        b'data: {"choices":[{"text":"x","index":0,"finish_reason":"stop"}]}\n\n' + DONE,
        KEPT,
        True,
    ),
    "finished in the first chunk": (CHAT, 1, chunk(choice(0, '"stop"')) + DONE, KEPT, True),
    "tool calls": (CHAT, 1, CH + chunk(choice(0, '"tool_calls"')) + DONE, KEPT, True),
    "filtered": (CHAT, 1, CH + chunk(choice(0, '"content_filter"')) + DONE, KEPT, True),
    "comments": (CHAT, 1, COMMENT * 3 + CH + COMMENT + FIN + DONE, KEPT, True),
    "spaced JSON": (CHAT, 1, b"".join(one.replace(b'":', b'": ') for one in (CH, FIN)) + DONE, KEPT, True),
    "no content chunk": (CHAT, 1, DONE, INCOMPLETE, True),
    "zero bytes": (CHAT, 1, b"", INCOMPLETE, False),
    "comments only": (CHAT, 1, COMMENT * 3, INCOMPLETE, False),
    "cut": (CHAT, 1, CH + CH, INCOMPLETE, False),
    "cut before [DONE]": (CHAT, 1, CH + FIN, INCOMPLETE, False),
    "cut inside [DONE]": (CHAT, 1, CH + FIN + DONE[:-1], INCOMPLETE, False),
    "[DONE] without finish": (CHAT, 1, CH + CH + DONE, INCOMPLETE, True),
    "empty finish": (CHAT, 1, CH + chunk(choice(0, '""')) + DONE, INCOMPLETE, True),
    "finish of the text null": (CHAT, 1, CH + chunk(choice(0, '"null"')) + DONE, INCOMPLETE, True),
    "n=2, one finished": (CHAT, 2, CH + CH_1 + FIN + DONE, INCOMPLETE, True),
    "n=2, one seen": (CHAT, 2, CH + FIN + DONE, INCOMPLETE, True),
    "n=2": (CHAT, 2, CH + CH_1 + FIN_1 + FIN + DONE, KEPT, True),
    "n=2 in one chunk": (CHAT, 2, chunk(choice(0, "null"), choice(1, '"stop"')) + FIN + DONE, KEPT, True),
    "n=2 in one chunk, one unfinished": (
        CHAT,
        2,
        chunk(choice(0, '"stop"'), choice(1, "null")) + DONE,
        INCOMPLETE,
        True,
    ),
    "more choices than asked, one unfinished": (CHAT, 1, CH + FIN + CH_1 + DONE, INCOMPLETE, True),
    "more choices than asked": (CHAT, 1, CH + FIN + FIN_1 + DONE, KEPT, True),
    "no index": (CHAT, 1, b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n' + DONE, KEPT, True),
    "odd finish": (CHAT, 1, chunk(choice(0, "7")) + chunk(choice(0, '["stop"]')) + DONE, INCOMPLETE, True),
    "odd index": (CHAT, 1, FIN + chunk(choice('"0"', '"stop"')) + DONE, INCOMPLETE, True),
    "negative index": (CHAT, 1, FIN + chunk(choice(-1, '"stop"')) + DONE, INCOMPLETE, True),
    "huge index": (CHAT, 1, FIN + chunk(choice(10**9, '"stop"')) + DONE, INCOMPLETE, True),
    "odd chunks": (CHAT, 1, b"data: 7\n\ndata: {\n\ndata: []\n\n" + chunk("7", "null", "[]") + FIN + DONE, KEPT, True),
    "no choices": (CHAT, 1, b'data: {"id":"c1"}\n\ndata: {"choices":null}\n\n' + FIN + DONE, KEPT, True),
    "odd usage": (CHAT, 1, FIN + b'data: {"choices":[],"usage":[{"prompt_tokens":"x"}]}\n\n' + DONE, KEPT, True),
    "the word in the text": (
        CHAT,
        1,
        chunk(choice(0, "null", r"\"error\": \"finish_reason\":\"stop\"")) + DONE,
        INCOMPLETE,
        True,
    ),
    "length": (CHAT, 1, CH + CUT + DONE, LENGTH, True),
    "length of one": (CHAT, 2, CUT + FIN_1 + DONE, LENGTH, True),
    "finished by an error": (CHAT, 1, CH + chunk(choice(0, '"error"')) + DONE, ERR, True),
    "error": (CHAT, 1, CH + ERROR, ERR, True),
    "error, then [DONE]": (CHAT, 1, CH + FIN + ERROR + DONE, ERR, True),
    "error in a chunk": (CHAT, 1, CH + chunk(choice(0, '"stop"'), more=',"error":{"code":502}') + DONE, ERR, True),
    "null error in a chunk": (CHAT, 1, CH + chunk(choice(0, '"stop"'), more=',"error":null') + DONE, KEPT, True),
    "error in a chunk that goes on": (CHAT, 1, chunk(choice(0, "null"), more=',"error":{}') + FIN + DONE, ERR, True),
    "error event that looks like a chunk": (CHAT, 1, b"event: error\n" + CH + FIN + DONE, ERR, True),
    "error object": (CHAT, 1, CH + b'data: {"object":"error","message":"x","code":40303}\n\n', ERR, True),
    "error event": (CHAT, 1, CH + M_ERROR, ERR, True),
    "error event that is no JSON": (CHAT, 1, CH + b"event: error\ndata: boom\n\n" + DONE, ERR, True),
    "document": (CHAT, 1, b'{"error":{"message":"x"}}', ERR, True),
    "document over lines": (CHAT, 1, b'{\n  "error": {\n    "message": "x"\n  }\n}\n', ERR, True),
    "document that is no error": (CHAT, 1, b'{"id":"c1"}', INCOMPLETE, True),
    "half a document": (CHAT, 1, b'{"error":', INCOMPLETE, False),
    "plain text": (CHAT, 1, b"upstream connect error", INCOMPLETE, False),
    "responses": (RESPONSES, 1, R_CREATED + R_DELTA + R_DONE, KEPT, True),
    "responses and [DONE]": (RESPONSES, 1, R_CREATED + R_DELTA + R_DONE + DONE, KEPT, True),
    "responses without names": (RESPONSES, 1, (R_DELTA + R_DONE).replace(b"event: ", b"id: "), KEPT, True),
    "responses named message": (RESPONSES, 1, R_DONE.replace(b"response.completed\n", b"message\n"), KEPT, True),
    "responses, cut": (RESPONSES, 1, R_CREATED + R_DELTA, INCOMPLETE, False),
    "responses, [DONE] alone": (RESPONSES, 1, R_CREATED + R_DELTA + DONE, INCOMPLETE, False),
    "responses, end that is no JSON": (RESPONSES, 1, named("response.completed", "{"), INCOMPLETE, False),
    "responses, incomplete": (RESPONSES, 1, R_DELTA + R_CUT, LENGTH, True),
    "responses, failed": (RESPONSES, 1, R_DELTA + R_FAILED, ERR, True),
    "responses, error": (RESPONSES, 1, R_DELTA + R_ERROR, ERR, True),
    "responses, error and failed": (RESPONSES, 1, R_DELTA + R_ERROR + R_FAILED, ERR, True),
    "responses, error without a name": (RESPONSES, 1, R_DELTA + R_ERROR.replace(b"event", b"x"), ERR, True),
    "responses, error that is no JSON": (RESPONSES, 1, R_DELTA + named("error", "x"), ERR, True),
    "responses, chat's error": (RESPONSES, 1, R_DELTA + ERROR, ERR, True),
    "responses, cancelled": (RESPONSES, 1, R_DELTA + r_end("cancelled", "cancelled"), INCOMPLETE, True),
    "responses, completed but queued": (RESPONSES, 1, r_end("completed", "queued"), PENDING, True),
    "messages": (MESSAGES, 1, M_START + M_PING + M_DELTA + M_END + M_STOP, KEPT, True),
    "messages and [DONE]": (MESSAGES, 1, M_START + M_DELTA + M_END + M_STOP + DONE, KEPT, True),
    "messages, cut": (MESSAGES, 1, M_START + M_DELTA + M_END, INCOMPLETE, False),
    "messages, max_tokens": (MESSAGES, 1, M_START + m_end("max_tokens") + M_STOP, LENGTH, True),
    "messages, window": (MESSAGES, 1, M_START + m_end("model_context_window_exceeded") + M_STOP, LENGTH, True),
    "messages, odd delta": (MESSAGES, 1, named("message_delta", '{"delta":7}') + M_STOP, KEPT, True),
    "messages, error": (MESSAGES, 1, M_START + M_DELTA + M_ERROR, ERR, True),
    "image": (IMAGES, 1, PARTIAL + IMAGE, KEPT, True),
    "image edit": ("/v1/images/edits", 1, IMAGE.replace(b"generation", b"edit"), KEPT, True),
    "image, partial only": (IMAGES, 1, PARTIAL, INCOMPLETE, False),
    "one image of two": (IMAGES, 2, IMAGE, INCOMPLETE, False),
    "two images": (IMAGES, 2, IMAGE + IMAGE, KEPT, True),
    "transcription": (TRANSCRIPTION, 1, TEXT + TEXT_DONE + DONE, KEPT, True),
    "transcription, cut": (TRANSCRIPTION, 1, TEXT, INCOMPLETE, False),
    "speech": (SPEECH, 1, AUDIO + AUDIO_DONE, KEPT, True),
    "speech, cut": (SPEECH, 1, AUDIO, INCOMPLETE, False),
    "unknown": (OTHER, 1, CH + FIN + DONE, INCOMPLETE, None),
    "unknown, zero bytes": (OTHER, 1, b"", INCOMPLETE, None),
    "unknown, error event": (OTHER, 1, CH + M_ERROR, ERR, None),
    "unknown, error": (OTHER, 1, CH + ERROR + CH, ERR, None),
    "unknown, a word": (OTHER, 1, b'data: "error"\n\ndata: {"level":"error"}\n\n', INCOMPLETE, None),
}


def judge_of(path: str = CHAT, n: int = 1, *, keep_incomplete: bool = False, delimited: bool = True) -> Judge:
    head = Head(200, b"OK", STREAM, delimited=delimited)
    return Rules(Stage()).judge(path, Facts(stream=True, choices=n), head, keep_incomplete=keep_incomplete)


def run(judge: Judge, pieces: Iterable[bytes], *, transport_whole: bool = True) -> tuple[int, Verdict]:
    """Feed as the owner does; returns how many bytes belong to the answer, and the verdict."""
    taken = 0
    for piece in pieces:
        taken += judge.feed(piece)
        if judge.ended:
            break
    return taken, judge.end(transport_whole=transport_whole)


def byte_by_byte(stream: bytes) -> list[bytes]:
    return [stream[at : at + 1] for at in range(len(stream))]


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("ends", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
def test_verdicts(script: str, ends: bytes) -> None:
    path, n, stream, kept, whole = SCRIPTS[script]
    stream = stream.replace(b"\n", ends)
    for pieces in ([stream], byte_by_byte(stream)):
        taken, verdict = run(judge_of(path, n), pieces)
        assert (verdict.kept, verdict.whole) == (kept, whole)
        assert taken == len(stream)


@pytest.mark.parametrize("script", ["healthy", "responses and [DONE]", "messages", "error"])
def test_a_verdict_does_not_depend_on_the_cut(script: str) -> None:
    path, n, stream, kept, whole = SCRIPTS[script]
    for at in range(len(stream)):
        taken, verdict = run(judge_of(path, n), [stream[:at], stream[at:]])
        assert (taken, verdict.kept, verdict.whole) == (len(stream), kept, whole)


@pytest.mark.parametrize("script", [name for name, row in SCRIPTS.items() if row[3] is Reason.LENGTH])
def test_keep_incomplete_keeps_what_a_limit_cut(script: str) -> None:
    path, n, stream, _, _ = SCRIPTS[script]
    assert run(judge_of(path, n, keep_incomplete=True), [stream])[1].kept is None


@pytest.mark.parametrize("script", [name for name, row in SCRIPTS.items() if row[3] not in (None, Reason.LENGTH)])
def test_keep_incomplete_keeps_nothing_else(script: str) -> None:
    path, n, stream, kept, _ = SCRIPTS[script]
    assert run(judge_of(path, n, keep_incomplete=True), [stream])[1].kept is kept


@pytest.mark.parametrize("script", SCRIPTS)
def test_wholeness_is_the_streams_own_when_only_the_close_ended_it(script: str) -> None:
    path, n, stream, kept, whole = SCRIPTS[script]
    _, verdict = run(judge_of(path, n, delimited=False), [stream], transport_whole=False)
    assert (verdict.kept, verdict.whole) == (kept, whole)


@pytest.mark.parametrize(
    ("script", "usage"),
    [
        ("healthy", Usage()),
        ("odd usage", Usage()),
        ("responses", Usage(5, 6)),
        ("responses, incomplete", Usage(5, 6)),
        ("responses, cut", Usage()),
        ("messages", Usage(125, 15)),
        ("messages, cut", Usage(125, 15)),
        ("transcription", Usage(3, 4)),
        ("speech", Usage(3, 4)),
    ],
)
def test_usage(script: str, usage: Usage) -> None:
    path, n, stream, _, _ = SCRIPTS[script]
    assert run(judge_of(path, n), [stream])[1].usage == usage


def test_usage_of_chat_is_in_a_chunk_without_choices() -> None:
    null = chunk(choice(0, "null"), more=',"usage":null')
    _, verdict = run(judge_of(), [null + FIN + USAGE + DONE])
    assert verdict == Verdict(None, True, Usage(9, 12))


def test_usage_may_come_with_every_chunk() -> None:
    running = (chunk(choice(0, "null"), more=f',"usage":{{"prompt_tokens":9,"completion_tokens":{n}}}') for n in (1, 2))
    assert run(judge_of(), [*running, FIN, DONE])[1].usage == Usage(9, 2)


def test_what_follows_done_is_no_part_of_the_answer() -> None:
    judge = judge_of()
    assert judge.feed(CH + FIN + DONE + CH) == len(CH + FIN + DONE)
    assert judge.complete
    assert judge.ended
    assert judge.feed(CH) == 0
    assert judge.end(transport_whole=False) == Verdict(None, True)


@pytest.mark.parametrize("late", [b"da", b": note\r", b"\r"])
def test_late_bytes_in_the_same_read_change_nothing(late: bytes) -> None:
    judge = judge_of()
    assert judge.feed(CH + FIN + DONE + late) == len(CH + FIN + DONE)
    assert judge.ended
    assert judge.end(transport_whole=False) == Verdict(None, True)


def test_chat_is_neither_complete_nor_ended_before_done() -> None:
    judge = judge_of()
    judge.feed(CH + FIN + USAGE)
    assert (judge.complete, judge.ended) == (False, False)


@pytest.mark.parametrize(
    ("rest", "belongs"), [(b"\n", 1), (b"\n" + CH, 1), (CH, 0), (b"\r\n", 0)], ids=["LF", "LF+", "data", "CRLF"]
)
def test_the_lf_of_the_last_line_end_may_come_late(rest: bytes, belongs: int) -> None:
    judge = judge_of()
    stream = CH + FIN + b"data: [DONE]\r\n\r"
    assert judge.feed(stream) == len(stream)
    assert (judge.complete, judge.ended) == (True, False)
    assert judge.feed(b"") == 0
    assert not judge.ended
    assert judge.feed(rest) == belongs
    assert judge.ended
    assert judge.end(transport_whole=True) == Verdict(None, True)


def test_an_answer_that_ended_with_a_lone_cr_is_kept() -> None:
    judge = judge_of()
    judge.feed(CH + FIN + b"data: [DONE]\r\r")
    assert (judge.complete, judge.ended) == (True, False)
    assert judge.end(transport_whole=False) == Verdict(None, True)


def test_the_lf_that_came_along_ends_the_answer_at_once() -> None:
    judge = judge_of()
    stream = CH + FIN + b"data: [DONE]\r\n\r\n"
    assert judge.feed(stream + b"more") == len(stream)
    assert judge.ended


@pytest.mark.parametrize(
    ("path", "stream"),
    [(RESPONSES, R_DELTA + R_DONE), (MESSAGES, M_START + M_STOP), (IMAGES, IMAGE), (SPEECH, AUDIO_DONE)],
)
def test_a_late_done_may_follow_a_named_end(path: str, stream: bytes) -> None:
    judge = judge_of(path)
    assert judge.feed(stream) == len(stream)
    assert (judge.complete, judge.ended) == (True, False)
    assert judge.feed(DONE + b"more") == len(DONE)
    assert judge.ended
    assert judge.end(transport_whole=True).kept is None


@pytest.mark.parametrize(("path", "stream"), [(CHAT, CH + ERROR), (RESPONSES, R_ERROR), (MESSAGES, M_ERROR)])
def test_an_error_is_the_end_of_an_answer(path: str, stream: bytes) -> None:
    judge = judge_of(path)
    judge.feed(stream)
    assert (judge.complete, judge.ended) == (True, False)


def test_a_stream_of_no_known_api_is_never_complete() -> None:
    judge = judge_of(OTHER)
    assert judge.feed(CH + FIN + DONE + CH) == len(CH + FIN + DONE + CH)
    judge.feed(ERROR)
    assert (judge.complete, judge.ended) == (False, False)


def test_a_cut_inside_what_follows_the_end_is_not_kept() -> None:
    stream = R_DELTA + R_DONE + b"data: [DO"
    assert run(judge_of(RESPONSES), [stream], transport_whole=False)[1].kept is Reason.TRUNCATED
    assert run(judge_of(RESPONSES), [stream], transport_whole=True)[1].kept is None


def test_a_huge_end_event_is_known_by_its_name_and_not_held() -> None:
    judge = judge_of(IMAGES)
    judge.feed(b'event: image_generation.completed\ndata: {"b64_json":"')
    for _ in range(80):
        judge.feed(b"A" * 65536)
    assert "skipping" in repr(judge)
    assert "pending=0" in repr(judge)
    judge.feed(b'"}\n\n')
    assert judge.complete
    assert judge.end(transport_whole=True) == Verdict(None, True)


def test_a_huge_chunk_of_chat_says_nothing() -> None:
    huge = chunk(choice(0, '"stop"', "x" * (5 << 20)))
    assert run(judge_of(), [huge, DONE])[1].kept is Reason.INCOMPLETE


def test_a_wrong_name_is_not_taken_for_an_end() -> None:
    assert run(judge_of(RESPONSES), [named("response.completed\xff", "{}")])[1].kept is Reason.INCOMPLETE


@given(st.lists(st.binary(max_size=40) | st.sampled_from([CH, FIN, DONE, ERROR, R_DONE, M_STOP, b"data: ", b"\n\n"])))
@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES, IMAGES, OTHER])
def test_no_bytes_raise(path: str, pieces: list[bytes]) -> None:
    judge = judge_of(path)
    for piece in pieces:
        assert 0 <= judge.feed(piece) <= len(piece)
    judge.end(transport_whole=True)


@given(
    st.lists(
        st.sampled_from([CH, CH_1, FIN, FIN_1, CUT, USAGE, ERROR, COMMENT])
        | st.builds(
            lambda index, finish, text: chunk(choice(index, finish, text)),
            st.sampled_from([0, 1, 2, "00", "0.5", "-0"]),
            st.sampled_from(["null", '"stop"', "7", "[]", "nullx"]),
            st.sampled_from(["", r"\"index\":0", r"\"error\"", r"\\"]),
        ),
        max_size=6,
    )
)
def test_the_short_look_at_a_chunk_changes_no_verdict(events: list[bytes]) -> None:
    """Spaces keep the short look from seeing anything, so that every chunk is parsed."""
    spaced = [event.replace(b'":', b'" :') if event.startswith(b"data: {") else event for event in events]
    assert run(judge_of(), [*events, DONE])[1] == run(judge_of(), [*spaced, DONE])[1]


def test_repr_tells_how_far_the_stream_has_come() -> None:
    judge = judge_of()
    judge.feed(CH)
    assert repr(judge) == (
        "StreamJudge(Choices(terminal=False, last=False, failed=False), "
        f"Splitter(between, offset={len(CH)}, pending=0, oversize=0))"
    )
