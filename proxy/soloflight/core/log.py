"""A flight's log: an append-only list of frames, read through cursors. Sans-IO; wake-ups are plain callbacks.

Rule 1: the writer appends, listeners read; no listener can change what another one sees.
Rule 2: up to ``limit`` body bytes the log holds everything from byte 0 and may be joined at any time.
Rule 3: beyond it the log is a window: no new cursors, what all have read is dropped, the writer waits for the *fastest*
reader, and who falls out of the window behind it is told so. The fastest never does: a window is wider than its writer's lead.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from soloflight.core.frames import Body, End, Frame, Head, Recording

WINDOW_FLOOR = 4 << 20
"""A window is never narrower than this many body bytes, however small the limit: what a writer may be ahead by fits in."""

WAKE_SLICE = 200
"""How many listeners are woken in one turn of the loop."""


class FellBehind(Exception):
    """The cursor's next frame has left the window: its listener can not be served whole any more."""


class Cursor:
    """One listener's place in a log."""

    __slots__ = ("_log", "offset", "position", "tap")

    def __init__(self, log: Log, *, tap: bool = False) -> None:
        self._log = log
        self.tap = tap
        self.position = 0
        self.offset = 0

    def __repr__(self) -> str:
        return f"Cursor(position={self.position}, offset={self.offset})"

    @property
    def faulted(self) -> bool:
        """Whether the log has ended in a fault."""
        ended = self._log.ended
        return ended is not None and ended.fault is not None

    @property
    def behind(self) -> bool:
        """Whether there are frames not read yet."""
        return self.position < self._log.frames

    def take(self) -> list[Frame]:
        """All frames not read yet (may be empty). Raises FellBehind."""
        return self._log._take(self)

    def wait(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` once, at the next append. Nothing to wait for behind an End."""
        self._log._waiting[self] = wake

    def detach(self) -> None:
        """The listener is gone; idempotent."""
        self._log._detach(self)


class Log:
    """Frames of one attempt: an optional Head, Bodies, an End.

    ``limit`` is in body bytes. ``charge`` is told of every change of retained bytes (positive and negative). ``later`` runs a call
    in another turn of the loop.
    """

    __slots__ = (
        "_base", "_charge", "_cursors", "_floor", "_frames", "_later", "_limit", "_retired", "_room", "_taps", "_waiting",
        "_window", "ended", "head", "retained", "size", "windowed",
    )  # fmt: skip

    def __init__(
        self,
        limit: int,
        charge: Callable[[int], None] = lambda _: None,
        *,
        floor: int = WINDOW_FLOOR,
        later: Callable[[Callable[[], None]], object] = lambda call: call(),
    ) -> None:
        self._limit = limit
        self._later = later
        self._floor = floor
        self._window = max(limit, floor)
        self._retired = False
        self._charge = charge
        self._frames: list[Frame] = []
        self._base = 0
        self._cursors: set[Cursor] = set()
        self._taps = 0
        self._waiting: dict[Cursor, Callable[[], None]] = {}
        self._room: Callable[[], None] | None = None
        self.head: Head | None = None
        self.size = 0
        self.retained = 0
        self.windowed = False
        self.ended: End | None = None

    def __repr__(self) -> str:
        state = "ended" if self.ended else "windowed" if self.windowed else "open"
        return f"Log({state}, frames={self._base + len(self._frames)}, bytes={self.size}, cursors={len(self._cursors)})"

    @property
    def frames(self) -> int:
        """Frames appended so far."""
        return self._base + len(self._frames)

    @property
    def listeners(self) -> int:
        """Cursors of clients attached now; a tap (the publisher's) does not count."""
        return len(self._cursors) - self._taps

    @property
    def joinable(self) -> bool:
        """Whether a new cursor would see every frame from byte 0, and the log has not ended in a fault."""
        return not self.windowed and (self.ended is None or self.ended.fault is None)

    def attach(self, *, tap: bool = False) -> Cursor:
        """A cursor at byte 0. Only while ``joinable``, or before the first frame was dropped."""
        cursor = Cursor(self, tap=tap)
        self._cursors.add(cursor)
        self._taps += tap
        return cursor

    def append(self, *frames: Frame) -> None:
        """Add frames in order and wake who waits."""
        for frame in frames:
            self._frames.append(frame)
            if isinstance(frame, Body):
                self._count(len(frame.data))
            elif isinstance(frame, Head):
                self.head = frame
            else:
                self.ended = frame
        if self.size > self._limit and not self.windowed:
            self.windowed = True
        if self.windowed:
            self._trim()
        if self._waiting:
            waiting, self._waiting = self._waiting, {}
            self._wake(list(waiting.values()))

    def _wake(self, waiting: list[Callable[[], None]]) -> None:
        """Wake in slices: a crowd of listeners must not hold up everything else for as long as it takes to serve them all."""
        for wake in waiting[:WAKE_SLICE]:
            wake()
        if len(waiting) > WAKE_SLICE:
            self._later(partial(self._wake, waiting[WAKE_SLICE:]))

    def stop_recording(self) -> None:
        """Become a window now, whatever the limit (memory is short): no wider than what is here."""
        self._window = min(self._window, max(self.size, self._floor))
        self.windowed = True

    def unread(self) -> int:
        """Body bytes that not even the fastest cursor has read; 0 where nobody reads."""
        return self.size - max((cursor.offset for cursor in self._cursors), default=self.size)

    def wait_for_room(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` once, when a listener has read on or left (only the writer waits here)."""
        self._room = wake

    def recording(self) -> Recording | None:
        """The whole answer, if it ended without fault or is about to, and nothing was dropped."""
        if self.head is None or self.windowed:
            return None
        body = tuple(frame.data for frame in self._frames if isinstance(frame, Body))
        return Recording(self.head, body, self.size)

    def retire(self) -> None:
        """Nothing comes any more, and nobody: all frames are given back once the last cursor is detached. Idempotent."""
        self._retired = True
        self._give_back()

    def _count(self, data_len: int) -> None:
        self.size += data_len
        self.retained += data_len
        self._charge(data_len)

    def _take(self, cursor: Cursor) -> list[Frame]:
        start = cursor.position - self._base
        if start < 0:
            raise FellBehind
        frames = self._frames[start:] if start else list(self._frames)
        if frames:
            cursor.position += len(frames)
            cursor.offset = self.size
            if self.windowed:
                self._trim()
            self._give_room()
        return frames

    def _detach(self, cursor: Cursor) -> None:
        if cursor in self._cursors:
            self._cursors.remove(cursor)
            self._taps -= cursor.tap
        self._waiting.pop(cursor, None)
        if self._retired:
            self._give_back()
        elif self.windowed:
            self._trim()
        self._give_room()

    def _give_back(self) -> None:
        if not self._cursors and self._frames:
            self._base += len(self._frames)
            self._frames = []
            self._charge(-self.retained)
            self.retained = 0

    def _give_room(self) -> None:
        room, self._room = self._room, None
        if room is not None:
            room()

    def _trim(self) -> None:
        """Drop what every cursor has read; what is wider than the window goes from the front, whoever has not read it."""
        read = min((cursor.position for cursor in self._cursors), default=self.frames)
        drop, freed = 0, 0
        for frame in self._frames:
            if self._base + drop >= read and self.retained - freed <= self._window:
                break
            drop += 1
            if isinstance(frame, Body):
                freed += len(frame.data)
        if drop:
            del self._frames[:drop]
            self._base += drop
            self.retained -= freed
            self._charge(-freed)
