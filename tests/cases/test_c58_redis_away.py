"""C58: Redis is down, or demoted to READONLY: go on without it, but keep the single flight of each process.

Source: civitai/civitai#2556, ledgetech/ledge#193, getsentry/snuba#4449, maxlerebourg/crowdsec-bouncer-traefik-plugin#212,
danny-avila/LibreChat#15500.
Right: 200s, and one upstream call for each process; the proxy starts without Redis; health names what is missing and stays
ready; a session's lock then holds within its process; and after a switch to another master both are there again in 5 s.
"""

import asyncio
import time
from collections.abc import Iterator

import pytest

from fleet.nodes import BACK_WITHIN_S, Fleet
from harness.client import ask, chat, connect, fresh
from harness.process import eventually
from harness.redis import RedisServer
from harness.refusals import refused
from soloflight.testing.chat import CH, DONE, FIN
from soloflight.testing.script import sse
from soloflight.testing.upstream import ScriptedUpstream

ANSWER = CH + FIN + DONE
SESSION = "/session/v1/chat/completions"
CONFIG = {"stage": [{"name": "session", "match": {"paths": [SESSION]}, "session": "reject"}]}
pytestmark = [pytest.mark.redis, pytest.mark.beside]


@pytest.fixture(scope="module")
def fleet_process(tmp_path_factory: pytest.TempPathFactory, upstream_port: int) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path_factory.mktemp("fleet"), upstream_port, config=CONFIG)
    yield fleet
    fleet.close()


@pytest.fixture
def fleet(fleet_process: Fleet) -> Iterator[Fleet]:
    """Two nodes, each with its own way to Redis."""
    yield fleet_process
    fleet_process.mend()


async def crowd(fleet: Fleet, body: bytes, each: int) -> None:
    """All ask the same on both nodes at once, and have the answer."""
    answers = await asyncio.gather(*(ask(node.port, body) for _ in range(each) for node in fleet.nodes))
    assert {(answer.status, answer.body, answer.complete) for answer in answers} == {(200, ANSWER, True)}


async def both_back(fleet: Fleet) -> None:
    for node in fleet.nodes:
        await eventually(lambda node=node: node.degraded is None, within_s=BACK_WITHIN_S)
    body = chat(fresh())
    assert [(await ask(node.port, body)).role for node in fleet.nodes] == ["owner", "replay"]


@pytest.mark.parametrize("how", ["stopped", "silent"])
async def test_one_call_for_each_process(how: str, fleet: Fleet, upstream: ScriptedUpstream) -> None:
    upstream.play(lambda received: sse(CH, 0.2, FIN, DONE))
    if how == "stopped":
        fleet.redis.stop()
    else:
        for node in fleet.nodes:
            node.way.hole()
    await crowd(fleet, chat(fresh()), 50)
    assert upstream.calls == 2
    for node in fleet.nodes:
        await eventually(lambda node=node: node.proxy.api("/readyz")["status"] == "degraded")
        assert node.proxy.api("/readyz")["ready"] is True
        await eventually(lambda node=node: node.proxy.metric("soloflight_backend_up") == 0)
    if how == "stopped":
        fleet.redis = fleet.redis.again()
    else:
        for node in fleet.nodes:
            node.way.heal()
    await both_back(fleet)


async def test_stopped_and_started_during_a_stream(fleet: Fleet, upstream: ScriptedUpstream) -> None:
    """Its owner's clients notice nothing, local followers neither."""
    gates = [asyncio.Event(), asyncio.Event()]
    upstream.play(sse(CH, gates[0], CH, gates[1], CH, FIN, DONE))
    body = chat(fresh())
    a, _ = fleet.nodes
    async with connect(a.port) as owner, connect(a.port) as local:
        for client in (owner, local):
            await client.send(body)
            await client.read_events(1)
        fleet.redis.stop()
        gates[0].set()
        for client in (owner, local):
            await client.read_events(2)
        fleet.redis = fleet.redis.again()
        gates[1].set()
        answers = [await client.finish() for client in (owner, local)]
    assert {(answer.body, answer.complete) for answer in answers} == {(CH * 3 + FIN + DONE, True)}
    assert upstream.calls == 1
    await both_back(fleet)


async def test_a_session_is_locked_within_each_process(fleet: Fleet, upstream: ScriptedUpstream) -> None:
    """Documented: without Redis the lock holds where it is taken; it is neither lost nor said to be taken by another."""
    gate = asyncio.Event()
    upstream.play(lambda received: [gate, *sse(CH, FIN, DONE)])
    fleet.redis.stop()
    for node in fleet.nodes:
        await eventually(lambda node=node: node.degraded is not None)
    field = "X-Soloflight-Session: s"
    a, b = fleet.nodes
    async with connect(a.port) as holder, connect(b.port) as elsewhere:
        await holder.send(chat(fresh(), field, target=SESSION))
        await upstream.wait_calls(1)
        assert refused(await ask(a.port, chat(fresh(), field, target=SESSION))) == (409, "session_busy")
        await elsewhere.send(chat(fresh(), field, target=SESSION))
        await upstream.wait_calls(2)
        gate.set()
        assert [(await client.finish()).status for client in (holder, elsewhere)] == [200, 200]
    assert (await ask(a.port, chat(fresh(), field, target=SESSION))).status == 200
    fleet.redis = fleet.redis.again()
    await both_back(fleet)


async def test_demoted_while_the_address_leads_to_a_new_master(fleet: Fleet, upstream: ScriptedUpstream) -> None:
    """Old connections stay open to the demoted server; then the address leads to the new one: written there within 5 s."""
    upstream.play(lambda received: sse(CH, FIN, DONE))
    old = fleet.redis
    new = RedisServer(old.folder)
    new.wait_ready()
    try:
        old.command("REPLICAOF", "127.0.0.1", new.port)
        await crowd(fleet, chat(fresh()), 20)
        assert upstream.calls <= 3
        for node in fleet.nodes:
            node.way.faults.target = ("127.0.0.1", new.port)
        switched_at = time.monotonic()
        for node in fleet.nodes:
            await eventually(lambda node=node: node.degraded is None, within_s=BACK_WITHIN_S)
        print(f"\nREADONLY: written to the new master {time.monotonic() - switched_at:.2f} s after the switch")
        body = chat(fresh(), "X-Soloflight-Session: s", target=SESSION)
        assert [(await ask(node.port, body)).role for node in fleet.nodes] == ["owner", "replay"]
        with new.client() as client:
            assert list(client.scan_iter("soloflight:*:answer"))
    finally:
        for node in fleet.nodes:
            node.way.lead_to(old.port)
        new.stop()
        old.command("REPLICAOF", "NO", "ONE")
