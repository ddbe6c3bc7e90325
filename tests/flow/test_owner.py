"""An owner and its upstream: where an answer ends, what is kept of it, and in which coding it is shared."""

from __future__ import annotations

import asyncio
import gzip
import json as json_text
import time
import zlib

import pytest

from nodes import Town
from soloflight.core.errors import Code
from soloflight.flow.owner import TERMINAL_GRACE_S
from soloflight.ports import Role
from soloflight.testing.chat import CH, DONE, FIN, completion_object, content, finish
from soloflight.testing.script import CLOSE, HANG, Script, chunk, chunked, head, json, raw, sse

ANSWER = CH + FIN + DONE
JSON = json_text.dumps(completion_object()).encode()


# ── where it ends ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_answer_ends_with_the_apis_last_word_though_the_socket_stays_open(town: Town) -> None:
    town.upstream.play(sse(CH, FIN, DONE, HANG, last=False))
    node = await town.node()
    began = time.monotonic()
    client = await node.answer(town.call())
    assert (client.body, client.whole) == (ANSWER, True)
    assert time.monotonic() - began < TERMINAL_GRACE_S
    assert (await node.answer(town.call())).role is Role.REPLAY
    await town.upstream.wait_until(lambda: town.upstream.requests[0].left is not None)


async def test_what_follows_the_last_word_is_no_part_of_the_answer(town: Town) -> None:
    town.upstream.play(sse(CH + FIN + DONE + b"data: stray\n\n", b"more"))
    node = await town.node()
    client = await node.answer(town.call())
    assert (client.body, client.whole) == (ANSWER, True)


async def test_behind_the_last_word_the_connection_is_read_to_its_end_and_kept(town: Town) -> None:
    town.upstream.play(sse(CH, FIN, DONE, 0.05))
    node = await town.node()
    await node.answer(town.call(town.fresh()))
    await town.upstream.wait_until(lambda: town.upstream.requests[0].finished_at is not None)
    await asyncio.sleep(0.02)
    await node.answer(town.call(town.fresh()))
    assert (town.upstream.calls, town.upstream.connections) == (2, 1)


async def test_a_terminal_event_without_done_waits_a_moment_for_a_trailer(town: Town) -> None:
    """The Responses API has no [DONE]; some upstreams add one, some leave the socket open."""
    done = b'event: response.completed\ndata: {"type":"response.completed","response":{"status":"completed"}}\n\n'
    town.upstream.play(sse(done, HANG, last=False))
    node = await town.node()
    began = time.monotonic()
    client = await node.answer(town.call(path="/v1/responses"))
    assert (client.body, client.whole) == (done, True)
    assert TERMINAL_GRACE_S * 0.9 <= time.monotonic() - began < 3
    assert [event.kept for event in node.ended] == ["kept"]


async def test_a_break_behind_a_terminal_event_is_no_break(town: Town) -> None:
    done = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
    start = b'event: message_start\ndata: {"type":"message_start","message":{"content":[]}}\n\n'
    town.upstream.play(sse(start, done, CLOSE, last=False))
    node = await town.node()
    client = await node.answer(town.call(path="/v1/messages"))
    assert (client.body, client.whole) == (start + done, True)


async def test_a_node_can_close_while_a_connection_is_being_read_to_its_end(
    town: Town, caplog: pytest.LogCaptureFixture
) -> None:
    town.upstream.play(sse(CH, FIN, DONE, HANG, last=False))
    node = await town.node()
    await node.answer(town.call())
    await node.node.close()
    await town.upstream.wait_until(lambda: town.upstream.requests[0].left is not None)
    assert caplog.records == []


# ── what is kept ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("script", "stage", "kept"),
    [
        (sse(CH, FIN, DONE), {}, "kept"),
        (json(completion_object()), {}, "kept"),
        ([head(200, "Content-Type: text/event-stream"), ANSWER, CLOSE], {}, "kept"),
        (json({"error": {}}, status=500), {}, "status"),
        (raw(b"part", status=206), {}, "status"),
        (sse(CH, DONE), {}, "incomplete"),
        (sse(CH, b'data: {"error":{"message":"x"}}\n\n', DONE), {}, "error"),
        (sse(CH, finish("length"), DONE), {}, "length"),
        (sse(CH, finish("length"), DONE), {"keep_incomplete": True}, "kept"),
        (json(completion_object(), "Vary: X-Region"), {}, "vary"),
        (json(completion_object(), "Vary: Accept-Encoding"), {}, "kept"),
        ([head(200, "Content-Type: audio/wav"), b"RIFF", CLOSE], {}, "undelimited"),
        (raw(b"RIFF", type="audio/wav"), {}, "kept"),
        (json(completion_object()), {"replay": "never"}, "no_retention"),
        (json(completion_object()), {"max_recording": 10}, "too_large"),
        (raw(JSON, "Content-Encoding: unheard-of"), {}, "coding"),
    ],
)
async def test_what_is_kept_and_why_not(town: Town, script: Script, stage: dict[str, object], kept: str) -> None:
    town.upstream.play(script)
    node = await town.node()
    first = await node.answer(town.call(**stage))
    assert first.whole
    assert [event.kept for event in node.ended] == [kept]
    assert (await node.answer(town.call(**stage))).body == first.body
    assert town.upstream.calls == (1 if kept == "kept" else 2)
    third = await (await town.node()).answer(town.call(**stage))
    assert third.role is (Role.REPLAY if kept == "kept" else Role.OWNER)


async def test_a_stream_that_only_its_close_ends_is_cut_if_the_api_says_that_more_should_come(town: Town) -> None:
    town.upstream.play([head(200, "Content-Type: text/event-stream"), CH, CLOSE])
    node = await town.node()
    client = await node.answer(town.call())
    assert (client.body, client.code) == (CH, Code.UPSTREAM_TRUNCATED)


async def test_tokens_are_counted_from_a_side_copy(town: Town) -> None:
    town.upstream.play(json(completion_object()))
    node = await town.node()
    await node.answer(town.call())
    [event] = node.ended
    assert (event.usage.prompt, event.usage.completion, event.status, event.outcome) == (2, 1, 200, "complete")


# ── codings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_shared_work_asks_for_identity(town: Town) -> None:
    town.upstream.play(json(completion_object()))
    node = await town.node()
    await node.answer(town.call(None, (b"Accept-Encoding", b"gzip, br")))
    assert town.upstream.requests[0].all(b"accept-encoding") == [b"identity"]


@pytest.mark.parametrize("cut", [1, 7, 1000], ids=lambda size: f"reads of {size}")
async def test_what_is_coded_all_the_same_is_shared_as_identity(town: Town, cut: int) -> None:
    coded = gzip.compress(ANSWER)
    pieces = [coded[start : start + cut] for start in range(0, len(coded), cut)]
    town.upstream.play(sse(*pieces, fields=["Content-Encoding: gzip", 'ETag: "x"']))
    first, second = await town.node(), await town.node()
    for client in (await first.answer(town.call()), await first.answer(town.call()), await second.answer(town.call())):
        assert client.head is not None
        assert (client.body, client.whole) == (ANSWER, True)
        assert (client.head.get(b"content-encoding"), client.head.get(b"etag"), client.head.length) == (
            None,
            None,
            None,
        )
    assert town.upstream.calls == 1


async def test_a_coded_answer_is_streamed_as_it_comes(town: Town) -> None:
    coder = zlib.compressobj(wbits=31)
    gate = asyncio.Event()
    first = coder.compress(CH) + coder.flush(zlib.Z_SYNC_FLUSH)
    rest = coder.compress(content("y") + FIN + DONE) + coder.flush()
    town.upstream.play(sse(first, gate, rest, fields=["Content-Encoding: gzip"]))
    node = await town.node()
    client = await (await node.ask(town.call())).until_bytes(len(CH) - 1)
    gate.set()
    assert (await client.read()).body == CH + content("y") + FIN + DONE


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda coded: coded[:-4] + b"\0\0\0\0", Code.UPSTREAM_INVALID),
        (lambda coded: coded[:-4], Code.UPSTREAM_TRUNCATED),
    ],
    ids=["a wrong checksum", "an early end"],
)
async def test_a_coding_that_breaks_behind_bytes_cuts_the_answer(town: Town, damage: object, code: Code) -> None:
    coded = damage(gzip.compress(JSON))  # type: ignore[operator]
    town.upstream.play(
        [
            head(200, "Content-Type: application/json", "Content-Encoding: gzip", "Transfer-Encoding: chunked"),
            chunk(coded[:-2]),
            0.02,
            chunk(coded[-2:]),
            b"0\r\n\r\n",
        ]
    )
    node = await town.node()
    client = await node.answer(town.call())
    assert client.code is code
    await town.upstream.wait_until(lambda: town.upstream.open_now == 0)


async def test_a_coding_that_is_a_lie_is_passed_on_as_it_came(town: Town) -> None:
    town.upstream.play(raw(JSON, "Content-Encoding: gzip", type="application/json"))
    node = await town.node()
    client = await node.answer(town.call())
    assert client.head is not None
    assert (client.body, client.head.get(b"content-encoding"), client.head.length) == (JSON, b"gzip", len(JSON))
    assert [event.kept for event in node.ended] == ["coding"]


async def test_bytes_go_through_as_they_came_frame_by_frame(town: Town) -> None:
    pieces = [bytes([number]) * (number + 1) for number in range(20)]
    town.upstream.play(chunked(*[step for piece in pieces for step in (piece, 0.002)]))
    node = await town.node()
    client = await node.answer(town.call())
    assert client.body == b"".join(pieces)
    assert (await node.answer(town.call())).pieces == client.pieces
