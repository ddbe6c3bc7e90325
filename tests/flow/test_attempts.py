"""What is tried again (only what is proven unprocessed), what is not, and every bound on the upstream's silence."""

from __future__ import annotations

import asyncio
import time

import pytest

from harness.ports import free_port
from nodes import Town
from soloflight.core.errors import Code
from soloflight.core.flight import Fail, Wait
from soloflight.flow.plan import Target
from soloflight.ports import BackendError, Role
from soloflight.testing.chat import CH, DONE, FIN
from soloflight.testing.script import CLOSE, HANG, RESET, sse
from soloflight.testing.upstream import ScriptedUpstream

ANSWER = CH + FIN + DONE


async def nowhere(town: Town, port: int | None = None) -> Target:
    """A target at which nobody listens."""
    return await town.target_at(f"http://127.0.0.1:{port or free_port()}")


@pytest.mark.parametrize("trial", range(5))
async def test_a_connection_that_is_refused_is_tried_max_attempts_times_and_then_502_for_all(
    town: Town, trial: int
) -> None:
    """Three nodes are woken for each retry at the same moment: who comes second hears of the first one's failure."""
    target = await nowhere(town)
    nodes = [await town.node() for _ in range(3)]
    clients = [await node.ask(town.call(target=target)) for node in (*nodes, *nodes)]
    for client in clients:
        await client.read()
    assert [client.code for client in clients] == [Code.UPSTREAM_UNREACHABLE] * 6
    tries = [op.retry for node in nodes for op in node.wire.done(Fail)]
    assert sorted(tries) == [False, True, True], "whoever claims the next attempt"
    assert not any("127.0.0.1" in client.end.fault.message for client in clients if client.end and client.end.fault)


async def test_a_retry_is_waited_for_without_a_subscription_too(town: Town) -> None:
    target = await nowhere(town)
    node = await town.node()

    async def refuses(*_: object) -> None:
        raise BackendError("no more subscriptions")

    node.wire.subscribe = refuses  # type: ignore[method-assign]
    client = await node.answer(town.call(target=target))
    assert (client.code, len(node.wire.done(Fail))) == (Code.UPSTREAM_UNREACHABLE, 3)


async def test_one_attempt_is_one_attempt(town: Town) -> None:
    target = await nowhere(town)
    node = await town.node()
    client = await node.answer(town.call(target=target, max_attempts=1))
    assert client.code is Code.UPSTREAM_UNREACHABLE
    assert [(event.outcome, event.code, event.attempts) for event in node.ended] == [
        ("fault", Code.UPSTREAM_UNREACHABLE, 1)
    ]


async def test_an_upstream_that_comes_up_between_attempts_answers_all(town: Town) -> None:
    port = free_port()
    target = await nowhere(town, port)
    first, second = await town.node(), await town.node()
    clients = [await first.ask(town.call(target=target))]
    await first.wire.until(lambda: first.wire.done(Fail))
    async with ScriptedUpstream(sse(CH, FIN, DONE), port=port) as late:
        clients.append(await second.ask(town.call(target=target)))
        for client in clients:
            assert (await client.read()).body == ANSWER
        assert late.calls == 1
    assert second.wire.replies(Wait), "a newcomer waits for the retry that is due"
    assert {client.role for client in clients} == {Role.OWNER, Role.FOLLOWER}


@pytest.mark.parametrize("leaving", [CLOSE, RESET])
async def test_a_connection_that_ends_without_an_answer_is_not_tried_again(town: Town, leaving: object) -> None:
    """It was new, and had the request: it may have been processed."""
    town.upstream.play([0.02, leaving])
    node = await town.node()
    client = await node.answer(town.call())
    assert (client.code, town.upstream.calls) == (Code.UPSTREAM_UNREACHABLE, 1)


async def test_a_kept_connection_that_was_closed_before_it_took_a_byte_costs_no_attempt(town: Town) -> None:
    town.upstream.play([*sse(CH, FIN, DONE), CLOSE], sse(CH, FIN, DONE))
    node = await town.node()
    await node.answer(town.call(town.fresh()))
    await node.answer(town.call(town.fresh()))
    assert town.upstream.calls == 2
    assert [event.attempts for event in node.ended] == [1, 1]


@pytest.mark.parametrize(
    ("stage", "script", "sent"),
    [
        ({"first_byte_timeout": 0.15}, [HANG], False),
        ({"first_byte_timeout": 0.15}, [b"HTTP/1.1 100 Continue\r\n\r\n", HANG], False),
        ({"progress_timeout": 0.15}, sse(CH, HANG, last=False), True),
        ({"first_byte_timeout": 5.0, "progress_timeout": 0.15}, [b"HTTP/1.1 200 OK\r\nX: 1\r\n\r\n", HANG], False),
        ({"flight_deadline": 0.15}, [HANG], False),
        ({"flight_deadline": 0.15}, sse(*[CH, 0.02] * 100, last=False), True),
    ],
    ids=[
        "first byte",
        "interim answers are none",
        "progress",
        "progress behind the head",
        "deadline",
        "deadline, streaming",
    ],
)
async def test_an_upstream_silent_past_its_bound_is_a_504_for_all_and_is_let_go(
    town: Town, stage: dict[str, float], script: object, sent: bool
) -> None:
    town.upstream.play(script)
    first, second = await town.node(), await town.node()
    began = time.monotonic()
    clients = [await node.ask(town.call(**stage)) for node in (first, second)]
    for client in clients:
        await client.read()
    assert [client.code for client in clients] == [Code.UPSTREAM_TIMEOUT] * 2
    assert [bool(client.body) for client in clients] == [sent, sent]
    assert 0.14 <= time.monotonic() - began < 2
    await town.upstream.wait_until(lambda: town.upstream.requests[0].left is not None)
    assert town.upstream.calls == 1


async def test_bytes_keep_an_upstream_alive_for_longer_than_any_silence(town: Town) -> None:
    town.upstream.play(sse(*[b": beat\n\n", 0.05] * 10, FIN, DONE))
    node = await town.node()
    client = await node.answer(town.call(first_byte_timeout=0.2, progress_timeout=0.2))
    assert client.whole


async def test_a_cut_answer_is_told_to_all_and_kept_for_none(town: Town) -> None:
    gate = asyncio.Event()
    town.upstream.play(sse(CH, gate, CLOSE, last=False), sse(CH, FIN, DONE))
    first, second = await town.node(), await town.node()
    clients = [await node.ask(town.call()) for node in (first, first, second)]
    for client in clients:
        await client.until_bytes(1)
    gate.set()
    for client in clients:
        await client.read()
        assert (client.code, client.body) == (Code.UPSTREAM_TRUNCATED, CH)
    assert (await second.answer(town.call())).body == ANSWER
    assert town.upstream.calls == 2
