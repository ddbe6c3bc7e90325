"""The public door. ``Front.handle`` reads as the life of a request: known, planned, read, admitted, shared or alone, told of."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from aiohttp.web_request import BaseRequest
from aiohttp.web_response import StreamResponse

from soloflight.core.control import NONE_FRESH
from soloflight.core.errors import SoloflightError
from soloflight.core.request import Request
from soloflight.flow.admit import Admission, Alone, Plan
from soloflight.flow.flights import Call
from soloflight.flow.node import GoAlone, Node
from soloflight.ports import Event, RequestEnded
from soloflight.web.connection import ClientGone, Sent
from soloflight.web.health import HEALTH_PATHS, health_answer
from soloflight.web.read import BodyReader, client_key, client_of, connection_of, read_request
from soloflight.web.relay import Relay, upgrade_of
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
    delivery: Delivery | None = None

    def gone(self) -> Delivery:
        """The client left before its answer was through."""
        delivery = self.delivery or Delivery()
        delivery.cut, delivery.keep_alive = True, False
        delivery.reason = delivery.reason or "client_gone"
        return delivery


class Front:
    """Answers every request of the public listener. ``admission`` is replaced as a whole on reload."""

    def __init__(
        self,
        node: Node,
        admission: Admission,
        limits: Limits,
        client_keys: Sequence[bytes],
        emit: Callable[[Event], None],
        state: State,
    ) -> None:
        self._node = node
        self._limits = limits
        self._client_keys = client_keys
        self._emit = emit
        self._state = state
        self._numbers = count(1)
        self._doing: set[Visit] = set()
        self.admission = admission

    def __repr__(self) -> str:
        return f"Front({self._node!r})"

    @property
    def running(self) -> int:
        """Requests being answered now."""
        return len(self._doing)

    def cut(self) -> None:
        """End what is still being answered, visibly."""
        for visit in list(self._doing):
            connection_of(visit.raw).abort()

    async def handle(self, raw: BaseRequest) -> StreamResponse:
        """One request, from its head to the event that tells of it."""
        began = time.monotonic()
        request_id = f"{self._node.id}-{next(self._numbers):x}"
        client = client_of(raw, draining=self._state.draining)
        visit = Visit(raw, client, request_id)
        self._doing.add(visit)
        try:
            visit.request = request = read_request(raw)
            if request.path in HEALTH_PATHS:
                connection_of(raw).send(health_answer(request.path, self._state, client))
                return Sent(keep_alive=client.keep_alive)
            delivery = await self._serve(visit)
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
        return Sent(keep_alive=delivery.keep_alive)

    async def _serve(self, visit: Visit) -> Delivery:
        """Known to the proxy? Then plan by the head, read the body if it may be shared, and admit."""
        request, admission = visit.request, self.admission
        assert request is not None
        withhold = client_key(request, self._client_keys)
        plan = admission.plan(request, withhold)
        body = BodyReader(visit.raw, self._limits.max_body, self._limits.body_timeout_s)
        if isinstance(plan, Alone) or upgrade_of(request) is not None:
            alone = plan if isinstance(plan, Alone) else admission.alone(admission.stage_of(plan), "upgrade")
            return await self._alone(visit, alone, withhold, body)
        whole = await body.whole(self._limits.max_shared_body)
        if whole is None:
            return await self._alone(visit, admission.alone(admission.stage_of(plan), "body"), withhold, body)
        verdict = admission.decide(plan, whole, self._limits.max_shared_body, visit.request_id)
        if isinstance(verdict, Alone):
            return await self._alone(visit, verdict, withhold, whole)
        return await self._shared(visit, plan, verdict, whole)

    async def _shared(self, visit: Visit, plan: Plan, call: Call, body: bytes) -> Delivery:
        """Join, replay or begin a flight and read its log."""
        visit.stage = call.stage.name
        try:
            listener = await self._node.listen(call)
        except GoAlone as alone:
            verdict = self.admission.alone(call.stage, alone.reason)
            return await self._alone(visit, verdict, plan.withhold, body)
        listener.refresh = plan.control.fresh_s == NONE_FRESH
        responder = Responder(
            connection_of(visit.raw),
            visit.client,
            visit.request_id,
            self._limits.write_timeout_s,
            lambda code, message: call.rules.error_event(call.path, code, message),
        )
        visit.delivery = responder.delivery
        return await responder.follow(listener)

    async def _alone(
        self, visit: Visit, alone: Alone, withhold: frozenset[bytes], body: BodyReader | bytes
    ) -> Delivery:
        visit.stage = alone.stage.name
        assert visit.request is not None
        relay = Relay(
            connection_of(visit.raw),
            visit.client,
            visit.request,
            alone,
            withhold=withhold,
            request_id=visit.request_id,
            write_timeout_s=self._limits.write_timeout_s,
        )
        visit.delivery = relay.delivery
        return await relay.run(body)

    def _refuse(self, visit: Visit, error: SoloflightError) -> Delivery:
        """Answer with the fault; a body that was not read whole makes the connection unfit for another request."""
        keep_alive = visit.client.keep_alive and visit.raw.content.at_eof()
        fault = error.fault
        connection_of(visit.raw).send(
            error_answer(fault, visit.request_id, keep_alive=keep_alive, empty=visit.raw.method == "HEAD")
        )
        return Delivery(status=fault.code.status, code=fault.code, first_byte=time.monotonic(), keep_alive=keep_alive)

    def _tell(self, visit: Visit, delivery: Delivery, began: float) -> None:
        now = time.monotonic()
        request = visit.request
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
                first_byte_s=max(0.0, delivery.first_byte - began),
                duration_s=now - began,
                cut=delivery.cut,
                upstream_id=delivery.upstream_id,
                method=visit.raw.method,
                path=request.path if request is not None else "",
                peer=request.peer if request is not None else "",
            )
        )
