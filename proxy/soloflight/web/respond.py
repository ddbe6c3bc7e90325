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
from soloflight.web.wire import (
    Client,
    Framing,
    Marks,
    between_events,
    error_answer,
    framing,
    head_bytes,
    is_event_stream,
    marked,
)

# What is written in one go at most, before the client's buffer is asked again.
SLICE = 256 * 1024
# Stands for the request's id in a prepared head; no field value can hold a NUL.
ID_HERE = "\0"


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
        if transport is None or transport.is_closing() or self.connection.write_paused:
            return False
        size = sum(len(frame.data) for frame in frames if isinstance(frame, Body))
        if size > SLICE:
            return False
        if parts := self._render(listener, frames):
            transport.write(b"".join(parts))
            self.delivery.sent += size
        return True

    async def _write(self, listener: Listener, frames: list[Frame]) -> bool:
        """Write one batch of frames; True once the answer is over."""
        batch: list[Frame] = []
        size = 0
        whole = _whole(frames)
        for frame in frames:
            if isinstance(frame, End) and frame.fault is not None:
                await self._flush(listener, batch, size, whole)
                await self._fail(listener, frame.fault)
                return True
            batch.append(frame)
            size += len(frame.data) if isinstance(frame, Body) else 0
            if size > SLICE:
                await self._flush(listener, batch, size, whole)
                batch, size = [], 0
        await self._flush(listener, batch, size, whole)
        return whole is not None

    def _render(self, listener: Listener, frames: list[Frame], whole: list[Frame] | None = None) -> list[bytes]:
        """What is written for ``frames``; the head with the first body byte, or the end. ``whole``: the whole answer, if known."""
        parts: list[bytes] = []
        for frame in frames:
            if isinstance(frame, Head):
                self._head = frame
                continue
            if not listener.committed:
                parts.append(self._open(listener, whole or _whole(frames)))
            if isinstance(frame, Body):
                parts.append(self._frame.body(frame.data))
                self._tail = frame.data if len(frame.data) > 3 else self._tail[-4:] + frame.data
            else:
                parts.append(self._frame.end())
                self.delivery.keep_alive = self.client.keep_alive and not self._frame.until_close
        return parts

    def _open(self, listener: Listener, whole: list[Frame] | None) -> bytes:
        """The head, now that there is something to send."""
        head = self._head
        assert head is not None
        self.client = self.client.when(leaving=self.connection.leaving)
        known = sum(len(f.data) for f in whole if isinstance(f, Body)) if whole is not None else None
        self._frame = framing(head, self.client, known_size=known)
        self._streamed = is_event_stream(head)
        role = listener.role or Role.OWNER
        listener.commit()
        delivery = self.delivery
        delivery.status, delivery.role, delivery.flight = head.status, role, listener.flight_id
        delivery.first_byte = time.monotonic()
        delivery.upstream_id = (head.get(b"x-request-id") or b"").decode("latin-1")
        before, after = self._form(listener, head, role)
        return before + self.request_id.encode() + after

    def _form(self, listener: Listener, head: Head, role: Role) -> tuple[bytes, bytes]:
        """The head before and behind the request's id: all that followers of one flight do not have in common."""
        key = (head, self._frame, self.client, role, listener.refresh)
        form = listener.forms.get(key)
        if form is None:
            marks = Marks(role, ID_HERE, listener.flight_id, "", listener.age_s, listener.ttl_s, listener.refresh)
            fields, own = marked(head, marks)
            before, _, after = head_bytes(head, fields, self._frame, self.client, own).partition(ID_HERE.encode())
            form = listener.forms[key] = (before, after)
        return form

    async def _flush(self, listener: Listener, frames: list[Frame], size: int, whole: list[Frame] | None) -> None:
        if parts := self._render(listener, frames, whole):
            self.connection.send(parts[0] if len(parts) == 1 else b"".join(parts))
            self.delivery.sent += size
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


def _whole(frames: list[Frame]) -> list[Frame] | None:
    """``frames``, where they end the answer well."""
    last = frames[-1]
    return frames if isinstance(last, End) and last.fault is None else None
