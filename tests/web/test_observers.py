"""What an app owes its observers besides events: the clients' trace contexts to who wants them, and a bounded close."""

import asyncio
import logging
from typing import Any

import pytest

from harness.client import ask, chat, connect, fresh
from nodes.house import House, settings_for
from soloflight import hookimpl
from soloflight.core.trace import Trace
from soloflight.plugins import Plugins
from soloflight.ports import CallEnded, Event, RequestEnded
from soloflight.testing.chat import CH, DONE, FIN
from soloflight.testing.script import sse
from soloflight.testing.upstream import ScriptedUpstream
from soloflight.web import app as rooms
from soloflight.web.app import App

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Watcher:
    """An observer and its plugin in one. ``closing`` is what its close does."""

    def __init__(self, *, wants_trace: bool = False) -> None:
        self.wants_trace = wants_trace
        self.events: list[Event] = []
        self.closed_after: list[int] = []
        self.fault: Exception | None = None
        self.stuck = False

    @hookimpl
    def soloflight_observer(self) -> "Watcher":
        return self

    def on_event(self, event: Event) -> None:
        self.events.append(event)

    async def close(self) -> None:
        self.closed_after.append(len(self.events))
        if self.fault is not None:
            raise self.fault
        if self.stuck:
            await asyncio.Event().wait()


async def opened(upstream: ScriptedUpstream, *watchers: object) -> App:
    extra = [(f"watcher-{number}", watcher) for number, watcher in enumerate(watchers)]
    app = App(settings_for(upstream, {}), Plugins.load(extra=extra))
    await app.open()
    return app


@pytest.mark.parametrize("wanted", [True, False])
async def test_who_wants_the_clients_trace_is_told_it(wanted: bool, upstream: ScriptedUpstream) -> None:
    watcher = Watcher(wants_trace=wanted)
    app = await opened(upstream, watcher, Watcher())
    upstream.play(sse(CH, FIN, DONE))
    port = int(app.addresses[0].rpartition(":")[2])
    body = chat(fresh(), f"traceparent: {PARENT}", "tracestate: a=1")
    assert [(await ask(port, body)).role for _ in range(3)] == ["owner", "replay", "replay"]
    await app.close()
    trace = Trace(PARENT, "a=1")
    requests = [event for event in watcher.events if isinstance(event, RequestEnded)]
    assert [event.trace for event in requests] == [trace if wanted else None] * 3
    [call] = [event for event in watcher.events if isinstance(event, CallEnded)]
    assert call.trace == trace
    assert call.attempt
    assert {event.attempt for event in requests} == {call.attempt}


async def test_a_request_answered_without_being_parsed_tells_it_too(house: House, upstream: ScriptedUpstream) -> None:
    assert house.app.front is not None
    upstream.play(sse(CH, FIN, DONE))
    body = chat(fresh(), f"traceparent: {PARENT}")
    async with connect(house.port) as client:
        for traced in (True, True, False):
            house.app.front.traced = traced
            await client.ask(body)
    assert house.at_once > 0
    assert [event.trace for event in house.requests] == [Trace(PARENT), Trace(PARENT), None]
    assert len({event.attempt for event in house.requests}) == 1


async def test_each_is_closed_once_after_its_last_event(upstream: ScriptedUpstream) -> None:
    watcher = Watcher()
    app = await opened(upstream, watcher)
    await app.close()
    await app.close()
    assert watcher.closed_after == [len(watcher.events)]


async def test_one_that_fails_or_hangs_is_told_of_and_holds_nobody(
    upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rooms, "CLOSE_OBSERVER_S", 0.01)
    failing, hanging, sound = Watcher(), Watcher(), Watcher()
    failing.fault, hanging.stuck = OSError("gone"), True
    app = await opened(upstream, failing, hanging, sound)
    with caplog.at_level(logging.ERROR):
        await app.close()
    assert [len(one.closed_after) for one in (failing, hanging, sound)] == [1, 1, 1]
    told = sorted(record.getMessage() for record in caplog.records if "was not closed" in record.getMessage())
    assert told == ["observer Watcher was not closed: OSError", "observer Watcher was not closed: TimeoutError"]


async def test_a_plain_observer_has_nothing_to_close(upstream: ScriptedUpstream) -> None:
    class Plain:
        events: list[Any]

        def __init__(self) -> None:
            self.events = []

        @hookimpl
        def soloflight_observer(self) -> "Plain":
            return self

        def on_event(self, event: Event) -> None:
            self.events.append(event)

    app = await opened(upstream, Plain())
    await app.close()
