"""The public door. ``Front.handle`` reads as the life of a request: known, planned, read, admitted, shared or alone, told of."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

from aiohttp.web_request import BaseRequest
from aiohttp.web_response import StreamResponse

from soloflight.core.control import NONE_FRESH
from soloflight.core.errors import Code, Fault, SoloflightError
from soloflight.core.frames import Frame
from soloflight.flow.admit import Admission
from soloflight.flow.flights import Call, GoAlone, Reelect
from soloflight.flow.listen import Listener
from soloflight.flow.node import Node
from soloflight.flow.plan import Alone, Plan
from soloflight.flow.tasks import Tasks
from soloflight.ports import Event, Role
from soloflight.web.connection import ClientGone, sent
from soloflight.web.health import HEALTH, HEALTH_PATHS, health_answer
from soloflight.web.read import BodyReader, client_of, connection_of, read_request
from soloflight.web.recognise import Recogniser, Seen, SeenHead
from soloflight.web.relay import Relay
from soloflight.web.respond import Delivery, Responder
from soloflight.web.short import Shortcuts
from soloflight.web.visit import Visit

log = logging.getLogger("soloflight.web")


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the door: sizes in bytes, times in seconds."""

    max_body: int
    max_shared_body: int
    body_timeout_s: float
    write_timeout_s: float


@dataclass(slots=True)
class State:
    """What health answers tell: whether the process drains, and why it is degraded ("" if not)."""

    draining: bool = False
    degraded: Callable[[], str] = lambda: ""


class Front:
    """Answers every request of the public listener. ``admission`` is replaced as a whole on reload, ``recogniser`` with it.

    ``traced``: an observer wants to know the clients' trace contexts.
    """

    def __init__(
        self,
        node: Node,
        admission: Admission,
        recogniser: Recogniser,
        limits: Limits,
        emit: Callable[[Event], None],
        state: State,
    ) -> None:
        self.node = node
        self._limits = limits
        self.emit = emit
        self._state = state
        self._numbers = count(1)
        self._prefix = f"{node.id}-"
        self.visits: set[Visit] = set()
        self._tasks = Tasks("visits")
        self.admission = admission
        self.recogniser = recogniser
        self.shortcuts = Shortcuts(self)
        self.traced = False

    def __repr__(self) -> str:
        return f"Front({self.node!r})"

    @property
    def max_shared_body(self) -> int:
        """Larger bodies are not read whole."""
        return self._limits.max_shared_body

    def replace(self, admission: Admission, recogniser: Recogniser, limits: Limits) -> None:
        """Other rules for requests to come."""
        self.admission, self.recogniser, self._limits = admission, recogniser, limits

    @property
    def draining(self) -> bool:
        """Whether the process is about to stop: each answer is its connection's last."""
        return self._state.draining

    @property
    def running(self) -> int:
        """Requests being answered now."""
        return len(self.visits)

    @property
    def listening(self) -> int:
        """Requests that wait for a flight's frames."""
        return sum(visit.delivery is not None and visit.delivery.role is not Role.BYPASS for visit in self.visits)

    async def cut(self) -> None:
        """End what is still being answered, visibly."""
        for visit in list(self.visits):
            visit.connection.abort()
        await self._tasks.close()

    # ── the life of a request ───────────────────────────────────────────────────────────────────────────────────────

    async def handle(self, raw: BaseRequest) -> StreamResponse:
        """One request that aiohttp has parsed."""
        client = client_of(raw, draining=self.draining)
        visit = Visit(connection_of(raw), client, self.next_id(), time.monotonic())
        if (path := _health_path(raw)) is not None:
            keep_alive = client.keep_alive
            try:
                visit.connection.send(health_answer(path, self._state, client))
            except ClientGone:
                keep_alive = False
        else:
            keep_alive = await self._through(visit, self._read(visit, raw), raw.content.is_eof)
        if keep_alive:
            visit.connection.answered()
        return sent(keep_alive=keep_alive)

    def attend(self, visit: Visit, answering: Coroutine[Any, Any, Delivery]) -> None:
        """Answer a request that aiohttp has not seen, in a task."""
        task = self._tasks.spawn(self._occupied(visit, answering), "visit")
        visit.connection.occupy(partial(self._gone, visit, answering, task))

    def _gone(self, visit: Visit, answering: Coroutine[Any, Any, Delivery], task: asyncio.Task[None]) -> None:
        """The client is gone. A task that is cancelled before its first step does not run at all: what it would do is done here."""
        task.cancel()
        if not visit.begun:
            answering.close()
            if visit.listener is not None:
                visit.listener.close()
            self.leave(visit, visit.gone())

    async def _occupied(self, visit: Visit, answering: Coroutine[Any, Any, Delivery]) -> None:
        keep_alive, visit.begun = False, True
        try:
            keep_alive = await self._through(visit, answering, _whole)
        finally:
            visit.connection.vacate(keep_alive=keep_alive)

    async def _through(
        self, visit: Visit, answering: Coroutine[Any, Any, Delivery], body_read: Callable[[], bool]
    ) -> bool:
        """See a request through to the event that tells of it; whether its connection may be used again."""
        self.enter(visit)
        try:
            delivery = await self._answered(visit, answering, body_read)
        except ClientGone:
            delivery = visit.gone()
        except asyncio.CancelledError:
            self.leave(visit, visit.gone())
            raise
        self.leave(visit, delivery)
        return delivery.keep_alive and not self.draining

    async def _answered(
        self, visit: Visit, answering: Coroutine[Any, Any, Delivery], body_read: Callable[[], bool]
    ) -> Delivery:
        """Its answer, or an error's. Raises ClientGone."""
        try:
            return await answering
        except SoloflightError as error:
            return visit.refuse(error.fault, body_read=body_read())
        except ClientGone:
            raise
        except Exception as error:
            log.error("a handler failed: %s", type(error).__name__, exc_info=error)
            if visit.delivery is not None and visit.delivery.status:
                visit.connection.abort()
                raise ClientGone from error
            return visit.refuse(Fault(Code.INTERNAL, "the proxy failed to answer this request"), body_read=False)

    def enter(self, visit: Visit) -> None:
        """A request is being answered."""
        self.visits.add(visit)

    def leave(self, visit: Visit, delivery: Delivery) -> None:
        """It is over: tell of it."""
        self.visits.discard(visit)
        self.emit(visit.ended(delivery, traced=self.traced))

    # ── what it asks for ────────────────────────────────────────────────────────────────────────────────────────────

    async def _read(self, visit: Visit, raw: BaseRequest) -> Delivery:
        """Plan by the head, and read the body if it may be shared."""
        visit.request = request = read_request(raw)
        body = BodyReader(raw, self._limits.max_body, self._limits.body_timeout_s)
        recogniser, plan = self.recogniser, self.admission.plan(request)
        whole, begun = body.ready(), visit.connection.begun(raw)
        if begun is not None and not self.draining:  # else it is told to close
            recogniser.learn_head(begun.head, SeenHead(request, plan, visit.client, begun.length))
        if whole is None:
            if plan.alone is not None:
                return await self._alone(visit, plan, plan.alone, body)
            waiting_since = time.monotonic()
            whole = await body.whole(self._limits.max_shared_body)
            visit.body_s = time.monotonic() - waiting_since
            if whole is None:
                return await self._alone(visit, plan, self.admission.too_large(plan), body)
        block = begun.block if begun is not None else b""
        learn = partial(recogniser.learn, (visit.connection.trusted_peer, block)) if block else None
        return await self.serve(visit, plan, whole, learn)

    async def serve(
        self, visit: Visit, plan: Plan, body: bytes, learn: Callable[[Seen], None] | None = None
    ) -> Delivery:
        """Admit a request that is here whole; ``learn`` is told what was made of it, where it came in one block.

        It is the recogniser's of the rules that made ``plan``: there may be others by now.
        """
        if plan.alone is not None:
            return await self._alone(visit, plan, plan.alone, body)
        limit = self._limits.max_shared_body
        if len(body) > limit:
            return await self._alone(visit, plan, self.admission.too_large(plan), body)
        if plan.coded:
            verdict = await self.admission.decide_coded(plan, body, limit)
        else:
            verdict = self.admission.decide(plan, body)
        if isinstance(verdict, Alone):
            return await self._alone(visit, plan, verdict, body)
        visit.stage, visit.model = verdict.stage.name, verdict.facts.model
        client = visit.client
        if learn is not None and client.http11 and client.keep_alive and client.method != "HEAD":
            learn(Seen(verdict, plan, client))
        return await self.follow(visit, plan, verdict, self.responder(visit, verdict))

    def responder(self, visit: Visit, call: Call) -> Responder:
        """Who writes the answer to ``call``."""
        responder = Responder(
            visit.connection, visit.client, visit.request_id, self._limits.write_timeout_s, partial(_error_event, call)
        )
        visit.delivery = responder.delivery
        return responder

    async def follow(
        self,
        visit: Visit,
        plan: Plan,
        call: Call,
        responder: Responder,
        listener: Listener | None = None,
        frames: list[Frame] | None = None,
    ) -> Delivery:
        """Replay, join or begin a flight and read its log; or go on with a ``listener`` that has read ``frames``."""
        while True:
            try:
                if listener is None:
                    visit.listener = listener = await self.node.listen(call)
                    listener.refresh = plan.control.fresh_s == NONE_FRESH
                return await responder.follow(listener, frames)
            except Reelect:  # nothing was sent; each time it is another owner that was refused
                listener = frames = None
            except GoAlone as alone:
                return await self._alone(visit, plan, self.admission.sent_away(call, alone.reason), call.body)

    async def _alone(self, visit: Visit, plan: Plan, alone: Alone, body: BodyReader | bytes) -> Delivery:
        visit.stage = alone.stage.name
        relay = Relay(
            visit.connection,
            visit.client,
            plan,
            alone,
            self.node.gate,
            request_id=visit.request_id,
            write_timeout_s=self._limits.write_timeout_s,
        )
        visit.delivery = relay.delivery
        return await relay.run(body)

    def next_id(self) -> str:
        """The id of one request, on this node and on no other."""
        return f"{self._prefix}{next(self._numbers):x}"


def _health_path(raw: BaseRequest) -> str | None:
    """Which health answer is asked for, if any."""
    if HEALTH not in raw._message.path:
        return None
    try:
        path = read_request(raw).path
    except SoloflightError:
        return None
    return path if path in HEALTH_PATHS else None


def _whole() -> bool:
    """The body of a request that came in one piece was read."""
    return True


def _error_event(call: Call, code: str, message: str) -> bytes:
    return call.rules.error_event(call.path, code, message)
