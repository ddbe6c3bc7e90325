"""What the contract's words say of one request, as a pure function. Written from sections 2, 4 and 5, not from the product.

share    "always" join identical requests in flight. "deterministic": only when the request is not sampled, or carries an
         Idempotency-Key. "never"
replay   "always" answer from a finished flight (also with share = "never"). "retries": only SDK retries
         (x-stainless-retry-count >= 1) and Idempotency-Key requests. "never"
session  at most one heavy job per session. An identical request joins the running flight; another one gets 409, or waits
roles    owner fwd=miss; follower fwd=miss; collapsed; replay hit; alone fwd=bypass; detail=REASON
"""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["plain", "sampled", "named"]
"""Not sampled; sampled; sampled with an Idempotency-Key."""
Moment = Literal["first", "meanwhile", "afterwards", "retry"]
"""The first of equal requests; one while that runs; one when it has ended; the same as an SDK's retry."""


@dataclass(frozen=True)
class Said:
    """What one request gets. ``calls``: whether the upstream is called for it; ``waits``: only when the first has ended."""

    status: int
    role: str | None
    mark: str
    calls: bool
    waits: bool = False


OWN = Said(200, "owner", "fwd=miss", calls=True)
JOINED = Said(200, "follower", "fwd=miss; collapsed", calls=False)
REPLAYED = Said(200, "replay", "hit", calls=False)
REFUSED = Said(409, None, "", calls=False)


def alone(reason: str, *, waits: bool = False) -> Said:
    """A call of its own, unshared."""
    return Said(200, "bypass", f"fwd=bypass; detail={reason}", calls=True, waits=waits)


def said(share: str, replay: str, session: str, kind: Kind, moment: Moment) -> Said:
    """What a request of ``kind`` gets at ``moment`` in a stage with these rules."""
    joins = share == "always" or (share == "deterministic" and kind != "sampled")
    kept = replay != "never"
    may_replay = replay == "always" or (replay == "retries" and (kind == "named" or moment == "retry"))
    if moment == "meanwhile":
        if joins:
            return JOINED
        if session == "reject":
            return REFUSED
        return alone("busy" if kept else "share", waits=session == "queue")
    if moment in ("afterwards", "retry") and may_replay:
        return REPLAYED
    return OWN if joins or kept else alone("share")
