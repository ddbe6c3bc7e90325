"""Admission: from a request to a call or a reason to go alone. What goes into the key is the fingerprint's own test."""

from __future__ import annotations

import gzip
import json

import pytest

from nodes import Town
from soloflight.core.control import NONE_FRESH
from soloflight.core.errors import Code, SoloflightError
from soloflight.core.fields import Forwarding
from soloflight.core.request import Request
from soloflight.core.stage import Match, Stage, Stages
from soloflight.flow.admit import MEMO_BODY, Admission, client_key, upgrade_of
from soloflight.flow.flights import Call
from soloflight.flow.plan import MEMO_HEAD, Alone, Target
from soloflight.flow.upstream import Endpoint, Upstream
from soloflight.plugins import Plugins

CHAT = "/v1/chat/completions"
CALM = {"model": "m", "messages": [], "temperature": 0}
SAMPLED = {"model": "m", "messages": []}
STATEFUL = {"model": "m", "input": "x", "conversation": "c", "temperature": 0}
NO_CACHE, KEY = (b"Cache-Control", b"no-cache"), (b"Idempotency-Key", b"K")


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    return Plugins.load()


class Gate:
    """An admission of these stages, and one way to ask it."""

    def __init__(self, plugins: Plugins, *stages: Stage, client_keys: tuple[bytes, ...] = ()) -> None:
        targets = {
            name: Target(name, Upstream(Endpoint(f"http://{name}")), Forwarding(name.encode(), ""), f"http://{name}")
            for name in ("default", "other")
        }
        self.admission = Admission(Stages(stages), targets, plugins, b"k" * 32, client_keys)

    def judge(
        self,
        body: object = CALM,
        *fields: tuple[bytes, bytes],
        method: str = "POST",
        target: str = CHAT,
        trusted: bool = False,
    ) -> Call | Alone:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        typed = (b"Content-Type", b"application/json")
        plan = self.admission.plan(Request(method, target, (typed, *fields), trusted=trusted))
        return plan.alone or self.admission.decide(plan, content)

    def call(self, *args: object, **more: object) -> Call:
        verdict = self.judge(*args, **more)  # type: ignore[arg-type]
        assert isinstance(verdict, Call), verdict
        return verdict

    def reason(self, *args: object, **more: object) -> str:
        verdict = self.judge(*args, **more)  # type: ignore[arg-type]
        assert isinstance(verdict, Alone), verdict
        return verdict.reason


async def test_other_rules_make_other_terms_of_the_same_plan(plugins: Plugins) -> None:
    """A reload comes between plan and body: what the old rules have made of the head is not taken for the new ones'."""
    old, new = Gate(plugins, Stage()), Gate(plugins, Stage())
    new.admission = Admission(Stages([Stage()]), new.admission._targets, plugins, b"x" * 32)
    fields = ((b"Content-Type", b"application/json"), (b"Authorization", b"Bearer k"))
    plan = old.admission.plan(Request("POST", CHAT, fields))
    body = json.dumps(CALM).encode()
    keys = []
    for gate in (old, new, old):
        verdict = gate.admission.decide(plan, body + b" " * len(keys))
        assert isinstance(verdict, Call)
        keys.append(verdict.key)
    assert keys[0] == keys[2] != keys[1]


# ── who goes alone ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("request_args", "reason"),
    [
        ({"target": "/v1/files"}, "route"),
        ({"target": "/v1/threads/t/messages"}, "route"),
        ({"method": "PUT"}, "method"),
        ({"method": "HEAD", "target": "/v1/models"}, "method"),
        ({"method": "GET"}, "route"),
    ],
)
def test_what_no_rule_shares_goes_alone(plugins: Plugins, request_args: dict[str, str], reason: str) -> None:
    assert Gate(plugins).reason(CALM, **request_args) == reason


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        ((b"Cache-Control", b"no-store"), "no-store"),
        ((b"Range", b"bytes=0-"), "conditional"),
        ((b"If-None-Match", b'"x"'), "conditional"),
        ((b"IF-MODIFIED-SINCE", b"x"), "conditional"),
    ],
)
def test_what_asks_for_its_own_answer_goes_alone(plugins: Plugins, field: tuple[bytes, bytes], reason: str) -> None:
    assert Gate(plugins).reason(CALM, field) == reason


@pytest.mark.parametrize(
    ("fields", "protocol"),
    [
        ([(b"Upgrade", b"websocket"), (b"Connection", b"Upgrade")], b"websocket"),
        ([(b"upgrade", b" WebSocket "), (b"connection", b"keep-alive, upgrade")], b"WebSocket"),
        ([(b"Upgrade", b"websocket"), (b"Connection", b"keep-alive"), (b"Connection", b"Upgrade")], b"websocket"),
        ([(b"Upgrade", b"websocket")], None),
        ([(b"Upgrade", b"h2c"), (b"Connection", b"Upgrade")], None),
        ([(b"Connection", b"Upgrade")], None),
    ],
)
def test_the_only_upgrade_is_a_websocket(plugins: Plugins, fields: list[tuple[bytes, bytes]], protocol: bytes) -> None:
    assert upgrade_of(Request("GET", "/", tuple(fields))) == protocol
    verdict = Gate(plugins).judge(b"", *fields, method="GET", target="/v1/models")
    assert (isinstance(verdict, Alone) and verdict.reason == "upgrade") is (protocol is not None)


def test_a_stage_that_neither_shares_nor_keeps_goes_alone(plugins: Plugins) -> None:
    assert Gate(plugins, Stage(share="never", replay="never")).reason() == "share"


def test_a_stage_whose_match_names_route_and_method_shares_any_route(plugins: Plugins) -> None:
    gate = Gate(plugins, Stage(name="own", match=Match(paths=("/search*",), methods=("PUT",))))
    assert gate.call(b"x", method="PUT", target="/search?q=1").stage.name == "own"
    assert gate.reason(b"x", method="POST", target="/search") == "route"
    assert Gate(plugins, Stage(name="own", match=Match(paths=("/search*",)))).reason(b"x", target="/search") == "route"


def test_a_body_too_large_to_be_looked_at_has_the_stage_of_its_head(plugins: Plugins) -> None:
    gate = Gate(plugins, Stage(name="own", upstream="other"))
    request = Request("POST", CHAT, ((b"X-Soloflight-Stage", b"own"),))
    verdict = gate.admission.too_large(gate.admission.plan(request))
    assert (verdict.reason, verdict.stage.name, verdict.target.name) == ("body", "own", "other")
    plain = gate.admission.too_large(gate.admission.plan(Request("POST", CHAT, ())))
    assert plain.stage.name == "default"


# ── stages ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_model_in_the_body_chooses_the_stage(plugins: Plugins) -> None:
    gate = Gate(plugins, Stage(name="big", match=Match(models=("gpt-*",)), upstream="other"))
    assert gate.call({**CALM, "model": "gpt-5"}).stage.name == "big"
    assert gate.call({**CALM, "model": "gpt-5"}).out.fields[0] == (b"Host", b"other")
    for model in ("m", 5, None):
        assert gate.call({**CALM, "model": model}).stage.name == "default"


def test_a_client_may_choose_by_name(plugins: Plugins) -> None:
    gate = Gate(plugins, Stage(name="own"), Stage(name="hidden", selectable=False))
    call = gate.call(CALM, (b"X-Soloflight-Stage", b"own"))
    assert call.stage.name == "own"
    assert not any(name.lower().startswith(b"x-soloflight") for name, _ in call.out.fields)
    for name in (b"hidden", b"none"):
        with pytest.raises(SoloflightError) as caught:
            gate.judge(CALM, (b"X-Soloflight-Stage", name))
        assert caught.value.fault.code is Code.BAD_REQUEST


def test_a_stage_may_ignore_what_clients_wish_but_not_what_they_name(plugins: Plugins) -> None:
    gate = Gate(plugins, Stage(allow_client_control=False))
    for wish in (b"no-store", b"no-cache", b"only-if-cached"):
        call = gate.call(CALM, (b"Cache-Control", wish), KEY)
        assert (call.fresh_s, call.may_own, call.payload != "") == (None, True, True)


# ── how long, and how old ───────────────────────────────────────────────────────────────────────────────────────────

AGES = {"retention": 1.0, "sampled_retention": 2.0, "idempotency_retention": 3.0}


@pytest.mark.parametrize(
    ("stage", "body", "fields", "retention_s", "fresh_s", "share"),
    [
        ({}, CALM, [], 1.0, None, True),
        ({}, SAMPLED, [], 2.0, None, True),
        ({}, {**SAMPLED, "seed": 1}, [], 1.0, None, True),
        ({}, SAMPLED, [KEY], 3.0, None, True),
        ({}, CALM, [NO_CACHE], 1.0, NONE_FRESH, True),
        ({}, CALM, [(b"Cache-Control", b"max-age=7")], 1.0, 7.0, True),
        ({"replay": "never"}, CALM, [], 0.0, NONE_FRESH, True),
        ({"replay": "never"}, CALM, [KEY], 0.0, NONE_FRESH, True),
        ({"replay": "retries"}, CALM, [], 1.0, NONE_FRESH, True),
        ({"replay": "retries"}, CALM, [(b"X-Stainless-Retry-Count", b"1")], 1.0, None, True),
        ({"replay": "retries"}, CALM, [(b"X-Stainless-Retry-Count", b"0")], 1.0, NONE_FRESH, True),
        ({"replay": "retries"}, CALM, [KEY], 3.0, None, True),
        ({"share": "deterministic"}, CALM, [], 1.0, None, True),
        ({"share": "deterministic"}, SAMPLED, [], 2.0, None, False),
        ({"share": "deterministic"}, SAMPLED, [KEY], 3.0, None, True),
        ({"share": "never"}, CALM, [], 1.0, None, False),
    ],
)
def test_retention_freshness_and_sharing(
    plugins: Plugins,
    stage: dict[str, str],
    body: object,
    fields: list[tuple[bytes, bytes]],
    retention_s: float,
    fresh_s: float | None,
    share: bool,
) -> None:
    call = Gate(plugins, Stage(**AGES, **stage)).call(body, *fields)  # type: ignore[arg-type]
    assert (call.retention_s, call.fresh_s, call.share) == (retention_s, fresh_s, share)


@pytest.mark.parametrize(
    ("fields", "fresh_s"), [([], NONE_FRESH), ([KEY], None), ([(b"x-stainless-retry-count", b"2")], None)]
)
def test_what_has_state_behind_it_is_replayed_to_retries_only(
    plugins: Plugins, fields: list[tuple[bytes, bytes]], fresh_s: float | None
) -> None:
    assert Gate(plugins).call(STATEFUL, *fields, target="/v1/responses").fresh_s == fresh_s


# ── client keys ─────────────────────────────────────────────────────────────────────────────────────────────────────

KEYS = (b"sf-one", b"sf-two")


@pytest.mark.parametrize(
    ("fields", "carried"),
    [
        ([(b"Authorization", b"Bearer sf-one")], {b"authorization"}),
        ([(b"authorization", b"bearer  sf-two ")], {b"authorization"}),
        ([(b"Authorization", b"sf-one")], {b"authorization"}),
        ([(b"X-API-Key", b"sf-two")], {b"x-api-key"}),
        ([(b"api-key", b"sf-one"), (b"Authorization", b"Bearer upstream")], {b"api-key"}),
        ([(b"api-key", b"sf-one"), (b"Authorization", b"Bearer sf-two")], {b"api-key", b"authorization"}),
    ],
)
def test_a_client_key_is_found_in_every_form(fields: list[tuple[bytes, bytes]], carried: set[bytes]) -> None:
    assert client_key(Request("GET", "/", tuple(fields)), KEYS) == carried


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [(b"Authorization", b"Bearer sf-on")],
        [(b"Authorization", b"Bearer sf-one2")],
        [(b"Authorization", b"Basic sf-one")],
        [(b"Authorization", b"Bearer \xff\xfe")],
        [(b"Cookie", b"sf-one")],
        [(b"Authorization", b"")],
        [(b"Authorization", b"Bearer")],
    ],
)
def test_without_one_a_request_is_refused(plugins: Plugins, fields: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(SoloflightError) as caught:
        Gate(plugins, client_keys=KEYS).judge(CALM, *fields)
    assert caught.value.fault.code is Code.UNAUTHORIZED


def test_a_client_key_does_not_leave_the_proxy_and_is_its_scope(plugins: Plugins) -> None:
    gate = Gate(plugins, client_keys=KEYS)
    one, two = (gate.call(CALM, (b"Authorization", b"Bearer " + key)) for key in KEYS)
    assert one.key != two.key
    assert not any(key in value for _, value in one.out.fields for key in KEYS)
    with pytest.raises(SoloflightError):
        gate.judge(b"", target="/v1/files")


# ── memory of verdicts ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_request_seen_before_has_the_same_verdict_object(plugins: Plugins) -> None:
    gate = Gate(plugins)
    assert gate.call() is gate.call()
    assert gate.call(CALM, (b"X-Unkeyed", b"1")) is not gate.call()


@pytest.mark.parametrize(
    "difference",
    [
        {"fields": [(b"Authorization", b"Bearer B")]},
        {"fields": [NO_CACHE]},
        {"trusted": True},
        {"target": CHAT + "?a=1"},
        {"body": SAMPLED},
    ],
)
def test_what_differs_is_judged_anew(plugins: Plugins, difference: dict[str, object]) -> None:
    gate = Gate(plugins, Stage(scope="header:X-Tenant"))
    tenant = (b"X-Tenant", b"t")
    asked = {"body": CALM, "fields": [], **difference}
    fields, body = asked.pop("fields"), asked.pop("body")
    first = gate.call(CALM, tenant)
    second = gate.call(body, tenant, *fields, **asked)  # type: ignore[misc]
    assert second is not first
    assert (second.key, second.fresh_s) != (first.key, first.fresh_s)


@pytest.mark.parametrize("size", [MEMO_BODY, MEMO_HEAD])
def test_what_is_large_is_judged_each_time_and_the_same(plugins: Plugins, size: int) -> None:
    gate = Gate(plugins)
    body = {**CALM, "user": "x" * size}
    fields = [(b"X-Large", b"x" * size)]
    first, second = gate.call(body, *fields), gate.call(body, *fields)
    assert first.key == second.key


async def test_coded_bodies_are_read_for_the_key_and_go_on_as_they_came(plugins: Plugins) -> None:
    gate = Gate(plugins)
    coded, other = (gzip.compress(json.dumps(CALM).encode(), level) for level in (9, 0))
    assert coded != other
    typed = (b"Content-Type", b"application/json")
    plan = gate.admission.plan(Request("POST", CHAT, (typed, (b"Content-Encoding", b"gzip"))))
    assert plan.coded
    keys = set()
    for body in (coded, other, coded):
        verdict = await gate.admission.decide_coded(plan, body, 1 << 20)
        assert isinstance(verdict, Call)
        assert verdict.body == body
        keys.add(verdict.key)
    assert len(keys) == 1
    for body, limit, code in ((coded, 10, Code.BODY_TOO_LARGE), (coded[:-1], 1 << 20, Code.BAD_REQUEST)):
        with pytest.raises(SoloflightError) as caught:
            await Gate(plugins).admission.decide_coded(plan, body, limit)
        assert caught.value.fault.code is code
    unknown = gate.admission.plan(Request("POST", CHAT, (typed, (b"Content-Encoding", b"unheard-of"))))
    verdict = await gate.admission.decide_coded(unknown, coded, 1 << 20)
    assert isinstance(verdict, Alone)
    assert verdict.reason == "coding"


async def test_what_goes_upstream_is_what_the_key_was_made_of(town: Town) -> None:
    """A field that Connection names does not go on: it must not be in the key either."""
    named = [(b"Connection", b"OpenAI-Beta"), (b"OpenAI-Beta", b"x")]
    plain, hidden = town.call(), town.call(None, *named)
    assert not any(name.lower() == b"openai-beta" for name, _ in hidden.out.fields)
    assert hidden.key == plain.key
