"""An operator's words: what a node does with them, and with a coordinator that is away."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from soloflight.core.flight import Absent, Leave
from soloflight.core.frames import Head, Recording
from soloflight.core.stage import Stage
from soloflight.events import BackendAsked, Event
from soloflight.flow import oversight as module
from soloflight.flow.memory import Memory
from soloflight.flow.metered import metered
from soloflight.flow.oversight import Abort, Oversight, Purged
from soloflight.flow.replays import Replays
from soloflight.flow.shelf import Replay
from soloflight.ports import BackendError

STAGES = (Stage("evaluation"), Stage("other"))
RECORDING = Recording(Head(200, b"OK", ()), (b"x",), 1)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Coordinator:
    """A coordinator that is there or away."""

    def __init__(self) -> None:
        self.away = False
        self.shared = True
        self.up = True
        self.said: list[str] = []
        self.purged: list[str] = []
        self.ages: dict[str, int] = {}

    def _answer(self) -> None:
        if self.away:
            raise BackendError("away")

    async def tell(self, word: str) -> None:
        self._answer()
        self.said.append(word)

    async def mark(self, name: str) -> None:
        self._answer()
        self.ages[name] = 0

    async def marks(self) -> dict[str, int]:
        self._answer()
        return self.ages

    async def purge(self, key: str) -> bool:
        self._answer()
        self.purged.append(key)
        return True

    async def step(self, key: str, op: object) -> Absent:
        self._answer()
        return Absent()


class Node:
    id = "node"

    def __init__(self) -> None:
        self.aborted: list[str] = []
        self.flights = SimpleNamespace(all=set())

    async def abort(self, flight_id: str) -> bool:
        self.aborted.append(flight_id)
        return flight_id == "own"


class World:
    def __init__(self) -> None:
        self.clock, self.node, self.coordinator = Clock(), Node(), Coordinator()
        self.replays = Replays(Memory(1 << 20), self.clock)
        names = [stage.name for stage in STAGES]
        self.sight = Oversight(self.node, self.coordinator, self.replays, lambda: names)  # type: ignore[arg-type]

    def keep(self, key: str, flight: str, stage: Stage = STAGES[0], age_s: float = 0.0) -> bool:
        now = self.clock()
        return self.replays.put(stage, key, Replay(RECORDING, flight, 1, now - age_s, now + 100, now + 100))

    def kept(self, key: str, stage: Stage = STAGES[0]) -> bool:
        return self.replays.get(stage, key, None) is not None


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    await made.sight.close()


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_purge_by_flight_finds_its_key(world: World) -> None:
    world.keep("key", "flight")
    assert await world.sight.purge_key("flight") == Purged(local=1, kept=True, told=True)
    assert (world.coordinator.purged, world.coordinator.said) == (["key"], ["purge flight"])
    assert not world.kept("key")
    assert await world.sight.purge_key("unknown") == Purged(local=0, kept=True, told=True)


async def test_a_word_of_a_purge_is_obeyed_and_passed_on_where_only_this_node_knows_the_key(world: World) -> None:
    world.keep("key", "flight")
    world.keep("another", "flight2")
    world.sight.heard("purge flight")
    world.sight.heard("purge another")
    await settled()
    assert not world.kept("key")
    assert not world.kept("another")
    assert world.coordinator.purged == ["key"]  # who said "another" knew that key itself


async def test_a_stage_s_purge_takes_nothing_older_any_more(world: World) -> None:
    world.keep("key", "flight")
    world.keep("key", "flight", STAGES[1])
    assert await world.sight.purge_stage("evaluation") == Purged(local=1, kept=True, told=True)
    assert (world.kept("key"), world.kept("key", STAGES[1])) == (False, True)
    world.clock.now += 5
    assert world.replays.accepted_s("evaluation", None) == 5
    assert world.replays.accepted_s("evaluation", 2.0) == 2.0
    assert world.replays.accepted_s("evaluation", -1.0) == -1.0
    assert world.replays.accepted_s("other", None) is None
    assert not world.keep("key", "flight", age_s=6)
    assert world.keep("key", "flight", age_s=4)


async def test_marks_are_learnt_at_the_start_and_after_words_may_have_been_missed(world: World) -> None:
    world.coordinator.ages = {"stage evaluation": 3000, "something else": 1}
    await world.sight.open()
    assert world.replays.accepted_s("evaluation", None) == 3.0
    world.keep("key", "flight", STAGES[1])
    world.coordinator.ages = {"stage other": 1000}
    world.sight.heard("")
    await settled()
    assert not world.kept("key", STAGES[1])
    assert world.replays.accepted_s("other", None) == 1.0


async def test_marks_are_asked_for_until_the_coordinator_answers(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MARKS_AGAIN_S", 0.001)
    world.coordinator.away = True
    world.coordinator.ages = {"stage evaluation": 0}
    await world.sight.open()
    assert world.replays.accepted_s("evaluation", None) is None
    world.coordinator.away = False
    async with asyncio.timeout(5):
        while world.replays.accepted_s("evaluation", None) is None:
            await asyncio.sleep(0.001)


async def test_what_is_said_while_the_coordinator_is_away(world: World) -> None:
    world.coordinator.away = True
    world.keep("key", "flight")
    assert await world.sight.purge_key("key") == Purged(local=1, kept=False, told=False)
    assert await world.sight.purge_stage("evaluation") == Purged(local=0, kept=False, told=False)
    assert await world.sight.abort("theirs") is Abort.UNKNOWN


async def test_aborts(world: World) -> None:
    assert await world.sight.abort("own") is Abort.DONE
    assert world.coordinator.said == []
    assert await world.sight.abort("theirs") is Abort.TOLD
    assert world.coordinator.said == ["abort theirs"]
    world.coordinator.shared = False
    assert await world.sight.abort("nobody's") is Abort.UNKNOWN
    world.sight.heard("abort own")
    await settled()
    assert world.node.aborted == ["own", "theirs", "nobody's", "own"]


async def test_an_unknown_word_changes_nothing(world: World) -> None:
    world.keep("key", "flight")
    world.sight.heard("a word of a later version")
    assert world.kept("key")


async def test_gauges_have_every_stage(world: World) -> None:
    world.keep("key", "flight")
    now = world.sight.gauges()
    assert now.flights == now.followers == {"evaluation": 0, "other": 0}
    assert now.local_bytes == {"evaluation": RECORDING.cost, "other": 0}
    assert now.backend_up


async def test_each_command_to_the_coordinator_is_told_of() -> None:
    inner: Any = Coordinator()
    told: list[Event] = []
    outer = metered(inner, told.append)
    assert await outer.step("key", Leave("node", 1)) == Absent()
    inner.away = True
    for ask in (outer.step("key", Leave("node", 1)), outer.purge("key")):
        with pytest.raises(BackendError):
            await ask
    asked = [event for event in told if isinstance(event, BackendAsked)]
    assert [(event.op, event.answered) for event in asked] == [("leave", True), ("leave", False), ("purge", False)]
    assert all(event.took_s >= 0 for event in asked)
    assert (outer.shared, outer.up) == (True, True)
