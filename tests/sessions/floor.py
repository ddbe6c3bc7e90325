"""Nodes with seats at one memory coordinator whose clock the test moves, each behind a line that can be cut, held, or made deaf."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from soloflight.core.errors import SoloflightError
from soloflight.core.session import Release, SessionLock, SessionNotice, SessionOperation, SessionReply, Withdraw
from soloflight.core.session_table import SessionTable
from soloflight.core.stage import Stage
from soloflight.flow.session import SessionSeat, SessionSeats
from soloflight.ports import BackendError
from soloflight_memory import MemoryCoordinator

KEY = "session"
PATIENCE_S = 5.0

QUEUE = Stage(session="queue", heartbeat=0.01, running_lease=0.03, pending_lease=0.03, session_wait=PATIENCE_S)
REJECT = replace(QUEUE, session="reject")


async def until(wanted: Callable[[], object]) -> None:
    """Wait until something holds, looking at every turn of the loop."""
    async with asyncio.timeout(PATIENCE_S):
        while not wanted():
            await asyncio.sleep(0.001)


class Node:
    """One node's seats, and its line to the coordinator. ``ops``: what went over it. ``lost``: whether it lost
    a seat that was given back, which then has to lapse."""

    def __init__(self, coordinator: Any, name: str, *, reject: bool) -> None:
        self.coordinator = coordinator
        self.name = name
        self.cut = False
        self.deaf = False
        self.lost = False
        self.gate: asyncio.Event | None = None
        self.ops: list[SessionOperation] = []
        self.seats = SessionSeats(self, name, reject_without_backend=reject)

    async def session_step(self, key: str, op: SessionOperation) -> SessionReply:
        self.ops.append(op)
        if self.cut:
            self.lost = self.lost or isinstance(op, Release | Withdraw)
            raise BackendError
        reply: SessionReply = await self.coordinator.session_step(key, op)
        if self.gate is not None:
            await self.gate.wait()
        return reply

    def hear(self, key: str, notice: SessionNotice) -> None:
        if not self.deaf:
            self.seats.told(key, notice)

    def count(self, kind: type[Any]) -> int:
        return sum(type(op) is kind for op in self.ops)


class Job:
    """A seat with a task in it. ``listened``: whether somebody listens to what it is for."""

    def __init__(self, node: Node, stage: Stage, key: str) -> None:
        self.listened = True
        self.contests = 0
        self.seat: SessionSeat = node.seats.seat(key, stage, "flight", self.contested)
        self.task = asyncio.create_task(self.seat.take())

    async def contested(self) -> bool:
        self.contests += 1
        if self.listened:
            return False
        self.leaving = asyncio.create_task(self.seat.release())
        return True

    async def seated(self) -> SessionSeat:
        """The seat, once it is taken."""
        async with asyncio.timeout(PATIENCE_S):
            await self.task
        return self.seat

    async def refused(self) -> SoloflightError:
        """The error, once the seat is refused."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                await self.task
            except SoloflightError as error:
                return error
        raise AssertionError(f"{self.seat!r} was taken")


class Floor:
    """Make nodes with ``node``, jobs with ``job``; all is given back at the end, or it fails."""

    def __init__(self) -> None:
        self.now = 1_000_000
        self.coordinator = MemoryCoordinator(1 << 20, clock=lambda: self.now)
        self.nodes: list[Node] = []
        self.jobs: list[Job] = []

    async def node(self, *, reject: bool = False) -> Node:
        name = "abcd"[len(self.nodes)]
        node = Node(self.coordinator.node(), name, reject=reject)
        await node.coordinator.open(name, lambda key: None, node.hear)
        self.nodes.append(node)
        return node

    def job(self, node: Node, stage: Stage = QUEUE, key: str = KEY) -> Job:
        job = Job(node, stage, key)
        self.jobs.append(job)
        return job

    async def waiting(self, node: Node, stage: Stage = QUEUE, key: str = KEY) -> Job:
        """A job whose ticket is in the queue."""
        job = self.job(node, stage, key)
        await until(lambda: any(nonce == job.seat.nonce for nonce in self.queue(key)))
        return job

    def lock(self, key: str = KEY) -> SessionLock | None:
        return self.coordinator._store.sessions.get(key)

    def queue(self, key: str = KEY) -> list[str]:
        lock = self.lock(key)
        return [ticket.nonce for ticket in lock.queue] if lock else []

    def holder(self, key: str = KEY) -> str | None:
        """The nonce of the holder."""
        lock = self.lock(key)
        return lock.holder.fence.nonce if lock and lock.holder else None

    def flush(self) -> None:
        """The coordinator loses everything."""
        self.coordinator._store.sessions = SessionTable()

    async def __aenter__(self) -> Floor:
        return self

    async def __aexit__(self, *_: object) -> None:
        for node in self.nodes:
            node.cut = False
            if node.gate is not None:
                node.gate.set()
        for job in self.jobs:
            job.task.cancel()
            await asyncio.wait((job.task,))
            await job.seat.release()
        for node in self.nodes:
            await node.seats.close()
            await node.coordinator.close()
            assert (len(node.seats), len(node.seats.tasks)) == (0, 0)
        if not any(node.lost for node in self.nodes):
            for key in self.coordinator._store.sessions._locks:
                assert (self.holder(key), self.queue(key)) == (None, [])
