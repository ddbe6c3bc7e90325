"""The nodes of one process, the coordinator between them, and the upstream behind them."""

from __future__ import annotations

import json
import time
from contextlib import AsyncExitStack
from itertools import count
from types import TracebackType
from typing import Any, Self

from nodes.client import Client
from nodes.wire import Wire
from soloflight.core.fields import Forwarding
from soloflight.core.request import Request
from soloflight.core.stage import Match, Stage, Stages
from soloflight.flow.admit import Admission
from soloflight.flow.flights import Call
from soloflight.flow.memory import Memory
from soloflight.flow.node import Node, Surroundings
from soloflight.flow.oversight import Oversight
from soloflight.flow.plan import Alone, Target
from soloflight.flow.replays import Replays
from soloflight.flow.upstream import Endpoint, Upstream
from soloflight.plugins import Plugins
from soloflight.ports import Event, FlightEnded, WriteRefused
from soloflight.testing.upstream import ScriptedUpstream
from soloflight_memory import MemoryCoordinator

CHAT = "/v1/chat/completions"
PLENTY = 1 << 30
# Leases that no stall of a busy machine outlasts, and leases that a test can wait for: three heartbeats fit into one.
LASTING = {"heartbeat": 0.05, "pending_lease": 10.0, "running_lease": 10.0}
LAPSING = {"heartbeat": 0.1, "pending_lease": 0.4, "running_lease": 0.4}


class NodeAt:
    """One node with its line to the coordinator, its memory, and the events that it told."""

    def __init__(self, wire: Wire, *, memory: int = PLENTY, reject_without_backend: bool = False) -> None:
        self.wire = wire
        self.events: list[Event] = []
        self.memory = Memory(memory)
        self.replays = Replays(self.memory, time.monotonic)
        self.node = Node(Surroundings(wire, self.memory, self.replays, self.events.append, reject_without_backend))
        self.oversight = Oversight(self.node, wire, self.replays, lambda: ["default"])
        wire.hear(self.oversight.heard)
        self.clients: list[Client] = []

    def __repr__(self) -> str:
        return f"NodeAt({self.node!r})"

    async def ask(self, call: Call, *, commits: bool = True, pushed: bool = False) -> Client:
        """A client for ``call``."""
        client = Client(await self.node.listen(call), commits=commits, pushed=pushed)
        self.clients.append(client)
        return client

    async def answer(self, call: Call) -> Client:
        """A client that has read its answer to the end."""
        return await (await self.ask(call)).read()

    @property
    def ended(self) -> list[FlightEnded]:
        """The flights that this node made and told of."""
        return [event for event in self.events if isinstance(event, FlightEnded)]

    @property
    def refused(self) -> list[str]:
        """Why writes of this node were refused."""
        return [event.refusal for event in self.events if isinstance(event, WriteRefused)]

    async def idle(self, within_s: float = 5.0) -> None:
        """Wait until no flight runs here."""
        assert await self.node.wait_idle(within_s), f"still running: {self.node!r}"

    async def crash(self) -> None:
        """The process is gone in the middle of its work: nothing of it reaches anybody any more."""
        self.wire.cut = True
        await self.node.close()


class Town:
    """``async with Town()``: an upstream, and as many nodes as are asked for. ``lapsing``: its leases are short."""

    def __init__(self, *, lapsing: bool = False) -> None:
        self._times = LAPSING if lapsing else LASTING
        self.upstream = ScriptedUpstream()
        self.coordinator = MemoryCoordinator(PLENTY)
        self.plugins = Plugins.load()
        self.target: Target | None = None
        self.nodes: list[NodeAt] = []
        self._stack = AsyncExitStack()
        self._numbers = count(1)
        self._prompt = f"prompt {id(self)}"

    def __repr__(self) -> str:
        return f"Town({self.nodes})"

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self.upstream)
        self.target = await self.target_at(self.upstream.url)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in self.nodes:
            for client in node.clients:
                client.leave()
            await node.node.close()
        await self._stack.aclose()
        if kind is None:
            for node in self.nodes:
                assert len(node.node.flights) == 0
                assert node.memory.used == node.replays.size, "every byte of every log is given back"

    async def target_at(self, origin: str, **endpoint: Any) -> Target:
        """An upstream at ``origin``, open until the end of the test."""
        upstream = Upstream(Endpoint(origin, **endpoint))
        upstream.open()
        self._stack.push_async_callback(upstream.close)
        return Target("default", upstream, Forwarding(origin.partition("://")[2].encode(), ""), origin)

    async def node(self, **options: Any) -> NodeAt:
        """Another node of this coordinator."""
        node = NodeAt(Wire(self.coordinator.node()), **options)
        await node.node.open()
        self.nodes.append(node)
        return node

    def fresh(self) -> dict[str, Any]:
        """A chat body that nobody has sent before."""
        return self.body(prompt=f"{self._prompt} {next(self._numbers)}")

    def body(self, *, prompt: str = "", **more: Any) -> dict[str, Any]:
        """The town's chat body: not sampled, streamed."""
        messages = [{"role": "user", "content": prompt or self._prompt}]
        return {"model": "m", "messages": messages, "temperature": 0, "stream": True, **more}

    def call(
        self,
        body: dict[str, Any] | bytes | None = None,
        *fields: tuple[bytes, bytes],
        target: Target | None = None,
        path: str = CHAT,
        **stage: Any,
    ) -> Call:
        """The call that admission makes of a POST of ``body`` in a stage with these rules."""
        assert self.target is not None
        rules = Stage(match=Match(paths=(path,), methods=("POST",)), **{**self._times, **stage})
        admission = Admission(Stages([rules]), {"default": target or self.target}, self.plugins, b"k" * 32)
        content = body if isinstance(body, bytes) else json.dumps(body or self.body()).encode()
        typed = (b"Content-Type", b"application/json")
        plan = admission.plan(Request("POST", path, (typed, (b"Authorization", b"Bearer K"), *fields)))
        verdict = admission.decide(plan, content)
        assert not isinstance(verdict, Alone), verdict
        return verdict
