"""A coordinator whose every command is timed and told of. What it does is the coordinator's own; nothing here decides."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, cast

from soloflight.core.flight import Notice, Operation, Reply
from soloflight.core.frames import Recording
from soloflight.ports import BackendAsked, BackendError, Batch, Coordinator, Event, Subscription


def metered(coordinator: Coordinator, emit: Callable[[Event], None]) -> Coordinator:
    """``coordinator``, with a BackendAsked for each of its commands."""
    return cast(Coordinator, Metered(coordinator, emit))


class Metered:
    """Stands in front of a coordinator; what is no command (``up``, ``open``, …) is the coordinator's, untouched."""

    def __init__(self, coordinator: Coordinator, emit: Callable[[Event], None]) -> None:
        self._coordinator = coordinator
        self._emit = emit
        self._names: dict[type[Any], str] = {}

    def __repr__(self) -> str:
        return f"Metered({self._coordinator!r})"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coordinator, name)

    async def step(self, key: str, op: Operation) -> Reply:
        """``Coordinator.step``, told of as the operation's name: claim, renew, …"""
        began = time.monotonic()
        try:
            reply = await self._coordinator.step(key, op)
        except BackendError:
            self._told(self._name(op), began, answered=False)
            raise
        self._told(self._name(op), began)
        return reply

    async def session_step(self, key: str, op: Any) -> Any:
        """``Coordinator.session_step``, told of as session_NAME."""
        return await self._timed("session_" + self._name(op), self._coordinator.session_step, key, op)

    async def result(self, key: str, number: int) -> Recording | None:
        """``Coordinator.result``."""
        found: Recording | None = await self._timed("result", self._coordinator.result, key, number)
        return found

    async def log(self, key: str, number: int, after: int) -> list[Batch]:
        """``Coordinator.log``."""
        batches: list[Batch] = await self._timed("log", self._coordinator.log, key, number, after)
        return batches

    async def subscribe(self, key: str, listener: Callable[[Notice], None]) -> Subscription:
        """``Coordinator.subscribe``."""
        subscription: Subscription = await self._timed("subscribe", self._coordinator.subscribe, key, listener)
        return subscription

    async def purge(self, key: str) -> bool:
        """``Coordinator.purge``."""
        return bool(await self._timed("purge", self._coordinator.purge, key))

    async def _timed(self, op: str, command: Callable[..., Any], *words: Any) -> Any:
        began = time.monotonic()
        try:
            said = await command(*words)
        except BackendError:
            self._told(op, began, answered=False)
            raise
        self._told(op, began)
        return said

    def _told(self, op: str, began: float, *, answered: bool = True) -> None:
        self._emit(BackendAsked(op, time.monotonic() - began, answered))

    def _name(self, op: object) -> str:
        """The name of an operation, made once for each type: the label of its metric."""
        kind = type(op)
        name = self._names.get(kind)
        if name is None:
            name = self._names[kind] = kind.__name__.lower()
        return name
