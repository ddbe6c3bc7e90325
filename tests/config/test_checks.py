"""What binds several keys together: each rule refused once, and accepted where the contract allows it."""

from typing import Any

import pytest

OPEN = '[server]\nlisten = "0.0.0.0:80"\n'
CREDENTIAL = '[upstream]\nheaders = { Authorization = "Bearer x" }\n'


@pytest.mark.parametrize(
    "text",
    [
        OPEN,
        CREDENTIAL,
        OPEN + CREDENTIAL.replace("Bearer x", ""),
        OPEN + CREDENTIAL.replace("Authorization", "X-Title"),
        OPEN + "allow_open = true\n" + CREDENTIAL,
        OPEN + 'client_keys = ["k"]\n' + CREDENTIAL,
        OPEN.replace("0.0.0.0:80", "unix:/run/s") + CREDENTIAL,
        OPEN.replace("0.0.0.0", "[::1]") + CREDENTIAL,
    ],
)
def test_what_is_no_open_relay(read: Any, text: str) -> None:
    read(text)


@pytest.mark.parametrize(
    "name", ["Authorization", "api-key", "X-API-Key", "x-goog-api-key", "Ocp-Apim-Subscription-Key"]
)
@pytest.mark.parametrize("listen", ["0.0.0.0:80", "[::]:80", "10.0.0.1:80", "example.com:80"])
def test_an_open_relay_is_refused(faults: Any, name: str, listen: str) -> None:
    text = OPEN.replace("0.0.0.0:80", listen) + CREDENTIAL.replace("Authorization", name)
    assert faults(text) == [
        "FILE: server.listen: expected a loopback address, server.client_keys, or server.allow_open = true,"
        f" because upstream.headers has a credential ({name}), found {listen}"
    ]


def test_any_upstreams_credential_makes_an_open_relay(faults: Any) -> None:
    text = OPEN + '[upstreams.b]\nurl = "http://b"\nheaders = { X-Auth-Thing = "x", Cookie = "y" }'
    (line,) = faults(text)
    assert "because upstreams.b.headers has a credential (X-Auth-Thing)" in line


def test_an_open_relay_by_flag_names_the_flag(faults: Any) -> None:
    (line,) = faults(CREDENTIAL, listen="0.0.0.0:80")
    assert line.startswith("flag --listen: server.listen: expected a loopback address")


def test_an_admin_listener_beyond_loopback_needs_a_token(faults: Any, read: Any) -> None:
    text = '[server]\nadmin_listen = "0.0.0.0:81"\n'
    assert faults(text) == [
        "FILE: server.admin_listen: expected a loopback address, or server.admin_token to be set, found 0.0.0.0:81"
    ]
    read(text + 'admin_token = "t"')
    read('[server]\nadmin_listen = "off"')


def test_two_listeners_are_not_one(faults: Any, read: Any) -> None:
    assert faults(admin_listen="127.0.0.1:8080") == [
        "flag --admin-listen: server.admin_listen: expected another address than server.listen, found 127.0.0.1:8080"
    ]
    read(admin_listen="127.0.0.1:0", listen="127.0.0.1:0")


def test_one_header_in_two_spellings(faults: Any) -> None:
    text = '[upstream]\nheaders = { Authorization = "a", authorization = "b" }'
    assert faults(text) == ["FILE: upstream.headers: expected authorization once, found 2 spellings of it"]


def test_a_stage_name_is_given_once(faults: Any) -> None:
    text = '[[stage]]\nname = "a"\n[[stage]]\nname = "a"\n[[stage]]\nname = "b"'
    assert faults(text) == ['FILE: stage.a.name: expected a name of its own for each stage, found 2 called "a"']


def test_the_default_stage_has_no_match(faults: Any, read: Any) -> None:
    text = '[[stage]]\nname = "default"\nmatch = { methods = ["POST"] }'
    assert faults(text) == [
        "FILE: stage.default.match: expected no match (the default stage takes all that is left), found a match"
    ]
    read('[[stage]]\nname = "default"\nretention = 1')


def test_a_stages_upstream_is_there(faults: Any, read: Any) -> None:
    text = '[[stage]]\nname = "a"\nupstream = "azure"\n'
    assert faults(text + '[upstreams.aws]\nurl = "http://x"') == [
        'FILE: stage.a.upstream: expected the name of an upstream ("aws", "default"), found "azure"'
    ]
    assert faults('[stage_defaults]\nupstream = "azure"') == [
        'FILE: stage_defaults.upstream: expected the name of an upstream ("default"), found "azure"'
    ]
    read(text + '[upstreams.azure]\nurl = "http://x"')


def test_a_stage_is_not_blamed_for_an_upstream_that_could_not_be_read(faults: Any) -> None:
    text = '[[stage]]\nname = "a"\nupstream = "azure"\n[upstreams.azure]\nurl = 1'
    assert faults(text) == ["FILE: upstreams.azure.url: expected text, found 1"]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (
            '[stage_defaults]\nheartbeat = "2s"',
            [
                "stage_defaults.heartbeat: expected at most a third of pending_lease (5 s), found 2 s",
                "stage_defaults.heartbeat: expected at most a third of running_lease (5 s), found 2 s",
            ],
        ),
        (
            '[stage_defaults]\nheartbeat = "2s"\npending_lease = 6',
            ["stage_defaults.heartbeat: expected at most a third of running_lease (5 s), found 2 s"],
        ),
        (
            '[[stage]]\nname = "a"\nrunning_lease = "2s"',
            ["stage.a.heartbeat: expected at most a third of running_lease (2 s), found 1 s"],
        ),
        (
            '[stage_defaults]\nheartbeat = "500ms"\n[[stage]]\nname = "a"\npending_lease = 1',
            ["stage.a.heartbeat: expected at most a third of pending_lease (1 s), found 0.5 s"],
        ),
    ],
)
def test_a_lease_outlives_two_lost_renewals(faults: Any, text: str, lines: list[str]) -> None:
    assert faults(text) == [f"FILE: {line}" for line in lines]


@pytest.mark.parametrize(
    "text",
    [
        '[stage_defaults]\nheartbeat = "100ms"\npending_lease = "300ms"\nrunning_lease = "300ms"',
        '[[stage]]\nname = "a"\nheartbeat = "5s"\npending_lease = "15s"\nrunning_lease = "20s"',
    ],
)
def test_three_heartbeats_are_enough(read: Any, text: str) -> None:
    read(text)


def test_a_stage_is_not_blamed_for_what_the_defaults_say(faults: Any) -> None:
    text = '[stage_defaults]\nheartbeat = "9s"\n[[stage]]\nname = "a"\nretention = 1'
    assert {line.split(": ")[1] for line in faults(text)} == {"stage_defaults.heartbeat"}
