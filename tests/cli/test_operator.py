"""``top``, ``flights`` and ``purge`` against an admin listener: what is printed, what is asked, how refusals read."""

import asyncio
import json
from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from harness.ports import free_port
from soloflight.cli import main
from soloflight.cli.amounts import count, size, span
from soloflight.cli.top import drawn
from soloflight.core.frames import Usage
from soloflight.ports import RequestEnded, Role
from soloflight.web.tally import Prices, Tally
from status.desks import NODE, OTHER, ShownDesk, flight, served

Ask = Callable[..., Result]


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SOLOFLIGHT_ADMIN", "SOLOFLIGHT_ADMIN_LISTEN", "SOLOFLIGHT_ADMIN_TOKEN", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)


def run(*args: str, **env: str) -> Result:
    result = CliRunner().invoke(main, args, env=env)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


async def ask(url: str, *args: str, **env: str) -> Result:
    """Run a command in a thread, while this loop serves the listener that it asks."""
    return await asyncio.to_thread(run, *args, SOLOFLIGHT_ADMIN=url, **env)


async def test_flights_are_listed_and_one_is_shown_by_the_start_of_its_id() -> None:
    desk = ShownDesk(
        [flight(0xA0), flight(1, id="b" * 20, owner=OTHER, role="follower", attempt=None, progress_age_s=None)]
    )
    async with served(desk) as url:
        for words in ((), ("list",)):
            lines = (await ask(url, "flights", *words)).output.splitlines()
            assert [line.split()[:6] for line in lines if "running" in line] == [
                ["000000000000", "default", "running", "owner", NODE[:12], "1"],
                ["bbbbbbbbbbbb", "default", "running", "follower", OTHER[:12], "-"],
            ]
        told = await ask(url, "flights", "show", "b")
        assert told.exit_code == 0
        facts = dict(line.split("  ", 1) for line in told.output.splitlines())
        assert {
            name: facts[name].strip() for name in ("owner node", "lease left", "since progress", "clients here")
        } == {
            "owner node": OTHER,
            "lease left": "4.0 s",
            "since progress": "-",
            "clients here": "3 (2 joined)",
        }
        assert json.loads((await ask(url, "flights", "show", "b", "--json")).output) == desk.rows[1]
        assert json.loads((await ask(url, "flights", "list", "--json")).output) == desk.rows
        unknown = await ask(url, "flights", "show", "ff")
        assert (unknown.exit_code, unknown.output) == (1, "Error: no live flight's id begins with 'ff'\n")
        desk.rows = [flight(1), flight(2)]
        assert "2 live flights' ids begin with '0'" in (await ask(url, "flights", "abort", "0")).output
        desk.rows = []
        assert (await ask(url, "flights")).output == "no flight runs at the moment\n"


async def test_an_abort_ends_that_flight() -> None:
    desk = ShownDesk([flight(1), flight(2, id="f" * 20)])
    async with served(desk) as url:
        assert (await ask(url, "flights", "abort", "f")).output == f"flight {'f' * 20} has ended\n"
    assert desk.done == [("abort", "f" * 20)]


async def test_purges() -> None:
    desk = ShownDesk()
    async with served(desk) as url:
        assert (await ask(url, "purge", "--stage", "evaluation")).output == (
            "stage evaluation: 1 kept in the process that was asked; no older one is taken from the backend; "
            "every node was told\n"
        )
        assert (await ask(url, "purge", "--key", "a" * 48)).exit_code == 0
        assert desk.done == [("purge", None, "evaluation"), ("purge", "a" * 48, None)]
        for words, code, told in (
            ((), 2, "give --stage or --key"),
            (("--stage", "a", "--key", "b"), 2, "give --stage or --key"),
            (("--stage", "unknown"), 1, "no such stage is configured"),
            (("--key", "no hex"), 1, "that is no name of a stage, fingerprint or flight"),
        ):
            refused = await ask(url, "purge", *words)
            assert (refused.exit_code, told in refused.output) == (code, True), refused.output


async def test_the_token_comes_from_the_environment() -> None:
    async with served(ShownDesk(), token="s3cret") as url:
        assert (await ask(url, "flights", SOLOFLIGHT_ADMIN_TOKEN="s3cret")).exit_code == 0
        none, wrong = await ask(url, "flights"), await ask(url, "top", SOLOFLIGHT_ADMIN_TOKEN="other")
        assert (none.exit_code, none.output) == (
            1,
            f"Error: {url} needs the admin token: set SOLOFLIGHT_ADMIN_TOKEN\n",
        )
        assert (wrong.exit_code, "is not its own" in wrong.output) == (1, True)


async def test_where_the_listener_is_asked() -> None:
    async with served(ShownDesk()) as url:
        port = url.rpartition(":")[2]
        for words, env in (
            (("flights", "--admin", url), {}),
            (("flights", "--admin", url, "list"), {}),
            (("flights", "list", "--admin", f"127.0.0.1:{port}/"), {}),
            (("flights",), {"SOLOFLIGHT_ADMIN_LISTEN": f"0.0.0.0:{port}"}),
            (
                ("flights", "--admin", url),
                {"HTTP_PROXY": "http://127.0.0.1:9", "SOLOFLIGHT_ADMIN": "http://127.0.0.1:9"},
            ),
        ):
            assert (await asyncio.to_thread(run, *words, **env)).output == "no flight runs at the moment\n"


async def test_nobody_or_somebody_else_answers() -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    for words in (("top",), ("flights", "show", "a"), ("purge", "--stage", "a")):
        told = await ask(nowhere, *words)
        assert told.exit_code == 1
        assert told.output.startswith(
            f"Error: the admin listener at {nowhere} can not be reached (connection refused). Is"
        )
    async with asyncio.timeout(5), await asyncio.start_server(_not_http, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert "can not be reached" in (await ask(f"http://127.0.0.1:{port}", "top")).output
    assert "is no http:// or https:// address" in (await ask("file:///etc/passwd", "top")).output


async def _not_http(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"hello\n")
    writer.close()


def tally() -> Tally:
    counted = Tally(Prices((("gpt*", 1.0, 2.0),)))
    for role in (Role.OWNER, Role.FOLLOWER, Role.REPLAY, Role.REPLAY):
        counted.on_event(RequestEnded("r", "evaluation", role, 200, model="gpt-4o", usage=Usage(1_000_000, 500_000)))
    return counted


async def test_top_drawn_once() -> None:
    async with served(ShownDesk([flight(1)], tally())) as url:
        told = await ask(url, "top")
    lines = told.output.splitlines()
    assert told.exit_code == 0
    assert lines[0].startswith(f"soloflight ok  memory backend up  node {NODE}, up 1m01s, 1 flights")
    (stage,) = (line.split() for line in lines if line.startswith("evaluation"))
    assert stage[3:] == ["1", "1", "2", "0", "0", "1.5M", "3.0M", "6.00", "0", "B"]
    assert any(line.startswith("000000000000") for line in lines)


async def test_top_fits_its_terminal_and_tells_of_a_lost_connection() -> None:
    state = await ShownDesk([flight(number) for number in range(40)]).overview()
    console = Console(width=120, record=True, force_terminal=False)
    with console.capture() as capture:
        console.print(drawn(state, 120, 5, "it went"))
    text = capture.get()
    assert text.count("running") == 5
    assert "… and 35 more" in text
    assert "connection lost, trying again: it went" in text


def test_amounts() -> None:
    assert [count(value) for value in (0, 9_999, 10_000, 1_500_000, 2.5e12)] == [
        "0",
        "9,999",
        "10.0k",
        "1.5M",
        "2500.0G",
    ]
    assert [size(value) for value in (0, 1023, 1024, 5 << 20, 3 << 40)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "5.0 MiB",
        "3072.0 GiB",
    ]
    assert [span(value) for value in (None, 0.04, 9.96, 60, 187, 7500)] == [
        "-",
        "0.0 s",
        "10 s",
        "1m00s",
        "3m07s",
        "2h05m",
    ]
