"""The public door. ``Front.handle`` reads as the life of a request: known, planned, read, admitted, shared or alone, told of."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from aiohttp.web_request import BaseRequest
from aiohttp.web_response import StreamResponse

from soloflight.core.control import NONE_FRESH
from soloflight.core.errors import SoloflightError
from soloflight.core.frames import NO_USAGE
from soloflight.core.request import Request
from soloflight.core.trace import trace_of
from soloflight.flow.admit import Admission, Alone, Plan
from soloflight.flow.flights import Call, GoAlone, Reelect
from soloflight.flow.listen import Listener
from soloflight.flow.node import Node
from soloflight.flow.replays import Replay
from soloflight.ports import Event, RequestEnded, Role
from soloflight.web.connection import ClientGone, Connection, sent
from soloflight.web.health import HEALTH_PATHS, health_answer
from soloflight.web.read import BodyReader, client_of, connection_of, read_request
from soloflight.web.recognise import Recogniser
from soloflight.web.relay import Relay
from soloflight.web.respond import Delivery, Responder
from soloflight.web.wire import Client, error_answer


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


@dataclass(eq=False, slots=True)
class Visit:
    """One request on its way through the door."""

    raw: BaseRequest
    client: Client
    request_id: str
    request: Request | None = None
    stage: str = ""
    model: str | None = None
    body_s: float = 0.0
    listener: Listener | None = None
    delivery: Delivery | None = None

    def gone(self) -> Delivery:
        """The client left before its answer was through."""
        delivery = self.delivery or Delivery()
        delivery.cut, delivery.keep_alive = True, False
        delivery.reason = delivery.reason or "client_gone"
        return delivery


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
        self._node = node
        self._limits = limits
        self._emit = emit
        self._state = state
        self._numbers = count(1)
        self._doing: set[Visit] = set()
        self.admission = admission
        self.recogniser = recogniser
        self.traced = False

    def __repr__(self) -> str:
        return f"Front({self._node!r})"

    def replace(self, admission: Admission, recogniser: Recogniser, limits: Limits) -> None:
        """Other rules for requests to come."""
        self.admission, self.recogniser, self._limits = admission, recogniser, limits

    @property
    def running(self) -> int:
        """Requests being answered now."""
        return len(self._doing)

    @property
    def listening(self) -> int:
        """Requests that wait for a flight's frames."""
        return sum(visit.delivery is not None and visit.delivery.role is not Role.BYPASS for visit in self._doing)

    def cut(self) -> None:
        """End what is still being answered, visibly."""
        for visit in list(self._doing):
            connection_of(visit.raw).abort()

    def recognised(self, block: bytes, connection: Connection) -> bytes | None:
        """The whole answer for a block that is, byte for byte, a request admitted before; None: it takes the long way."""
        if self._state.draining:
            return None
        began = time.monotonic()
        found = self.recogniser.find(block, trusted=connection.trusted_peer)
        if found is None:
            return None
        call, replay, form = found
        request_id = self._next_id()
        answer = form.whole(request_id, began - replay.sealed, max(0.0, replay.expires - began))
        if answer is not None:
            took_s = time.monotonic() - began
            ended = _replayed(request_id, call, replay, form.upstream_id, connection.peer, took_s)
            self._emit(ended._replace(trace=trace_of(call.request)) if self.traced else ended)
        return answer

    async def handle(self, raw: BaseRequest) -> StreamResponse:
        """One request, from its head to the event that tells of it."""
        began = time.monotonic()
        client = client_of(raw, draining=self._state.draining)
        visit = Visit(raw, client, self._next_id())
        self._doing.add(visit)
        try:
            visit.request = request = read_request(raw)
            if request.target.startswith("/_soloflight/") and request.path in HEALTH_PATHS:
                connection_of(raw).send(health_answer(request.path, self._state, client))
                return sent(keep_alive=client.keep_alive)
            delivery = await self._serve(visit, request)
        except SoloflightError as error:
            delivery = self._refuse(visit, error)
        except ClientGone:
            delivery = visit.gone()
        except asyncio.CancelledError:
            self._tell(visit, visit.gone(), began)
            raise
        finally:
            self._doing.discard(visit)
        self._tell(visit, delivery, began)
        return sent(keep_alive=delivery.keep_alive and not self._state.draining)

    async def _serve(self, visit: Visit, request: Request) -> Delivery:
        """Plan by the head, read the body if it may be shared, and admit."""
        limits = self._limits
        body = BodyReader(visit.raw, limits.max_body, limits.body_timeout_s)
        plan = self.admission.plan(request)
        whole = body.ready()
        if plan.alone is not None:
            return await self._alone(visit, plan, plan.alone, body if whole is None else whole)
        if whole is None:
            waiting_since = time.monotonic()
            whole = await body.whole(limits.max_shared_body)
            visit.body_s = time.monotonic() - waiting_since
        if whole is None:
            return await self._alone(visit, plan, self.admission.too_large(plan), body)
        if plan.coded:
            verdict = await self.admission.decide_coded(plan, whole, limits.max_shared_body)
        else:
            verdict = self.admission.decide(plan, whole)
        if isinstance(verdict, Alone):
            return await self._alone(visit, plan, verdict, whole)
        return await self._shared(visit, plan, verdict)

    async def _shared(self, visit: Visit, plan: Plan, call: Call) -> Delivery:
        """Replay, join or begin a flight and read its log."""
        visit.stage, visit.model = call.stage.name, call.facts.model
        connection, client = connection_of(visit.raw), visit.client
        block = connection.take_block(visit.raw)
        if block and client.http11 and client.keep_alive and client.method != "HEAD":
            self.recogniser.learn(block, call, trusted=connection.trusted_peer)
        responder = Responder(
            connection,
            client,
            visit.request_id,
            self._limits.write_timeout_s,
            lambda code, message: call.rules.error_event(call.path, code, message),
        )
        visit.delivery = responder.delivery
        while True:
            try:
                visit.listener = listener = await self._node.listen(call)
                listener.refresh = plan.control.fresh_s == NONE_FRESH
                return await responder.follow(listener)
            except Reelect:  # nothing was sent; each time it is another owner that was refused
                continue
            except GoAlone as alone:
                return await self._alone(visit, plan, self.admission.sent_away(call, alone.reason), call.body)

    async def _alone(self, visit: Visit, plan: Plan, alone: Alone, body: BodyReader | bytes) -> Delivery:
        visit.stage = alone.stage.name
        relay = Relay(
            connection_of(visit.raw),
            visit.client,
            plan,
            alone,
            self._node.gate,
            request_id=visit.request_id,
            write_timeout_s=self._limits.write_timeout_s,
        )
        visit.delivery = relay.delivery
        return await relay.run(body)

    def _refuse(self, visit: Visit, error: SoloflightError) -> Delivery:
        """Answer with the fault; a body that was not read whole makes the connection unfit for another request."""
        keep_alive = visit.client.keep_alive and visit.raw.content.is_eof()
        fault = error.fault
        connection_of(visit.raw).send(
            error_answer(fault, visit.request_id, keep_alive=keep_alive, empty=visit.raw.method == "HEAD")
        )
        delivery = visit.delivery or Delivery()
        delivery.status, delivery.code = fault.code.status, fault.code
        delivery.first_byte, delivery.keep_alive = time.monotonic(), keep_alive
        return delivery

    def _tell(self, visit: Visit, delivery: Delivery, began: float) -> None:
        """What observers are told of a request that has ended."""
        now, request, listener = time.monotonic(), visit.request, visit.listener
        first_byte = delivery.first_byte
        waited_s, lag_s = visit.body_s + delivery.upstream_s, None
        if listener is not None:
            waited_s += listener.upstream_s(began, first_byte)
            if delivery.role is Role.FOLLOWER and not delivery.cut and listener.ended_at is not None:
                lag_s = now - max(began, listener.ended_at)
        self._emit(
            RequestEnded(
                request_id=visit.request_id,
                stage=visit.stage,
                role=delivery.role,
                status=delivery.status,
                flight=delivery.flight,
                reason=delivery.reason,
                code=delivery.code,
                sent=delivery.sent,
                first_byte_s=max(0.0, first_byte - began),
                duration_s=now - began,
                overhead_s=max(0.0, first_byte - began - waited_s),
                cut=delivery.cut,
                usage=NO_USAGE if listener is None else listener.usage,
                upstream_id=delivery.upstream_id,
                method=visit.raw.method,
                path="" if request is None else request.path,
                peer="" if request is None else request.peer,
                model=visit.model,
                lag_s=lag_s,
                attempt=0 if listener is None else listener.number,
                trace=trace_of(request) if self.traced and request is not None else None,
            )
        )

    def _next_id(self) -> str:
        return f"{self._node.id}-{next(self._numbers):x}"


def _replayed(request_id: str, call: Call, replay: Replay, upstream_id: str, peer: str, took_s: float) -> RequestEnded:
    """The event of a recognised replay: nothing was waited for, so that all of its time is the proxy's own."""
    recording, request = replay.recording, call.request
    return RequestEnded(
        request_id=request_id,
        stage=call.stage.name,
        role=Role.REPLAY,
        status=recording.head.status,
        flight=replay.flight,
        sent=recording.size,
        first_byte_s=took_s,
        duration_s=took_s,
        overhead_s=took_s,
        usage=recording.usage,
        upstream_id=upstream_id,
        method=request.method,
        path=request.path,
        peer=peer,
        model=call.facts.model,
        attempt=replay.number,
    )
