"""Planted faults. Each is the ledger with one rule broken; a run that lets one live would not see a real one either.

A mutant is made by replacing text in fresh copies of the ledger's modules; the product's own stay as they are.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from dataclasses import dataclass
from types import ModuleType

from exploration.explorer import SCENARIOS, Explorer, Report
from exploration.world import Executor

MODULES = ("transition", "standing", "claim", "tenure", "ledger")


@dataclass(frozen=True)
class Mutant:
    """``old`` becomes ``new`` in ``core/MODULE.py``, everywhere it stands; ``scenario`` is where it must be seen."""

    name: str
    module: str
    old: str
    new: str
    scenario: str


def genuine() -> Executor:
    """The ledger as it is."""
    ledger = importlib.import_module("soloflight.core.ledger")
    return Executor(ledger.step, ledger.collect_at, ledger.referenced)


def planted(mutant: Mutant) -> Executor:
    """The ledger with the fault in it."""
    names = [f"soloflight.core.{module}" for module in MODULES]
    kept = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    try:
        for name in names:
            _load(name, mutant)
        ledger = sys.modules["soloflight.core.ledger"]
        return Executor(ledger.step, ledger.collect_at, ledger.referenced)
    finally:
        for name in names:
            sys.modules.pop(name, None)
        sys.modules.update(kept)


def _load(name: str, mutant: Mutant) -> None:
    spec = importlib.util.find_spec(name)
    assert spec
    assert spec.origin
    with open(spec.origin, encoding="utf-8") as file:
        source = file.read()
    if name.endswith("." + mutant.module):
        assert mutant.old in source, f"{mutant.name}: its text is not in {mutant.module}.py any more"
        source = source.replace(mutant.old, mutant.new)
    module = ModuleType(name)
    sys.modules[name] = module
    exec(compile(source, spec.origin, "exec"), module.__dict__)


def hunt(mutant: Mutant, max_states: int) -> Report:
    """Explore the mutant's scenario until it is seen or the bound is reached."""
    (scenario,) = [scenario for scenario in SCENARIOS if scenario.name == mutant.scenario]
    return Explorer(scenario, planted(mutant)).explore(max_states)


MUTANTS = (
    # the fence
    Mutant("append is not fenced", "ledger", "(foreign, appended_before", "(appended_before", "direct"),
    Mutant("seal is not fenced", "ledger", "(sealed_before, foreign, seals)", "(sealed_before, seals)", "direct"),
    Mutant("start is not fenced", "ledger", "(foreign, expired, starts)", "(expired, starts)", "one answer"),
    Mutant(
        "renew is not fenced", "ledger", "(foreign, expired, stalled", "(expired, stalled", "an owner that only beats"
    ),
    Mutant(
        "fail is not fenced", "ledger", "(failed_before, foreign, retries, fails)", "(retries, fails)", "a final fault"
    ),
    Mutant("abandon is not fenced", "ledger", "(foreign, keeps, drops)", "(keeps, drops)", "listeners leave"),
    Mutant(
        "the nonce is not compared",
        "tenure",
        "flight.fence == op.fence",
        "flight.fence.number == op.fence.number",
        "one answer",
    ),
    Mutant(
        "the number is the plain clock",
        "claim",
        "max(now * 1000, previous + 1)",
        "now * 1000",
        "a retryable fault",
    ),
    # executed twice
    Mutant("a claim sent twice joins itself", "ledger", "owned_again, joined", "joined", "one answer"),
    Mutant("a start sent twice is refused", "ledger", "(foreign, started_before)", "(unfit,)", "one answer"),
    Mutant("a batch sent twice is stored twice", "tenure", "if op.index > flight.frames:", "if True:", "one answer"),
    Mutant(
        "a seal sent twice is refused", "tenure", "if told or _made(flight.answer, op.fence)", "if False", "one answer"
    ),
    Mutant("a fault sent twice is refused", "tenure", "if told else None", "if False else None", "a final fault"),
    Mutant("a retry sent twice is refused", "ledger", "foreign, retried_before", "unfit", "a retryable fault"),
    Mutant(
        "a last word is forgotten at the next claim",
        "tenure",
        "if told or _made(flight.answer, op.fence)",
        "if flight.fence == op.fence and (told or _made(flight.answer, op.fence))",
        "not kept",
    ),
    Mutant(
        "a drop sent twice is refused", "ledger", "Abandon: (nothing_to_drop,)", "Abandon: (gone,)", "listeners leave"
    ),
    # three clocks, and the one that steps back
    Mutant("a dead owner is never noticed", "claim", "if now > last:", "if False:", "one answer"),
    Mutant("the lease is taken while it holds", "claim", "if now > last:", "if True:", "one answer"),
    Mutant("a clock that steps back freezes all", "standing", "step = flight.seen - now", "step = 0", "one answer"),
    Mutant(
        "a clock that steps back freezes the lease",
        "standing",
        "lease_until=back(flight.lease_until)",
        "lease_until=flight.lease_until",
        "one answer",
    ),
    Mutant(
        "a clock that steps back freezes the progress bound",
        "standing",
        "progress_until=back(flight.progress_until)",
        "progress_until=flight.progress_until",
        "an owner that only beats",
    ),
    Mutant(
        "a clock that steps back freezes the retry",
        "standing",
        "retry_at=back(flight.retry_at)",
        "retry_at=flight.retry_at",
        "a retryable fault",
    ),
    Mutant(
        "a stalled owner may beat", "ledger", "expired, stalled, renews", "expired, renews", "an owner that only beats"
    ),
    Mutant(
        "a beat counts as progress",
        "tenure",
        "if op.progress <= flight.progress:",
        "if op.progress < flight.progress:",
        "an owner that only beats",
    ),
    Mutant(
        "no owner expires",
        "ledger",
        "expired, stalled, renews",
        "stalled, renews",
        "a deadline before the lease is over",
    ),
    Mutant(
        "a deadline is no lapse",
        "standing",
        "(flight.lease_until, flight.progress_until, flight.deadline)",
        "(flight.lease_until, flight.progress_until)",
        "a deadline before the lease is over",
    ),
    # the log
    Mutant(
        "a batch may be skipped", "ledger", "expired, gap, stalled, appends", "expired, stalled, appends", "one answer"
    ),
    Mutant(
        "a takeover keeps the count of batches",
        "claim",
        "        payload=payload,\n",
        "        payload=payload,\n        frames=flight.frames if flight else 0,\n",
        "one answer",
    ),
    # outcomes and answers
    Mutant(
        "an un-kept outcome is for everybody",
        "claim",
        "if outcome and outcome.number == op.follow:",
        "if outcome:",
        "not kept",
    ),
    Mutant("an un-kept result is kept", "tenure", "if op.retention_ms:", "if True:", "not kept"),
    Mutant(
        "a claim forgets the outcome before it",
        "claim",
        "outcome=told_outcome(flight, now) if flight else None",
        "outcome=None",
        "not kept",
    ),
    Mutant(
        "an outcome is worth nothing",
        "standing",
        "        times.append(flight.outcome.until)\n",
        "        pass\n",
        "not kept",
    ),
    Mutant(
        "an un-kept result is thrown away",
        "standing",
        "        results.add(outcome.number)\n",
        "        pass\n",
        "not kept",
    ),
    Mutant(
        "a refresh throws the answer away",
        "claim",
        "answer=kept_answer(flight, now) if flight else None",
        "answer=None",
        "a refresh",
    ),
    Mutant(
        "a failed attempt takes the answer with it",
        "standing",
        "watchers={},\n",
        "watchers={}, answer=None,\n",
        "a refresh",
    ),
    Mutant("a refresh gets the old answer", "claim", "op.fresh_ms is None or", "True or", "a refresh"),
    Mutant("no answer is replayed", "ledger", "mismatched, replayed, ", "mismatched, ", "one answer"),
    # retries, attempts, poison
    Mutant(
        "a retry is not waited for",
        "claim",
        "if now >= flight.retry_at:",
        "if True:",
        "retries with a backoff, to the last",
    ),
    Mutant("a retry is never due", "claim", "if now >= flight.retry_at:", "if False:", "a retryable fault"),
    Mutant("a retry is forgotten", "standing", "flight.state is State.RETRY", "False", "a retryable fault"),
    Mutant(
        "retries have no end",
        "tenure",
        "if not op.retry or flight.attempt >= op.max_attempts:",
        "if not op.retry:",
        "retries with a backoff, to the last",
    ),
    Mutant("attempts are not counted", "claim", "flight.attempt + 1", "flight.attempt", "direct"),
    Mutant("a takeover is a new flight", "claim", "op, now, flight.id, ", "op, now, op.flight, ", "direct"),
    Mutant("nothing is exhausted", "ledger", "exhausted, stale", "stale", "poison"),
    Mutant("poison is not remembered", "ledger", "replayed, poisoned, absent", "replayed, absent", "poison"),
    # watchers
    Mutant(
        "abandon ignores those who watch", "ledger", "(foreign, keeps, drops)", "(foreign, drops)", "listeners leave"
    ),
    Mutant(
        "a watch never ends",
        "standing",
        "for node, until in flight.watchers.items() if holds(until, now)",
        "for node, until in flight.watchers.items()",
        "listeners leave",
    ),
    Mutant(
        "joining is not watching",
        "claim",
        "live_watchers(flight, now) | {op.node: now + op.watch_ms}",
        "live_watchers(flight, now)",
        "listeners leave",
    ),
    Mutant("who joins forgets the others", "claim", "live_watchers(flight, now) | {op", "{op", "listeners leave"),
    Mutant(
        "who leaves takes all along", "tenure", "items() if node != op.node}", "items() if False}", "listeners leave"
    ),
    Mutant("leaving changes nothing", "ledger", "(leaves, not_there)", "(not_there,)", "listeners leave"),
    # payloads
    Mutant("payloads are not compared", "ledger", "followed, mismatched, ", "followed, ", "another payload"),
    Mutant("a payload is forgotten in a retry", "claim", "flight.state in OPEN or", "", "another payload"),
)
