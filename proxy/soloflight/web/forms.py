"""What the listeners of one flight have in common: its head and its frames as they are written, made once for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from soloflight.core.frames import Body, End, Frame, Head
from soloflight.ports import Role
from soloflight.web.wire import Client, Framing, Marks, framing, head_bytes, is_event_stream, marked

if TYPE_CHECKING:
    from soloflight.flow.listen import Listener

# Stands for the request's id in a prepared head; no field value can hold a NUL.
ID_HERE = "\0"
TAIL = 4
"""So many last bytes tell whether an event stream stands between two events."""


@dataclass(frozen=True, slots=True)
class Opening:
    """An answer's head, before and behind the request's id."""

    head: Head
    frame: Framing
    before: bytes
    after: bytes
    streamed: bool
    upstream_id: str


@dataclass(frozen=True, slots=True)
class Coded:
    """A run of frames as it is written. ``size``: body bytes in it; ``tail``: the last of them; ``ends``: the answer ends here."""

    first: Frame
    last: Frame
    count: int
    frame: Framing
    data: bytes
    size: int
    tail: bytes
    ends: bool


class Forms:
    """The forms of one flight's answer. What follows in its log is written alike for all, so that the last run is remembered."""

    __slots__ = ("_coded", "_openings")

    def __init__(self) -> None:
        self._openings: dict[tuple[Client, Role, bool, bool], Opening] = {}
        self._coded: Coded | None = None

    def __repr__(self) -> str:
        return f"Forms({len(self._openings)} heads)"

    def opening(self, head: Head, client: Client, role: Role, whole_size: int | None, listener: Listener) -> Opening:
        """The head for such a client in such a role; ``whole_size``: the body's, where all of it is here."""
        key = (client, role, listener.refresh, whole_size is None)
        opening = self._openings.get(key)
        if opening is None or opening.head is not head:  # another attempt has another head
            frame = framing(head, client, known_size=whole_size)
            marks = Marks(role, ID_HERE, listener.flight_id, "", listener.age_s, listener.ttl_s, listener.refresh)
            fields, own = marked(head, marks)
            before, _, after = head_bytes(head, fields, frame, client, own).partition(ID_HERE.encode())
            upstream_id = (head.get(b"x-request-id") or b"").decode("latin-1")
            opening = Opening(head, frame, before, after, is_event_stream(head), upstream_id)
            self._openings[key] = opening
        return opening

    def coded(self, frames: Sequence[Frame], frame: Framing) -> Coded:
        """``frames`` (bodies, perhaps an End; at least one) as they are written.

        They are a run of an append-only log: the same first and last frame mean the same run.
        """
        coded, first, last = self._coded, frames[0], frames[-1]
        if (
            coded is None
            or coded.first is not first
            or coded.last is not last
            or coded.count != len(frames)
            or (coded.frame is not frame and coded.frame != frame)
        ):
            bodies = [one.data for one in frames if isinstance(one, Body)]
            ends = isinstance(last, End)
            data = b"".join([*map(frame.body, bodies), frame.end() if ends else b""])
            size = sum(map(len, bodies))
            tail = b"".join(bodies[-TAIL:])[-TAIL:]
            coded = self._coded = Coded(first, last, len(frames), frame, data, size, tail, ends)
        return coded
