"""The scripted upstream says and records exactly what it was told: the case tests stand on it."""

import asyncio
import hashlib
import http.client
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from harness.certificates import server_tls
from harness.client import ask, chat, connect, fresh, raw_request, request
from harness.wire import ResponseParser
from soloflight.testing.chat import CH, DONE, FIN, answer
from soloflight.testing.exchange import Exchange
from soloflight.testing.received import Received
from soloflight.testing.script import CLOSE, HANG, RESET, ReadBody, Script, chunk, head, json, raw, sse
from soloflight.testing.upstream import ScriptedUpstream

BODY = b'{"n":1}'


async def test_records_a_request_to_the_byte() -> None:
    sent = request("POST", "/v1/x%2Fy?a=+b", "X-Odd:  two  words ", body=BODY)
    async with ScriptedUpstream(json({"ok": True})) as upstream:
        response = await ask(upstream.port, sent)
        received = upstream.requests[0]
    assert response.body == b'{"ok": true}'
    assert received.head + received.body == sent
    assert (received.method, received.target) == ("POST", "/v1/x%2Fy?a=+b")
    assert received.field(b"x-odd") == b"two  words"
    assert received.body_complete
    assert received.left is None


async def test_decodes_a_chunked_request_and_keeps_it_raw() -> None:
    raw_body = b"4\r\nWiki\r\n6;x=y\r\npedia \r\n0\r\nT: v\r\n\r\n"
    async with ScriptedUpstream(json({})) as upstream:
        await ask(upstream.port, request("POST", "/", "Transfer-Encoding: chunked") + raw_body)
        received = upstream.requests[0]
    assert received.body == b"Wikipedia "
    assert received.raw_body == raw_body
    assert received.body_complete


async def test_keeps_a_connection_and_takes_answers_in_order_the_last_one_for_ever() -> None:
    async with ScriptedUpstream(raw(b"one"), raw(b"two")) as upstream, connect(upstream.port) as client:
        bodies = [(await client.ask(request("GET", f"/{n}"))).body for n in range(3)]
        upstream.play(raw(b"new"))
        bodies.append((await client.ask(request("GET", "/4"))).body)
    assert bodies == [b"one", b"two", b"two", b"new"]
    assert (upstream.calls, upstream.connections, upstream.open_max) == (4, 1, 1)


async def test_without_a_script_it_says_so() -> None:
    async with ScriptedUpstream() as upstream:
        response = await ask(upstream.port, request("GET", "/"))
    assert response.status == 500
    assert b"no script" in response.body


async def test_an_event_stream_waits_for_its_gate() -> None:
    gate = asyncio.Event()
    async with ScriptedUpstream(sse(CH, gate, FIN, DONE)) as upstream, connect(upstream.port) as client:
        await client.send(chat(fresh()))
        await client.read_body(len(CH))
        assert client.response.body == CH
        gate.set()
        response = await client.finish()
    assert response.chunks == [CH, FIN, DONE]
    assert response.last_chunk_seen
    assert response.complete


async def test_cut_answers_end_as_told() -> None:
    close_delimited = [head(200), b"half", CLOSE]
    unterminated = sse(CH, CLOSE, last=False)
    short = [head(200, "Content-Length: 9"), b"half", CLOSE]
    for script, framing in ((close_delimited, "close"), (unterminated, "chunked"), (short, "length")):
        async with ScriptedUpstream(script) as upstream:
            response = await ask(upstream.port, request("GET", "/"))
        assert (response.framing, response.ended) == (framing, "fin")
        assert response.complete == (framing == "close")


async def test_reset_is_a_reset() -> None:
    async with ScriptedUpstream(sse(CH, 0.05, RESET, last=False)) as upstream:
        response = await ask(upstream.port, request("GET", "/"))
    assert (response.body, response.ended) == (CH, "rst")


@pytest.mark.parametrize(("how", "noted"), [("close", "fin"), ("reset", "rst")])
async def test_notes_how_and_when_a_client_leaves_in_mid_answer(how: str, noted: str) -> None:
    async with ScriptedUpstream(sse(CH, HANG)) as upstream:
        async with connect(upstream.port) as client:
            await client.send(request("GET", "/"))
            await client.read_body(len(CH))
            assert upstream.open_now == 1
            if how == "reset":
                client.reset()
        await upstream.wait_until(lambda: upstream.requests[0].left is not None)
        await upstream.wait_until(lambda: upstream.open_now == 0)
    received = upstream.requests[0]
    assert received.left == noted
    assert received.left_at is not None
    assert received.left_at > received.arrived_at


async def test_a_client_that_leaves_ends_its_pause() -> None:
    async with ScriptedUpstream(sse(CH, 60.0, FIN)) as upstream:
        async with connect(upstream.port) as client:
            await client.send(request("GET", "/"))
            await client.head()
        await upstream.wait_until(lambda: upstream.open_now == 0)
    assert len(upstream.requests[0].sent) == 2


async def test_reads_a_body_by_steps() -> None:
    refuse = [ReadBody(4), json({"e": 1}, status=413), CLOSE]
    async with ScriptedUpstream(refuse, read_first=False) as upstream, connect(upstream.port) as client:
        await client.send(request("POST", "/", "Content-Length: 1000") + b"12345678")
        response = await client.finish()
    received = upstream.requests[0]
    assert response.status == 413
    assert (received.body_length, received.body_complete) == (4, False)


async def test_a_half_sent_body_is_not_complete() -> None:
    async with ScriptedUpstream(json({})) as upstream:
        async with connect(upstream.port) as client:
            await client.send(request("POST", "/", "Content-Length: 1000") + b"half")
            await upstream.wait_calls(1)
        await upstream.wait_until(lambda: upstream.open_now == 0)
    received = upstream.requests[0]
    assert (received.body, received.body_complete, received.left) == (b"half", False, "fin")


async def test_says_continue_when_asked() -> None:
    async with ScriptedUpstream(json({})) as upstream, connect(upstream.port) as client:
        await client.send(request("POST", "/", "Expect: 100-continue", "Content-Length: 2"))
        await upstream.wait_calls(1)
        await client.send_more(b"{}")
        response = await client.finish()
    assert response.informational == [b"HTTP/1.1 100 Continue\r\n\r\n"]
    assert upstream.requests[0].body == b"{}"


async def test_a_script_may_be_made_of_the_request_and_be_endless() -> None:
    async def flood() -> AsyncIterator[bytes]:
        yield head(200, "Transfer-Encoding: chunked")
        while True:
            yield chunk(b"x" * 4096)

    def choose(received: Received) -> Script:
        return flood() if received.target == "/flood" else raw(received.body)

    async with ScriptedUpstream(choose) as upstream:
        echo = await ask(upstream.port, request("POST", "/", body=BODY))
        async with connect(upstream.port) as client:
            await client.send(request("GET", "/flood"))
            await client.read_body(1 << 20)
        await upstream.wait_until(lambda: upstream.open_now == 0)
    assert echo.body == BODY
    assert upstream.requests[1].left is not None


async def test_a_step_may_be_a_function_of_the_exchange() -> None:
    async def shout(exchange: Exchange) -> None:
        await exchange.write(raw(exchange.received.body.upper()))

    async with ScriptedUpstream([shout]) as upstream:
        assert (await ask(upstream.port, request("POST", "/", body=b"a"))).body == b"A"


async def test_a_faulty_script_fails_the_test() -> None:
    upstream = ScriptedUpstream([object()])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="not a step"):
        async with upstream:
            assert await raw_request(upstream.port, request("GET", "/")) == b""


async def test_a_large_body_is_known_by_its_digest() -> None:
    async with ScriptedUpstream(json({}), keep_bytes=10) as upstream:
        await ask(upstream.port, request("POST", "/", body=b"y" * 300_000))
    received = upstream.requests[0]
    assert (received.body_length, received.body) == (300_000, b"")
    assert received.body_sha256 == hashlib.sha256(b"y" * 300_000).hexdigest()


async def test_a_crowd_is_counted() -> None:
    gate = asyncio.Event()
    async with ScriptedUpstream([gate, json({})]) as upstream:
        asking = [asyncio.create_task(ask(upstream.port, request("GET", f"/{n}"))) for n in range(50)]
        await upstream.wait_calls(50)
        assert upstream.open_now == 50
        gate.set()
        assert all([(await response).complete for response in asking])
        await upstream.wait_until(lambda: upstream.open_now == 0)
    assert upstream.open_max == 50


def test_serves_sync_clients_from_a_thread() -> None:
    with ScriptedUpstream(answer).in_thread() as upstream:
        connection = http.client.HTTPConnection("127.0.0.1", upstream.port, timeout=5)
        connection.request("POST", "/v1/chat/completions", b'{"stream": true}')
        assert connection.getresponse().read() == CH * 3 + FIN + DONE
        connection.close()
    assert upstream.calls == 1


async def test_speaks_tls(tmp_path: Path) -> None:
    context, bundle = server_tls(tmp_path)
    trusting = ssl.create_default_context(cafile=str(bundle))
    async with ScriptedUpstream(raw(b"secret"), tls=context) as upstream:
        assert upstream.url == f"https://127.0.0.1:{upstream.port}"
        reader, writer = await asyncio.open_connection("127.0.0.1", upstream.port, ssl=trusting)
        writer.write(request("GET", "/"))
        response = ResponseParser().feed(await reader.readuntil(b"secret")).response
        writer.close()
        await upstream.wait_until(lambda: upstream.open_now == 0)
    assert (response.status, response.body) == (200, b"secret")
