"""A request that goes alone: streamed both ways, O(buffer), nothing recorded, nothing changed but what RFC 9110 tells a proxy."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

from soloflight.core.errors import Code, SoloflightError, fail
from soloflight.flow.gate import Gate, Passage
from soloflight.flow.patience import Patience
from soloflight.flow.plan import Alone, Plan
from soloflight.flow.upstream import Exchange, UpstreamError
from soloflight.ports import Role
from soloflight.web.connection import Connection
from soloflight.web.read import BodyReader
from soloflight.web.respond import Delivery
from soloflight.web.tunnel import tunnel
from soloflight.web.wire import Client, Marks, framing, head_bytes, marked


class Relay:
    """Carries one request to its upstream and the answer back. ``body`` is what was read of it already, or its reader."""

    def __init__(
        self,
        connection: Connection,
        client: Client,
        plan: Plan,
        alone: Alone,
        gate: Gate,
        *,
        request_id: str,
        write_timeout_s: float,
    ) -> None:
        self._connection = connection
        self._client = client
        self._plan = plan
        self._alone = alone
        self._gate = gate
        self._passage: Passage | None = None
        self._request_id = request_id
        self._write_timeout_s = write_timeout_s
        self._sent_at = 0.0
        self.delivery = Delivery(role=Role.BYPASS, reason=alone.reason)

    async def run(self, body: BodyReader | bytes) -> Delivery:
        """Relay the whole exchange. Raises SoloflightError while nothing was sent, ClientGone once the client left."""
        stage = self._alone.stage
        if not self._gate.stands(stage, self._alone.session):
            return await self._carry(body)
        async with self._gate.passage(stage, self._alone.session, self._request_id) as self._passage:
            return await self._carry(body)

    async def _carry(self, body: BodyReader | bytes) -> Delivery:
        stage, upstream = self._alone.stage, self._alone.target.upstream
        length = len(body) if isinstance(body, bytes) else body.length
        out = self._plan.out(self._alone, length)
        try:
            with upstream.patience(stage.first_byte_timeout) as patience:
                source = body if isinstance(body, bytes) else _watched(body, patience) if length != 0 else b""
                self._sent_at = time.monotonic()
                exchange = await upstream.send(out, source)
                if not exchange.upgraded:
                    async with exchange:
                        patience.progress(stage.progress_timeout)
                        await self._answer(exchange, patience)
                    return self.delivery
            async with exchange:
                self._send_head(exchange)
                await tunnel(self._connection, exchange.link, stage.first_byte_timeout)
        except UpstreamError as error:
            if not self.delivery.status:
                raise SoloflightError(error.fault) from None
            await self._cut(error.fault.code)
        except TimeoutError:
            if not self.delivery.status:
                raise fail(Code.UPSTREAM_TIMEOUT, "the upstream sent nothing for too long") from None
            await self._cut(Code.UPSTREAM_TIMEOUT)
        return self.delivery

    async def _answer(self, exchange: Exchange, patience: Patience) -> None:
        """Head, then each read as it comes; the slow side decides the pace."""
        self._client = self._client.when(leaving=self._connection.leaving)
        frame = framing(exchange.head, self._client)
        head, ended = self._head(exchange), False
        connection, delivery = self._connection, self.delivery
        while not exchange.ended():
            data = await exchange.read()
            patience.progress()
            if head:
                delivery.upstream_s = time.monotonic() - self._sent_at
            if not data:
                break
            if ended := exchange.ended():
                await self._give_back()
            connection.send(head + frame.body(data) + (frame.end() if ended else b""))
            head = b""
            self._started(exchange)
            delivery.sent += len(data)
            if connection.write_paused:
                await connection.drain(self._write_timeout_s)
                patience.progress()  # the silence was the client's
        if not ended:
            await self._give_back()
            connection.send(head + frame.end())
            self._started(exchange)
        delivery.keep_alive = self._client.keep_alive and not framing(exchange.head, self._client).until_close

    async def _give_back(self) -> None:
        """The session's next job may run before the client has this one's last byte."""
        if self._passage is not None:
            await self._passage.leave()

    def _head(self, exchange: Exchange) -> bytes:
        head = exchange.head
        fields, own = marked(head, Marks(Role.BYPASS, self._request_id, reason=self._alone.reason))
        return head_bytes(head, fields, framing(head, self._client), self._client, own)

    def _send_head(self, exchange: Exchange) -> None:
        """A 101 goes out whole, with the upgrade it agrees to."""
        assert exchange.message is not None
        lines = [b"HTTP/1.1 101 Switching Protocols"]
        lines += [name + b": " + value for name, value in exchange.message.raw_headers]
        self._connection.send(b"\r\n".join([*lines, b"\r\n"]))
        self._started(exchange)
        self.delivery.keep_alive = False

    def _started(self, exchange: Exchange) -> None:
        delivery = self.delivery
        if not delivery.status:
            delivery.status = exchange.head.status
            delivery.first_byte = time.monotonic()
            delivery.upstream_id = (exchange.head.get(b"x-request-id") or b"").decode("latin-1")

    async def _cut(self, code: Code) -> None:
        self.delivery.cut, self.delivery.code, self.delivery.keep_alive = True, code, False
        await self._connection.reset()


async def _watched(body: BodyReader, patience: Patience) -> AsyncIterator[bytes]:
    """While the client still sends, the upstream's silence does not count."""
    async for data in body.stream():
        patience.progress()
        yield data
