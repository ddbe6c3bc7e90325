"""Writing a listener's frames to its client: the head with the first body byte, bytes as recorded, a cut that shows."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from soloflight.core.errors import Code, Fault
from soloflight.core.frames import Body, End, Frame, Head
from soloflight.core.log import FellBehind
from soloflight.flow.listen import Listener
from soloflight.ports import Role
from soloflight.web.connection import ClientGone, Connection
from soloflight.web.forms import TAIL, Coded, Forms
from soloflight.web.wire import Client, Framing, between_events, error_answer

# What is written in one go at most, before the client's buffer is asked again.
SLICE = 256 * 1024


@dataclass(slots=True)
class Delivery:
    """What became of one answer on its way to its client; read by the access log and the observers.

    ``upstream_s``: for how long the upstream's first byte was waited for.
    """

    status: int = 0
    role: Role = Role.NONE
    flight: str = ""
    reason: str = ""
    sent: int = 0
    first_byte: float = 0.0
    upstream_s: float = 0.0
    cut: bool = False
    code: Code | None = None
    upstream_id: str = ""
    keep_alive: bool = True


@dataclass(slots=True)
class Responder:
    """Writes one answer. ``error_event`` makes the API's own error event for a cut stream."""

    connection: Connection
    client: Client
    request_id: str
    write_timeout_s: float
    error_event: Callable[[str, str], bytes]
    delivery: Delivery = field(default_factory=Delivery)
    _head: Head | None = None
    _frame: Framing = field(default_factory=Framing)
    _forms: Forms | None = None
    _tail: bytes = b""
    _streamed: bool = False

    async def follow(self, listener: Listener, frames: list[Frame] | None = None) -> Delivery:
        """Write everything that ``listener`` reads, to the end; ``frames`` it has read already. Raises ClientGone."""
        push = partial(self.push, listener)
        try:
            while True:
                try:
                    frames = frames or await listener.next(push)
                except FellBehind:
                    await self._cut(Fault(Code.OWNER_LOST, "this client was too slow for a long answer"))
                    return self.delivery
                if not frames or await self._write(listener, frames):
                    return self.delivery
                frames = None
        finally:
            listener.close()

    def push(self, listener: Listener, frames: list[Frame]) -> bool:
        """Write frames in the call that appends them to the log, if the client takes bytes and they are not many.

        False: nothing was written, this answer's task does it.
        """
        transport = self.connection.transport
        if transport is None or transport.is_closing() or self.connection.write_paused or _large(frames):
            return False
        if not listener.committed:
            if data := self._rendered(listener, frames):
                transport.write(data)
            return True
        coded = self._coded(frames)
        self._count(coded)
        transport.write(coded.data)
        return True

    async def _write(self, listener: Listener, frames: list[Frame]) -> bool:
        """Write one batch of frames; True once the answer is over."""
        batch: list[Frame] = []
        size = 0
        whole = _whole(frames)
        for frame in frames:
            if isinstance(frame, End) and frame.fault is not None:
                await self._flush(listener, batch, whole)
                await self._fail(listener, frame.fault)
                return True
            batch.append(frame)
            size += len(frame.data) if isinstance(frame, Body) else 0
            if size > SLICE:
                await self._flush(listener, batch, whole)
                batch, size = [], 0
        await self._flush(listener, batch, whole)
        return whole is not None

    def _rendered(self, listener: Listener, frames: list[Frame], whole: list[Frame] | None = None) -> bytes:
        """What is written for ``frames``; the head with the first body byte, or the end. ``whole``: the whole answer, if known."""
        opening = b""
        if not listener.committed:
            if isinstance(frames[0], Head):
                self._head, frames = frames[0], frames[1:]
            if not frames:
                return b""
            opening = self._open(listener, whole or _whole(frames))
        coded = self._coded(frames)
        self._count(coded)
        return opening + coded.data if opening else coded.data

    def _coded(self, frames: list[Frame]) -> Coded:
        forms = self._forms
        assert forms is not None
        return forms.coded(frames, self._frame)

    def _count(self, coded: Coded) -> None:
        """Note that this goes out."""
        self.delivery.sent += coded.size
        self._tail = coded.tail if len(coded.tail) == TAIL else (self._tail + coded.tail)[-TAIL:]
        if coded.ends:
            self.delivery.keep_alive = self.client.keep_alive and not self._frame.until_close

    def _open(self, listener: Listener, whole: list[Frame] | None) -> bytes:
        """The head, now that there is something to send."""
        head = self._head
        assert head is not None
        self.client = self.client.when(leaving=self.connection.leaving)
        size = sum(len(f.data) for f in whole if isinstance(f, Body)) if whole is not None else None
        role = listener.role or Role.OWNER
        forms = listener.forms if isinstance(listener.forms, Forms) else Forms()
        self._forms = listener.forms = forms
        opening = forms.opening(head, self.client, role, size, listener)
        self._frame, self._streamed = opening.frame, opening.streamed
        listener.commit()
        delivery = self.delivery
        delivery.status, delivery.role, delivery.flight = head.status, role, listener.flight_id
        delivery.first_byte = time.monotonic()
        delivery.upstream_id = opening.upstream_id
        return opening.before + self.request_id.encode() + opening.after

    async def _flush(self, listener: Listener, frames: list[Frame], whole: list[Frame] | None) -> None:
        if frames and (data := self._rendered(listener, frames, whole)):
            self.connection.send(data)
            if self.connection.write_paused:
                await self.connection.drain(self.write_timeout_s)

    async def _fail(self, listener: Listener, fault: Fault) -> None:
        """Nothing sent yet: an error answer. Else the client must see that its answer was cut."""
        if listener.committed:
            await self._cut(fault)
            return
        self.client = self.client.when(leaving=self.connection.leaving)
        delivery = self.delivery
        delivery.status, delivery.code = fault.code.status, fault.code
        delivery.role, delivery.flight = listener.role or Role.NONE, listener.flight_id
        delivery.first_byte = time.monotonic()
        delivery.keep_alive = self.client.keep_alive
        self.connection.send(
            error_answer(
                fault,
                self.request_id,
                keep_alive=self.client.keep_alive,
                flight=listener.flight_id,
                empty=self.client.method == "HEAD",
            )
        )

    async def _cut(self, fault: Fault) -> None:
        """One error event at an event boundary, no ``[DONE]``, then a reset; elsewhere just the reset (contract section 5)."""
        self.delivery.cut, self.delivery.code, self.delivery.keep_alive = True, fault.code, False
        if self._streamed and between_events(self._tail):
            event = self.error_event(fault.code.code, fault.message)
            try:
                self.connection.send(self._frame.body(event))
            except ClientGone:
                return
        await self.connection.reset()


def _large(frames: list[Frame]) -> bool:
    """Whether these are more than what is written in one go."""
    if len(frames) == 1:
        frame = frames[0]
        return isinstance(frame, Body) and len(frame.data) > SLICE
    return sum(len(frame.data) for frame in frames if isinstance(frame, Body)) > SLICE


def _whole(frames: list[Frame]) -> list[Frame] | None:
    """``frames``, where they end the answer well."""
    last = frames[-1]
    return frames if isinstance(last, End) and last.fault is None else None
