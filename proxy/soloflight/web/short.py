"""Short ways through the door, for requests that need no parsing (web.recognise): each ends where the long way ends.

A recognised request is answered in the call that read it where its answer is kept here. Where its flight runs here, it becomes a
Seat: a follower without a task. Whatever has a recognised head is answered by a task, as the long way would do it from there on.
Of a crowd that asks the same in one moment the first goes through the parser; the others wait for what becomes of it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from soloflight.core.frames import Frame
from soloflight.core.trace import trace_of
from soloflight.flow.listen import Listener
from soloflight.web.begun import BLOCK_LIMIT, is_whole
from soloflight.web.connection import Connection, nobody
from soloflight.web.recognise import Block, Seen, SeenHead
from soloflight.web.respond import Responder
from soloflight.web.visit import Visit, replayed

if TYPE_CHECKING:
    from soloflight.web.handlers import Front

log = logging.getLogger("soloflight.web")

GATHER_LIMIT = 1 << 20
"""Bodies up to this size are gathered here; larger ones are read piece by piece, under aiohttp's own backpressure."""
GATHER_S = 1.0
"""For so long: then the long way's own bounds hold."""
TURNS = 4
"""In so many turns of the loop a request is parsed, read and admitted, if nothing has to be waited for."""
CROWD_SLICE = 50
"""So many of a crowd are served, and told of, in one turn of the loop."""
SETTLE_TURNS = 50
"""After so many turns of the loop who was served is told of, whoever is not."""


class Shortcuts:
    """The short ways of one Front."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._coming: dict[Block, list[tuple[Connection, float]]] = {}
        self._served: list[Seat] = []

    def __repr__(self) -> str:
        return f"Shortcuts({self._front!r})"

    def take(self, data: bytes, connection: Connection) -> bool:
        """Answer a block, or begin to; False: it takes the long way."""
        if self._front.draining or not self._front.recogniser.on:
            return False
        began, block = time.monotonic(), (connection.trusted_peer, data)
        small = len(data) <= BLOCK_LIMIT
        if small and self._known(block, connection, began):
            return True
        found = self._front.recogniser.find_head(block, peer=connection.peer)
        if not small or (found is not None and found[0].plan.alone is not None):  # nobody shares it
            return self._known_head(found, block, connection, began)
        waiting = self._coming.get(block)
        if waiting is not None:
            waiting.append((connection, began))
            connection.occupy(nobody)
            return True
        if is_whole(data):  # who waits has nothing to come but what is behind it
            self._coming[block] = []
            asyncio.get_running_loop().call_soon(self._turn, block, TURNS)
        return self._known_head(found, block, connection, began)

    def _turn(self, block: Block, left: int) -> None:
        """Those who wait for the first of their kind: it is known by now, or they do as it did."""
        if left and self._front.recogniser.find(block) is None:
            asyncio.get_running_loop().call_soon(self._turn, block, left - 1)
            return
        self._serve(block, self._coming.pop(block))

    def _serve(self, block: Block, waiting: list[tuple[Connection, float]]) -> None:
        """In slices: the upstream call that they wait for is not made before the loop turns."""
        if len(waiting) > CROWD_SLICE:
            asyncio.get_running_loop().call_soon(self._serve, block, waiting[CROWD_SLICE:])
        for connection, began in waiting[:CROWD_SLICE]:
            if connection.transport is None or connection.transport.is_closing():
                continue
            _contained(connection, partial(self._serve_one, block, connection, began))

    def _serve_one(self, block: Block, connection: Connection, began: float) -> None:
        connection.occupy(None)
        if self._front.draining:
            connection.take_long(block[1])
        elif not self._known(block, connection, began):
            found = self._front.recogniser.find_head(block, peer=connection.peer)
            if not self._known_head(found, block, connection, began):
                connection.take_long(block[1])
        connection.go_on()

    def _known(self, block: Block, connection: Connection, began: float) -> bool:
        """A request that was seen before, whose flight or answer is here."""
        seen = self._front.recogniser.find(block)
        return seen is not None and (self._sit(seen, connection, began) or self._replay(seen, connection, began))

    def _known_head(
        self, found: tuple[SeenHead, bytes] | None, block: Block, connection: Connection, began: float
    ) -> bool:
        """A request whose head was seen before."""
        if found is None:
            return False
        front, (head, body) = self._front, found
        visit = Visit(connection, head.client, front.next_id(), began, head.request)
        if len(body) == head.length:
            front.attend(visit, front.serve(visit, head.plan, body, partial(front.recogniser.learn, block)))
        elif (
            len(body) < head.length <= min(GATHER_LIMIT, front.max_shared_body)
            and head.plan.alone is None
            and head.request.get(b"expect") is None  # its client waits for an answer to that
        ):
            Gathering(front, visit, head, block[1], body).begin()
        else:
            return False
        return True

    def _replay(self, seen: Seen, connection: Connection, began: float) -> bool:
        """The kept answer, as prepared bytes."""
        front, call = self._front, seen.call
        found = front.recogniser.replay(call)
        if found is None:
            return False
        replay, form = found
        request_id = front.next_id()
        answer = form.whole(request_id, began - replay.sealed, max(0.0, replay.expires - began))
        if answer is None:
            return False
        connection.send(answer)
        took_s = time.monotonic() - began
        ended = replayed(request_id, call, replay, form.upstream_id, connection.peer, took_s)
        front.emit(ended._replace(trace=trace_of(call.request)) if front.traced else ended)
        return True

    def _sit(self, seen: Seen, connection: Connection, began: float) -> bool:
        """A seat at the flight, if it runs here. Its call may become the flight's, and tells the upstream of its client: so of the
        same address only."""
        front, call = self._front, seen.call
        listener = front.node.seat(call) if call.request.peer == connection.peer else None
        if listener is None:
            return False
        visit = Visit(connection, seen.client, front.next_id(), began, call.request, call.stage.name, call.facts.model)
        visit.listener = listener
        Seat(front, visit, seen, front.responder(visit, call), self._over).take()
        return True

    def _over(self, seat: Seat) -> None:
        """The answer of ``seat`` is out. What is left to do waits while others' are being written: a crowd has waited enough."""
        self._served.append(seat)
        if len(self._served) == 1:
            asyncio.get_running_loop().call_soon(self._settle, 0, SETTLE_TURNS)

    def _settle(self, seen: int, left: int) -> None:
        served, loop = self._served, asyncio.get_running_loop()
        if left and len(served) > seen:
            loop.call_soon(self._settle, len(served), left - 1)
            return
        served, self._served = served[:CROWD_SLICE], served[CROWD_SLICE:]
        if self._served:
            loop.call_soon(self._settle, 0, 0)
        for seat in served:
            _contained(seat.connection, seat.leave)


class Gathering:
    """A request behind a known head whose body is still coming. If it does not soon, or more comes, it takes the long way."""

    __slots__ = ("_front", "_head", "_missing", "_parts", "_timer", "_visit")

    def __init__(self, front: Front, visit: Visit, head: SeenHead, block: bytes, body: bytes) -> None:
        self._front = front
        self._visit = visit
        self._head = head
        self._parts = [block[: len(block) - len(body)], body]
        self._missing = head.length - len(body)
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"Gathering({self._missing} bytes to come)"

    def begin(self) -> None:
        """Wait for the rest."""
        self._timer = asyncio.get_running_loop().call_later(GATHER_S, self._give_up)
        self._front.enter(self._visit)
        self._visit.connection.occupy(self._gone, self._more)

    def _more(self, data: bytes) -> None:
        self._parts.append(data)
        self._missing -= len(data)
        if self._missing < 0:
            self._give_up()
        elif not self._missing:
            self._end()
            front, visit = self._front, self._visit
            visit.body_s = time.monotonic() - visit.began
            front.attend(visit, front.serve(visit, self._head.plan, b"".join(self._parts[1:])))

    def _give_up(self) -> None:
        self._end()
        self._front.visits.discard(self._visit)
        connection = self._visit.connection
        connection.occupy(None)
        connection.take_long(b"".join(self._parts))

    def _gone(self) -> None:
        self._end()
        self._front.leave(self._visit, self._visit.gone())

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class Seat:
    """A follower without a task: its frames are written in the call that appends them.

    What is more than that - a client that does not take its bytes, an attempt that is lost, a refusal - goes on in a task, from
    where it is.
    """

    __slots__ = ("_front", "_over", "_responder", "_seen", "_visit")

    def __init__(
        self, front: Front, visit: Visit, seen: Seen, responder: Responder, over: Callable[[Seat], None]
    ) -> None:
        self._front = front
        self._visit = visit
        self._seen = seen
        self._responder = responder
        self._over = over

    def __repr__(self) -> str:
        return f"Seat({self._visit.listener!r})"

    @property
    def connection(self) -> Connection:
        """Its client's."""
        return self._visit.connection

    @property
    def _listener(self) -> Listener:
        listener = self._visit.listener
        assert listener is not None
        return listener

    def take(self) -> None:
        """Begin to listen."""
        self._front.enter(self._visit)
        self._visit.connection.occupy(self._gone)
        listener = self._listener
        listener.attend(partial(self._responder.push, listener), self._woken)

    def _woken(self, frames: list[Frame] | None, error: Exception | None) -> None:
        """Nothing is left (an empty list), or somebody with a task must go on."""
        front, visit = self._front, self._visit
        if error is None and frames is not None and not frames:
            visit.over = time.monotonic()
            self._over(self)
        elif error is not None:
            self._listener.close()
            front.attend(visit, _raise(error))
        else:
            seen = self._seen
            front.attend(visit, front.follow(visit, seen.plan, seen.call, self._responder, self._listener, frames))

    def leave(self) -> None:
        """The answer is out: tell of it, and let the connection go on."""
        visit, delivery = self._visit, self._responder.delivery
        if visit not in self._front.visits:
            return  # its client left in the meantime, and that was told
        self._listener.close()
        self._front.leave(visit, delivery)
        visit.connection.vacate(keep_alive=delivery.keep_alive and not self._front.draining)

    def _gone(self) -> None:
        if self._visit.over:  # not before it had all
            self.leave()
            return
        self._listener.close()
        self._front.leave(self._visit, self._visit.gone())


def _contained(connection: Connection, act: Callable[[], None]) -> None:
    """One client's trouble is not that of the others in its crowd."""
    try:
        act()
    except Exception as error:
        log.error("a request could not be answered: %s", type(error).__name__, exc_info=error)
        connection.abort()


async def _raise(error: Exception) -> NoReturn:
    raise error
