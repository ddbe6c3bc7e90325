"""Requests seen before: a recognised one gets exactly what the long way would have given it.

Two apps stand side by side, one that recognises and one that does not. Whatever is sent goes to both, byte for byte and cut
for cut, and every answer and every event must be the same but for ids and clocks.
"""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.client import RawClient, chat, connect, fresh, request
from harness.process import eventually
from harness.wire import Response, ResponseParser
from nodes.house import House, OpenHouse, settings_for
from soloflight.config.models import Settings
from soloflight.core.control import NONE_FRESH
from soloflight.core.frames import Head, Recording
from soloflight.core.stage import Stage
from soloflight.flow.memory import Memory
from soloflight.flow.plan import Plan
from soloflight.flow.replays import Replays
from soloflight.flow.shelf import Replay
from soloflight.ports import RequestEnded, Role
from soloflight.testing.chat import CH, DONE, FIN, completion_object, content
from soloflight.testing.received import Received
from soloflight.testing.script import CLOSE, Script, chunked, head, raw, sse
from soloflight.testing.script import json as json_answer
from soloflight.testing.upstream import ScriptedUpstream
from soloflight.web import connection
from soloflight.web.begun import BLOCK_LIMIT
from soloflight.web.connection import known_inside
from soloflight.web.recognise import Recogniser, Seen
from soloflight.web.wire import Client

OURS = {b"x-soloflight-request-id", b"x-soloflight-flight", b"date"}
CLOCKED = {b"age", b"cache-status"}


def answer(received: Received) -> Script:
    """An answer that depends on the request alone, in a framing that depends on it, too."""
    kind = received.target.rpartition("?")[2]
    mark = content(received.body_sha256[:8])
    if kind == "json":
        return json_answer(completion_object(received.body_sha256), "X-Request-Id: up-1", "Set-Cookie: a=1")
    if kind == "gzip":
        return sse(gzip.compress(mark + FIN + DONE), fields=["Content-Encoding: gzip"])
    if kind == "close":
        return [head(200, "Content-Type: text/event-stream"), mark, FIN, DONE, CLOSE]
    if kind == "empty":
        return raw(b"", "X-Empty: 1")
    if kind == "error":
        return json_answer({"error": {}}, status=500)
    if kind == "large":
        return chunked(*[b"%d" % n * 30_000 for n in range(4)])
    if kind == "odd":
        odd = [
            "X-A: 1",
            "x-a: 2",
            b"X-B: \xfc",
            "X-RateLimit-Limit: 1",
            "Cache-Status: cdn; hit",
            "Age: 7",
            "X-Accel-Buffering: yes",
        ]
        return sse(mark, FIN, DONE, fields=odd)
    return sse(mark, FIN, DONE)


KINDS = ["", "json", "gzip", "close", "empty", "error", "large", "odd"]


@dataclass
class Side:
    """One of the two apps, its upstream, and its connections by name."""

    house: House
    upstream: ScriptedUpstream
    clients: dict[str, RawClient] = field(default_factory=dict)

    async def client(self, name: str) -> RawClient:
        if name not in self.clients:
            self.clients[name] = await RawClient.open(self.house.port)
        return self.clients[name]

    async def exchange(self, name: str, pieces: list[bytes], methods: list[str], *, pause: bool) -> list[Response]:
        """Write the pieces, then read as many responses as requests were in them, or to the end of the connection."""
        client = await self.client(name)
        responses = []
        client.left_over += client.parser.rest
        for place, piece in enumerate(pieces):
            try:
                await client.send_more(piece)
            except ConnectionError:
                break
            if pause and place < len(pieces) - 1:
                await asyncio.sleep(0.005)
        for method in methods:
            client.parser = ResponseParser(method)
            response = await client.finish(within_s=5)
            client.left_over += client.parser.rest
            client.parser.rest = b""
            responses.append(response)
            if response.ended != "complete" or response.framing == "close" or response.get("Connection") == "close":
                client.close()
                del self.clients[name]
                break
        return responses

    def close(self) -> None:
        for client in self.clients.values():
            client.close()


class Both:
    """The app that recognises (``sides[0]``) and the one that does not."""

    def __init__(self, sides: list[Side], config: dict[str, Any]) -> None:
        self.sides = sides
        self.config = config

    @property
    def at_once(self) -> int:
        """Requests that were answered without being parsed."""
        assert self.sides[1].house.at_once == 0
        return self.sides[0].house.at_once

    async def send(
        self, *blocks: bytes, on: str = "a", cuts: tuple[int, ...] = (), pause: bool = False
    ) -> list[Response]:
        """Blocks in one go (cut at these places), to both; the answers, which are the same. Bodyless methods by name."""
        stream = b"".join(blocks)
        edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
        pieces = [stream[start:end] for start, end in pairwise(edges) if start < end]
        methods = [block.partition(b" ")[0].decode() for block in blocks]
        before = [len(side.house.requests) for side in self.sides]
        took = [await side.exchange(on, pieces, methods, pause=pause) for side in self.sides]
        assert [seen(response) for response in took[0]] == [seen(response) for response in took[1]]
        for ours, theirs in zip(*took, strict=True):
            near(ours, theirs)
        await self.told(before, sum(response.get("X-Soloflight-Request-Id") is not None for response in took[0]))
        return took[0]

    async def told(self, before: list[int], count: int) -> None:
        """Both told of the same requests."""
        await eventually(
            lambda: all(
                len(side.house.requests) >= start + count for side, start in zip(self.sides, before, strict=True)
            )
        )
        events = [
            [told(event) for event in side.house.requests[start:]]
            for side, start in zip(self.sides, before, strict=True)
        ]
        assert events[0] == events[1]

    async def replayed(self, block: bytes, **more: Any) -> bool:
        """Whether sending ``block`` again is answered at once."""
        before = self.at_once
        await self.send(block, **more)
        return self.at_once == before + 1

    def each(self, act: Callable[[House], object]) -> None:
        """The same happens to both."""
        for side in self.sides:
            act(side.house)

    def settings(self, side: Side, **server: Any) -> Settings:
        recognise = side is self.sides[0]
        config = {**self.config, "server": {**self.config.get("server", {}), **server, "recognise": recognise}}
        return settings_for(side.upstream, config)


def seen(response: Response) -> tuple[object, ...]:
    """All of a response that may not differ."""
    fields = sorted(
        (name.lower(), name.lower() in CLOCKED or value) for name, value in response.fields if name.lower() not in OURS
    )
    names = sorted(name.lower() for name, _ in response.fields)
    return response.status_line, fields, names, response.framing, response.ended, bytes(response.kept), response.chunks


def near(ours: Response, theirs: Response) -> None:
    """Clocks may be a second apart, and nothing else of these fields may differ."""
    for name in ("Age", "Cache-Status"):
        for one, other in zip(ours.all(name), theirs.all(name), strict=True):
            (text, number), (other_text, other_number) = (
                value.rpartition("=")[::2] if "ttl=" in value else ("", value) for value in (one, other)
            )
            assert text == other_text
            assert number == other_number or abs(int(number) - int(other_number)) <= 1


def told(event: RequestEnded) -> tuple[object, ...]:
    """All of an event that may not differ."""
    return (
        event.stage, event.role, event.status, event.reason, event.code, event.sent, event.cut, event.usage,
        event.upstream_id, event.method, event.path, event.peer, event.model, event.flight != "", event.lag_s is None,
    )  # fmt: skip


async def make_both(stack: AsyncExitStack, config: dict[str, Any] | None = None) -> Both:
    both = Both([], config or {})
    for _ in range(2):
        upstream = await stack.enter_async_context(ScriptedUpstream(answer))
        side = Side(House(settings_for(upstream, {})), upstream)
        both.sides.append(side)
        side.house = House(both.settings(side))
        stack.push_async_callback(side.house.app.close)
        await side.house.open()
        stack.callback(side.close)
    return both


@pytest.fixture
def config() -> dict[str, Any]:
    return {}


@pytest_asyncio.fixture
async def both(config: dict[str, Any]) -> Any:
    async with AsyncExitStack() as stack:
        yield await make_both(stack, config)


# ── it does recognise ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", KINDS)
async def test_a_request_seen_before_is_answered_at_once_and_alike(both: Both, kind: str) -> None:
    block = chat(fresh(), target=f"/v1/chat/completions?{kind}")
    first, second, third = [(await both.send(block))[0] for _ in range(3)]
    kept = kind not in ("error", "empty", "large")
    assert (second.role, both.at_once) == (("replay", 2) if kept else (second.role, both.at_once))
    assert first.body == second.body == third.body
    assert both.sides[0].upstream.calls == both.sides[1].upstream.calls


async def test_another_connection_is_answered_at_once_too(both: Both) -> None:
    block = chat(fresh())
    await both.send(block, on="a")
    assert await both.replayed(block, on="b")
    assert await both.replayed(block, on="b"), "its first request"


async def test_a_get_is_recognised(both: Both) -> None:
    block = request("GET", "/v1/models?json", "Authorization: Bearer k")
    await both.send(block)
    assert await both.replayed(block)


async def test_a_recognised_connection_is_still_closed_when_it_is_idle(
    open_house: OpenHouse, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "KEEPALIVE_S", 1.0)
    house = await open_house({"server": {"header_timeout": 3.0}})
    upstream.play(answer)
    block = chat(fresh())
    async with connect(house.port) as client:
        await client.ask(block)
    async with connect(house.port) as client:
        for _ in range(4):
            await asyncio.sleep(0.4)
            await client.ask(block)
        assert house.at_once == 4
        assert await client.ended(within_s=5) == "fin"


# ── what it must look at each time ──────────────────────────────────────────────────────────────────────────────────


async def test_a_purged_answer_is_made_anew(both: Both) -> None:
    block = chat(fresh())
    await both.send(block)
    assert await both.replayed(block)
    both.each(lambda house: house.app._replays.clear())
    assert not await both.replayed(block), "the coordinator has it still"
    assert await both.replayed(block)
    [(_, replay)] = both.sides[0].house.app._replays._stages["default"].items()
    key = both.sides[0].house.app._replays.key_of(replay.flight)
    assert key is not None
    both.each(lambda house: house.app._replays.drop(key))
    assert not await both.replayed(block)


@pytest.mark.parametrize("config", [{"stage_defaults": {"local_retention": 0.1, "retention": 0.2}}])
async def test_an_expired_answer_is_made_anew(both: Both) -> None:
    block = chat(fresh())
    await both.send(block)
    assert await both.replayed(block)
    await asyncio.sleep(0.25)
    assert not await both.replayed(block)
    assert both.sides[0].upstream.calls == 2


async def test_an_answer_too_old_for_this_request_is_not_given(both: Both) -> None:
    body = fresh()
    young, any_age = chat(body, "Cache-Control: max-age=5"), chat(body)
    await both.send(any_age)
    await both.send(young)
    assert await both.replayed(young)
    assert await both.replayed(any_age)
    later = time.monotonic

    def shifted() -> float:
        return later() + 60.0

    for side in both.sides:
        side.house.app._replays._clock = shifted
    assert not await both.replayed(young)


@pytest.mark.parametrize("wish", ["no-cache", "max-age=0", "no-store"])
async def test_a_request_that_wants_its_own_call_is_never_known(both: Both, wish: str) -> None:
    block = chat(fresh(), f"Cache-Control: {wish}")
    for calls in (1, 2, 3):
        assert not await both.replayed(block)
        assert both.sides[0].upstream.calls == calls


async def test_a_reload_forgets_every_verdict(both: Both) -> None:
    block = chat(fresh(), key="client")
    await both.send(block)
    assert await both.replayed(block)
    for side in both.sides:
        side.house.app.reload(both.settings(side, client_keys=["another"]))
    [refused] = await both.send(block)
    assert refused.status == 401
    for side in both.sides:
        side.house.app.reload(both.settings(side))
    [again] = await both.send(block)
    assert again.role == "replay"
    assert await both.replayed(block)


async def test_a_reload_can_switch_it_off_and_on(both: Both) -> None:
    block = chat(fresh())
    await both.send(block)
    side = both.sides[0]
    side.house.app.reload(settings_for(side.upstream, {"server": {"recognise": False}}))
    for _ in range(2):
        assert not await both.replayed(block)
    side.house.app.reload(both.settings(side))
    await both.send(block)
    assert await both.replayed(block)


async def test_another_credential_is_another_request(both: Both) -> None:
    body = fresh()
    await both.send(chat(body, key="one"))
    assert await both.replayed(chat(body, key="one"))
    assert not await both.replayed(chat(body, key="two"))
    assert both.sides[0].upstream.calls == 2


@pytest.mark.parametrize("config", [{"stage_defaults": {"scope": "header:X-Tenant"}}])
async def test_a_peer_that_is_trusted_less_is_judged_anew(both: Both) -> None:
    """A tenant's field is believed from trusted proxies only: elsewhere the same bytes mean another scope."""
    block = chat(fresh(), "X-Tenant: t")
    await both.send(block, on="trusted")
    assert await both.replayed(block, on="trusted")

    def distrust(house: House) -> None:
        assert house.app._door is not None
        house.app._door.trusted = []

    both.each(distrust)
    assert not await both.replayed(block, on="stranger")
    assert both.sides[0].upstream.calls == 2
    assert await both.replayed(block, on="stranger")
    assert await both.replayed(block, on="trusted")


async def test_a_draining_process_says_so_to_every_request(both: Both) -> None:
    block = chat(fresh())
    await both.send(block)
    assert await both.replayed(block)
    both.each(lambda house: setattr(house.app.state, "draining", True))
    [answered] = await both.send(block)
    assert (answered.role, answered.get("Connection")) == ("replay", "close")


async def test_an_operation_that_names_another_payload_now_is_refused(both: Both) -> None:
    one, other = (chat(fresh(), "Idempotency-Key: K") for _ in range(2))
    await both.send(one)
    assert await both.replayed(one)
    [refused] = await both.send(other)
    assert refused.status == 422
    both.each(lambda house: house.app._replays.clear())


# ── where requests begin and end ────────────────────────────────────────────────────────────────────────────────────


async def test_two_in_one_block_are_two_answers_in_order(both: Both) -> None:
    one, other = chat(fresh()), chat(fresh())
    for _ in range(2):
        first, second = await both.send(one, other)
        assert first.body != second.body
    await both.send(one, on="b")
    assert await both.replayed(one, on="b")
    assert not await both.replayed(one), "this connection has lost count, which costs nothing but time"


async def test_the_second_of_two_is_not_taken_for_the_first(both: Both) -> None:
    """Two segments that arrive together: the second is read before the first one's handler runs."""
    first, second = chat(fresh()), chat(fresh())
    side = both.sides[0]
    client = await side.client("a")
    await client.ask(chat(fresh()))
    assert side.house.app._door is not None
    [at] = side.house.app._door.connections
    at.data_received(first)
    asyncio.get_running_loop().call_soon(at.data_received, second)
    answers = []
    for _ in range(2):
        client.left_over += client.parser.rest
        client.parser = ResponseParser()
        answers.append((await client.finish()).body)
    client.left_over += client.parser.rest
    for block, expected in zip((first, second), answers, strict=True):
        async with connect(side.house.port) as other:
            assert (await other.ask(block)).body == expected


@pytest.mark.parametrize("cut", [1, 20, -1, -60])
async def test_a_block_cut_in_two_is_parsed(both: Both, cut: int) -> None:
    block = chat(fresh())
    await both.send(block)
    assert await both.replayed(block)
    assert not await both.replayed(block, cuts=(len(block) + cut if cut < 0 else cut,), pause=True)


async def test_a_block_behind_a_part_of_another_is_not_taken_for_itself(both: Both) -> None:
    """The bytes of a known request, where they are the body of one that is not: nothing is smuggled."""
    known = chat(fresh())
    await both.send(known)
    assert await both.replayed(known)
    outer = request("POST", "/v1/chat/completions", "Content-Type: text/plain", f"Content-Length: {len(known)}")
    [answered] = await both.send(outer + known, cuts=(len(outer),), pause=True)
    assert answered.role == "owner"
    chunk_size = f"{len(known):x}\r\n".encode()
    chunked_head = request("POST", "/v1/files", "Transfer-Encoding: chunked")
    [answered] = await both.send(
        chunked_head + chunk_size + known + b"\r\n0\r\n\r\n",
        on="b",
        cuts=(len(chunked_head + chunk_size), len(chunked_head + chunk_size + known)),
        pause=True,
    )
    assert answered.role == "bypass"


async def test_a_known_block_while_another_answer_is_under_way_waits_its_turn(both: Both) -> None:
    known, slow = chat(fresh()), chat(fresh(), target="/v1/chat/completions?slow")
    await both.send(known)
    gates = []
    for side in both.sides:
        gate = asyncio.Event()
        gates.append(gate)
        side.upstream.play(lambda _, gate=gate: sse(CH, gate, FIN, DONE))
    sending = asyncio.create_task(both.send(slow, known, cuts=(len(slow),), pause=True))
    for side in both.sides:
        await side.upstream.wait_calls(2)
        gates[both.sides.index(side)].set()
    first, second = await sending
    assert (first.body, second.role) == (CH + FIN + DONE, "replay")


@pytest.mark.parametrize(
    "variant",
    [
        lambda block: block.replace(b"HTTP/1.1", b"HTTP/1.0", 1),
        lambda block: block.replace(b"HTTP/1.1\r\n", b"HTTP/1.0\r\nConnection: keep-alive\r\n", 1),
        lambda block: block.replace(b"HTTP/1.1\r\n", b"HTTP/1.1\r\nConnection: close\r\n", 1),
        lambda block: block.replace(b"HTTP/1.1\r\n", b"HTTP/1.1\r\nExpect: 100-continue\r\n", 1),
        lambda block: b"\r\n" + block,
        lambda block: block.replace(b"Host: proxy.test", b"Host: proxy.test \t", 1),
        lambda block: block.replace(b"POST /v1", b"POST http://proxy.test/v1", 1),
    ],
    ids=["1.0", "1.0 kept", "close", "expect", "blank line before", "space", "absolute form"],
)
async def test_other_spellings_are_answered_as_themselves(both: Both, variant: Callable[[bytes], bytes]) -> None:
    block = chat(fresh())
    await both.send(block)
    for on in ("b", "c", "d"):
        [answered] = await both.send(variant(block), on=on)
        assert answered.role == "replay"
    assert await both.replayed(block)


BROKEN = [
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}x",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: +2\r\n\r\n{}",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length : 2\r\n\r\n{}",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nX: 1\r\n Content-Length: 2\r\n\r\n{}",
    b"POST /v1/chat/completions HTTP/1.1\nHost: a\nContent-Length: 2\n\n{}",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n{}",
    b"\0\r\n\r\n",
]


@pytest.mark.parametrize("broken", BROKEN)
async def test_what_the_parser_refuses_is_refused_each_time(both: Both, broken: bytes) -> None:
    for on in ("a", "b"):
        [refused] = await both.send(broken, on=on)
        assert refused.status == 400
    assert both.at_once == 0


HEADS = {"stage": [{"name": "heads", "match": {"paths": ["/heads"], "methods": ["HEAD", "GET"]}}]}


@pytest.mark.parametrize("config", [HEADS])
async def test_a_head_that_is_shared_never_gets_a_body(both: Both) -> None:
    for side in both.sides:
        side.upstream.play(
            lambda received: (
                [head(200, "Content-Length: 5", "Content-Type: text/plain")]
                if received.method == "HEAD"
                else raw(b"hello")
            )
        )
    for block in (request("HEAD", "/heads"), request("GET", "/heads")):
        for _ in range(3):
            [answered] = await both.send(block)
            assert (answered.status, answered.get("Content-Length")) == (200, "5")


# ── any sequence ────────────────────────────────────────────────────────────────────────────────────────────────────

BODIES = [{"model": "m", "messages": [{"role": "user", "content": f"fuzz {n}"}], "temperature": 0} for n in range(2)]


def fuzz_blocks() -> Iterator[bytes]:
    for body in BODIES:
        for kind in ("", "json", "odd"):
            yield chat(body, target=f"/v1/chat/completions?{kind}")
        yield chat(body, "Connection: close")
        yield chat(body, "Cache-Control: max-age=60")
        yield chat(body, "Cache-Control: no-cache")
        yield chat(body, "Cache-Control: only-if-cached", key="nobody")
        yield chat(body, "Idempotency-Key: K")
        yield chat(body, key="two")
        yield chat(body).replace(b"HTTP/1.1", b"HTTP/1.0", 1)
        yield chat(body, target="/v1/files")
    yield request("GET", "/v1/models?json")
    yield request("HEAD", "/v1/models?json")
    yield request("GET", "/_soloflight/health")
    yield request("POST", "/v1/chat/completions", "X-Soloflight-Stage: none")
    yield request("GET", "/#")
    yield b"nonsense\r\n\r\n"


BLOCKS = list(fuzz_blocks())
KNOWN = BLOCKS[:3]
CONNECTIONS = st.sampled_from(["a", "b"])
NONE = st.none()
KNOWN_AGAIN = st.tuples(
    st.just("send"), CONNECTIONS, st.lists(st.sampled_from(KNOWN), min_size=1, max_size=1), st.just(False)
)
ANY = st.tuples(st.just("send"), CONNECTIONS, st.lists(st.sampled_from(BLOCKS), min_size=1, max_size=3), st.booleans())
OTHER = st.one_of(
    st.tuples(st.just("purge"), NONE, NONE, NONE),
    st.tuples(st.just("reload"), NONE, NONE, NONE),
    st.tuples(st.just("drain"), NONE, NONE, st.booleans()),
    st.tuples(st.just("distrust"), NONE, NONE, st.booleans()),
)
# Drawn by weight; ``one_of`` would flatten its arms and give each the same.
STEP = st.sampled_from([KNOWN_AGAIN] * 6 + [ANY] * 3 + [OTHER]).flatmap(lambda arm: arm)
STEPS = st.lists(STEP, min_size=8, max_size=24)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS, data=st.data())
def test_any_sequence_is_answered_alike(steps: list[Any], data: st.DataObject) -> None:
    async def play() -> None:
        async with AsyncExitStack() as stack:
            both = await make_both(stack)
            for known in KNOWN:
                await both.send(known)
            for what, on, blocks, flag in steps:
                if what == "send":
                    length = sum(map(len, blocks))
                    cuts = tuple(data.draw(st.lists(st.integers(1, length), max_size=2))) if flag else ()
                    await both.send(*blocks, on=on, cuts=cuts, pause=flag)
                elif what == "purge":
                    both.each(lambda house: house.app._replays.clear())
                elif what == "reload":
                    for side in both.sides:
                        side.house.app.reload(both.settings(side))
                elif what == "drain":
                    both.each(lambda house, flag=flag: setattr(house.app.state, "draining", flag))
                else:
                    trusted: list[object] = [] if flag else [*both.sides[0].house.app._door.trusted]  # type: ignore[union-attr]
                    both.each(lambda house, trusted=trusted: setattr(house.app._door, "trusted", trusted))

    asyncio.run(play())


# ── the recogniser itself ───────────────────────────────────────────────────────────────────────────────────────────


class Shelf:
    """Replays with one answer, and calls for it."""

    def __init__(self) -> None:
        self.replays = Replays(Memory(1 << 30), time.monotonic)
        now = time.monotonic()
        recording = Recording(Head(200, b"OK", ()), (b"x",), 1)
        self.stage = Stage()
        self.replays.put(self.stage, "key", Replay(recording, "f", 1, now, now + 100, now + 100))

    def call(self, key: str = "key", fresh_s: float | None = None, payload: str = "") -> Any:
        return type("Call", (), {"key": key, "stage": self.stage, "fresh_s": fresh_s, "payload": payload})()


def seen_as(call: Any) -> Seen:
    return Seen(call, cast(Plan, None), Client("POST", http11=True, keep_alive=True))


def found(recogniser: Recogniser, block: bytes) -> Seen:
    seen = recogniser.find((True, block))
    assert seen is not None
    return seen


def test_it_holds_no_more_bytes_than_its_bound_and_forgets_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("soloflight.web.recognise.TOTAL_LIMIT", 1000)
    monkeypatch.setattr("soloflight.web.recognise.HELD_BESIDE", 240)
    shelf = Shelf()
    recogniser = Recogniser(shelf.replays)
    for number in range(10):
        recogniser.learn((True, b"%d" % number * 30), seen_as(shelf.call()))
    known = [bool(recogniser.find((True, b"%d" % number * 30))) for number in range(10)]
    assert known == [False] * 7 + [True] * 3
    assert repr(recogniser) == "Recogniser(3 requests, 900 bytes, Memo(0/1024))"
    recogniser.learn((True, b"9" * 30), seen_as(shelf.call()))
    assert repr(recogniser) == "Recogniser(3 requests, 900 bytes, Memo(0/1024))", "learned once"


def test_it_knows_only_what_it_learned_and_may_tell() -> None:
    shelf = Shelf()
    recogniser = Recogniser(shelf.replays)
    recogniser.learn((True, b"a"), seen_as(shelf.call()))
    recogniser.learn((True, b"gone"), seen_as(shelf.call("other")))
    recogniser.learn((True, b"refresh"), seen_as(shelf.call(fresh_s=NONE_FRESH)))
    recogniser.learn((True, b"payload"), seen_as(shelf.call(payload="p")))
    assert recogniser.replay(found(recogniser, b"a").call)
    for block in (b"gone", b"payload"):
        assert recogniser.replay(found(recogniser, block).call) is None
    for block, trusted in ((b"a", False), (b"b", True), (b"refresh", True)):
        assert recogniser.find((trusted, block)) is None
    long = (True, b"x" * (BLOCK_LIMIT + 1))
    recogniser.learn(long, seen_as(shelf.call()))
    assert recogniser.find(long) is None
    off = Recogniser(shelf.replays, on=False)
    off.learn((True, b"a"), seen_as(shelf.call()))
    assert off.find((True, b"a")) is None


@pytest.mark.parametrize(
    ("version", "known"),
    [
        ("3.14.0", True),
        ("3.14.99", True),
        ("3.14.0rc1", True),
        ("3.13.9", False),
        ("3.15.0", False),
        ("4.14.0", False),
        ("3.140.0", False),
        ("x", False),
    ],
)
def test_an_aiohttp_that_was_not_tested_is_not_known_inside(version: str, known: bool) -> None:
    assert known_inside(version) is known


async def test_under_an_unknown_aiohttp_nothing_is_recognised(
    open_house: OpenHouse, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("aiohttp.__version__", "3.99.0")
    house = await open_house()
    upstream.play(answer)
    block = chat(fresh())
    async with connect(house.port) as client:
        for _ in range(3):
            await client.ask(block)
    assert (house.at_once, house.requests[-1].role) == (0, Role.REPLAY)
    assert "aiohttp 3.99.0 has not been tested" in caplog.text
