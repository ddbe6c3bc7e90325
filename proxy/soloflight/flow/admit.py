"""Admission: from a request's head, and then its body, to a verdict — share it under a key, or let it go alone.

Decisions only, no IO. ``Plan`` is what the head says; ``Admission.decide`` adds what the body says. Contract sections 2 to 4.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256

from soloflight.core.answer import AnswerRules, Facts
from soloflight.core.coding import decoded_pieces
from soloflight.core.control import NONE_FRESH, Control, read_control
from soloflight.core.errors import Code, SoloflightError, fail
from soloflight.core.fields import CREDENTIAL_FORMS, end_to_end, outgoing
from soloflight.core.fingerprint import Document, KeyMaker, Kind, content_type, request_scope
from soloflight.core.memo import BodyMemo, Memo
from soloflight.core.request import Request
from soloflight.core.session import session_key
from soloflight.core.stage import Stage, Stages
from soloflight.flow.flights import Call
from soloflight.flow.plan import MEMO_HEAD, OUTS, Alone, Plan, Target, Terms
from soloflight.plugins import Plugins
from soloflight.ports import Fingerprinter

CONDITIONAL = frozenset(
    {b"range", b"if-match", b"if-none-match", b"if-modified-since", b"if-unmodified-since", b"if-range"}
)


# Memos hold what is small and comes again: bodies up to this size (heads: flow.plan), this many of each.
MEMO_BODY = 16 * 1024
PLANS = 4096
VERDICTS = 2048


class Admission:
    """The rules that turn requests into calls; rebuilt as a whole, memos and all, when the configuration is read again."""

    def __init__(
        self,
        stages: Stages,
        targets: Mapping[str, Target],
        plugins: Plugins,
        scope_key: bytes,
        client_keys: Sequence[bytes] = (),
    ) -> None:
        self.stages = stages
        self._targets = targets
        self._plugins = plugins
        self._scope_key = scope_key
        self._client_keys = client_keys
        self._decoding = asyncio.Lock()
        self._bodies = BodyMemo()
        self._plans: Memo[Request, Plan] = Memo(PLANS)
        self._verdicts: Memo[tuple[Plan, bytes], Call | Alone] = Memo(VERDICTS)
        self._fingerprinters: dict[str, Fingerprinter] = {s.name: plugins.fingerprinter(s) for s in stages}
        self._rules: dict[str, AnswerRules] = {s.name: plugins.answer_rules(s) for s in stages}

    def __repr__(self) -> str:
        return f"Admission({self.stages!r})"

    def plan(self, request: Request) -> Plan:
        """Judge the head. Raises ``unauthorized``, and ``bad_request`` for malformed control fields."""
        plan = self._plans.get(request)
        if plan is None:
            plan = self._plan(request)
            if plan.remembered:
                self._plans.put(request, plan)
        return plan

    def _plan(self, request: Request) -> Plan:
        withhold = client_key(request, self._client_keys)
        control = read_control(request)
        chosen = self.stages.chosen(control.stage) if control.stage is not None else None
        upgrade = upgrade_of(request)
        alone: Alone | None = None
        if upgrade is not None or not self._candidate(request, chosen):
            reason = "upgrade" if upgrade else "route" if request.method in ("GET", "POST") else "method"
            alone = self._alone(request, control, chosen or self._choose(request, None), reason)
        coded = request.get(b"content-encoding") is not None
        small = sum(len(name) + len(value) for name, value in request.fields) <= MEMO_HEAD
        return Plan(request, control, withhold, alone, upgrade, coded, small)

    def sent_away(self, call: Call, reason: str) -> Alone:
        """The verdict for a call that could have shared, and can not. Raises ``not_cached`` where it may cause no call."""
        if not call.may_own:
            raise _not_cached()
        return Alone(call.stage, self._targets[call.stage.upstream], reason, call.session)

    def _alone(self, request: Request, control: Control, stage: Stage, reason: str) -> Alone:
        """The verdict that a request of ``stage`` goes alone. Raises ``not_cached`` for one that may cause no call."""
        if control.only_if_cached and stage.allow_client_control:
            raise _not_cached()
        return Alone(stage, self._targets[stage.upstream], reason, self._session(request, control, stage))

    def _session(self, request: Request, control: Control, stage: Stage) -> str:
        """The key of the session's lock: one job at a time per stage, scope and id; "" where none is asked for."""
        if stage.session == "off" or control.session is None:
            return ""
        return session_key(f"{stage.name}/{request_scope(request, stage.scope, self._scope_key)}", control.session)

    def too_large(self, plan: Plan) -> Alone:
        """The verdict for a body too large to be looked at."""
        chosen = self.stages.chosen(plan.control.stage) if plan.control.stage is not None else None
        return self._alone(plan.request, plan.control, chosen or self._choose(plan.request, None), "body")

    def decide(self, plan: Plan, body: bytes) -> Call | Alone:
        """Judge the whole request, whose body is not ``coded``."""
        if len(body) > MEMO_BODY or not plan.remembered:
            return self._decide(plan, body, body)
        key = (plan, sha256(body).digest())
        verdict = self._verdicts.get(key)
        if verdict is None:
            verdict = self._decide(plan, body, body)
            self._verdicts.put(key, verdict)
        return verdict

    async def decide_coded(self, plan: Plan, body: bytes, limit: int) -> Call | Alone:
        """Judge the whole request. Raises ``bad_request`` or ``body_too_large`` for a coded body that can not be read.

        One at a time and piece by piece: a crowd of bombs holds ``limit`` decoded bytes once, and holds nobody else up.
        """
        key = (plan, sha256(body).digest()) if len(body) <= MEMO_BODY and plan.remembered else None
        verdict = self._verdicts.get(key) if key is not None else None
        if verdict is None:
            async with self._decoding:
                plain = await _decoded(b", ".join(plan.request.all(b"content-encoding")), body, limit)
                verdict = self._decide(plan, body, plain)
            if key is not None:
                self._verdicts.put(key, verdict)
        return verdict

    def _decide(self, plan: Plan, body: bytes, plain: bytes | None) -> Call | Alone:
        """``plain`` is the body without its codings, None where they are unknown."""
        request, control = plan.request, plan.control
        chosen = self.stages.chosen(control.stage) if control.stage is not None else None
        if plain is None:
            return self._alone(request, control, chosen or self._choose(request, None), "coding")
        document = self._bodies.read(content_type(request), plain)
        stage = chosen or self._choose(request, document.value)
        if not stage.allow_client_control:
            control = _without_wishes(control)
        facts = self._fingerprinters[stage.name].facts(request.path, document.value)
        if (reason := _alone_reason(request, control)) is not None:
            return self._alone(request, control, stage, reason)
        return self._call(plan, control, stage, facts, document, body)

    def _call(
        self,
        plan: Plan,
        control: Control,
        stage: Stage,
        facts: Facts,
        document: Document,
        body: bytes,
    ) -> Call | Alone:
        request, target = plan.request, self._targets[stage.upstream]
        named = control.idempotency_key is not None
        share = stage.share == "always" or (stage.share == "deterministic" and (named or not facts.sampled))
        retention_s = _retention_s(stage, facts, named=named)
        if not share and not retention_s:
            return self._alone(request, control, stage, "share")
        terms = self._terms_of(plan, stage, document.kind)
        key = terms.keys.key(document.digest(stage.ignore_fields))
        return Call(
            key=key.text,
            payload=key.payload,
            request=request,
            stage=stage,
            path=request.path,
            out=terms.out.of_length(len(body)),
            body=body,
            facts=facts,
            rules=self._rules[stage.name],
            upstream=target.upstream,
            fresh_s=_fresh_s(stage, facts, control, named=named),
            retention_s=retention_s,
            share=share,
            may_own=not control.only_if_cached,
            session=terms.session,
        )

    def _terms_of(self, plan: Plan, stage: Stage, kind: Kind) -> Terms:
        """Remembered with the plan: the next body under the same head finds them ready."""
        terms = plan._terms.get((stage.name, kind))
        if terms is None or terms.rules is not self:
            request, target = plan.request, self._targets[stage.upstream]
            asked = replace(request, fields=tuple(end_to_end(request.fields)))  # what stops here is no part of it
            keys = KeyMaker(
                asked,
                stage=stage.name,
                scope=request_scope(request, stage.scope, self._scope_key),
                upstream=target.identity,
                kind=kind,
                key_headers=stage.key_headers,
            )
            out = outgoing(request, target.forwarding, length=0, identity=True, withhold=plan.withhold)
            terms = Terms(self, keys, self._session(request, plan.control, stage), out)
            if len(plan._terms) >= OUTS:
                plan._terms.clear()
            plan._terms[stage.name, kind] = terms
        return terms

    def _candidate(self, request: Request, chosen: Stage | None) -> bool:
        """Whether the route may be shared: by an API's rules, or because a stage's ``match`` names it (contract section 3)."""
        stages = (chosen,) if chosen is not None else self.stages
        for stage in stages:
            if self._fingerprinters[stage.name].shareable(request.method, request.path):
                return True
            match = stage.match
            if (
                match.paths
                and match.methods
                and match.holds(request.method, request.path, None if not match.models else "")
            ):
                return True
        return False

    def _choose(self, request: Request, value: Mapping[str, object] | None) -> Stage:
        """The stage of a request whose client named none: a plugin's choice, else the first match."""
        name = self._plugins.stage(request, value, self.stages)
        if name is not None and (stage := self.stages.get(name)) is not None:
            return stage
        model = value.get("model") if value else None
        return self.stages.match(request.method, request.path, model if isinstance(model, str) else None)


def _not_cached() -> SoloflightError:
    return fail(Code.NOT_CACHED, "no answer is kept, and only-if-cached was asked for")


def client_key(request: Request, keys: Sequence[bytes]) -> frozenset[bytes]:
    """Names (lower case) of the fields that carried one of the proxy's ``keys``; they must not leave it.

    Raises ``unauthorized`` where keys are set and none was given. Every comparison takes constant time.
    """
    if not keys:
        return frozenset()
    carried: set[bytes] = set()
    for name, value in request.fields:
        lower = name.lower()
        if lower in CREDENTIAL_FORMS:
            scheme, _, token = value.partition(b" ")
            given = token.strip() if scheme.lower() == b"bearer" and token else value.strip()
            if sum(hmac.compare_digest(given, key) for key in keys):  # all are compared, whichever matches
                carried.add(lower)
    if not carried:
        raise fail(Code.UNAUTHORIZED, "this proxy needs a client key")
    return frozenset(carried)


def upgrade_of(request: Request) -> bytes | None:
    """The protocol of a websocket handshake; other upgrades are not passed on (they would need rules of their own)."""
    value = request.get(b"upgrade")
    if value is None or value.strip().lower() != b"websocket":
        return None
    tokens = b",".join(request.all(b"connection")).split(b",")
    return value.strip() if b"upgrade" in (token.strip().lower() for token in tokens) else None


async def _decoded(codings: bytes, body: bytes, limit: int) -> bytes | None:
    """The body without its codings; the loop turns between two pieces."""
    pieces = decoded_pieces(codings, body, limit)
    if pieces is None:
        return None
    parts: list[bytes] = []
    for piece in pieces:
        parts.append(piece)
        await asyncio.sleep(0)
    return b"".join(parts)


def _alone_reason(request: Request, control: Control) -> str | None:
    if control.no_store:
        return "no-store"
    if any(name.lower() in CONDITIONAL for name, _ in request.fields):
        return "conditional"
    return None


def _without_wishes(control: Control) -> Control:
    """A stage may ignore what clients ask of its sharing."""
    return Control(
        stage=control.stage, session=control.session, idempotency_key=control.idempotency_key, retry=control.retry
    )


def _retention_s(stage: Stage, facts: Facts, *, named: bool) -> float:
    """How long a complete answer of this request is kept: by its class (contract section 2)."""
    if stage.replay == "never":
        return 0.0
    if named:
        return stage.idempotency_retention
    return stage.sampled_retention if facts.sampled else stage.retention


def _fresh_s(stage: Stage, facts: Facts, control: Control, *, named: bool) -> float | None:
    """How old an answer this request takes: none at all where only retries may have one and it is no retry."""
    retries_only = stage.replay == "retries" or facts.stateful
    if stage.replay == "never" or (retries_only and not control.retry and not named):
        return NONE_FRESH
    return control.fresh_s
