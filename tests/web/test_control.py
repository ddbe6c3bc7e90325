"""What a process is told from outside: signals, and the words of a supervisor."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from soloflight.web.control import (
    DRAIN,
    NOT_RELOADED,
    READY,
    RELOAD,
    RELOADED,
    SECOND_SIGNAL_S,
    STOP,
    Channel,
    Signals,
)

HEARD = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@pytest_asyncio.fixture
async def signals() -> AsyncIterator[Signals]:
    """A process that hears; and hears nothing more after the test."""
    loop = asyncio.get_running_loop()
    hearing = Signals()
    hearing.listen()
    yield hearing
    for number in HEARD:
        loop.remove_signal_handler(number)


async def send(number: int) -> None:
    os.kill(os.getpid(), number)
    for _ in range(3):
        await asyncio.sleep(0)


class Pair:
    """A worker's control, and the supervisor's end of its channel."""

    def __init__(self) -> None:
        self.ours, theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.theirs = theirs
        self.control = Channel(theirs, None, None)

    async def say(self, words: bytes) -> None:
        self.ours.send(words)
        await asyncio.sleep(0.01)

    def heard(self) -> bytes:
        try:
            return self.ours.recv(64)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self.theirs.fileno())
        self.ours.close()
        self.theirs.close()


@pytest_asyncio.fixture
async def pair() -> AsyncIterator[Pair]:
    made = Pair()
    made.control.listen()
    yield made
    made.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_first_signal(number: int, signals: Signals) -> None:
    await send(number)
    assert (signals.first.is_set(), signals.second.is_set()) == (True, False)


async def test_a_second_one_counts_only_after_a_second(signals: Signals) -> None:
    for _ in range(3):
        await send(signal.SIGTERM)
    await send(signal.SIGINT)
    assert (signals.first.is_set(), signals.second.is_set()) == (True, False)
    signals._acted -= SECOND_SIGNAL_S
    await send(signal.SIGINT)
    assert signals.second.is_set()


async def test_a_reload_that_is_asked_for_too_early_is_not_forgotten(signals: Signals) -> None:
    done: list[str] = []
    await send(signal.SIGHUP)
    await send(signal.SIGHUP)
    assert done == []
    signals.on_reload(lambda: done.append("once"))
    assert done == ["once"]
    await send(signal.SIGHUP)
    assert done == ["once", "once"]


async def test_a_worker_hears_words(pair: Pair) -> None:
    done: list[int] = []
    await pair.say(RELOAD)
    pair.control.on_reload(lambda: done.append(1))
    await pair.say(RELOAD * 2)
    assert done == [1, 1, 1]
    assert not pair.control.first.is_set()
    await pair.say(DRAIN)
    assert (pair.control.first.is_set(), pair.control.second.is_set()) == (True, False)
    await pair.say(STOP)
    assert pair.control.second.is_set()


async def test_words_that_come_together(pair: Pair) -> None:
    await pair.say(DRAIN + STOP)
    assert (pair.control.first.is_set(), pair.control.second.is_set()) == (True, True)


async def test_a_worker_speaks(pair: Pair) -> None:
    pair.control.ready()
    pair.control.reloaded(taken=True)
    pair.control.reloaded(taken=False)
    assert pair.heard() == READY + RELOADED + NOT_RELOADED
    pair.control.reloading()
    pair.control.stopping(1.0)
    assert pair.heard() == b""


async def test_the_end_of_the_supervisor_drains(pair: Pair) -> None:
    pair.ours.close()
    await asyncio.sleep(0.01)
    assert (pair.control.first.is_set(), pair.control.second.is_set()) == (True, False)
    pair.control.alive()  # nobody hears, and nothing breaks


async def test_a_supervisor_that_does_not_listen_holds_nobody_up(pair: Pair) -> None:
    pair.control._sock.setblocking(False)
    for _ in range(100_000):
        pair.control.alive()
    assert not pair.control.first.is_set()
