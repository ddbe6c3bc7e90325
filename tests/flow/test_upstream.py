"""Calls to an upstream: every way in which one can fail has one name, and nothing is written twice that may have been taken."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from harness.certificates import server_tls
from harness.ports import free_port
from soloflight.core.errors import Code, Fault, SoloflightError
from soloflight.core.fields import Outgoing
from soloflight.flow import pool
from soloflight.flow.upstream import Endpoint, Exchange, Upstream, UpstreamError
from soloflight.testing.script import CLOSE, HANG, RESET, ReadBody, Script, chunk, chunked, head, raw
from soloflight.testing.upstream import ScriptedUpstream

OK = raw(b"ok")


def out(method: str = "POST", length: int | None = 0, *, target: str = "/x", upgrade: bytes | None = None) -> Outgoing:
    return Outgoing(method, target, ((b"Host", b"h"),), length, upgrade)


class Calling:
    """``async with Calling(script, …) as calling``: a scripted server and an Upstream in front of it."""

    def __init__(self, *answers: Script, origin: str = "", read_first: bool = True, **endpoint: object) -> None:
        tls = endpoint.pop("server_tls", None)
        self.server = ScriptedUpstream(*answers, read_first=read_first, tls=tls)  # type: ignore[arg-type]
        self._origin = origin
        self._endpoint = endpoint

    async def __aenter__(self) -> Calling:
        await self.server.start()
        self.upstream = Upstream(Endpoint(self._origin or self.server.url, **self._endpoint))  # type: ignore[arg-type]
        self.upstream.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.upstream.close()
        await self.server.stop()

    async def send(self, request: Outgoing | None = None, body: bytes | AsyncIterator[bytes] = b"") -> Exchange:
        async with asyncio.timeout(5):
            return await self.upstream.send(request or out(), body)

    async def fails(self, request: Outgoing | None = None, body: bytes | AsyncIterator[bytes] = b"") -> UpstreamError:
        with pytest.raises(UpstreamError) as caught:
            await self.send(request, body)
        return caught.value


async def read(exchange: Exchange) -> bytes:
    parts = []
    async with asyncio.timeout(5), exchange:
        while not exchange.ended():
            parts.append(await exchange.read())
    return b"".join(parts)


# ── the answer's head ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("script", "method", "length", "delimited", "body"),
    [
        (raw(b"abc"), "GET", 3, True, b"abc"),
        (chunked(b"a", b"bc"), "GET", None, True, b"abc"),
        ([head(200), b"abc", CLOSE], "GET", None, False, b"abc"),
        ([head(200, "Content-Length: 3")], "HEAD", 3, True, b""),
        ([head(200)], "HEAD", None, True, b""),
        ([head(204)], "GET", None, True, b""),
        ([head(304, "Content-Length: 3")], "GET", 3, True, b""),
        ([head(200, "Content-Length: 0")], "GET", 0, True, b""),
        ([head(200, version="HTTP/1.0"), b"abc", CLOSE], "GET", None, False, b"abc"),
    ],
)
async def test_framing(script: Script, method: str, length: int | None, delimited: bool, body: bytes) -> None:
    async with Calling(script) as calling:
        exchange = await calling.send(out(method))
        assert (exchange.head.length, exchange.head.delimited) == (length, delimited)
        assert await read(exchange) == body


async def test_status_reason_and_fields_are_the_upstreams_own_without_what_is_hop_by_hop() -> None:
    fields = ["X-A: 1", "x-a: 2", b"X-B: \xfc", "Connection: X-Hop", "X-Hop: 1", "Keep-Alive: timeout=5"]
    async with Calling([head(299, *fields, reason="Sehr \xfc", version="HTTP/1.1"), CLOSE]) as calling:
        exchange = await calling.send()
        assert (exchange.head.status, exchange.head.reason) == (299, b"Sehr \xfc")
        assert exchange.head.fields == ((b"X-A", b"1"), (b"x-a", b"2"), (b"X-B", b"\xfc"))
        assert await read(exchange) == b""


async def test_interim_answers_are_passed_over() -> None:
    async with Calling([head(103, "Link: </a>"), head(100), OK]) as calling:
        exchange = await calling.send()
        assert (exchange.head.status, await read(exchange)) == (200, b"ok")


@pytest.mark.parametrize(
    "answer",
    [
        b"nonsense\r\n\r\n",
        head(200, "Content-Length: x"),
        head(200, "Content-Length: -1"),
        head(200, "Content-Length: 1_0") + b"0123456789",
        head(200, "Content-Length: +2") + b"ok",
        head(200, "Content-Length: 2", "Content-Length: 3") + b"ok",
        head(200, "Content-Length: 2", "Content-Length: 2") + b"ok",
        head(200, "Content-Length: 2", "Transfer-Encoding: chunked") + chunk(b"ok"),
        head(200, "Transfer-Encoding: gzip, chunked") + chunk(b"ok"),
        head(200, "Transfer-Encoding: identity") + b"ok",
        head(200, reason="a\x01b"),
        head(200, "X: " + "x" * 300_000),
        head(200, b"X: a\0b"),
        head(101, "Connection: Upgrade", "Upgrade: websocket"),
    ],
)
async def test_an_answer_that_can_be_read_in_two_ways_or_none_is_invalid(answer: bytes) -> None:
    async with Calling([answer, CLOSE]) as calling:
        error = await calling.fails()
        assert (error.fault.code, error.unprocessed) == (Code.UPSTREAM_INVALID, False)
        await calling.server.wait_until(lambda: calling.server.open_now == 0)
        assert calling.server.calls == 1


# ── the answer's body ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("leaving", [CLOSE, RESET])
@pytest.mark.parametrize(
    "script",
    [[head(200, "Content-Length: 5"), b"ab", 0.02], [head(200, "Transfer-Encoding: chunked"), chunk(b"ab"), 0.02]],
    ids=["length", "chunks"],
)
async def test_a_body_that_breaks_off_is_truncated(script: list[object], leaving: object) -> None:
    async with Calling([*script, leaving]) as calling:
        exchange = await calling.send()
        assert await exchange.read() == b"ab"
        with pytest.raises(UpstreamError) as caught:
            await read(exchange)
        assert caught.value.fault.code is Code.UPSTREAM_TRUNCATED


async def test_a_body_that_only_a_reset_ended_is_truncated() -> None:
    async with Calling([head(200), b"ab", 0.02, RESET]) as calling:
        exchange = await calling.send()
        assert await exchange.read() == b"ab"
        with pytest.raises(UpstreamError) as caught:
            await read(exchange)
        assert caught.value.fault.code is Code.UPSTREAM_TRUNCATED


async def test_a_body_that_is_no_valid_chunks_is_invalid() -> None:
    async with Calling([head(200, "Transfer-Encoding: chunked"), chunk(b"ab"), 0.02, b"zz\r\n", HANG]) as calling:
        exchange = await calling.send()
        assert await exchange.read() == b"ab"
        with pytest.raises(UpstreamError) as caught:
            await read(exchange)
        assert caught.value.fault.code in (Code.UPSTREAM_INVALID, Code.UPSTREAM_TRUNCATED)


# ── connections ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_connection_is_used_again_behind_a_whole_answer_and_not_behind_a_broken_one() -> None:
    async with Calling(OK) as calling:
        for _ in range(2):
            assert await read(await calling.send()) == b"ok"
        assert calling.server.connections == 1
        exchange = await calling.send()
        exchange.abort()
        exchange.abort()
        exchange.release()
        assert repr(exchange) == "Exchange(POST, status=200, done)"
        await calling.server.wait_until(lambda: calling.server.open_now == 0)
        assert await read(await calling.send()) == b"ok"
        assert calling.server.connections == 2


async def test_an_answer_that_was_not_read_to_its_end_costs_the_connection() -> None:
    async with Calling([head(200, "Content-Length: 5"), b"ab", HANG], OK) as calling:
        exchange = await calling.send()
        assert (await exchange.read(), exchange.ended()) == (b"ab", False)
        exchange.release()
        await calling.server.wait_until(lambda: calling.server.requests[0].left is not None)
        assert await read(await calling.send()) == b"ok"


async def test_an_exchange_that_its_block_breaks_off_is_aborted() -> None:
    async with Calling(OK) as calling:
        with pytest.raises(KeyError):
            async with await calling.send():
                raise KeyError
        await calling.server.wait_until(lambda: calling.server.open_now == 0)


async def test_nobody_listens() -> None:
    async with Calling(OK, origin=f"http://127.0.0.1:{free_port()}") as calling:
        error = await calling.fails()
        assert (error.fault.code, error.unprocessed) == (Code.UPSTREAM_UNREACHABLE, True)
        assert "127.0.0.1" not in error.fault.message


async def test_a_name_that_is_none() -> None:
    async with Calling(OK, origin="http://nowhere.invalid") as calling:
        error = await calling.fails()
        assert (error.fault.code, error.unprocessed) == (Code.UPSTREAM_UNREACHABLE, True)


async def test_connecting_has_a_bound() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        fillers = [socket.socket() for _ in range(3)]
        for filler in fillers:  # its queue is full: nothing answers a SYN any more
            filler.setblocking(False)
            filler.connect_ex(deaf.getsockname())
        async with Calling(OK, origin=f"http://127.0.0.1:{deaf.getsockname()[1]}", connect_timeout_s=0.1) as calling:
            error = await calling.fails()
            assert (error.fault.code, error.unprocessed) == (Code.UPSTREAM_UNREACHABLE, True)
        for filler in fillers:
            filler.close()


async def test_over_a_configured_cap_a_request_waits_and_is_then_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "QUEUE_S", 0.1)
    async with Calling([head(200, "Content-Length: 5"), b"ab", HANG], limit=1, connect_timeout_s=0.1) as calling:
        exchange = await calling.send()
        assert "busy=1" in repr(calling.upstream)
        error = await calling.fails()
        assert (error.fault, error.unprocessed) == (
            Fault(Code.SATURATED, "no free connection to the upstream", 1),
            False,
        )
        exchange.abort()
        assert calling.server.open_max == 1


async def test_without_a_cap_there_is_none() -> None:
    async with Calling([head(200, "Content-Length: 5"), b"ab", HANG]) as calling:
        exchanges = [await calling.send() for _ in range(150)]
        assert calling.server.open_max == 150
        for exchange in exchanges:
            exchange.abort()


# ── never twice ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def kept(calling: Calling) -> None:
    assert await read(await calling.send()) == b"ok"


async def test_a_kept_connection_that_was_closed_is_replaced_unseen() -> None:
    async with Calling([OK, CLOSE], OK) as calling:
        await kept(calling)
        await calling.server.wait_until(lambda: calling.server.open_now == 0)
        assert await read(await calling.send()) == b"ok"
        assert (calling.server.calls, calling.server.connections) == (2, 2)


@pytest.mark.parametrize("leaving", [CLOSE, RESET])
async def test_a_kept_connection_that_took_the_request_is_not_replaced(leaving: object) -> None:
    async with Calling(OK, [0.02, leaving], OK) as calling:
        await kept(calling)
        error = await calling.fails()
        assert (error.fault.code, error.unprocessed) == (Code.UPSTREAM_UNREACHABLE, False)
        assert calling.server.calls == 2


async def test_a_body_that_comes_in_pieces_is_never_written_twice() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"ab"
        yield b"c"

    async with Calling(OK, [0.02, CLOSE], OK) as calling:
        await kept(calling)
        error = await calling.fails(out(length=None), pieces())
        assert (error.fault.code, error.unprocessed) == (Code.UPSTREAM_UNREACHABLE, False)


# ── request bodies ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("size", [0, 1, 65536, 65537, 3 << 20])
async def test_a_body_at_hand_arrives(size: int) -> None:
    async with Calling(OK) as calling:
        assert await read(await calling.send(out(length=size), b"x" * size)) == b"ok"
        assert (calling.server.requests[0].body, calling.server.requests[0].body_complete) == (b"x" * size, True)


@pytest.mark.parametrize("length", [5, None])
async def test_a_body_that_comes_in_pieces_arrives_with_its_framing(length: int | None) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for piece in (b"ab", b"c", b"de"):
            await asyncio.sleep(0.005)
            yield piece

    async with Calling(OK) as calling:
        assert await read(await calling.send(out(length=length), pieces())) == b"ok"
        [request] = calling.server.requests
        assert (request.body, request.body_complete) == (b"abcde", True)
        framing = (request.field(b"content-length"), request.field(b"transfer-encoding"))
        assert framing == ((b"5", b"") if length else (b"", b"chunked"))


async def test_an_answer_may_come_before_the_body_is_through_and_ends_the_upload() -> None:
    sending = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"x" * 65536
                await asyncio.sleep(0)
        finally:
            sending.set()

    refusal = raw(b"no", status=413)
    async with Calling([ReadBody(100_000), refusal, ReadBody()], read_first=False) as calling:
        exchange = await calling.send(out(length=None), endless())
        assert (exchange.head.status, await read(exchange)) == (413, b"no")
        await asyncio.wait_for(sending.wait(), 5)
        await calling.server.wait_until(lambda: calling.server.open_now == 0)


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (SoloflightError(Fault(Code.REQUEST_TIMEOUT, "late")), Code.REQUEST_TIMEOUT),
        (ConnectionResetError(), Code.BAD_REQUEST),
    ],
)
async def test_half_an_upload_never_looks_whole(raised: Exception, code: Code) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"ab"
        raise raised

    async with Calling(OK) as calling:
        with pytest.raises(SoloflightError) as caught:
            await calling.send(out(length=None), broken())
        assert caught.value.fault.code is code
        await calling.server.wait_until(lambda: calling.server.requests[0].left is not None)
        assert not calling.server.requests[0].body_complete


async def test_a_caller_that_is_cancelled_takes_its_connection_with_it() -> None:
    async with Calling([HANG]) as calling:
        sending = asyncio.create_task(calling.send())
        await calling.server.wait_calls(1)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await calling.server.wait_until(lambda: calling.server.open_now == 0)


# ── TLS, proxies, upgrades ──────────────────────────────────────────────────────────────────────────────────────────


async def test_tls_is_verified_and_its_failures_are_unreachable(tmp_path: Path) -> None:
    context, bundle = server_tls(tmp_path)
    trusting = ssl.create_default_context(cafile=bundle)
    async with Calling(OK, server_tls=context, tls=trusting) as calling:
        assert await read(await calling.send()) == b"ok"
    async with Calling(OK, server_tls=context, tls=ssl.create_default_context()) as calling:
        error = await calling.fails()
        assert (error.fault.code, error.unprocessed, calling.server.calls) == (Code.UPSTREAM_UNREACHABLE, True, 0)
    async with Calling(OK, server_tls=context, tls=False) as calling:
        assert await read(await calling.send()) == b"ok"


async def test_an_outbound_proxy_is_asked_in_absolute_form() -> None:
    async with ScriptedUpstream(OK) as proxy:
        async with Calling(OK, origin="http://far.example", proxy=proxy.url) as calling:
            assert await read(await calling.send(out(target="/a?b"))) == b"ok"
        assert proxy.requests[0].request_line == b"POST http://far.example/a?b HTTP/1.1"


async def test_an_upgrade_that_was_asked_for_is_one() -> None:
    async with Calling([head(101, "Connection: Upgrade", "Upgrade: websocket"), b"hi", HANG]) as calling:
        exchange = await calling.send(out("GET", upgrade=b"websocket"))
        assert (exchange.upgraded, exchange.head.status) == (True, 101)
        exchange.release()
        await calling.server.wait_until(lambda: calling.server.open_now == 0)
