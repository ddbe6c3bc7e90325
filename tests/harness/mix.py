"""A mix of requests as a long day has it: answers kept and new, streams that the upstream cuts, clients that leave at any time."""

import asyncio
import random
from collections import Counter
from contextlib import suppress
from typing import Any

from harness.client import RawClient, chat, request
from soloflight.testing.chat import CH, DONE, FIN, completion_object
from soloflight.testing.received import Received
from soloflight.testing.script import RESET, Script, json, raw, sse

STREAM = CH * 3 + FIN + DONE
CLIENTS = 24
KINDS = {"stream": 5, "json": 3, "cut": 1, "leave": 2, "alone": 2, "own": 1}


def answer(received: Received) -> Script:
    """By what the prompt begins with."""
    if b"<cut" in received.body:
        return [*sse(CH, CH, last=False), 0.001, RESET]
    if b"<leave" in received.body:
        return sse(CH, 0.002, CH, 0.002, CH, FIN, DONE)
    if b'"stream": true' in received.body:
        return sse(CH, CH, CH, FIN, DONE)
    if b'"model"' in received.body:
        return json(completion_object("y" * 600))
    return raw(b"x" * 500)


class Mix:
    """``await mix.run(count)`` sends that many. ``pool``: how many different prompts there are; None: as many as requests."""

    def __init__(self, port: int, *, pool: int | None, seed: int = 66) -> None:
        self._port = port
        self._pool = pool
        self._chance = random.Random(seed)
        self._left = 0
        self._sent = 0
        self.done: Counter[str] = Counter()
        self.roles: Counter[str | None] = Counter()

    async def run(self, count: int) -> None:
        """Send ``count`` requests over CLIENTS connections, and take what comes."""
        self._left = count
        async with asyncio.TaskGroup() as clients:
            for _ in range(CLIENTS):
                clients.create_task(self._client())

    async def _client(self) -> None:
        client: RawClient | None = None
        try:
            while self._left > 0:
                self._left -= 1
                self._sent += 1
                if client is None:
                    client = await RawClient.open(self._port)
                if not await self._one(client):
                    client.close()
                    client = None
        finally:
            if client is not None:
                client.close()

    async def _one(self, client: RawClient) -> bool:
        """One request; whether its connection can be used again."""
        (kind,) = self._chance.choices(list(KINDS), list(KINDS.values()))
        self.done[kind] += 1
        number = self._sent if self._pool is None else self._chance.randrange(self._pool)
        if kind == "alone":
            got = await client.ask(request("GET", f"/v1/files/{number}"))
            assert (got.status, got.complete) == (200, True), got.raw_head
            return got.get("Connection") != "close"
        await client.send(self._chat(kind, number))
        if kind == "leave":
            await self._leave(client)
            return False
        got = await client.finish()
        self.roles[got.role] += 1
        if kind == "cut":
            assert not got.complete or got.status == 502, got.raw_head
            return False
        assert (got.status, got.complete) == (200, True), (got.raw_head, got.body)
        if kind == "stream":
            assert got.body == STREAM
        return got.get("Connection") != "close"

    def _chat(self, kind: str, number: int) -> bytes:
        messages = [{"role": "user", "content": f"<{kind} {number}>"}]
        body: dict[str, Any] = {"model": "m", "messages": messages, "temperature": 0, "stream": kind != "json"}
        return chat(body, *(["Cache-Control: no-store"] if kind == "own" else []))

    async def _leave(self, client: RawClient) -> None:
        """Go at a time of chance: before, in, or after the answer."""
        with suppress(TimeoutError):
            await client.finish(within_s=self._chance.choice([0.0001, 0.002, 0.004, 0.02]))
        if self._chance.random() < 0.5:
            client.reset()
