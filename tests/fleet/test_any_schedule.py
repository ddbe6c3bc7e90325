"""Anything at any moment: three nodes, crowds that ask and leave, and a seeded stream of faults. Every answer is looked at."""

import asyncio
import json
import os
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from fleet.answers import numbered, whole, without_error
from fleet.nodes import Fleet, Node
from harness.client import RawClient, chat, connect, fresh
from harness.process import eventually
from harness.stalls import lasted
from harness.wire import Response
from soloflight.testing.chat import DONE, FIN
from soloflight.testing.received import Received
from soloflight.testing.script import Script, Step, sse
from soloflight.testing.upstream import ScriptedUpstream
from soloflight_redis.scripts import build

pytestmark = pytest.mark.beside

FLEET = {"size": 3, "config": {"stage_defaults": {"local_retention": "1s", "retention": "3s", "poison_ttl": "1s"}}}
EVENTS, LANES = 8, 30
ANSWERED_WITHIN_S = 20.0
SHORT_S, LONG_S = 6.0, 45.0
REFUSALS = {"attempts_exhausted", "follower_timeout", "owner_lost"}
Fault = Callable[[], Awaitable[None]]


class Schedule:
    """One seed's faults and requests."""

    def __init__(self, fleet: Fleet, upstream: ScriptedUpstream, seed: int) -> None:
        self.fleet = fleet
        self.upstream = upstream
        self.chance = random.Random(seed)
        self.faults: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.slowest_s = 0.0
        self.ended = asyncio.Event()
        self._bodies: list[bytes] = []
        upstream.play(self._say)

    def _say(self, received: Received) -> Script:
        pause_s = self.chance.choice((0.0, 0.005, 0.03, 0.1))
        steps: list[Step] = [pause_s]
        for event in numbered(received.number, EVENTS):
            steps += [event, pause_s]
        return sse(*steps, FIN, DONE)

    # ── faults ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def break_things(self) -> None:
        """One fault after the other; what lasts is taken back before the next."""
        kinds: list[Fault] = [
            self.cut, self.hole, self.mute, self.slow, self.freeze, self.kill, self.deafen, self.flush, self.forget_scripts,
            self.lose_replies,
        ]  # fmt: skip
        while not self.ended.is_set():
            fault = self.chance.choice(kinds)
            self.faults[fault.__name__] += 1
            await fault()
            await asyncio.sleep(self.chance.uniform(0.05, 0.4))

    def node(self) -> Node:
        return self.chance.choice(self.fleet.nodes)

    async def cut(self) -> None:
        self.node().way.cut()

    async def hole(self) -> None:
        way = self.node().way
        way.hole(up=self.chance.random() < 0.7, down=self.chance.random() < 0.7)
        await asyncio.sleep(self.chance.uniform(0.1, 1.6))
        way.heal()
        way.cut()  # what a hole has swallowed a part of can not go on

    async def mute(self) -> None:
        self.node().way.mute()

    async def slow(self) -> None:
        way = self.node().way
        way.delay(self.chance.uniform(0.02, 0.15))
        await asyncio.sleep(0.5)
        way.delay(0)

    async def freeze(self) -> None:
        node = self.node()
        node.proxy.freeze()
        await asyncio.sleep(self.chance.uniform(0.1, 1.6))
        node.proxy.thaw()

    async def kill(self) -> None:
        node = self.node()
        await asyncio.to_thread(node.kill)
        node.start_again()
        await asyncio.to_thread(node.proxy.wait_ready)

    async def deafen(self) -> None:
        await asyncio.to_thread(self.fleet.kill_listening)

    async def flush(self) -> None:
        await asyncio.to_thread(self.fleet.forget)

    async def forget_scripts(self) -> None:
        await asyncio.to_thread(self.fleet.command, "SCRIPT", "FLUSH")

    async def lose_replies(self) -> None:
        script = self.chance.choice(list(build().values()))
        self.node().way.lose_reply(script.digest.encode(), cut=self.chance.random() < 0.5)

    # ── requests ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def lane(self) -> None:
        """One client after the other: a body that is new or that others ask for, too; some leave early."""
        while not self.ended.is_set():
            if not self._bodies or self.chance.random() < 0.15:
                self._bodies = [*self._bodies[-5:], json.dumps(fresh()).encode()]
            raw = self.chance.choice(self._bodies)
            field = ["Cache-Control: no-cache"] if self.chance.random() < 0.1 else []
            began = time.monotonic()
            try:
                async with connect(self.node().port) as client:
                    await client.send(chat(raw, *field))
                    await self._read(client, raw)
            except ConnectionError:
                self.outcomes["nobody there"] += 1
                await asyncio.sleep(0.05)
            self.slowest_s = max(self.slowest_s, lasted(began))

    async def _read(self, client: RawClient, raw: bytes) -> None:
        if self.chance.random() < 0.15:
            await client.read_until(lambda response: len(response.kept) > 200, within_s=ANSWERED_WITHIN_S)
            self.outcomes["left"] += 1
            return
        answer = await client.finish(within_s=ANSWERED_WITHIN_S)
        self.outcomes[self._judge(answer, raw)] += 1

    def _judge(self, answer: Response, raw: bytes) -> str:
        """I4: what this client has got, which is whole, refused, or visibly cut."""
        if not answer.raw_head:
            return "its node was killed"
        if answer.status != 200:
            code = json.loads(answer.body)["error"]["code"]
            assert code in REFUSALS, answer.body
            return code
        calls = [received.number for received in self.upstream.requests if received.body == raw]
        wholes = [whole(numbered(number, EVENTS)) for number in calls]
        if answer.complete:
            assert answer.body in wholes, "a body that no call for it made"
            return str(answer.role)
        left = without_error(answer)
        assert any(one.startswith(left) for one in wholes), "not the beginning of any call's"
        assert DONE not in left
        return "cut"


async def run(fleet: Fleet, upstream: ScriptedUpstream, seed: int, for_s: float) -> None:
    schedule = Schedule(fleet, upstream, seed)
    breaking = asyncio.create_task(schedule.break_things())
    lanes = [asyncio.create_task(schedule.lane()) for _ in range(LANES)]
    done, _ = await asyncio.wait([breaking, *lanes], timeout=for_s, return_when=asyncio.FIRST_EXCEPTION)
    schedule.ended.set()
    for task in done:
        task.result()
    await asyncio.gather(breaking, *lanes)
    print(
        f"\nseed {seed}: {schedule.outcomes.total()} answers {dict(schedule.outcomes)}, {upstream.calls} calls, slowest "
        f"{schedule.slowest_s:.2f} s; faults {dict(schedule.faults)}"
    )
    assert {"owner", "follower", "replay"} <= schedule.outcomes.keys()
    await asyncio.to_thread(fleet.mend)
    for node in fleet.nodes:
        await eventually(lambda node=node: node.proxy.api("/api/flights")["flights"] == [], within_s=10)
    await eventually(lambda: fleet.channels() == {})


@pytest.mark.timeout(120)
async def test_a_short_schedule(fleet: Fleet, upstream: ScriptedUpstream) -> None:
    await run(fleet, upstream, 1, SHORT_S)


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(2, 2 + int(os.environ.get("SCHEDULES", "10"))))
async def test_many_schedules(seed: int, fleet: Fleet, upstream: ScriptedUpstream) -> None:
    await run(fleet, upstream, seed, LONG_S)
