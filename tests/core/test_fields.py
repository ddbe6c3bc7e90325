"""Header fields on their way through, in both directions: what stops, what goes on, what is added."""

from __future__ import annotations

from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soloflight.core.fields import (
    CREDENTIAL_FORMS,
    HOP_BY_HOP,
    NEVER_NOMINATED,
    Forwarding,
    Outgoing,
    end_to_end,
    is_trusted,
    nominated,
    outgoing,
    shared_fields,
)
from soloflight.core.frames import Field, Head
from soloflight.core.request import Request

PLAIN = Forwarding(b"api.example", "")
VIA = (b"Via", b"1.1 soloflight")
HOST = (b"Host", b"api.example")


def sent(
    *fields: Field,
    to: Forwarding = PLAIN,
    peer: str = "10.0.0.9",
    trusted: bool = False,
    identity: bool = False,
    withhold: frozenset[bytes] = frozenset(),
) -> tuple[Field, ...]:
    """The fields that go upstream, but for Host in front and Via behind where they are the plain ones."""
    request = Request("POST", "/v1/x", fields, peer=peer, trusted=trusted)
    out = outgoing(request, to, length=0, identity=identity, withhold=withhold)
    assert out.fields[0] == HOST
    return tuple(field for field in out.fields[1:] if field != VIA)


# ── hop by hop ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", sorted(HOP_BY_HOP))
def test_hop_by_hop_fields_stop_here(name: bytes) -> None:
    kept = (b"X-Kept", b"1")
    assert end_to_end([(name, b"x"), kept, (name.title(), b"y")]) == [kept]


def test_fields_that_connection_names_stop_here() -> None:
    fields = [
        (b"Connection", b"close, X-Hop ,,"),
        (b"x-hop", b"1"),
        (b"X-Kept", b"2"),
        (b"CONNECTION", b"x-other"),
        (b"X-Other", b"3"),
    ]
    assert nominated(fields) == {b"close", b"x-hop", b"", b"x-other"}
    assert end_to_end(fields) == [(b"X-Kept", b"2")]


@pytest.mark.parametrize("name", sorted(NEVER_NOMINATED))
def test_connection_can_not_take_away_what_the_message_means(name: bytes) -> None:
    fields = [(b"Connection", b"close, " + name.title()), (name.title(), b"x")]
    assert end_to_end(fields) == [(name.title(), b"x")]


def test_no_form_of_a_credential_can_be_nominated_away() -> None:
    assert CREDENTIAL_FORMS <= NEVER_NOMINATED


def test_the_rest_keeps_order_number_case_and_bytes() -> None:
    fields = ((b"X-Multi", b"1"), (b"a", b"\xfc"), (b"x-multi", b""), (b"X-MULTI", b" 2 "))
    assert sent(*fields) == fields


@given(st.lists(st.tuples(st.sampled_from([b"Connection", b"TE", b"x-a", b"X-B", b"Via"]), st.binary(max_size=9))))
def test_what_goes_on_is_a_part_of_what_came_in_its_order(fields: list[Field]) -> None:
    kept = end_to_end(fields)
    rest = iter(fields)
    assert all(any(field is other for other in rest) for field in kept)
    assert not {name.lower() for name, _ in kept} & HOP_BY_HOP


# ── to the upstream ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_clients_host_framing_and_control_fields_stay_here() -> None:
    assert sent(
        (b"Host", b"proxy"),
        (b"content-length", b"5"),
        (b"Expect", b"100-continue"),
        (b"Transfer-Encoding", b"chunked"),
        (b"X-Soloflight-Stage", b"a"),
        (b"x-soloflight-Anything", b"b"),
        (b"Idempotency-Key", b"K"),
    ) == ((b"Idempotency-Key", b"K"),)


@pytest.mark.parametrize("given_name", sorted(CREDENTIAL_FORMS))
@pytest.mark.parametrize("own_name", [b"Authorization", b"API-Key", b"x-goog-api-key"])
def test_an_operators_credential_replaces_every_form_that_the_client_sent(given_name: bytes, own_name: bytes) -> None:
    to = Forwarding(b"api.example", "", ((own_name, b"operator"),))
    fields = [(given_name.title(), b"client"), (b"X-Kept", b"1"), (given_name.upper(), b"again")]
    assert sent(*fields, to=to) == ((b"X-Kept", b"1"), (own_name, b"operator"))


def test_an_operators_other_field_replaces_its_name_only() -> None:
    to = Forwarding(b"api.example", "", ((b"OpenAI-Project", b"p"),))
    fields = [(b"openai-project", b"q"), (b"Authorization", b"client")]
    assert to.replaced == {b"openai-project"}
    assert sent(*fields, to=to) == ((b"Authorization", b"client"), (b"OpenAI-Project", b"p"))


def test_the_proxys_own_client_key_does_not_leave_it() -> None:
    fields = [(b"Authorization", b"Bearer own"), (b"x-api-key", b"upstream's")]
    assert sent(*fields, withhold=frozenset({b"authorization"})) == ((b"x-api-key", b"upstream's"),)


def test_shared_work_asks_for_identity_and_other_work_for_what_the_client_takes() -> None:
    coding = (b"accept-encoding", b"gzip, br")
    assert sent(coding, identity=True) == ((b"Accept-Encoding", b"identity"),)
    assert sent(coding) == (coding,)


def test_via_is_one_list_with_ours_behind() -> None:
    request = Request("GET", "/", ((b"Via", b"1.0 a"), (b"X-A", b"1"), (b"via", b"1.1 b (c, d)")))
    assert outgoing(request, PLAIN, length=0).fields == (
        HOST,
        (b"X-A", b"1"),
        (b"Via", b"1.0 a, 1.1 b (c, d), 1.1 soloflight"),
    )


def test_the_upstreams_own_path_comes_before_the_target() -> None:
    request = Request("GET", "/v1/models?a=%2F", ())
    assert outgoing(request, Forwarding(b"h", "/api"), length=0).target == "/api/v1/models?a=%2F"


@pytest.mark.parametrize(
    ("method", "length", "upgrade", "framing"),
    [
        ("POST", 5, None, [b"Content-Length: 5"]),
        ("POST", 0, None, [b"Content-Length: 0"]),
        ("PUT", 0, None, [b"Content-Length: 0"]),
        ("PATCH", None, None, [b"Transfer-Encoding: chunked"]),
        ("GET", None, None, [b"Transfer-Encoding: chunked"]),
        ("GET", 0, None, []),
        ("GET", 5, None, [b"Content-Length: 5"]),
        ("HEAD", 0, None, []),
        ("DELETE", 0, None, []),
        ("DELETE", 5, None, [b"Content-Length: 5"]),
        ("GET", 0, b"websocket", [b"Connection: Upgrade", b"Upgrade: websocket"]),
    ],
)
def test_the_head_is_framed_by_length_and_method(
    method: str, length: int | None, upgrade: bytes | None, framing: list[bytes]
) -> None:
    out = Outgoing(method, "/a b\udcff?\u20ac", ((b"X", b"\xfc"),), length, upgrade)
    line = f"{method} /a b".encode() + b"\xff?\xe2\x82\xac HTTP/1.1"
    assert out.head == b"\r\n".join([line, b"X: \xfc", *framing, b"", b""])


# ── who the client is ───────────────────────────────────────────────────────────────────────────────────────────────

CLAIMS = (
    (b"Forwarded", b"for=1.1.1.1"),
    (b"X-Forwarded-For", b"1.1.1.1"),
    (b"X-Forwarded-Proto", b"https"),
    (b"X-Forwarded-Host", b"shop.example"),
    (b"X-Forwarded-Port", b"443"),
    (b"X-Real-IP", b"1.1.1.1"),
    (b"Host", b"proxy.example:8080"),
)
X_FORWARDED, RFC7239 = (Forwarding(b"api.example", "", (), how) for how in ("x-forwarded", "rfc7239"))


def x_forwarded(address: bytes, proto: bytes, host: bytes) -> tuple[Field, ...]:
    return ((b"X-Forwarded-For", address), (b"X-Forwarded-Proto", proto), (b"X-Forwarded-Host", host))


@pytest.mark.parametrize("trusted", [True, False])
def test_off_tells_the_upstream_nothing_of_the_client(trusted: bool) -> None:
    assert sent(*CLAIMS, trusted=trusted) == ()


def test_an_untrusted_peer_is_believed_nothing_about_itself() -> None:
    assert sent(*CLAIMS, to=X_FORWARDED) == x_forwarded(b"10.0.0.9", b"http", b"proxy.example:8080")
    assert sent(*CLAIMS, to=RFC7239) == ((b"Forwarded", b'for=10.0.0.9;host="proxy.example:8080";proto=http'),)


def test_what_a_trusted_proxy_says_goes_on_with_its_address_behind() -> None:
    more = (b"x-forwarded-for", b"2.2.2.2, 3.3.3.3")
    assert sent(*CLAIMS, more, to=X_FORWARDED, trusted=True) == x_forwarded(
        b"1.1.1.1, 2.2.2.2, 3.3.3.3, 10.0.0.9", b"https", b"shop.example"
    )
    assert sent(*CLAIMS, to=RFC7239, trusted=True) == (
        (b"Forwarded", b'for=1.1.1.1, for=10.0.0.9;host="proxy.example:8080";proto=http'),
    )


def test_a_trusted_proxy_that_says_nothing_leaves_what_we_see() -> None:
    assert sent((b"Host", b"h"), to=X_FORWARDED, trusted=True) == x_forwarded(b"10.0.0.9", b"http", b"h")
    assert sent(to=RFC7239, trusted=True) == ((b"Forwarded", b'for=10.0.0.9;host="";proto=http'),)


@pytest.mark.parametrize(
    ("peer", "plain", "node"),
    [("::1", b"::1", b'"[::1]"'), ("", b"unknown", b"unknown"), ("1.2.3.4", b"1.2.3.4", b"1.2.3.4")],
)
def test_addresses_in_either_notation(peer: str, plain: bytes, node: bytes) -> None:
    assert sent(to=X_FORWARDED, peer=peer)[0] == (b"X-Forwarded-For", plain)
    assert sent(to=RFC7239, peer=peer) == ((b"Forwarded", b"for=" + node + b';host="";proto=http'),)


@pytest.mark.parametrize("host", [b'a";for=9.9.9.9;x="', b"a\\", b'\\"'])
def test_a_host_can_not_leave_its_quotes(host: bytes) -> None:
    [(_, value)] = sent((b"Host", host), to=RFC7239)
    assert value.count(b'"') == 2
    assert b"\\" not in value
    assert value.endswith(b'";proto=http')


@pytest.mark.parametrize(
    ("peer", "networks", "trusted"),
    [
        ("127.0.0.1", ["127.0.0.1/32"], True),
        ("127.0.0.2", ["127.0.0.1/32"], False),
        ("10.1.2.3", ["127.0.0.1/32", "10.0.0.0/8"], True),
        ("::1", ["127.0.0.1/32"], False),
        ("::1", ["127.0.0.0/8", "::1/128"], True),
        ("fe80::1%eth0", ["fe80::/10"], True),
        ("127.0.0.1", [], False),
        ("", [], True),
    ],
)
def test_trust_is_a_matter_of_networks_and_a_unix_socket_has_it(peer: str, networks: list[str], trusted: bool) -> None:
    assert is_trusted(peer, [ip_network(network) for network in networks]) is trusted


# ── to the listeners ────────────────────────────────────────────────────────────────────────────────────────────────

COOKIE = (b"set-cookie", b"a=1")
LIMIT = (b"X-RateLimit-Remaining-Requests", b"9")
LIMIT2 = (b"anthropic-ratelimit-tokens-remaining", b"9")
RETRY, RETRY_MS = (b"Retry-After", b"3"), (b"retry-after-ms", b"3000")
TYPE = (b"Content-Type", b"text/plain")
ALL = (COOKIE, LIMIT, TYPE, RETRY, RETRY_MS, LIMIT2, COOKIE)


@pytest.mark.parametrize(
    ("status", "owner", "replay", "kept"),
    [
        (200, True, False, list(ALL)),
        (429, True, False, list(ALL)),
        (200, False, False, [LIMIT, TYPE, RETRY, RETRY_MS, LIMIT2]),
        (429, False, False, [LIMIT, TYPE, RETRY, RETRY_MS, LIMIT2]),
        (200, False, True, [TYPE]),
        (204, False, True, [TYPE]),
        (429, False, True, [TYPE, RETRY, RETRY_MS]),
    ],
    ids=[
        "owner",
        "owner of an error",
        "follower",
        "follower of an error",
        "replay",
        "replay, 204",
        "replay of an error",
    ],
)
def test_each_kind_of_listener_gets_its_fields(status: int, owner: bool, replay: bool, kept: list[Field]) -> None:
    head = Head(status, b"", ALL)
    fields = shared_fields(head, owner=owner, replay=replay)
    assert fields == kept
    fields.clear()
    assert head.fields == ALL
