"""Redis's clock steps while flights run. The proxies are real, with scripts that read the time from a key that a thread moves."""

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.answers import error_of, got_all, numbered, stream, whole
from fleet.clients import Clients
from fleet.nodes import LEASE_S, Fleet
from fleet.witness import Witness
from harness.client import ask, chat, fresh
from harness.process import wait_until
from harness.redis import RedisServer
from harness.stalls import lasted
from soloflight.testing.script import HANG
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

CLOCK = "test-clock"
TICK_S = 0.005
STEP_S = 10.0
SLACK_S = 2.0


def set_clock(server: RedisServer) -> None:
    """A first time, so that the proxies' first scripts find one."""
    server.command("SET", CLOCK, int(time.time() * 1e3))


CALM = "/calm/v1/chat/completions"
CALM_LEASE_S = 6.0
"""Longer than a stall, shorter than a step."""
STAGE = {"name": "calm", "match": {"paths": [CALM]}, "pending_lease": CALM_LEASE_S, "running_lease": CALM_LEASE_S}
FLEET = {
    "config": {"stage": [STAGE]},
    "env": {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent / "clocked"), os.environ.get("PYTHONPATH", "")])},
    "prepare": set_clock,
}


class Clock:
    """Writes the time to the key, again and again; ``step`` moves it at once."""

    def __init__(self, server: RedisServer) -> None:
        self._offset_s = 0.0
        self._written = 0
        self._server = server
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="clock")
        self._thread.start()

    def _run(self) -> None:
        with self._server.client() as client:
            while not self._ending.wait(TICK_S):
                client.set(CLOCK, int((time.time() + self._offset_s) * 1e3))
                self._written += 1

    def step(self, seconds: float) -> None:
        """Forward, or backward."""
        self._offset_s += seconds
        written = self._written
        wait_until(lambda: self._written >= written + 2, within_s=5, what="the clock has been stepped")

    def stop(self) -> None:
        self._ending.set()
        self._thread.join(5)


@pytest.fixture(scope="module")
def clock(fleet_process: Fleet) -> Iterator[Clock]:
    """Goes on between tests, so that only a test's own steps are seen."""
    running = Clock(fleet_process.redis)
    yield running
    running.stop()


@pytest.mark.parametrize("step_s", [STEP_S, -STEP_S])
async def test_a_step_while_an_answer_is_shared(
    step_s: float, clock: Clock, fleet: Fleet, clients: Clients, history: Witness, upstream: ScriptedUpstream
) -> None:
    """The owner lives and beats: nobody is cut, and nobody calls again."""
    events = numbered(1, 30)
    upstream.play(stream(events, 0.05))
    body = chat(fresh(), target=CALM)
    a, b = fleet.nodes
    owner = await clients.ask(a, body, events=1)
    follower = await clients.follow(b, body, events=3)
    clock.step(step_s)
    answers = await asyncio.gather(owner.finish(), follower.finish())
    assert all(got_all(answer, whole(events)) for answer in answers)
    assert upstream.calls == 1
    history.check()


@pytest.mark.parametrize("step_s", [STEP_S, -STEP_S])
@pytest.mark.parametrize("sent", [0, 2])
async def test_a_step_and_a_lost_owner(
    sent: int, step_s: float, clock: Clock, fleet: Fleet, clients: Clients, upstream: ScriptedUpstream
) -> None:
    """The clock steps and the owner dies: a step back does not freeze its lease (L1)."""
    first, second = numbered(1, 5), numbered(2, 5)
    opening = stream(first)[: 1 + sent]
    upstream.play([*opening, HANG] if sent else [HANG], stream(second))
    body = chat(fresh())
    a, b = fleet.nodes
    await clients.ask(a, body, events=sent)
    await upstream.wait_calls(1)
    follower = await clients.follow(b, body, events=sent)
    a.kill()
    killed_at = time.monotonic()
    clock.step(step_s)
    answer = await follower.finish()
    took_s = lasted(killed_at)
    print(f"\nclock {step_s:+.0f} s, {sent} events sent: the loss was decided {took_s:.2f} s after it")
    assert took_s < LEASE_S * 1.1 + SLACK_S
    if sent:
        assert not got_all(answer, whole(first), whole(second))
        assert error_of(answer) == "owner_lost"
    else:
        assert got_all(answer, whole(second))
    assert upstream.calls == (1 if sent else 2)


@pytest.mark.parametrize("step_s", [STEP_S, -STEP_S])
async def test_a_newcomer_right_behind_a_step(
    step_s: float, clock: Clock, fleet: Fleet, clients: Clients, history: Witness, upstream: ScriptedUpstream
) -> None:
    """Before the owner's next beat: forward may cost one call more, back none; no client gets a mixture."""
    first, second = numbered(1, 8), numbered(2, 8)
    upstream.play(stream(first, 0.1), stream(second, 0.02))
    body = chat(fresh(), target=CALM)
    a, b = fleet.nodes
    owner = await clients.ask(a, body, events=1)
    clock.step(step_s)
    newcomer = await ask(b.port, body)
    assert got_all(newcomer, whole(first), whole(second))
    assert got_all(await owner.finish(), whole(first))
    assert upstream.calls <= (2 if step_s > 0 else 1)
    history.check(sizes=False)


@pytest.mark.parametrize("step_s", [STEP_S, -STEP_S])
async def test_a_step_over_a_kept_answer(step_s: float, clock: Clock, fleet: Fleet, upstream: ScriptedUpstream) -> None:
    """It is kept for 300 s: ten more or less do not matter, and its age is never negative."""
    upstream.play(lambda received: stream(numbered(received.number, 3)))
    body = chat(fresh())
    a, b = fleet.nodes
    await ask(a.port, body)
    clock.step(step_s)
    answer = await ask(b.port, body)
    assert (answer.role, answer.body, upstream.calls) == ("replay", whole(numbered(1, 3)), 1)
    assert int(answer.get("Age") or -1) in (range(9, 20) if step_s > 0 else range(10))
