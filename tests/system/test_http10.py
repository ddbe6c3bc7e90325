"""Clients that speak HTTP/1.0: no chunks, an end that can be told from a cut, and keep-alive only where it was asked for."""

import asyncio
import json
from collections.abc import Iterable

import pytest

from harness.client import chat, connect, fresh, request, settle
from harness.proxy import Proxy
from harness.refusals import refused
from harness.wire import Response
from soloflight.testing.chat import CH, DONE, FIN, completion_object
from soloflight.testing.script import CLOSE, RESET, Step, chunked, head, raw, sse
from soloflight.testing.script import json as json_answer
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

KEEP = "Connection: keep-alive"
STREAM = CH + FIN + DONE
ROUTES = ["/v1/chat/completions", "/v1/unknown"]


def old(data: bytes) -> bytes:
    """The same request, as HTTP/1.0 has it."""
    return data.replace(b" HTTP/1.1\r\n", b" HTTP/1.0\r\n", 1)


def bare(method: str, target: str, *fields: str) -> bytes:
    """What an old client sends: not even a Host."""
    return "\r\n".join([f"{method} {target} HTTP/1.0", *fields, "", ""]).encode()


def assert_no_chunks(answer: Response) -> None:
    assert answer.framing in ("length", "close")
    assert answer.get("Transfer-Encoding") is None


@pytest.mark.parametrize("target", ROUTES)
async def test_an_answer_with_a_length(target: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(json_answer(completion_object()))
    async with connect(proxy.port) as client:
        answer = await client.ask(old(chat(fresh(stream=False), target=target)))
        assert (answer.status, answer.framing, answer.complete) == (200, "length", True)
        assert json.loads(answer.body) == completion_object()
        assert await client.ended() == "fin"
    assert upstream.requests[0].request_line == f"POST {target} HTTP/1.1".encode()
    assert upstream.requests[0].body_complete


async def test_without_a_host(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(raw(b"content"))
    async with connect(proxy.port) as client:
        answer = await client.ask(bare("GET", "/v1/files/f1?x=%20"))
        assert (answer.status, answer.body) == (200, b"content")
        assert await client.ended() == "fin"
    received = upstream.requests[0]
    assert received.target == "/v1/files/f1?x=%20"
    assert received.all(b"host") == [f"127.0.0.1:{upstream.port}".encode()]


@pytest.mark.parametrize("fields", [(), (KEEP,)], ids=["plain", "keep-alive asked for"])
@pytest.mark.parametrize("target", ROUTES)
async def test_a_stream_ends_with_the_connection(
    target: str, fields: Iterable[str], proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    gate = asyncio.Event()
    upstream.play(sse(CH, gate, FIN, DONE))
    async with connect(proxy.port) as client:
        await client.send(old(chat(fresh(), *fields, target=target)))
        await client.read_events(1)  # as it comes, not at its end
        gate.set()
        answer = await client.finish()
    assert_no_chunks(answer)
    assert (answer.body, answer.framing, answer.ended) == (STREAM, "close", "fin")
    assert answer.get("Connection") == "close"


async def test_a_follower_and_a_replay(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    gate = asyncio.Event()
    upstream.play(sse(CH, gate, FIN, DONE))
    body = fresh()
    async with connect(proxy.port) as owner, connect(proxy.port) as follower:
        await owner.send(chat(body))
        await owner.read_events(1)
        await follower.send(old(chat(body)))
        await follower.read_events(1)
        gate.set()
        answers = [await owner.finish(), await follower.finish()]
    async with connect(proxy.port) as client:
        answers.append(await client.ask(old(chat(body, KEEP))))
        assert_no_chunks(answers[2])
        if answers[2].framing == "length":  # its size is known now
            answers.append(await client.ask(old(chat(body))))
    assert [answer.role for answer in answers][:3] == ["owner", "follower", "replay"]
    assert {answer.body for answer in answers} == {STREAM}
    assert all(answer.complete for answer in answers)
    assert_no_chunks(answers[1])
    assert upstream.calls == 1


async def test_keep_alive_where_it_was_asked_for(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(lambda received: raw(received.target.encode()))
    async with connect(proxy.port) as client:
        for number in range(3):
            answer = await client.ask(bare("GET", f"/v1/files/{number}", KEEP))
            assert (answer.body, answer.framing) == (f"/v1/files/{number}".encode(), "length")
            assert (answer.get("Connection") or "").lower() == "keep-alive"
        last = await client.ask(bare("GET", "/v1/files/last"))
        assert last.body == b"/v1/files/last"
        assert await client.ended() == "fin"


async def test_head_and_no_content(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(head(200, "Content-Length: 7"), head(204), raw(b"next"))
    async with connect(proxy.port) as client:
        answer = await client.ask(bare("HEAD", "/v1/files/x", KEEP))
        assert (answer.status, answer.get("Content-Length")) == (200, "7")
        assert (await client.ask(bare("DELETE", "/v1/files/x", KEEP))).status == 204
        assert (await client.ask(bare("GET", "/v1/files/x"))).body == b"next"


CUTS: dict[str, list[Step]] = {
    "chunks without their last": sse(CH, 0.02, CLOSE, last=False),
    "reset": sse(CH, 0.02, RESET, last=False),
    "shorter than its length": [head(200, "Content-Type: text/event-stream", "Content-Length: 999"), CH, 0.02, CLOSE],
}


@pytest.mark.parametrize("cut", CUTS)
async def test_a_cut_stream_is_reset(cut: str, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(CUTS[cut])
    async with connect(proxy.port) as client:
        answer = await client.ask(old(chat(fresh())))
    assert answer.ended == "rst"
    error = json.loads(answer.body.removeprefix(CH).removeprefix(b"data: "))["error"]
    assert error["code"] == "upstream_truncated"
    assert b"[DONE]" not in answer.body


async def test_a_cut_answer_of_another_type_is_reset(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play(chunked(b"half of", 0.02, CLOSE, last=False))
    for target in ROUTES:
        async with connect(proxy.port) as client:
            answer = await client.ask(old(chat(fresh(), target=target)))
        assert (answer.body, answer.ended) == (b"half of", "rst")


async def test_errors_of_the_proxy(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.play([CLOSE])
    async with connect(proxy.port) as client:
        answer = await client.ask(old(chat(fresh(), KEEP)))
        assert refused(answer) == (502, "upstream_unreachable")
        again = await client.ask(old(chat(fresh(), "X-Soloflight-Stage: unknown")))
        assert refused(again) == (400, "bad_request")
        assert await client.ended() == "fin"


async def test_no_interim_answer(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    """RFC 9110 section 10.1.1: an expectation in an HTTP/1.0 request is ignored."""
    upstream.play(json_answer({}))
    async with connect(proxy.port) as client:
        sent = old(chat(fresh(stream=False), "Expect: 100-continue"))
        opening, _, body = sent.partition(b"\r\n\r\n")
        await client.send(opening + b"\r\n\r\n")
        await settle(proxy.port)
        await client.send_more(body)
        answer = await client.finish()
    assert (answer.status, answer.informational) == (200, [])


async def test_chunks_from_an_old_client_end_its_connection(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    """RFC 9112 section 6.1: such framing is faulty, so nothing behind it counts."""
    upstream.play(lambda received: raw(received.target.encode()))
    smuggled = request("GET", "/smuggled")
    for target in ROUTES:
        async with connect(proxy.port) as client:
            sent = old(request("POST", target, KEEP, "Transfer-Encoding: chunked")) + b"2\r\nhi\r\n0\r\n\r\n" + smuggled
            answer = await client.ask(sent)
            assert answer.status in (200, 400)
            assert await client.ended() in ("fin", "rst")
            assert client.parser.rest + client.left_over == b""
    assert "/smuggled" not in [received.target for received in upstream.requests]
