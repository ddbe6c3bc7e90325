"""What stands in Redis under one flight key, as the values of ``core.flight``; and scripts, executed one at a time."""

from __future__ import annotations

from typing import Any

import redis

from soloflight.core.errors import Fault
from soloflight.core.flight import Answer, Fence, Flight, Operation, Outcome, Reply, State
from soloflight.core.frames import Recording
from soloflight.ports import Batch
from soloflight_redis.cipher import Clear
from soloflight_redis.codec import unpack_fault, unpack_result
from soloflight_redis.keys import Names
from soloflight_redis.notices import read_entry
from soloflight_redis.operations import Invocation, invocation, reply, result_context
from soloflight_redis.scripts import build

CIPHER = Clear()
NAMES = Names("test")


class Stored:
    """One key in Redis, driven by a test's clock."""

    def __init__(self, client: redis.Redis, key: str) -> None:
        self.client = client
        self.key = key
        self.keys = NAMES.flight(key)
        self.clock = f"clock:{key}"
        self.scripts = build(clock_key=self.clock)

    def set_clock(self, now: int) -> None:
        self.client.set(self.clock, now)

    def execute(self, op: Operation) -> Reply:
        """One operation, by its script."""
        return reply(op, self.run(invocation(self.key, op, CIPHER)))

    def run(self, call: Invocation) -> list[Any]:
        """A script's reply without the tag."""
        script = self.scripts[call.script]
        words = (len(self.keys), *self.keys, "tag", *call.arguments)
        try:
            said = self.client.execute_command("EVALSHA", script.digest, *words)
        except redis.exceptions.NoScriptError:
            said = self.client.execute_command("EVAL", script.source, *words)
        assert said[0] == b"tag"
        return list(said[1:])

    def forget(self) -> None:
        """All that is stored under the key is gone."""
        self.client.delete(*self.keys)

    # ── what stands there ───────────────────────────────────────────────────────────────────────────────────────

    def flight(self) -> Flight | None:
        """The record."""
        fields = {name.decode(): value for name, value in self.client.hgetall(self.keys[0]).items()}
        if not fields:
            return None
        number, text = _Fields(fields).number, _Fields(fields).text
        return Flight(
            id=text("id"),
            state=State(text("state")),
            fence=Fence(number("number"), text("nonce")),
            owner=text("owner"),
            attempt=number("attempt"),
            lease_until=number("lease_until"),
            progress_until=number("progress_until"),
            deadline=number("deadline"),
            seen=number("seen"),
            frames=number("frames"),
            size=number("size"),
            progress=number("progress"),
            retry_at=number("retry_at"),
            poisoned_until=number("poisoned_until"),
            payload=text("payload"),
            answer=_answer(_Fields(fields)),
            outcome=_outcome(_Fields(fields)),
            watchers={
                node.decode(): int(until) for node, until in self.client.zrange(self.keys[1], 0, -1, withscores=True)
            },
        )

    def log(self) -> dict[int, list[Batch]]:
        """The log, by the attempts of its entries."""
        found: dict[int, list[Batch]] = {}
        for entry in self.client.lrange(self.keys[2], 0, -1):
            number, batch = read_entry(self.key, entry, CIPHER)
            found.setdefault(number, []).append(batch)
        return found

    def results(self, flight: Flight | None) -> dict[int, Recording]:
        """The stored results, by attempt."""
        ends = [(self.keys[3], flight and flight.answer), (self.keys[4], flight and flight.outcome)]
        found = {}
        for name, end in ends:
            value = self.client.get(name)
            if value is not None:
                assert end, f"{name} without an end that names it"
                data = CIPHER.unlock(value, result_context(self.key, end.number))
                found[end.number] = unpack_result(data, self.key, end.number)
        return found

    def all_expire(self) -> bool:
        """Whether everything that is there has a TTL."""
        return all(self.client.pttl(name) != -1 for name in self.keys)


class _Fields:
    def __init__(self, fields: dict[str, bytes]) -> None:
        self.fields = fields

    def number(self, name: str) -> int:
        return int(self.fields.get(name, b"0"))

    def text(self, name: str) -> str:
        return self.fields.get(name, b"").decode()


def _answer(of: _Fields) -> Answer | None:
    if "answer_number" not in of.fields:
        return None
    number = of.number
    return Answer(
        number("answer_number"),
        of.text("answer_flight"),
        number("answer_sealed"),
        number("answer_expires"),
        number("answer_size"),
        of.text("answer_nonce"),
    )


def _outcome(of: _Fields) -> Outcome | None:
    if "outcome_number" not in of.fields:
        return None
    fault: Fault | None = unpack_fault(of.fields["outcome_fault"]) if of.fields["outcome_fault"] else None
    number, nonce = of.number("outcome_number"), of.text("outcome_nonce")
    return Outcome(
        number, of.text("outcome_flight"), of.number("outcome_until"), of.number("outcome_size"), fault, nonce
    )
