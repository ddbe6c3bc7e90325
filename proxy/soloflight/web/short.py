"""Short ways through the door, for requests that need no parsing (web.recognise): each ends where the long way ends.

A recognised request is answered in the call that read it where its answer is kept here. Where its flight runs here, it becomes a
Seat: a follower without a task. Whatever has a recognised head is answered by a task, as the long way would do it from there on.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from soloflight.core.frames import Frame
from soloflight.core.trace import trace_of
from soloflight.flow.listen import Listener
from soloflight.web.connection import Connection
from soloflight.web.recognise import Seen
from soloflight.web.respond import Responder
from soloflight.web.visit import Visit, replayed

if TYPE_CHECKING:
    from soloflight.web.handlers import Front


class Shortcuts:
    """The short ways of one Front."""

    def __init__(self, front: Front) -> None:
        self._front = front

    def __repr__(self) -> str:
        return f"Shortcuts({self._front!r})"

    def take(self, block: bytes, connection: Connection) -> bool:
        """Answer ``block``, or begin to; False: it takes the long way."""
        front = self._front
        if front.draining:
            return False
        began, recogniser = time.monotonic(), front.recogniser
        seen = recogniser.find(block, trusted=connection.trusted_peer)
        if seen is not None and (self._replay(seen, connection, began) or self._sit(seen, connection, began)):
            return True
        found = recogniser.find_head(block, peer=connection.peer, trusted=connection.trusted_peer)
        if found is None:
            return False
        head, body = found
        visit = Visit(connection, head.client, front.next_id(), began, head.request)
        front.attend(visit, front.serve(visit, head.plan, body, block))
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
        """A seat at the flight, if it runs here."""
        front, call = self._front, seen.call
        listener = front.node.seat(call)
        if listener is None:
            return False
        visit = Visit(connection, seen.client, front.next_id(), began, call.request, call.stage.name, call.facts.model)
        visit.listener = listener
        Seat(front, visit, seen, front.responder(visit, call)).take()
        return True


class Seat:
    """A follower without a task: its frames are written in the call that appends them.

    What is more than that - a client that does not take its bytes, an attempt that is lost, a refusal - goes on in a task, from
    where it is.
    """

    __slots__ = ("_front", "_responder", "_seen", "_visit")

    def __init__(self, front: Front, visit: Visit, seen: Seen, responder: Responder) -> None:
        self._front = front
        self._visit = visit
        self._seen = seen
        self._responder = responder

    def __repr__(self) -> str:
        return f"Seat({self._visit.listener!r})"

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
        front, visit, responder = self._front, self._visit, self._responder
        if error is None and frames is not None and not frames:
            self._listener.close()
            front.leave(visit, responder.delivery)
            visit.connection.vacate(keep_alive=responder.delivery.keep_alive and not front.draining)
        elif error is not None:
            self._listener.close()
            front.attend(visit, _raise(error))
        else:
            front.attend(
                visit, front.follow(visit, self._seen.plan, self._seen.call, responder, self._listener, frames)
            )

    def _gone(self) -> None:
        self._listener.close()
        self._front.leave(self._visit, self._visit.gone())


async def _raise(error: Exception) -> NoReturn:
    raise error
