"""The demo's clients: each sends the same request at its own moment and reads the stream to its end."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter

import aiohttp

from soloflight.flow.tasks import Tasks

__all__ = ["Client", "Crowd"]

REQUEST = {
    "model": "demo",
    "stream": True,
    "temperature": 0,
    "messages": [{"role": "user", "content": "What does single-flight do?"}],
}
HEADERS = {"Authorization": "Bearer demo"}


class Client:
    """One client: where it stands, what it got."""

    def __init__(self, number: int, arrives_s: float) -> None:
        self.number = number
        self.arrives_s = arrives_s
        self.role = ""
        self.received = 0
        self.finished = False
        self.fault = ""
        self._digest = hashlib.sha256()

    def __repr__(self) -> str:
        return f"Client({self.number}, {self.role or 'away'}, {self.received} bytes, finished={self.finished})"

    @property
    def digest(self) -> str:
        """Digest of every byte that came."""
        return self._digest.hexdigest()

    def take(self, data: bytes) -> None:
        """Note the next bytes of the answer."""
        self.received += len(data)
        self._digest.update(data)

    async def visit(self, session: aiohttp.ClientSession, url: str) -> None:
        """Wait for the moment, ask, and read to the end."""
        await asyncio.sleep(self.arrives_s)
        try:
            async with session.post(url, json=REQUEST, headers=HEADERS) as response:
                self.role = response.headers.get("X-Soloflight-Role", "?")
                async for data in response.content.iter_any():
                    self.take(data)
                if response.status != 200:
                    self.fault = f"status {response.status}"
            self.finished = not self.fault
        except aiohttp.ClientError as error:
            self.fault = f"{type(error).__name__}: {error}"


class Crowd:
    """All clients of one run; ``expected_bytes`` is how long the whole answer is."""

    def __init__(self, size: int, arrivals_s: float, expected_bytes: int) -> None:
        self.expected_bytes = expected_bytes
        self.clients = [Client(number + 1, arrivals_s * number / max(size - 1, 1)) for number in range(size)]

    def __repr__(self) -> str:
        return f"Crowd({len(self.clients)}, finished={self.finished})"

    @property
    def finished(self) -> int:
        """How many clients have the whole answer."""
        return sum(client.finished for client in self.clients)

    @property
    def roles(self) -> Counter[str]:
        """How many clients were told which role."""
        return Counter(client.role for client in self.clients if client.role)

    @property
    def alike(self) -> bool:
        """Whether all clients got the same bytes, and all of them."""
        return all(
            client.finished and client.received == self.expected_bytes and client.digest == self.clients[0].digest
            for client in self.clients
        )

    async def visit(self, url: str, tasks: Tasks) -> None:
        """Let every client come at its moment; returns when all have left."""
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=50)) as session:
            visits = [
                tasks.spawn(client.visit(session, f"{url}/v1/chat/completions"), f"demo client {client.number}")
                for client in self.clients
            ]
            await asyncio.wait(visits)
