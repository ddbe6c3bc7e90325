"""Progress, visible: what /api/flights and ``soloflight flights show`` tell of a flight, at its owner's node and at followers'."""

import asyncio
import re
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import pytest

from governance.jobs import JOB, job
from governance.stages import BRIEF, LEASE_S
from harness.client import ask, connect, fresh
from harness.process import eventually, http_status
from harness.proxy import PROGRAM, Proxy, clean_env
from harness.site import Site, open_site
from soloflight.testing.chat import CH, DONE, FIN, content
from soloflight.testing.script import HANG, sse
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

PIECES = [content(f"piece {number}") for number in range(3)]


def flight_at(node: Proxy) -> dict[str, Any]:
    """The one flight that runs on ``node``; asked for by itself it is the same."""
    (row,) = node.api("/api/flights")["flights"]
    alone = node.api(f"/api/flights/{row['id']}")
    assert alone.keys() == row.keys()
    assert {name: alone[name] for name in alone if not name.endswith("_s")} == {
        name: row[name] for name in row if not name.endswith("_s")
    }
    return dict(alone)


async def shown(node: Proxy, flight: str) -> dict[str, str]:
    """What ``soloflight flights show`` prints, by label."""
    process = await asyncio.create_subprocess_exec(
        str(PROGRAM),
        *("flights", "show", "--admin", node.admin, flight[:8]),
        env=clean_env(),
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(20):
        out, _ = await process.communicate()
    assert process.returncode == 0
    return dict(re.split(r"\s{2,}", line, maxsplit=1) for line in out.decode().splitlines())  # type: ignore[misc]


async def test_a_stream_on_both_nodes(site: Site, upstream: ScriptedUpstream) -> None:
    """Three clients at its owner, two elsewhere: both nodes tell of the same flight, each with its own listeners."""
    gate = asyncio.Event()
    upstream.play(sse(*PIECES, gate, FIN, DONE))
    raw = job("", body=fresh())
    async with AsyncExitStack() as stack:
        clients = []
        for node in (site.one, site.one, site.one, site.other, site.other):
            client = await stack.enter_async_context(connect(node.port))
            await client.send(raw)
            await client.read_events(3)
            clients.append(client)
        if site.fleet:
            await eventually(lambda: flight_at(site.one)["watchers"] == 1)
        told = [flight_at(node) for node in site.nodes]
        owner = told[0]
        size = sum(map(len, PIECES))
        assert (owner["stage"], owner["state"], owner["role"]) == ("default", "running", "owner")
        assert (owner["owner"], owner["attempt"]) == (owner["node"], 1)
        assert (owner["bytes"], owner["frames"] >= 2) == (size, True)
        assert owner["listeners"] == (3 if site.fleet else 5)
        assert owner["followers"] == owner["listeners"] - 1
        assert owner["watchers"] == len(site.nodes) - 1
        assert 0 < owner["lease_left_s"] <= LEASE_S
        assert 0 <= owner["progress_age_s"] <= owner["age_s"] < 10
        assert (owner["model"], owner["path"]) == ("m", "/v1/chat/completions")
        printed = await shown(site.one, owner["id"])
        assert (printed["flight"], printed["state"], printed["attempt"]) == (owner["id"], "running", "1")
        if site.fleet:
            follower = told[1]
            assert follower["node"] != owner["node"]
            for name in ("id", "key", "stage", "state", "owner", "bytes", "model", "path"):
                assert follower[name] == owner[name], name
            assert (follower["role"], follower["listeners"], follower["followers"]) == ("follower", 2, 2)
            assert 0 < follower["lease_left_s"] <= LEASE_S
            assert 0 <= follower["progress_age_s"] <= follower["age_s"] < 10
            elsewhere = await shown(site.other, owner["id"])
            for label in ("flight", "stage", "state", "owner node"):
                assert elsewhere[label] == printed[label]
            assert elsewhere["role here"] != printed["role here"]
        gate.set()
        for client in clients:
            assert (await client.finish()).complete
    await eventually(lambda: not site.flights())
    for node in site.nodes:
        assert http_status(f"{node.admin}/api/flights/{owner['id']}") == 404


def renewed_in_silence(row: dict[str, Any]) -> bool:
    """The upstream has been silent for longer than the last renewal is ago."""
    return bool(row["progress_age_s"] > 0.5 and row["lease_left_s"] > LEASE_S - 0.4)


async def test_progress_is_what_the_upstream_sends(site: Site, upstream: ScriptedUpstream) -> None:
    """Its age grows while the upstream is silent, however its lease is renewed, and begins anew with its next byte."""
    gates = [asyncio.Event(), asyncio.Event()]
    upstream.play(sse(CH, gates[0], CH, gates[1], FIN, DONE))
    async with connect(site.one.port) as client:
        await client.send(job("", body=fresh()))
        await client.read_events(1)
        await eventually(lambda: renewed_in_silence(flight_at(site.one)))
        silent = flight_at(site.one)
        gates[0].set()
        await client.read_events(2)
        moved = flight_at(site.one)
        assert moved["progress_age_s"] < silent["progress_age_s"]
        assert moved["bytes"] == 2 * silent["bytes"]
        gates[1].set()
        await client.finish()


async def test_what_waits_at_the_gate_is_pending(site: Site, upstream: ScriptedUpstream) -> None:
    gate = asyncio.Event()
    upstream.play([gate, JOB], JOB)
    body = fresh(stream=False)
    async with connect(site.one.port) as holder, connect(site.one.port) as waiter, connect(site.other.port) as mate:
        await holder.send(job("queue", "seen"))
        await upstream.wait_calls(1)
        await waiter.send(job("queue", "seen", body=body))
        await site.settle(site.one)
        await mate.send(job("queue", "seen", body=body))
        await site.settle(site.other)
        rows = site.one.api("/api/flights")["flights"]
        assert [(row["state"], row["role"]) for row in rows] == [("running", "owner"), ("pending", "owner")]
        pending = rows[1]
        assert (pending["frames"], pending["bytes"], pending["progress_age_s"]) == (0, 0, None)
        assert 0 < pending["lease_left_s"] <= LEASE_S
        if site.fleet:
            follower = flight_at(site.other)
            assert (follower["id"], follower["owner"]) == (pending["id"], pending["node"])
            assert (follower["state"], follower["role"]) == ("pending", "follower")
        gate.set()
        for client in (holder, waiter, mate):
            assert (await client.finish()).status == 200


@pytest.fixture
def fragile(tmp_path: Path, upstream_port: int) -> Iterator[Site]:
    """Two nodes, of which one will be killed."""
    with ExitStack() as stack:
        site = open_site("redis", tmp_path, upstream_port, BRIEF, ExitStack())
        assert site.redis is not None
        stack.callback(site.redis.stop)
        stack.callback(site.other.stop)
        stack.callback(site.one.kill)
        yield site


async def test_another_attempt_is_told(fragile: Site, upstream: ScriptedUpstream) -> None:
    """Its owner is lost: the same flight, of another owner, at its second attempt."""
    gate = asyncio.Event()
    upstream.play([HANG], sse(CH, gate, FIN, DONE))
    raw = job("", body=fresh())
    async with connect(fragile.one.port) as lost, connect(fragile.other.port) as client:
        await lost.send(raw)
        await upstream.wait_calls(1)
        await client.send(raw)
        await fragile.settle(fragile.other)
        await eventually(lambda: flight_at(fragile.other)["owner"] != "")
        before = flight_at(fragile.other)
        assert before["owner"] != before["node"]
        fragile.one.kill()
        await client.read_events(1)
        after = flight_at(fragile.other)
        assert (after["id"], after["role"], after["attempt"]) == (before["id"], "owner", 2)
        assert after["owner"] == after["node"] == before["node"]
        gate.set()
        assert (await client.finish()).complete
    assert (await ask(fragile.other.port, raw)).role == "replay"
