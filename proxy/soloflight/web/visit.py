"""One request on its way through the door, and what observers are told of it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from soloflight.core.errors import Fault
from soloflight.core.frames import NO_USAGE
from soloflight.core.request import Request
from soloflight.core.trace import trace_of
from soloflight.flow.flights import Call
from soloflight.flow.listen import Listener
from soloflight.flow.shelf import Replay
from soloflight.ports import RequestEnded, Role
from soloflight.web.connection import Connection
from soloflight.web.respond import Delivery
from soloflight.web.wire import Client, error_answer


@dataclass(eq=False, slots=True)
class Visit:
    """One request on its way through the door. ``began`` and ``over``: when it was here, and its answer out (monotonic clock).

    ``begun``: a task of ours has begun to answer it.
    """

    connection: Connection
    client: Client
    request_id: str
    began: float
    request: Request | None = None
    stage: str = ""
    model: str | None = None
    body_s: float = 0.0
    listener: Listener | None = None
    delivery: Delivery | None = None
    over: float = 0.0
    begun: bool = False

    def gone(self) -> Delivery:
        """The client left before its answer was through."""
        delivery = self.delivery or Delivery()
        delivery.cut, delivery.keep_alive = True, False
        delivery.reason = delivery.reason or "client_gone"
        return delivery

    def refuse(self, fault: Fault, *, body_read: bool) -> Delivery:
        """Answer with a fault; a body that was not read whole makes the connection unfit for another request."""
        keep_alive = self.client.keep_alive and body_read
        self.connection.send(
            error_answer(fault, self.request_id, keep_alive=keep_alive, empty=self.client.method == "HEAD")
        )
        delivery = self.delivery or Delivery()
        delivery.status, delivery.code = fault.code.status, fault.code
        delivery.first_byte, delivery.keep_alive = time.monotonic(), keep_alive
        return delivery

    def ended(self, delivery: Delivery, *, traced: bool) -> RequestEnded:
        """What is told of it, now that it has ended."""
        now, request, listener = self.over or time.monotonic(), self.request, self.listener
        began, first_byte = self.began, delivery.first_byte
        waited_s, lag_s = self.body_s + delivery.upstream_s, None
        if listener is not None:
            waited_s += listener.upstream_s(began, first_byte)
            if delivery.role is Role.FOLLOWER and not delivery.cut and listener.ended_at is not None:
                lag_s = now - max(began, listener.ended_at)
        return RequestEnded(
            request_id=self.request_id,
            stage=self.stage,
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
            method=self.client.method,
            path="" if request is None else request.path,
            peer="" if request is None else self.connection.peer,
            model=self.model,
            lag_s=lag_s,
            attempt=0 if listener is None else listener.number,
            trace=trace_of(request) if traced and request is not None else None,
        )


def replayed(request_id: str, call: Call, replay: Replay, upstream_id: str, peer: str, took_s: float) -> RequestEnded:
    """What is told of a recognised replay: nothing was waited for, so that all of its time is the proxy's own."""
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
