"""An Idempotency-Key names the operation: the same body joins or replays, another one is a mismatch, wherever it is found."""

from __future__ import annotations

import asyncio

import pytest

from nodes import NodeAt, Town
from soloflight.core.errors import Code, SoloflightError
from soloflight.flow.flights import Call, GoAlone
from soloflight.ports import Role
from soloflight.testing.chat import CH, DONE, FIN
from soloflight.testing.script import CLOSE, json, sse

ANSWER = CH + FIN + DONE


def keyed(town: Town, key: bytes = b"K", prompt: str = "a", **stage: object) -> Call:
    return town.call(town.body(prompt=prompt), (b"Idempotency-Key", key), **stage)


async def refused(node: NodeAt, call: Call) -> Code | None:
    """The code with which ``call`` ends, at the door or in its log."""
    try:
        return (await node.answer(call)).code
    except SoloflightError as error:
        return error.fault.code


async def running(town: Town) -> tuple[NodeAt, NodeAt, asyncio.Event]:
    gate = asyncio.Event()
    town.upstream.play(sse(CH, gate, FIN, DONE))
    first, second = await town.node(), await town.node()
    await (await first.ask(keyed(town))).until_bytes(1)
    return first, second, gate


async def test_the_same_key_and_body_join_and_replay(town: Town) -> None:
    first, second, gate = await running(town)
    clients = [await node.ask(keyed(town)) for node in (first, second)]
    gate.set()
    assert [(await client.read()).body for client in clients] == [ANSWER, ANSWER]
    for node in (first, second, await town.node()):
        assert (await node.answer(keyed(town))).role is Role.REPLAY
    assert town.upstream.calls == 1


@pytest.mark.parametrize("place", [0, 1], ids=["the owner's node", "another node"])
async def test_another_body_is_a_mismatch_while_the_call_runs(town: Town, place: int) -> None:
    nodes = await running(town)
    assert await refused(nodes[place], keyed(town, prompt="b")) is Code.IDEMPOTENCY_MISMATCH
    nodes[2].set()
    assert (await nodes[0].clients[0].read()).whole, "the operation itself is not touched"
    assert town.upstream.calls == 1


@pytest.mark.parametrize("stage", [{}, {"local_retention": 0.0}], ids=["own memory", "coordinator"])
async def test_another_body_is_a_mismatch_while_the_answer_is_kept(town: Town, stage: dict[str, object]) -> None:
    town.upstream.play(sse(CH, FIN, DONE))
    first, second = await town.node(), await town.node()
    await first.answer(keyed(town, **stage))
    for node in (first, second):
        assert await refused(node, keyed(town, prompt="b", **stage)) is Code.IDEMPOTENCY_MISMATCH
        assert (await node.answer(keyed(town, **stage))).body == ANSWER
        assert await refused(node, keyed(town, prompt="b", **stage)) is Code.IDEMPOTENCY_MISMATCH
    assert town.upstream.calls == 1


async def test_other_keys_never_share_even_with_equal_bodies(town: Town) -> None:
    gate = asyncio.Event()
    town.upstream.play(lambda _: sse(CH, gate, FIN, DONE))
    node = await town.node()
    clients = [await node.ask(keyed(town, key)) for key in (b"K", b"L")] + [
        await node.ask(town.call(town.body(prompt="a")))
    ]
    await town.upstream.wait_calls(3)
    gate.set()
    assert {(await client.read()).role for client in clients} == {Role.OWNER}


@pytest.mark.parametrize("failure", [json({"error": {}}, status=500), sse(CH, CLOSE, last=False)], ids=["error", "cut"])
@pytest.mark.parametrize("prompt", ["a", "b"])
async def test_a_try_that_failed_may_be_run_again(town: Town, failure: object, prompt: str) -> None:
    town.upstream.play(failure, sse(CH, FIN, DONE))
    first, second = await town.node(), await town.node()
    await first.answer(keyed(town))
    client = await second.answer(keyed(town, prompt=prompt))
    assert (client.role, client.body, town.upstream.calls) == (Role.OWNER, ANSWER, 2)


# ── a stage that does not share ─────────────────────────────────────────────────────────────────────────────────────


async def test_without_sharing_the_second_of_two_goes_alone(town: Town) -> None:
    gate = asyncio.Event()
    town.upstream.play(sse(CH, gate, FIN, DONE))
    first, second = await town.node(), await town.node()
    owner = await (await first.ask(town.call(share="never"))).until_bytes(1)
    for node in (first, second):
        other = await node.ask(town.call(share="never"))
        with pytest.raises(GoAlone, match="busy"):
            await other.read()
        other.leave()
    gate.set()
    assert ((await owner.read()).body, town.upstream.calls) == (ANSWER, 1)


async def test_without_sharing_a_finished_answer_is_replayed(town: Town) -> None:
    town.upstream.play(sse(CH, FIN, DONE))
    first, second = await town.node(), await town.node()
    assert (await first.answer(town.call(share="never"))).role is Role.OWNER
    for node in (first, second):
        client = await node.answer(town.call(share="never"))
        assert (client.role, client.body) == (Role.REPLAY, ANSWER)
    assert town.upstream.calls == 1
