"""Each node's own way to Redis, a fault proxy: on a loop in a thread, so that it lives as long as the processes do."""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

from soloflight.testing.fault_proxy import FaultProxy

T = TypeVar("T")

SUBSCRIBES = b"SUBSCRIBE"


class Ways:
    """A thread with a loop, and the fault proxies on it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="ways")
        self._thread.start()
        self._ways: list[Way] = []

    def open(self, target_port: int) -> "Way":
        """A new way to ``target_port``."""
        faults = FaultProxy("127.0.0.1", target_port)
        faults.mark = SUBSCRIBES
        asyncio.run_coroutine_threadsafe(faults.start(), self._loop).result(5)
        way = Way(faults, self._loop)
        self._ways.append(way)
        return way

    def close(self) -> None:
        for way in self._ways:
            asyncio.run_coroutine_threadsafe(way.faults.stop(), self._loop).result(5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()


class Way:
    """One node's way to Redis. Every change is made on its loop, and has been made when the method returns."""

    def __init__(self, faults: FaultProxy, loop: asyncio.AbstractEventLoop) -> None:
        self.faults = faults
        self._loop = loop
        self._muted = False

    @property
    def port(self) -> int:
        return self.faults.port

    def do(self, change: Callable[[FaultProxy], T]) -> T:
        """Run ``change`` on the loop."""

        async def run() -> T:
            return change(self.faults)

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(5)

    def hole(self, *, up: bool = True, down: bool = True) -> None:
        """Swallow what is sent in these directions; connections stand."""

        def dig(faults: FaultProxy) -> None:
            faults.up.swallow, faults.down.swallow = up, down

        self.do(dig)

    def lead_to(self, port: int) -> None:
        """From now on this address leads to another server; what is open is reset."""

        def lead(faults: FaultProxy) -> None:
            faults.target = ("127.0.0.1", port)
            faults.cut()

        self.do(lead)

    def cut(self) -> int:
        """Reset what is open; new connections are served."""
        return self.do(FaultProxy.cut)

    def close(self) -> None:
        """Reset what is open, and refuse what comes."""

        def close(faults: FaultProxy) -> None:
            faults.refuse = True
            faults.cut()

        self.do(close)

    def mute(self) -> int:
        """Make the subscribing connections half-open."""
        self._muted = True
        return self.do(FaultProxy.mute)

    def delay(self, seconds: float) -> None:
        """Delay what comes back from Redis."""

        def slow(faults: FaultProxy) -> None:
            faults.down.delay_s = seconds

        self.do(slow)

    def lose_reply(self, to: bytes, *, cut: bool = True) -> None:
        """Redis gets the next request with ``to`` in it, its reply is lost."""
        self.do(lambda faults: faults.lose_reply(to, cut=cut))

    def double_reply(self, to: bytes) -> None:
        """The reply to the next request with ``to`` in it comes twice."""
        self.do(lambda faults: faults.double_reply(to))

    @property
    def replies_lost(self) -> int:
        return self.faults.replies_lost

    def before(self, word: bytes, then: Callable[[], None]) -> None:
        """Call ``then`` once, on the loop's thread, before the next request with ``word`` goes on; it and all later are lost."""

        def look(data: bytes) -> None:
            if word in data:
                self.faults.before_request = None
                self.faults.up.swallow = True
                then()

        def watch(faults: FaultProxy) -> None:
            faults.before_request = look

        self.do(watch)

    def heal(self) -> None:
        """Take every fault back. Connections that are mute are cut."""
        self.do(FaultProxy.heal)
        if self._muted:
            self._muted = False
            self.cut()
