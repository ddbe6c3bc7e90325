"""What the memory coordinator keeps, and for how long: its bounds, and the hook by which it is found."""

import logging
from types import SimpleNamespace

import pytest

from exploration.words import claim, recording
from soloflight.core.flight import Absent, Answered, Done, Fence, Joined, Owned
from soloflight.core.standing import REMEMBERED_MS
from soloflight.testing.party import Party
from soloflight_memory import MemoryCoordinator, soloflight_coordinator
from soloflight_memory.collection import BATCH, SLACK, Collection
from soloflight_memory.coordinator import monotonic_ms

COST = recording().cost


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def memory(clock: Clock) -> MemoryCoordinator:
    return MemoryCoordinator(10 * COST, clock)


def at(memory: MemoryCoordinator, key: str) -> Party:
    return Party("a", memory, key)


async def sealed(memory: MemoryCoordinator, key: str, retention_ms: int = 10_000) -> Fence:
    party = at(memory, key)
    fence = await party.run()
    assert await party.seal(fence, recording(), retention_ms=retention_ms) == Done()
    return fence


def figures(memory: MemoryCoordinator) -> str:
    return repr(memory)


# ── records ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("end", ["kept", "unkept", "failed", "retried", "dropped", "left alone"])
async def test_a_flood_of_distinct_keys_does_not_grow_memory(clock: Clock, end: str) -> None:
    memory = MemoryCoordinator(1 << 30, clock)
    store = memory._store
    most = 0
    for number in range(5_000):
        party = at(memory, f"key-{number}")
        fence = await party.run(deadline_ms=100)
        await party.append(fence, 1)
        match end:
            case "kept":
                await party.seal(fence, retention_ms=100)
            case "unkept":
                await party.seal(fence, retention_ms=0, grace_ms=100)
            case "failed":
                await party.fail(fence, grace_ms=100)
            case "retried":
                await party.fail(fence, retry=True, backoff_ms=100)
            case "dropped":
                await party.abandon(fence)
        clock.now += 1_000
        most = max(most, len(store.entries))
        assert len(store._collection._heap) <= 2 * len(store.entries) + SLACK + 2
    expected = (REMEMBERED_MS + 100) // 1_000 + 2 if end in ("retried", "left alone") else 2
    assert most <= expected
    assert store.result_bytes <= 2 * 10_000
    assert len(store._collection._times) == len(store.entries)


async def test_what_a_burst_left_goes_a_few_at_a_time(memory: MemoryCoordinator, clock: Clock) -> None:
    for number in range(100):
        await at(memory, f"key-{number}").fail(await at(memory, f"key-{number}").run(), grace_ms=100)
    assert "flights=100," in figures(memory)
    clock.now += 101
    await at(memory, "one more").run()
    assert f"flights={101 - BATCH}," in figures(memory)
    for number in range(20):
        await at(memory, f"more-{number}").run()
    assert "flights=21," in figures(memory)


async def test_a_look_leaves_no_record(memory: MemoryCoordinator) -> None:
    assert await at(memory, "k").look() == Absent()
    assert await at(memory, "k").abandon(Fence(1, "n"))
    assert "flights=0," in figures(memory)
    assert await memory.log("k", 1, 0) == []
    assert await memory.result("k", 1) is None


async def test_a_log_goes_with_its_attempt(memory: MemoryCoordinator, clock: Clock) -> None:
    party = at(memory, "k")
    first = await party.run()
    await party.append(first, 1)
    clock.now += 1_001
    second = await party.run()
    assert await party.log(first.number) == []
    await party.append(second, 1)
    await party.seal(second)
    assert await party.log(second.number) == []


async def test_a_record_is_collected_by_its_last_time_only(memory: MemoryCoordinator, clock: Clock) -> None:
    party = at(memory, "k")
    await party.fail(await party.run(), grace_ms=100)
    await party.seal(await party.run(), retention_ms=10_000)
    clock.now += 5_000
    await at(memory, "other").run()
    assert isinstance(await party.look(), Answered)


def test_collection_passes_over_what_was_put_off_or_forgotten() -> None:
    collection = Collection()
    collection.put("put off", 10)
    collection.put("put off", 30)
    collection.put("forgotten", 10)
    collection.forget("forgotten")
    collection.forget("never there")
    collection.put("due", 10)
    collection.put("due", 10)
    assert collection.take(10) == []
    assert collection.take(11) == ["due"]
    assert collection.take(30) == []
    assert repr(collection) == "Collection(keys=1, entries=1)"
    assert collection.take(31) == ["put off"]


def test_collection_throws_out_old_entries_when_they_are_too_many() -> None:
    collection = Collection()
    for time in range(1_000):
        collection.put("k", time)
    assert len(collection._heap) <= SLACK + 2
    assert collection.take(999) == []
    taken = [key for _ in range(20) for key in collection.take(1_000)]
    assert taken == ["k"]


# ── results ─────────────────────────────────────────────────────────────────────────────────────────


async def test_over_the_bound_the_least_recently_sealed_goes_first(memory: MemoryCoordinator) -> None:
    fences = [await sealed(memory, f"key-{number}") for number in range(12)]
    assert f"results=10, bytes={10 * COST}/{10 * COST}" in figures(memory)
    for number, fence in enumerate(fences):
        party = at(memory, f"key-{number}")
        assert (await party.result(fence.number) is None) == (number < 2)
        assert isinstance(await party.look(), Absent if number < 2 else Answered)


async def test_sealing_again_makes_a_result_recent(memory: MemoryCoordinator) -> None:
    for number in range(10):
        await sealed(memory, f"key-{number}")
    refresh = at(memory, "key-0")
    await refresh.seal(await refresh.run(fresh_ms=-1), recording())
    await sealed(memory, "one more")
    assert isinstance(await refresh.look(), Answered)
    assert await at(memory, "key-1").look() == Absent()


async def test_a_result_over_the_whole_bound_is_not_kept(memory: MemoryCoordinator) -> None:
    party = at(memory, "k")
    fence = await party.run()
    assert await party.seal(fence, recording(b"x" * 10 * COST)) == Done()
    assert await party.result(fence.number) is None
    assert await party.look() == Absent()
    assert "bytes=0/" in figures(memory)


async def test_an_unkept_result_over_the_bound_is_gone_but_its_outcome_is_told(
    memory: MemoryCoordinator,
) -> None:
    party = at(memory, "k")
    fence = await party.run()
    await party.seal(fence, recording(b"x" * 10 * COST), retention_ms=0)
    assert isinstance(await party.look(follow=fence.number), Answered)
    assert await party.result(fence.number) is None


async def test_a_result_dropped_for_room_leaves_a_refresh_running(memory: MemoryCoordinator) -> None:
    await sealed(memory, "k")
    refresh = await at(memory, "k").run(fresh_ms=-1)
    for number in range(10):
        await sealed(memory, f"key-{number}")
    assert await at(memory, "k").seal(refresh) == Done()


async def test_expired_results_give_their_bytes_back(memory: MemoryCoordinator, clock: Clock) -> None:
    for number in range(5):
        await sealed(memory, f"key-{number}", retention_ms=100)
    clock.now += 101
    await sealed(memory, "k")
    assert f"results=1, bytes={COST}/" in figures(memory)


async def test_results_are_kept_by_reference(memory: MemoryCoordinator) -> None:
    party = at(memory, "k")
    result = recording()
    fence = await party.run()
    await party.seal(fence, result)
    assert await party.result(fence.number) is result


# ── listeners, the port, the hook ───────────────────────────────────────────────────────────────────


async def test_what_a_listener_raises_is_logged(memory: MemoryCoordinator, caplog: pytest.LogCaptureFixture) -> None:
    await memory.subscribe("k", lambda notice: [][0])
    party = at(memory, "k")
    with caplog.at_level(logging.ERROR, "soloflight.memory"):
        assert await party.fail(await party.run()) == Done()
    assert "listener" in caplog.text
    assert "IndexError" in caplog.text


async def test_a_ring_that_raises_does_not_harm_the_joiner(memory: MemoryCoordinator) -> None:
    def broken(key: str) -> None:
        raise RuntimeError(key)

    await memory.open("a", broken)
    await at(memory, "k").run()
    assert isinstance(await Party("b", memory.node(), "k").claim(), Joined)


async def test_a_join_of_a_flight_whose_node_is_closed_rings_nobody(memory: MemoryCoordinator) -> None:
    rings: list[str] = []
    await memory.open("a", rings.append)
    await at(memory, "k").run()
    await memory.close()
    assert isinstance(await Party("b", memory.node(), "k").claim(), Joined)
    assert rings == []


async def test_no_subscription_is_left_behind(memory: MemoryCoordinator) -> None:
    subscription = await memory.subscribe("k", print)
    await memory.subscribe("k", print)
    await memory.subscribe("other", print)
    assert "listeners=2" in figures(memory)
    assert repr(subscription) == "MemorySubscription('k')"
    await subscription.close()
    await subscription.close()
    assert "listeners=2" in figures(memory)
    await memory.close()
    assert "listeners=0" in figures(memory)


async def test_a_purge_of_nothing(memory: MemoryCoordinator) -> None:
    assert await memory.purge("k") is False


async def test_it_is_not_shared_and_always_up(memory: MemoryCoordinator) -> None:
    assert memory.shared is False
    assert memory.up is True
    assert len(await memory.scope_key()) == 32
    assert await memory.scope_key() != await MemoryCoordinator(1).scope_key()
    await memory.open("a", print)
    assert repr(memory).startswith("MemoryCoordinator(node='a', Store(flights=0,")
    assert repr(memory.node()).startswith("MemoryNode(node=None, Store(")


async def test_an_entry_says_what_it_holds(memory: MemoryCoordinator) -> None:
    fence = await sealed(memory, "k")
    assert repr(memory._store.entries["k"]) == f"Entry(COMPLETE, logs=[], results=[{fence.number}])"


async def test_without_a_clock_it_takes_the_monotonic_one() -> None:
    before = monotonic_ms()
    reply = await MemoryCoordinator(1 << 20).step("k", claim())
    assert isinstance(reply, Owned)
    assert 0 < before * 1000 <= reply.fence.number <= monotonic_ms() * 1000


def test_the_hook_answers_to_its_name_only() -> None:
    settings = SimpleNamespace(server=SimpleNamespace(max_memory=123))
    memory = soloflight_coordinator("memory", settings)
    assert isinstance(memory, MemoryCoordinator)
    assert "/123," in repr(memory)
    assert soloflight_coordinator("redis", settings) is None
