"""Planted faults. Each is ``core.session`` with one rule broken; a test that lets one live would not see a real one either."""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass
from types import ModuleType

from soloflight.core import session


@dataclass(frozen=True)
class Mutant:
    """``old`` becomes ``new`` in a copy of core/session.py, everywhere it stands."""

    name: str
    old: str
    new: str


def planted(mutant: Mutant) -> ModuleType:
    """A copy of ``core.session`` with the fault in it."""
    source = inspect.getsource(session)
    assert mutant.old in source, f"{mutant.name}: its text is not there any more"
    module = ModuleType(f"planted_{mutant.name.replace(' ', '_')}")
    sys.modules[module.__name__] = module  # dataclasses look their module up
    try:
        exec(compile(source.replace(mutant.old, mutant.new), module.__name__, "exec"), module.__dict__)
    finally:
        del sys.modules[module.__name__]
    return module


HELD = "lock.holder is not None and now <= lock.holder.until"

MUTANTS = (
    # one holder
    Mutant("a lease counts for nothing", HELD, "False"),
    Mutant("a lease never ends", HELD, "lock.holder is not None"),
    Mutant("a lease ends too early", HELD, "lock.holder is not None and now < lock.holder.until"),
    Mutant("a late holder stands in the way", "if _is_held(lock, now) or not queue else None", ""),
    Mutant("renewing extends nothing", "holder=replace(holder, until=now + op.lease_ms)", "holder=holder"),
    Mutant("hold is not fenced", "holder is None or holder.fence != op.fence", "holder is None"),
    Mutant(
        "the nonce is not compared",
        "lock.holder is None or lock.holder.fence != op.fence",
        "lock.holder is None or lock.holder.fence.number > op.fence.number + 10**9",
    ),
    Mutant("release is not fenced", "lock.holder is None or lock.holder.fence != op.fence", "lock.holder is None"),
    Mutant("release gives nothing back", "(replace(lock, holder=None), Done())", "(lock, Done())"),
    Mutant("the number is the plain clock", "max(now * 1000, lock.number + 1)", "now * 1000"),
    Mutant("garbage takes its number along", "lock.number if lock else 0", "0"),
    # executed twice
    Mutant("a lost grant is not found again", "if holder is not None and holder.fence.nonce == op.nonce", "if False"),
    Mutant("a grant found again is a new one", "Granted(holder.fence, len", "Granted(Fence(now, op.nonce), len"),
    Mutant("a place is taken twice", "if rank is not None:", "if False:"),
    # the queue
    Mutant("a newcomer overtakes", "(not lock.queue or lock.queue[0].nonce == op.nonce)", "True"),
    Mutant("last come first served", "(*lock.queue, ticket)", "(ticket, *lock.queue)"),
    Mutant(
        "asking again loses the place",
        "(*lock.queue[:rank], ticket, *lock.queue[rank + 1 :])",
        "(*lock.queue[:rank], *lock.queue[rank + 1 :], ticket)",
    ),
    Mutant("asking again renews nothing", "ticket, *lock.queue[rank + 1 :]", "*lock.queue[rank:]"),
    Mutant(
        "a dead waiter keeps its place", "for ticket in lock.queue if now <= ticket.until", "for ticket in lock.queue"
    ),
    Mutant("a grant leaves its ticket", "queue=lock.queue[1:]", "queue=lock.queue"),
    Mutant("the queue has no bound", "len(lock.queue) < op.max_queue", "op.max_queue"),
    Mutant("who does not wait takes a place", "len(lock.queue) < op.max_queue", "len(lock.queue) <= op.max_queue"),
    Mutant(
        "withdrawing leaves the ticket",
        "replace(lock, queue=queue), Done(duplicate=not gone)",
        "lock, Done(duplicate=not gone)",
    ),
    Mutant("withdrawing leaves the grant", "lock.holder.fence.nonce == op.nonce", "False"),
    Mutant("withdrawing takes all along", "for ticket in lock.queue if ticket.nonce != op.nonce", "for ticket in ()"),
    # notices
    Mutant(
        "nobody is woken", "return ((first.node, SessionNotice(SessionNoticeKind.TURN, first.nonce)),)", "return ()"
    ),
    Mutant("only a release wakes", "before.queue[0].nonce == first.nonce", "True"),
    Mutant("the last is woken", "first = after.queue[0]", "first = after.queue[-1]"),
    Mutant("newcomers are not announced", "_contest(lock) if rank is None or rank == 0", "_contest(lock) if rank == 0"),
    Mutant(
        "who is sent away is not announced",
        "Busy(look_ms, len(lock.queue)), _contest(lock))",
        "Busy(look_ms, len(lock.queue)))",
    ),
    Mutant("a holder that stays tells nobody", "if op.keep and lock.queue:", "if False:"),
    # time
    Mutant("a clock that steps back freezes all", "back = lock.seen - now", "back = 0"),
    Mutant("a clock that steps back freezes the lease", "max(1, lock.holder.until - back)", "lock.holder.until"),
    Mutant("a clock that steps back freezes tickets", "max(1, ticket.until - back)", "ticket.until"),
    Mutant("asks again too late", "min(look_ms, max(1, op.ticket_ms // 3))", "op.ticket_ms * 2"),
    Mutant("a live holder is garbage", "times.append(lock.holder.until)", "times = [0]"),
)
