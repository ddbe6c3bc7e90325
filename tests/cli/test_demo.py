"""The demo: what it says of a crowd, what it draws, and the whole of it as real processes."""

import io
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from rich.console import Console

from soloflight.cli import demo_run
from soloflight.cli.demo_clients import Crowd
from soloflight.cli.demo_table import Screen, summary

PROGRAM = Path(sys.executable).parent / "soloflight"


def served(size: int = 4, answer: bytes = b"abc") -> Crowd:
    """A crowd in which everybody has the answer."""
    crowd = Crowd(size, 6.0, expected_bytes=len(answer))
    for client in crowd.clients:
        client.role = "owner" if client.number == 1 else "follower"
        client.take(answer)
        client.finished = True
    return crowd


def test_clients_come_at_different_moments() -> None:
    assert [client.arrives_s for client in Crowd(4, 6.0, 1).clients] == [0.0, 2.0, 4.0, 6.0]
    assert [client.arrives_s for client in Crowd(1, 6.0, 1).clients] == [0.0]


def test_what_is_shown_when_all_went_well() -> None:
    report = summary(served(50), 1)
    assert report.shown
    assert report.text.splitlines() == [
        "50 requests, 1 upstream call",
        "Every client got the same 3 bytes, from the first one on (49 followers, 1 owner).",
    ]


def test_two_upstream_calls_are_not_what_it_promises() -> None:
    report = summary(served(), 2)
    assert not report.shown
    assert report.text.startswith("4 requests, 2 upstream calls\n")


def test_a_client_that_failed_is_told_of() -> None:
    crowd = served()
    crowd.clients[2].finished, crowd.clients[2].fault = False, "status 502"
    report = summary(crowd, 1)
    assert not report.shown
    assert report.text.splitlines()[1] == "Not every client got the whole answer: 3 of 4 (status 502)."


def test_a_client_with_other_bytes_is_not_alike() -> None:
    crowd = served()
    crowd.clients[1].take(b"d")
    assert not summary(crowd, 1).shown
    other = served(1)
    other.clients.append(served(1, b"xyz").clients[0])
    assert not other.alike


def test_a_terminal_gets_a_table_that_fits() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80, color_system=None)
    crowd = served(50)
    crowd.clients[0].fault = "reset"
    crowd.clients[49].role = ""
    with Screen(crowd, console) as screen:
        screen.draw(1.0, 1)
    lines = out.getvalue().splitlines()
    assert any("1.0 s  clients 49  upstream calls 1  finished 50" in line for line in lines)
    assert any(" 1 ████████ ✗" in line and "11 ████████ ·" in line for line in lines)
    assert len({line[:8] for line in lines if "████████" in line}) == 10


def test_elsewhere_there_is_a_line_each_second() -> None:
    out = io.StringIO()
    screen = Screen(served(), Console(file=out, force_terminal=False, width=100))
    with screen:
        for tenth in range(25):
            screen.draw(tenth / 10, 1)
    assert out.getvalue().splitlines() == [
        f" {second}.0 s  clients  4  upstream calls 1  finished  4" for second in range(3)
    ]
    assert repr(screen) == "Screen(Crowd(4, finished=4), live=False)"


async def test_a_proxy_that_does_not_start_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_run, "PROGRAM", (sys.executable, "-c", "raise SystemExit(3)"))
    with pytest.raises(click.ClickException, match="the proxy ended with exit code 3"):
        await demo_run.run()


@pytest.mark.system
@pytest.mark.beside
def test_fifty_clients_one_upstream_call() -> None:
    # What a shell may be set up for must not reach the demo's proxy.
    env = os.environ | {"SOLOFLIGHT_UPSTREAM": "http://127.0.0.1:1", "SOLOFLIGHT_CLIENT_KEYS": "k"}
    done = subprocess.run([PROGRAM, "demo"], capture_output=True, text=True, env=env, timeout=50)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "50 requests, 1 upstream call" in done.stdout.splitlines()
    assert done.stdout.splitlines()[-1].endswith("(49 followers, 1 owner).")
    assert done.stderr == ""
