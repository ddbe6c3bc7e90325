"""The fingerprint: what must share a key shares it, everything else does not. Cases C27 to C69 at this level."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bodies.forms import field, file, form
from bodies.keys import AUTHORIZATION, BODY0, CHAT, SCOPE_KEY, key
from soloflight.core.fingerprint import (
    KEYED_FIELDS,
    Item,
    KeyMaker,
    Kind,
    content_type,
    encode,
    is_credential,
    read_body,
    request_scope,
    scope_digest,
)
from soloflight.core.request import Request

BASE = json.loads(BODY0)


def compact(**members: object) -> bytes:
    """BODY0 with members changed or added; None removes one."""
    merged = {**BASE, **members}
    body = {name: value for name, value in merged.items() if value is not None}
    return json.dumps(body, separators=(",", ":")).encode()


def assert_all_differ(keys: list[str]) -> None:
    assert len(set(keys)) == len(keys)


# ── the named cases ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_c27_every_parameter_counts() -> None:
    variants = [
        compact(),
        compact(max_tokens=16),
        compact(max_completion_tokens=16),
        compact(top_p=0.5),
        compact(stop=["x"]),
        compact(n=2),
        compact(tool_choice="none"),
        compact(presence_penalty=1),
        compact(frequency_penalty=1),
        compact(logit_bias={"50256": -100}),
        compact(seed=1),
        compact(logprobs=True),
        compact(response_format={"type": "json_object"}),
        compact(reasoning_effort="low"),
        compact(temperature=None),
        compact(unknown_to_everyone=[None]),
    ]
    assert_all_differ([key(body).text for body in variants])


def test_c29_order_space_and_escapes_do_not_count() -> None:
    body = '{"model":"m","messages":[{"role":"user","content":"é/x"}],"temperature":0}'
    same = [
        body,
        '{"temperature":0,"messages":[{"content":"é/x","role":"user"}],"model":"m"}',
        json.dumps(json.loads(body), indent=4, ensure_ascii=False),
        json.dumps(json.loads(body)),
        body.replace("é", "\\u00E9").replace("/", "\\/").replace("m", "\\u006d"),
    ]
    assert len({key(text.encode()).text for text in same}) == 1
    assert key(body.replace("é", "e\u0301").encode()).text != key(body.encode()).text


def test_c29_the_same_bytes_under_another_type_are_another_request() -> None:
    types = [b"application/json", b"application/json; charset=utf-8", b"application/json;charset=utf-8", None]
    types += [b"text/plain", b"application/x-www-form-urlencoded", b"application/vnd.x+json", b"", b"json"]
    assert_all_differ([key(type_field=type_field).text for type_field in types])


@pytest.mark.parametrize(
    "type_field", [b"text/plain", b"application/x-www-form-urlencoded", b"application/json;charset=latin-1"]
)
def test_c29_only_json_is_read_as_json(type_field: bytes) -> None:
    document = read_body(type_field, BODY0)
    assert document.kind is Kind.RAW
    assert document.value == BASE, "facts are read all the same"
    assert key(BODY0 + b" ", type_field=type_field).text != key(BODY0, type_field=type_field).text


@pytest.mark.parametrize("type_field", [None, b"application/json", b"Application/Vnd.X+JSON; charset=UTF-8"])
def test_c29_json_types(type_field: bytes | None) -> None:
    assert read_body(type_field, BODY0).kind is Kind.JSON
    assert key(BODY0 + b" ", type_field=type_field).text == key(BODY0, type_field=type_field).text


def test_c30_no_byte_moves_from_one_part_to_another() -> None:
    raw = b"text/plain"
    pairs = [
        (key(b"b|c", target="/v1/a", type_field=raw), key(b"c", target="/v1/a|b", type_field=raw)),
        (key(b'[["A","B"]]'), key(b'["A","B"]')),
        (key(b'["A",["B"]]'), key(b'[["A"],"B"]')),
        (key(b'"1"'), key(b"1")),
        (key(b"1"), key(b"true")),
        (key(b"25"), key(b"25.0000001")),
        (key(b"null"), key(b"{}")),
        (key(b'{"a":null}'), key(b"{}")),
        (key(BODY0, (b"X-Api-Key", b"t1:x")), key(BODY0, (b"X-Api-Key", b"t1"))),
        (key(credential=(b"api-key", b"x:y")), key(credential=(b"api-key:x", b"y"))),
        (key(credential=(b"api-key", b"xcookie")), key(BODY0, (b"cookie", b""), credential=(b"api-key", b"x"))),
        (key(stage="ab", upstream="c"), key(stage="a", upstream="bc")),
        (key(target=CHAT + "?a=1&b=2"), key(target=CHAT + "?a=2&b=1")),
        (key(target=CHAT + "?a=1&b=2"), key(target=CHAT + "?b=2&a=1")),
        (key(target=CHAT + "?"), key(target=CHAT)),
        (key(target="/v1/%7Ea"), key(target="/v1/~a")),
        (key(target="/v1/chat/completions"), key(target="/v1/completions")),
        (key(method="POST"), key(method="PUT")),
        (key(BODY0, (b"OpenAI-Beta", b"a"), (b"OpenAI-Beta", b"b")), key(BODY0, (b"OpenAI-Beta", b"a, b"))),
        (
            key(BODY0, (b"OpenAI-Beta", b"a"), (b"OpenAI-Beta", b"b")),
            key(BODY0, (b"OpenAI-Beta", b"b"), (b"OpenAI-Beta", b"a")),
        ),
        (key(BODY0, (b"Origin", b"")), key(BODY0)),
        (key(BODY0, (b"OpenAI-Project", b"x")), key(BODY0, (b"OpenAI-Organization", b"x"))),
    ]
    for one, other in pairs:
        assert one.text != other.text
    azure = "/openai/deployments/{}/chat/completions?api-version={}"
    assert_all_differ([key(target=azure.format(d, v)).text for d in ("d1", "d2") for v in ("2024-06-01", "2024-10-21")])


def test_c30_a_key_is_long_and_safe_in_any_key_space() -> None:
    assert re.fullmatch(r"[0-9a-f]{48}", key().text)
    assert key().payload == ""


def test_c32_numbers_and_bodies_that_do_not_parse() -> None:
    bodies = [
        b'{"seed":9007199254740993}',
        b'{"seed":9007199254740992}',
        b'{"seed":18446744073709551616}',
        b'{"seed":18446744073709551617}',
        b'{"temperature":1}',
        b'{"temperature":1.0}',
        b'{"temperature":1e0}',
        b'{"temperature":0}',
        b'{"temperature":-0}',
        b'{"temperature":-0.0}',
        b'{"temperature":NaN}',
        b'{"temperature":1e400}',
        b'{"temperature":1e401}',
        b'{"seed":' + b"1" * 5000 + b"}",
        b'{"seed":' + b"1" * 4999 + b"2}",
        b"{bad1",
        b"{bad2",
        b"",
        b" ",
        b"[" * 200_000,
        b"[" * 200_001,
        b"\xef\xbb\xbf{}",
        b"{}",
        "{}".encode("utf-16"),
        "{}".encode("utf-16-le"),
        b"[]",
        b"[{}]",
        b'{"stream":"true"}',
        b'{"stream":null}',
        b'{"stream":true}',
        b'{"a":1,"a":2}',
        b'{"a":2,"a":1}',
        b'{"a":1}',
        b'{"a":2}',
        b'{"a":"\\ud800"}',
        b'{"a":"\\ud801"}',
        b'{"a":"\xff"}',
        b'{"a":"\xef\xbf\xbd"}',
    ]
    assert_all_differ([key(body).text for body in bodies])
    assert_all_differ([key(body, type_field=b"text/plain").text for body in bodies])
    for body in bodies:
        assert read_body(b"application/json", body) == read_body(b"application/json", body)


@pytest.mark.parametrize("body", [b"{bad1", b'{"a":1,"a":1}', b'{"a":NaN}', b'"\\ud800"', b"", b"\xff", b"["])
def test_c32_what_is_refused_is_keyed_on_its_bytes(body: bytes) -> None:
    document = read_body(b"application/json", body)
    assert (document.kind, document.value) == (Kind.RAW, None)
    assert key(body + b" ").text != key(body).text


def test_c34_shape_switches() -> None:
    stream = [key(compact(stream=value)).text for value in (True, False, None)]
    accept = [key(compact(stream=True), (b"Accept", b"text/event-stream")).text, key(compact(stream=True)).text]
    assert_all_differ(stream)
    assert_all_differ(accept)
    embeddings = [
        compact(**extra)
        for extra in (
            {"encoding_format": "base64"},
            {"encoding_format": "float"},
            {},
            {"dimensions": 256},
            {"dimensions": 512},
        )
    ]
    assert_all_differ([key(body, target="/v1/embeddings").text for body in embeddings])
    audio = [
        form(b"b", file("file", "a.wav", b"1"), field("response_format", shape)) for shape in ("json", "text", "srt")
    ]
    assert_all_differ([key(body, type_field=b"multipart/form-data; boundary=b").text for body in audio])


@pytest.mark.parametrize(
    ("accept", "streams"),
    [
        ([b"text/event-stream"], True),
        ([b"application/json", b"Text/Event-Stream; q=0.9"], True),
        ([b"application/json , text/event-stream"], True),
        ([b"application/json"], False),
        ([b"*/*"], False),
        ([b""], False),
        ([b"application/x-text/event-stream"], False),
        ([], False),
    ],
)
def test_c34_accept_counts_only_by_event_stream(accept: list[bytes], streams: bool) -> None:
    fields = [(b"Accept", value) for value in accept]
    reference = [(b"accept", b"text/event-stream")] if streams else []
    assert key(BODY0, *fields).text == key(BODY0, *reference).text
    assert (key(BODY0, *fields).text == key(BODY0).text) is not streams


CREDENTIALS = [
    None,
    (b"Authorization", b"Bearer K1"),
    (b"Authorization", b"Bearer K2"),
    (b"Authorization", b"Bearer  K1"),
    (b"Authorization", b"bearer K1"),
    (b"Authorization", b""),
    (b"api-key", b"K1"),
    (b"x-api-key", b"K1"),
    (b"x-goog-api-key", b"K1"),
    (b"Ocp-Apim-Subscription-Key", b"K1"),
    (b"Cookie", b"K1"),
    (b"X-Auth-Request-User", b"K1"),
    (b"X-Amz-Security-Token", b"K1"),
    (b"X-Client-Secret", b"K1"),
    (b"My-Cookie-2", b"K1"),
]


def test_c35_no_two_credentials_share() -> None:
    keys = [key(credential=credential).text for credential in CREDENTIALS]
    keys.append(key(BODY0, (b"api-key", b"K1")).text)  # beside Authorization
    keys.append(key(BODY0, AUTHORIZATION).text)  # twice the same
    assert_all_differ(keys)


def test_c35_names_count_without_case_and_in_any_order() -> None:
    pairs = [(b"Authorization", b"A"), (b"Cookie", b"1"), (b"COOKIE", b"2"), (b"x-api-key", b"K")]
    digest = scope_digest(pairs, SCOPE_KEY)
    assert (
        scope_digest([(b"cookie", b"1"), (b"X-API-KEY", b"K"), (b"cookie", b"2"), (b"authorization", b"A")], SCOPE_KEY)
        == digest
    )
    assert (
        scope_digest([(b"cookie", b"2"), (b"X-API-KEY", b"K"), (b"cookie", b"1"), (b"authorization", b"A")], SCOPE_KEY)
        != digest
    )


def test_c35_a_scope_holds_no_secret() -> None:
    secret = b"Bearer K1"
    digest = scope_digest([(b"authorization", secret)], SCOPE_KEY)
    assert re.fullmatch(r"[0-9a-f]{64}", digest)
    assert digest != scope_digest([(b"authorization", secret)], SCOPE_KEY[::-1])
    assert hashlib.sha256(secret).hexdigest() not in digest + key().text
    assert hmac.digest(SCOPE_KEY, secret, "sha256").hex() != digest


@pytest.mark.parametrize(
    "name",
    [
        b"Idempotency-Key",
        b"X-Soloflight-Session",
        b"x-soloflight-token",
        b"X-Stainless-Token",
        b"Proxy-Authorization",
        b"Proxy-Authenticate",
        b"User-Agent",
        b"traceparent",
        b"x-request-id",
        b"Accept-Encoding",
        b"Keep-Alive",
    ],
)
def test_c35_what_is_no_credential(name: bytes) -> None:
    assert not is_credential(name.lower())
    assert scope_digest([(name, b"x")], SCOPE_KEY) == scope_digest([], SCOPE_KEY)


@pytest.mark.parametrize(
    "name", [b"idempotency-key-2", b"x-idempotency-key", b"proxy-authorization-x", b"x-proxy-authorization"]
)
def test_c35_names_that_only_look_like_control_fields(name: bytes) -> None:
    assert is_credential(name)


@pytest.mark.parametrize(
    "telemetry",
    [
        [(b"x-stainless-retry-count", b"2"), (b"X-Stainless-Async", b"true")],
        [(b"User-Agent", b"OpenAI/JS 6")],
        [(b"traceparent", b"00-1-2-01"), (b"tracestate", b"x=1")],
        [(b"x-request-id", b"r2")],
        [(b"Accept-Encoding", b"gzip, br")],
        [(b"Connection", b"keep-alive"), (b"TE", b"trailers"), (b"Keep-Alive", b"5")],
        [(b"Host", b"elsewhere"), (b"Content-Length", b"75"), (b"Accept-Language", b"de")],
        [(b"X-Soloflight-Session", b"s"), (b"X-Soloflight-Stage", b"default"), (b"Cache-Control", b"no-cache")],
    ],
)
def test_c37_telemetry_does_not_split(telemetry: list[tuple[bytes, bytes]]) -> None:
    assert key(BODY0, *telemetry) == key()


def multipart(boundary: bytes, *parts: tuple[list[bytes], bytes]) -> str:
    return key(
        form(boundary, *parts),
        type_field=b"multipart/form-data; boundary=" + boundary,
        target="/v1/audio/transcriptions",
    ).text


def test_c69_content_counts_and_the_boundary_does_not() -> None:
    one = [file("file", "audio.wav", b"content 1" * 999), field("language", "de"), field("response_format", "json")]
    assert multipart(b"b1", *one) == multipart(b"another", *one)
    others = [
        [file("file", "audio.wav", b"content 2" * 999), *one[1:]],
        [file("file", "other.wav", b"content 1" * 999), *one[1:]],
        [file("file", "audio.wav", b"content 1" * 999, "audio/mp3"), *one[1:]],
        [one[0], field("language", "en"), one[2]],
        [one[0], one[1], field("response_format", "text")],
        [one[0], one[2], one[1]],
        [one[0], one[1]],
        [*one, one[2]],
        [([b"X-Unknown: 1", *one[0][0]], one[0][1]), *one[1:]],
        [([*one[0][0]], one[0][1] + b"\r\n"), *one[1:]],
    ]
    assert_all_differ([multipart(b"b1", *parts) for parts in [one, *others]])


def test_c69_the_rest_of_the_type_and_of_the_body_counts() -> None:
    parts = [field("x", "1")]
    plain = form(b"b", *parts)
    texts = [
        key(plain, type_field=b"multipart/form-data; boundary=b").text,
        key(plain, type_field=b"multipart/form-data; boundary=b; charset=utf-8").text,
        key(plain, type_field=b"multipart/mixed; boundary=b").text,
        key(b"pre\r\n" + plain, type_field=b"multipart/form-data; boundary=b").text,
        key(plain + b"post", type_field=b"multipart/form-data; boundary=b").text,
        key(
            plain, (b"Content-Type", b"multipart/form-data; boundary=b"), type_field=b"multipart/form-data; boundary=b"
        ).text,
        key(
            plain, (b"Content-Type", b"multipart/form-data; boundary=c"), type_field=b"multipart/form-data; boundary=b"
        ).text,
    ]
    assert_all_differ(texts)
    assert key(plain, type_field=b'MULTIPART/form-data;boundary="b"').text == texts[0]


@pytest.mark.parametrize(
    "type_field", [b"multipart/form-data", b"multipart/form-data; boundary=c", b"multipart/form-data; boundary="]
)
def test_c69_a_malformed_form_is_keyed_on_its_bytes_and_type(type_field: bytes) -> None:
    plain = form(b"b", field("x", "1"))
    document = read_body(type_field, plain)
    assert (document.kind, document.value) == (Kind.RAW, None)
    assert key(plain, type_field=type_field).text != key(plain + b"\r\n", type_field=type_field).text
    assert key(plain, type_field=type_field).text != key(plain, type_field=type_field + b" ").text


def test_c69_two_content_types_are_none() -> None:
    twice = ((b"Content-Type", b"application/json"), (b"content-type", b"application/json"))
    request = Request("POST", CHAT, twice)
    assert content_type(request) == b"application/json, application/json"
    assert read_body(content_type(request), BODY0).kind is Kind.RAW
    assert content_type(Request("POST", CHAT, twice[:1])) == b"application/json"
    assert content_type(Request("POST", CHAT, ())) is None
    types = [b"multipart/form-data; boundary=a", b"multipart/form-data; boundary=b"]
    texts = [
        KeyMaker(
            Request("POST", CHAT, tuple((b"Content-Type", value) for value in values)),
            stage="default",
            scope="",
            upstream="",
            kind=Kind.MULTIPART,
        )
        .key(b"")
        .text
        for values in (types, types[::-1], types[:1])
    ]
    assert_all_differ(texts)


def test_form_values_are_facts() -> None:
    body = form(b"b", field("model", "whisper-1"), file("file", "a.wav", b"1"))
    assert read_body(b"multipart/form-data; boundary=b", body).value == {"model": "whisper-1"}


# ── the other parts of the key ────────────────────────────────────────────────────────────────────────────────────────


def test_each_keyed_field_counts_by_its_bytes() -> None:
    texts = [key().text]
    for name in KEYED_FIELDS:
        texts += [key(BODY0, (name, value)).text for value in (b"", b"a", b"A", b" a", b"\xe9", b"\xc3\xa9")]
        assert key(BODY0, (name.upper(), b"a")).text == key(BODY0, (name, b"a")).text
    assert_all_differ(texts)


def test_key_headers_count_absent_empty_and_repeated() -> None:
    def with_tenant(*values: bytes) -> str:
        return key(
            BODY0, *((b"X-Tenant", value) for value in values), key_headers=["x-TENANT", "X-Other", "x-tenant"]
        ).text

    assert_all_differ(
        [with_tenant(), with_tenant(b""), with_tenant(b"a"), with_tenant(b"a", b"b"), with_tenant(b"b", b"a")]
    )
    assert with_tenant(b"a") == key(BODY0, (b"X-Tenant", b"a"), key_headers=["X-Other", "X-Tenant"]).text
    assert key(BODY0, (b"X-Tenant", b"a")) == key()
    assert with_tenant() == key().text, "naming a field that is not there splits nothing"


def test_ignored_members_do_not_split_and_the_list_counts() -> None:
    ignore = ("user", "metadata.trace_id")
    one = key(compact(user="a", metadata={"trace_id": 1, "x": 1}), ignore_fields=ignore)
    assert one == key(compact(user="b", metadata={"x": 1}), ignore_fields=ignore)
    assert one == key(compact(user="b", metadata={"x": 1}), ignore_fields=(*reversed(ignore), "user"))
    assert one != key(compact(user="a", metadata={"trace_id": 1, "x": 2}), ignore_fields=ignore)
    assert one != key(compact(metadata={"x": 1}))
    assert key(b"{bad", ignore_fields=ignore) == key(b"{bad")


def test_idempotency_key_stands_in_the_place_of_the_body() -> None:
    named = key(BODY0, (b"Idempotency-Key", b"K"))
    other = key(b"{}", (b"idempotency-key", b"K"))
    assert named.text == other.text
    assert named.payload != other.payload
    assert named == key(BODY0 + b" ", (b"Idempotency-Key", b"K"))
    assert re.fullmatch(r"[0-9a-f]{64}", named.payload)
    assert_all_differ(
        [
            named.text,
            key().text,
            key(BODY0, (b"Idempotency-Key", b"k")).text,
            key(BODY0, (b"Idempotency-Key", b"")).text,
            key(BODY0, (b"Idempotency-Key", b"K"), (b"Idempotency-Key", b"K")).text,
            key(BODY0, (b"Idempotency-Key", read_body(b"application/json", BODY0).digest())).text,
            key(BODY0, (b"Idempotency-Key", b"K"), credential=None).text,
            key(BODY0, (b"Idempotency-Key", b"K"), target="/v1/completions").text,
        ]
    )
    assert named.payload != key(BODY0, (b"Idempotency-Key", b"K"), credential=None).payload


def test_scope_rules() -> None:
    tenant = (b"X-Tenant", b"t1")
    everyone = key(scope="everyone").text
    assert everyone == key(scope="everyone", credential=None).text
    group = key(BODY0, tenant, scope="header:x-tenant", trusted=True).text
    assert group == key(BODY0, tenant, scope="header:X-Tenant", trusted=True, credential=None).text
    assert group != key(BODY0, (b"X-Tenant", b"t2"), scope="header:x-tenant", trusted=True).text
    alone = key().text
    assert key(BODY0, tenant, scope="header:x-tenant").text == alone, "not believed from strangers"
    assert key(BODY0, scope="header:x-tenant", trusted=True).text == alone
    assert key(BODY0, (b"X-Tenant", b""), scope="header:x-tenant", trusted=True).text == alone
    assert_all_differ([everyone, group, alone, key(credential=None).text])


def test_a_scope_header_can_not_be_mistaken_for_a_credential() -> None:
    fields = ((b"Authorization", b"Bearer K1"),)
    trusted = Request("POST", CHAT, fields, trusted=True)
    assert request_scope(trusted, "header:authorization", SCOPE_KEY) != request_scope(trusted, "credential", SCOPE_KEY)


def test_targets_that_are_no_text_are_kept_apart() -> None:
    targets = [
        "/v1/é",
        b"/v1/\xc3\xa9".decode("utf-8", "surrogateescape"),
        b"/v1/\xe9".decode("utf-8", "surrogateescape"),
    ]
    texts = [key(target=target).text for target in targets]
    assert texts[0] == texts[1] != texts[2]
    assert key(target="/v1/\udcc3\udca9").text not in texts


# ── injectivity ───────────────────────────────────────────────────────────────────────────────────────────────────────

SMALL = [b"", b"n", b"b0:", b"t0:", b"b1:n", b"t1:n", b":", b"1", b"a|b", b"\0"]
ITEMS: st.SearchStrategy[Item] = st.recursive(
    st.none() | st.sampled_from(SMALL) | st.binary(max_size=6),
    lambda inner: st.lists(inner, max_size=4).map(tuple),
    max_leaves=8,
)


@given(st.lists(ITEMS, min_size=20, max_size=40))
@settings(max_examples=100)
def test_different_structures_are_encoded_differently(items: list[Item]) -> None:
    for one, other in itertools.combinations(items, 2):
        assert (encode(one) == encode(other)) == (one == other)


@given(ITEMS, ITEMS, ITEMS, ITEMS)
def test_encodings_one_behind_the_other_do_not_flow_together(a: Item, b: Item, c: Item, d: Item) -> None:
    assert (encode(a) + encode(b) == encode(c) + encode(d)) == ((a, b) == (c, d))


def test_a_hundred_thousand_structures() -> None:
    chance = random.Random(20261107)
    seen: dict[bytes, Item] = {}

    def structure(depth: int) -> Item:
        pick = chance.random()
        if pick < 0.15:
            return None
        if depth == 0 or pick < 0.45:
            return chance.choice(SMALL) + bytes(chance.choices(b"ntb01:", k=chance.randrange(4)))
        return tuple(structure(depth - 1) for _ in range(chance.randrange(1, 5)))

    for _ in range(100_000):
        item = structure(3)
        assert seen.setdefault(encode(item), item) == item
    assert len(set(seen.values())) == len(seen) > 30_000


ODD = ["", "a", "b", "ab", "a|b", "b1:a", ":", ";"]
TEXTS = st.sampled_from(ODD)
BYTES = TEXTS.map(str.encode)
REQUESTS = st.fixed_dictionaries(
    {
        "body": st.sampled_from(
            [b"", b"{}", b"a", b"ab", b'"a"', b'["a","b"]', b'["ab"]', b'{"a":"b"}', b'{"a":"b" }', b"[[]]"]
        ),
        "type_field": st.sampled_from([None, b"application/json", b"text/plain", b""]),
        "target": TEXTS.map("/".__add__),
        "method": st.sampled_from(["POST", "PUT"]),
        "credential": st.none() | st.tuples(st.sampled_from([b"Authorization", b"api-key"]), BYTES),
        "stage": TEXTS,
        "upstream": TEXTS,
        "scope": st.sampled_from(["credential", "everyone"]),
        "fields": st.lists(
            st.tuples(st.sampled_from([b"Origin", b"X-Tenant", b"Idempotency-Key", b"Accept", b"User-Agent"]), BYTES),
            max_size=3,
        ),
    }
)


def meaning(request: dict[str, object]) -> object:
    """What the contract says that counts, in plain Python values: two requests are the same iff these are equal."""
    fields = request["fields"]
    assert isinstance(fields, list)
    values = {name: [v for n, v in fields if n == name] for name in (b"Origin", b"X-Tenant", b"Idempotency-Key")}
    body = request["body"]
    assert isinstance(body, bytes)
    read_as_json = request["type_field"] in (None, b"application/json")
    judged: object = ("raw", body)
    if read_as_json and body not in (b"", b"a", b"ab"):
        judged = ("json", json.dumps(json.loads(body)))
    same = [request[part] for part in ("type_field", "target", "method", "stage", "upstream", "scope")]
    credential = request["credential"] if request["scope"] == "credential" else None
    named = values[b"Idempotency-Key"]
    return (*same, credential, values[b"Origin"], values[b"X-Tenant"], ("named", named) if named else judged)


@given(st.lists(REQUESTS, min_size=15, max_size=30), st.data())
@settings(max_examples=150)
def test_requests_share_a_key_if_and_only_if_they_mean_the_same(
    requests: list[dict[str, object]], data: st.DataObject
) -> None:
    for request in requests[:8]:  # near misses: one part taken from another request
        near = dict(request)
        part = data.draw(st.sampled_from(sorted(near)))
        near[part] = data.draw(st.sampled_from(requests))[part]
        requests = [*requests, near]
    keys = []
    for request in requests:
        plain = dict(request)
        body, fields = plain.pop("body"), plain.pop("fields")
        keys.append(key(body, *fields, key_headers=["x-tenant"], **plain).text)  # type: ignore[arg-type, misc]
    meanings = list(map(meaning, requests))
    for i, j in itertools.combinations(range(len(requests)), 2):
        assert (keys[i] == keys[j]) == (meanings[i] == meanings[j])


def test_a_key_maker_tells_what_its_keys_name() -> None:
    def maker(*fields: tuple[bytes, bytes]) -> KeyMaker:
        request = Request("POST", "/v1/x", fields)
        return KeyMaker(request, stage="s", scope="c", upstream="u", kind=Kind.JSON)

    assert repr(maker()) == "KeyMaker(body)"
    assert repr(maker((b"Idempotency-Key", b"k"))) == "KeyMaker(operation)"
