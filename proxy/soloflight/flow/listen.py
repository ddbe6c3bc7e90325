"""What one client reads: a flight's log through a cursor, or a finished answer; the same frames for every role."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from soloflight.core.errors import Fault, SoloflightError
from soloflight.core.frames import NO_USAGE, Body, End, Frame, Recording, Usage
from soloflight.core.log import Cursor, FellBehind, Log
from soloflight.flow.flights import Call, Flight, GoAlone, Reelect
from soloflight.flow.usage import usage_of
from soloflight.ports import Role

Push: TypeAlias = Callable[[list[Frame]], bool]
"""Takes frames at once and says True; or takes none of them and says False. Never raises."""
Done: TypeAlias = Callable[[list[Frame] | None, Exception | None], None]
"""Told once why a listener waits no longer: frames that ``push`` did not take, none where it took the End; None: look; an error."""


class Listener:
    """One client's view of an answer.

    ``committed`` is set by the door once it has sent a byte: until then a new attempt's log may take the place of a lost one,
    and a second Head replaces the first. ``forms`` is the door's: what it has prepared once for all listeners of a flight.
    """

    __slots__ = (
        "_counted",
        "_cursor",
        "_done",
        "_flight",
        "_on_close",
        "_recording",
        "_refused",
        "_source",
        "_waker",
        "age_s",
        "call",
        "committed",
        "flight_id",
        "number",
        "refresh",
        "role",
        "ttl_s",
    )

    def __init__(
        self,
        *,
        role: Role | None = None,
        flight: Flight | None = None,
        recording: Recording | None = None,
        flight_id: str = "",
        number: int = 0,
        age_s: float = 0.0,
        ttl_s: float = 0.0,
        call: Call | None = None,
        on_close: Callable[[Flight], None] | None = None,
    ) -> None:
        self.role = role
        self.flight_id = flight_id
        self.number = number
        self.age_s = age_s
        self.ttl_s = ttl_s
        self.call = call
        self.refresh = False
        self.committed = False
        self._flight = flight
        self._source: Flight | Recording | None = flight or recording
        self._recording = recording
        self._on_close = on_close
        self._cursor: Cursor | None = None
        self._refused: Fault | None = None
        self._done: Done | None = None
        self._waker: Callable[[], None] = _nothing
        if flight is not None:
            self._cursor = flight.log.attach()
            flight.movers.add(self)
            self._counted = role is Role.FOLLOWER
            flight.followers += self._counted

    def __repr__(self) -> str:
        return f"Listener({self.role and self.role.value}, {self.flight_id}, {self._cursor!r})"

    async def next(self, push: Push | None = None) -> list[Frame]:
        """The frames that came since the last call; waits for at least one. Raises FellBehind, GoAlone, Reelect; and
        SoloflightError where this listener alone is refused.

        While it waits, ``push`` is offered frames in the very call that appends them: a frame that it takes costs no wake-up of
        this listener's task. The first batch that it does not take is returned here; an empty one where it took the End.
        """
        if self._recording is not None:
            recording, self._recording = self._recording, None
            return [recording.head, *map(Body, recording.body), End()]
        flight = self._flight
        assert flight is not None
        while True:
            cursor = self._cursor
            assert cursor is not None
            if frames := cursor.take():
                return self._checked(flight, frames)
            if self._refused is not None:
                raise SoloflightError(self._refused)
            woken: asyncio.Future[list[Frame] | None] = asyncio.get_running_loop().create_future()
            self._wait(cursor, push, partial(_settle, woken))
            if (left := await woken) is not None:
                return left

    def attend(self, push: Push, done: Done) -> None:
        """As ``next``, for who has no task; ``push`` is offered what is there at once. Behind ``done``, ``next`` goes on."""
        cursor = self._cursor
        assert cursor is not None
        self._wait(cursor, push, done)
        if cursor.behind:
            self._ring(done, push)

    def _wait(self, cursor: Cursor, push: Push | None, done: Done) -> None:
        self._done = done
        self._waker = partial(self._ring, done, push)
        cursor.wait(self._waker)

    def _checked(self, flight: Flight, frames: list[Frame]) -> list[Frame]:
        if flight.away:
            raise GoAlone(flight.away)
        if flight.turned_away and not self.committed:
            raise Reelect if self._refused is None else SoloflightError(self._refused)
        self._learn(flight)
        return frames

    def _ring(self, done: Done, push: Push | None) -> None:
        """Frames were appended: let ``push`` have them, or tell ``done``."""
        flight, cursor = self._flight, self._cursor
        if done is not self._done or flight is None or cursor is None:
            return
        left: list[Frame] = []
        if push is not None and not cursor.faulted and not flight.away:
            try:  # noqa: SIM105  (suppress costs as much as all the rest of a wake-up)
                left = cursor.take()
            except FellBehind:
                pass  # the task meets it again
        if push is None or not left:  # nothing, where the cursor has moved to another log since it was woken
            self._tell(None)
            return
        if not self.committed:
            self._learn(flight)
        try:
            taken = push(left)
        except Exception as error:  # one client's trouble is not the owner's, in whose call this runs
            self._tell(None, error)
            return
        if not taken:
            self._tell(left)
        elif isinstance(left[-1], End):
            self._tell([])
        else:
            cursor.wait(self._waker)

    def _tell(self, frames: list[Frame] | None, error: Exception | None = None) -> None:
        """Who waits waits no longer."""
        done, self._done = self._done, None
        if done is not None:
            done(frames, error)

    def refuse(self, fault: Fault) -> None:
        """Its session, or its stage, has no place for it: whoever waits here is told so."""
        self._refused = fault
        self._tell(None)

    @property
    def forms(self) -> object:
        """What the door has prepared for all listeners of the flight."""
        return self._flight.forms if self._flight is not None else None

    @forms.setter
    def forms(self, forms: object) -> None:
        if self._flight is not None:
            self._flight.forms = forms

    def commit(self) -> None:
        """The first byte went out to the client."""
        self.committed = True
        if self._flight is not None:
            self._flight.delivered = True

    def close(self) -> None:
        """The client has all it wanted, or has gone; idempotent."""
        flight, self._flight = self._flight, None
        self._done, self._waker = None, _nothing  # both lead back here: only the collector would find it
        if flight is not None and self._cursor is not None:
            if flight.usage is None:
                usage_of(flight)  # while its log is still here
            flight.part(self)
            flight.followers -= self._counted
            self._cursor.detach()
            if self._on_close is not None:
                self._on_close(flight)

    @property
    def usage(self) -> Usage:
        """Tokens of the answer, once it has ended."""
        source = self._source
        if isinstance(source, Recording):
            return source.usage
        return usage_of(source) if source is not None else NO_USAGE

    def upstream_s(self, since: float, until: float) -> float:
        """For how much of that time (monotonic clock) this listener waited for the upstream's first byte."""
        return self._source.upstream_s(since, until) if isinstance(self._source, Flight) else 0.0

    @property
    def ended_at(self) -> float | None:
        """When the answer's end was in this process, on the monotonic clock; None for a replay, or where it has not ended."""
        return (self._source.ended_at or None) if isinstance(self._source, Flight) else None

    def move(self, log: Log) -> None:
        """The flight goes on in ``log``. Who waits was woken by the End of the lost one."""
        if not self.committed and self._cursor is not None:
            self._cursor.detach()
            self._cursor = log.attach()

    def _learn(self, flight: Flight) -> None:
        """Role and id are known once the coordinator has spoken, which is before the first frame."""
        self.flight_id, self.number = flight.id, flight.number
        if self.role is None or flight.role is Role.REPLAY:
            self.role = flight.role
        self.age_s, self.ttl_s = flight.age_s, flight.ttl_s


def _nothing() -> None:
    """Nobody waits."""


def _settle(woken: asyncio.Future[list[Frame] | None], frames: list[Frame] | None, error: Exception | None) -> None:
    if woken.done():  # its task was cancelled at the same moment
        return
    if error is not None:
        woken.set_exception(error)
    else:
        woken.set_result(frames)
