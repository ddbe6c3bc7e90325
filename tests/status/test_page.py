"""The status page in a real Chromium: rows come and go, it survives a restart, stays quick, and fits small screens."""

import asyncio
from typing import Any

import pytest

from harness.browser import Browser
from harness.client import ask, chat, connect, fresh
from harness.fixtures import StartProxy
from harness.ports import free_port
from soloflight.ports import RequestEnded, Role
from soloflight.testing.chat import CH, DONE, FIN
from soloflight.testing.script import sse
from soloflight.testing.upstream import ScriptedUpstream
from soloflight.web.tally import Prices, Tally
from status.desks import NODE, OTHER, ShownDesk, flight, served

pytestmark = pytest.mark.system

ROWS = "return document.querySelectorAll('#flights .row').length"
CELLS = (
    "return [...document.querySelectorAll('#flights .row')].map(row => [...row.children].map(cell => cell.textContent))"
)
TWO_LISTEN = "return document.querySelector('#flights .row').children[11].textContent === '2'"
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":1200,"completion_tokens":300}}\n\n'
FRAMES = """
const done = arguments[arguments.length - 1], gaps = [];
let last = performance.now();
const end = last + 3000;
requestAnimationFrame(function frame() {
  const now = performance.now();
  gaps.push(now - last);
  last = now;
  if (now < end) requestAnimationFrame(frame); else done(gaps.sort((a, b) => a - b));
});
"""


async def test_a_real_flight_comes_and_goes_and_what_it_saved_stays(page: Browser, start_proxy: StartProxy) -> None:
    gate = asyncio.Event()
    prices = {"m*": {"input": 2.0, "output": 10.0}}
    async with ScriptedUpstream(sse(CH, gate, FIN, USAGE, DONE)) as upstream:
        proxy = start_proxy({"prices": prices}, upstream=upstream.port)
        body = chat(fresh())
        await asyncio.to_thread(page.open, proxy.admin)
        async with connect(proxy.port) as a, connect(proxy.port) as b:
            for client in (a, b):
                await client.send(body)
                await client.read_events(1)
            await asyncio.to_thread(page.until, ROWS + " === 1", "a row")
            # The page may show what was so before the second one came.
            await asyncio.to_thread(page.until, TWO_LISTEN, "two listeners")
            (cells,) = await asyncio.to_thread(page.run, CELLS)
            row = proxy.api("/api/flights")["flights"][0]
            assert cells[:6] == [row["id"][:12], "default", "running", "owner", row["owner"][:12], "1"]
            assert cells[9:14] == [f"{len(CH)} B", "2", "2", "1", "0"]
            gate.set()
            assert [(await client.finish()).role for client in (a, b)] == ["owner", "follower"]
        assert (await ask(proxy.port, body)).role == "replay"
        await asyncio.to_thread(page.until, ROWS + " === 0", "no row")
        await asyncio.to_thread(
            page.until, "return document.getElementById('calls-replay').textContent === '1 replayed'", "1 replayed"
        )
        told = {
            name: page.run(f"return document.getElementById('{name}').textContent")
            for name in ("tokens-join", "tokens-replay", "money", "backend")
        }
        assert told == {
            "tokens-join": "1,500 joined",
            "tokens-replay": "1,500 replayed",
            "money": "0.0108",
            "backend": "memory backend up",
        }


async def test_an_end_is_asked_for_twice_and_the_row_goes(page: Browser) -> None:
    desk = ShownDesk([flight(1), flight(2, owner=OTHER, role="follower", attempt=None)])
    async with served(desk) as url:
        await asyncio.to_thread(page.open, url)
        await asyncio.to_thread(page.until, ROWS + " === 2", "two rows")
        press = "document.querySelector('#flights .row button').click()"
        await asyncio.to_thread(page.run, press)
        assert desk.done == []
        await asyncio.to_thread(page.run, press)
        await asyncio.to_thread(page.until, ROWS + " === 1", "one row")
        assert desk.done == [("abort", flight(1)["id"])]
        (left,) = await asyncio.to_thread(page.run, CELLS)
        assert left[3:6] == ["follower", OTHER[:12], "–"]


async def test_it_comes_back_when_the_proxy_does(page: Browser) -> None:
    port = free_port()
    async with served(ShownDesk([flight(1)]), port=port) as url:
        await asyncio.to_thread(page.open, url)
        await asyncio.to_thread(page.until, ROWS + " === 1", "one row")
    await asyncio.to_thread(
        page.until, "return document.getElementById('status').textContent === 'reconnecting'", "the loss is told"
    )
    async with served(ShownDesk([flight(7), flight(8)]), port=port):
        await asyncio.to_thread(page.until, ROWS + " === 2", "two rows")
        assert await asyncio.to_thread(page.run, "return document.getElementById('status').textContent") == "up"
        complaints = await asyncio.to_thread(page.complaints)
    assert all("ERR_CONNECTION_REFUSED" in one or "ERR_INCOMPLETE_CHUNKED" in one for one in complaints), complaints


async def test_a_thousand_flights_do_not_freeze_it(page: Browser) -> None:
    rows = [flight(number) for number in range(1000)]
    desk = ShownDesk(rows)
    async with served(desk) as url:
        await asyncio.to_thread(page.open, url)
        await asyncio.to_thread(page.until, ROWS + " === 1000", "a thousand rows")
        moving = asyncio.get_running_loop().create_task(_move(rows))
        gaps = await asyncio.to_thread(page.driver.execute_async_script, FRAMES)
        moving.cancel()
        print(f"frames: {len(gaps)}, median {gaps[len(gaps) // 2]:.0f} ms, longest {gaps[-1]:.0f} ms")
        assert gaps[-1] < 500
        await asyncio.to_thread(page.run, "document.getElementById('filter').value = arguments[0]", rows[77]["id"])
        await asyncio.to_thread(page.run, "document.getElementById('filter').dispatchEvent(new Event('input'))")
        assert await asyncio.to_thread(page.run, ROWS) == 1
        desk.rows = []
        await asyncio.to_thread(page.until, ROWS + " === 0", "no row")


async def _move(rows: list[dict[str, Any]]) -> None:
    while True:
        for row in rows:
            row["bytes"] += 1000
            row["age_s"] += 0.1
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_it_fits_a_phone_in_both_schemes(dark: bool, page: Browser) -> None:
    tally = Tally(Prices((("m*", 1.0, 1.0),)))
    for status in (200, 502):
        tally.on_event(RequestEnded(f"{NODE}-{status}", "evaluation", Role.REPLAY, status, flight="f" * 20))
    async with served(ShownDesk([flight(number, bytes=10**9) for number in range(5)], tally)) as url:
        await asyncio.to_thread(page.window, 390, 844, dark=dark)
        await asyncio.to_thread(page.open, url)
        await asyncio.to_thread(page.until, ROWS + " === 5", "five rows")
        wide, high, ground, ink = await asyncio.to_thread(
            page.run,
            "const body = getComputedStyle(document.body), root = document.documentElement;"
            "return [root.scrollWidth - root.clientWidth, root.scrollHeight, body.backgroundColor, body.color]",
        )
        assert wide <= 0
        assert high > 844
        assert (_light(ground) > _light(ink)) != dark
        cut = await asyncio.to_thread(
            page.run,
            "return [...document.querySelectorAll('.tile b, .row .number, #errors .row > *')]"
            ".filter(one => one.scrollWidth > one.clientWidth + 1).map(one => one.textContent)",
        )
        assert cut == []


def _light(colour: str) -> int:
    return sum(int(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(",")[:3])
