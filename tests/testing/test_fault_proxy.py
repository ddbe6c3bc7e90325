"""The fault proxy breaks what it is told to break, and nothing else."""

import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from harness.client import RawClient, ask, connect, request
from harness.process import eventually
from harness.stalls import lasted
from soloflight.testing.fault_proxy import FaultProxy
from soloflight.testing.script import CLOSE, HANG, head, raw
from soloflight.testing.upstream import ScriptedUpstream

GET = request("GET", "/")
STILL_S = 0.1  # how long silence is watched


@pytest_asyncio.fixture
async def upstream() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream(lambda received: raw(received.target.encode() + received.body)) as server:
        yield server


@pytest_asyncio.fixture
async def faults(upstream: ScriptedUpstream) -> AsyncIterator[FaultProxy]:
    async with FaultProxy("127.0.0.1", upstream.port) as proxy:
        yield proxy


@pytest_asyncio.fixture
async def client(faults: FaultProxy) -> AsyncIterator[RawClient]:
    async with connect(faults.port) as connection:
        yield connection


async def silent(client: RawClient) -> bool:
    with pytest.raises(TimeoutError):
        await client.finish(within_s=STILL_S)
    return True


async def test_passes_bytes_both_ways(client: RawClient, faults: FaultProxy) -> None:
    big = b"z" * 3_000_000
    assert (await client.ask(request("POST", "/", body=big))).body == b"/" + big
    assert faults.up.bytes > len(big) < faults.down.bytes
    assert (faults.accepted, faults.open_now) == (1, 1)


async def test_delays_each_direction(client: RawClient, faults: FaultProxy) -> None:
    faults.up.delay_s, faults.down.delay_s = 0.05, 0.1
    begun = time.monotonic()
    await client.ask(GET)
    assert time.monotonic() - begun >= 0.15
    assert lasted(begun) < 1
    faults.heal()
    begun = time.monotonic()
    await client.ask(GET)
    assert lasted(begun) < 0.1


async def test_swallows_up(client: RawClient, faults: FaultProxy, upstream: ScriptedUpstream) -> None:
    faults.up.swallow = True
    await client.send(GET)
    assert await silent(client)
    assert upstream.calls == 0


async def test_swallows_down(client: RawClient, faults: FaultProxy, upstream: ScriptedUpstream) -> None:
    faults.down.swallow = True
    await client.send(GET)
    assert await silent(client)
    assert upstream.calls == 1


async def test_pause_holds_and_resume_sends_on(
    client: RawClient, faults: FaultProxy, upstream: ScriptedUpstream
) -> None:
    faults.pause()
    await client.send(GET)
    assert await silent(client)
    assert upstream.calls == 0
    faults.resume()
    assert (await client.finish()).body == b"/"


@pytest.mark.parametrize(("reset", "seen"), [(True, "rst"), (False, "fin")])
async def test_cuts_both_sides(
    client: RawClient, faults: FaultProxy, upstream: ScriptedUpstream, reset: bool, seen: str
) -> None:
    upstream.play([HANG])
    await client.send(GET)
    await upstream.wait_calls(1)
    assert faults.cut(reset=reset) == 1
    assert (await client.finish()).ended == seen
    await upstream.wait_until(lambda: upstream.requests[0].left == seen)
    assert faults.open_now == 0


async def test_loses_the_reply_to_one_request_and_cuts(
    client: RawClient, faults: FaultProxy, upstream: ScriptedUpstream
) -> None:
    faults.lose_reply(b"/second")
    assert (await client.ask(request("GET", "/first"))).body == b"/first"
    await client.send(request("GET", "/second"))
    assert (await client.finish()).ended == "rst"
    assert (upstream.calls, faults.replies_lost) == (2, 1)
    assert (await ask(faults.port, request("GET", "/second"))).body == b"/second"


async def test_loses_a_reply_and_stays(client: RawClient, faults: FaultProxy) -> None:
    faults.lose_reply(cut=False)
    await client.send(GET)
    assert await silent(client)
    await client.send_more(GET)
    assert (await client.finish()).body == b"/"


async def test_refuses_new_connections(client: RawClient, faults: FaultProxy) -> None:
    assert (await client.ask(GET)).complete
    faults.refuse = True
    async with connect(faults.port) as late:
        assert await late.ended() == "rst"
    assert (await client.ask(GET)).complete


async def test_a_target_that_is_not_there_is_a_reset(upstream: ScriptedUpstream, faults: FaultProxy) -> None:
    await upstream.stop()
    async with connect(faults.port) as client:
        assert await client.ended() == "rst"


async def test_ends_pass_in_order(client: RawClient, faults: FaultProxy, upstream: ScriptedUpstream) -> None:
    upstream.play([head(200), b"all", CLOSE])
    faults.down.delay_s = 0.05
    response = await client.ask(GET)
    assert (response.body, response.ended) == (b"all", "fin")
    client.close()
    await eventually(lambda: faults.open_now == 0)


async def test_mutes_marked_connections(client: RawClient, faults: FaultProxy) -> None:
    """Half-open: both sides stand, and only one hears. Others and new ones go on."""
    faults.mark = b"GET /"
    await client.ask(request("POST", "/", body=b"unmarked"))
    assert faults.mute() == 0
    async with connect(faults.port) as marked:
        await marked.ask(GET)
        assert faults.mute() == 1
        await marked.send(GET)
        assert await silent(marked)
        assert (await client.ask(GET)).status == 200
        faults.heal()
        assert await silent(marked)
        assert faults.open_now == 2
    assert (await ask(faults.port, GET)).status == 200


async def test_tells_of_a_request_before_it_goes_on(client: RawClient, faults: FaultProxy) -> None:
    seen: list[bytes] = []

    def look(data: bytes) -> None:
        seen.append(data)
        faults.up.swallow = b"/second" in data

    faults.before_request = look
    assert (await client.ask(GET)).status == 200
    await client.send(request("GET", "/second"))
    assert await silent(client)
    assert len(seen) == 2
    assert faults.up.bytes == sum(map(len, seen))
    faults.heal()
    assert faults.before_request is None


async def test_doubles_the_reply_to_one_request(client: RawClient, faults: FaultProxy) -> None:
    faults.double_reply(b"/twice")
    assert (await client.ask(GET)).status == 200
    twice = await client.ask(request("GET", "/twice"))
    again = client.parser.rest
    assert twice.body == b"/twice"
    assert again == b"" or again.startswith(b"HTTP/1.1 200")
    await client.send(GET)
    assert (await client.finish()).body == b"/twice", "the reply that nobody had asked for comes first"
