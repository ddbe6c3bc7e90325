"""What is wrong is told in one readable line each, all of it at once, and no secret is in it."""

from typing import Any

import pytest

from soloflight.config import load
from soloflight.config.load import _Reading

DURATION = 'a duration: seconds, or text like "250ms", "65s", "10m", "1h"'
SIZE = 'a size: bytes, or text like "64KB", "8MiB"'
NAME = "a name: 1 to 64 of A-Z a-z 0-9 _ . -"

LINES = [
    # (file, its one line)
    ("server = 1", "server: expected a table, found 1"),
    ("[servr]", 'servr: expected a known key (nearest: server), found the unknown key "servr"'),
    ("[server]\nlitsen = 1", 'server.litsen: expected a known key (nearest: listen), found the unknown key "litsen"'),
    (
        "[server]\nheartbeat = 1",
        'server.heartbeat: expected a known key (nearest: stage_defaults.heartbeat), found the unknown key "heartbeat"',
    ),
    (
        "[upstream]\nworkers = 1",
        'upstream.workers: expected a known key (nearest: server.workers), found the unknown key "workers"',
    ),
    ("[server]\nworkers = 0", "server.workers: expected a whole number, over 0, found 0"),
    ("[server]\nworkers = true", "server.workers: expected a whole number, found true"),
    ("[server]\nworkers = 1.5", "server.workers: expected a whole number, found 1.5"),
    ('[server]\nworkers = "many"', 'server.workers: expected a whole number, found "many"'),
    ("[server]\nmax_body = 0", f"server.max_body: expected {SIZE}, over 0, found 0"),
    ('[server]\nmax_body = "8 M"', f'server.max_body: expected {SIZE}, found "8 M"'),
    ("[server]\nheader_timeout = 0", f"server.header_timeout: expected {DURATION}, over 0, found 0"),
    ("[server]\ndrain_delay = -1", f"server.drain_delay: expected {DURATION}, found -1"),
    ("[server]\ndrain_delay = nan", f"server.drain_delay: expected {DURATION}, found nan"),
    ("[server]\ndrain_delay = 2026-01-31", f"server.drain_delay: expected {DURATION}, found 2026-01-31"),
    ('[server]\nallow_open = "yes"', 'server.allow_open: expected true or false, found "yes"'),
    ("[server]\nallow_open = 1", "server.allow_open: expected true or false, found 1"),
    (
        '[server]\nlisten = "8080"',
        'server.listen: expected HOST:PORT, [IPV6]:PORT or unix:PATH, found "8080"',
    ),
    (
        '[server]\nadmin_listen = "unix:/x"',
        'server.admin_listen: expected HOST:PORT, [IPV6]:PORT or "off", found "unix:/x"',
    ),
    ("[server]\nlisten = { port = 8080 }", "server.listen: expected text, found a table"),
    ("[server]\nlisten = 8080", "server.listen: expected text, found 8080"),
    ('[server]\nclient_keys = "${EMPTY}"', "server.client_keys: expected a list, found a value that is not shown"),
    (
        '[server]\nclient_keys = [""]',
        "server.client_keys[0]: expected a key of visible ASCII characters, found a value that is not shown",
    ),
    ("[server]\nadmin_token = 5", "server.admin_token: expected text, found a value that is not shown"),
    (
        '[server]\ntrusted_proxies = ["::1", "x"]',
        'server.trusted_proxies[1]: expected an IP address or network like 10.0.0.0/8, found "x"',
    ),
    ('[server]\ntrusted_proxies = "::1"', 'server.trusted_proxies: expected a list, found "::1"'),
    (
        '[upstream]\nurl = "ftp://x"',
        'upstream.url: expected an http:// or https:// URL with a host, found "ftp://x"',
    ),
    (
        '[upstream]\nheaders = { Host = "x" }',
        "upstream.headers.Host: expected a header field that is not the proxy's own (framing, Host, X-Soloflight-*),"
        ' found "Host"',
    ),
    (
        '[upstream]\nheaders = { "X-Soloflight-Stage" = "x" }',
        "upstream.headers.X-Soloflight-Stage: expected a header field that is not the proxy's own"
        ' (framing, Host, X-Soloflight-*), found "X-Soloflight-Stage"',
    ),
    (
        '[upstream]\nheaders = { "a b" = "x" }',
        'upstream.headers.a b: expected the name of a header field, found "a b"',
    ),
    (
        '[upstream]\nheaders = { a = "x\\ny" }',
        "upstream.headers.a: expected a header value in one line, without spaces around it,"
        " found a value that is not shown",
    ),
    ('[upstream]\nverify_tls = ""', 'upstream.verify_tls: expected true, false or the path of a CA bundle, found ""'),
    ('[upstream]\nproxy = "x"', 'upstream.proxy: expected an http:// URL of a proxy, "env" or "", found "x"'),
    (
        '[upstream]\nforwarded = "on"',
        'upstream.forwarded: expected "off", "x-forwarded" or "rfc7239", found "on"',
    ),
    ("[upstreams.a]", "upstreams.a.url: expected a value, found nothing"),
    ('[upstreams."a b"]\nurl = "http://x"', f'upstreams.a b: expected {NAME}, found "a b"'),
    (
        '[upstreams.default]\nurl = "http://x"',
        'upstreams.default: expected another name ([upstream] is the default one), found "default"',
    ),
    (
        '[upstreams.a]\nurl = "http://x"\nurls = 1',
        'upstreams.a.urls: expected a known key (nearest: url), found the unknown key "urls"',
    ),
    (
        "[redis]\nurl = '127.0.0.1'",
        "redis.url: expected a URL that starts with redis://, rediss://, unix://, redis+sentinel://,"
        ' redis+cluster://, found "127.0.0.1"',
    ),
    (
        '[redis]\nprefix = "{x}"',
        'redis.prefix: expected a prefix: 1 to 128 of A-Z a-z 0-9 _ . : / @ -, found "{x}"',
    ),
    ('[log]\nlevel = "loud"', 'log.level: expected "debug", "info", "warning" or "error", found "loud"'),
    ("[plugins]\ndisbled = []", "plugins.disbled: expected a known key (nearest: disabled), found a list of 0"),
    ("[plugins]\ndisabled = 1", "plugins.disabled: expected a list, found 1"),
    ("[prices.m]\ninput = -1", "prices.m.input: expected a price, 0 or more, found -1"),
    ("[prices.m]\noutput = true", "prices.m.output: expected a price, 0 or more, found true"),
    (
        "[prices.m]\nin = 1",
        'prices.m.in: expected a known key (nearest: input), found the unknown key "in"',
    ),
    ('"a\\nb" = 5', 'a\\nb: expected a known key (nearest: stage), found the unknown key "a\\nb"'),
    ("stage = 5", "stage: expected a list, found 5"),
    ("stage = [5]", "stage[0]: expected a table, found 5"),
    ("[[stage]]", "stage[0].name: expected a value, found nothing"),
    ('[[stage]]\nname = "a b"', f'stage.a b.name: expected {NAME}, found "a b"'),
    ('[[stage]]\nname = ""', f'stage[0].name: expected {NAME}, found ""'),
    (
        '[[stage]]\nname = "a"\nshare = "no"',
        'stage.a.share: expected "always", "deterministic" or "never", found "no"',
    ),
    (
        '[[stage]]\nname = "a"\nmatch = { path = ["x"] }',
        'stage.a.match.path: expected a known key (nearest: paths), found the unknown key "path"',
    ),
    ('[[stage]]\nname = "a"\nmatch = 1', "stage.a.match: expected a table, found 1"),
    (
        '[[stage]]\nname = "a"\nmatch = { methods = ["GE T"] }',
        'stage.a.match.methods[0]: expected the name of a header field, found "GE T"',
    ),
    (
        '[[stage]]\nname = "a"\nscope = "header:"',
        'stage.a.scope: expected "credential", "everyone" or "header:NAME", found "header:"',
    ),
    (
        '[stage_defaults]\nscope = "header:a b"',
        'stage_defaults.scope: expected "credential", "everyone" or "header:NAME", found "header:a b"',
    ),
    (
        '[stage_defaults]\nname = "a"',
        'stage_defaults.name: expected a known key (nearest: share), found the unknown key "name"',
    ),
    (
        '[upstream]\nurl = "http://${NOT_SET}"',
        "upstream.url: expected the environment variable NOT_SET to be set, found none of that name",
    ),
    (
        '[upstream]\nurl = "http://${NOT-SET}"',
        "upstream.url: expected ${NAME}, or $${ for a plain ${, found something else after ${",
    ),
    (
        '[upstream]\nurl = "http://${NOT_SET"',
        "upstream.url: expected ${NAME}, or $${ for a plain ${, found something else after ${",
    ),
    (
        '[server]\nadmin_token = "<masked>"',
        "server.admin_token: expected the secret itself, found <masked>, which stands for one",
    ),
]


@pytest.mark.parametrize(("text", "line"), LINES)
def test_a_fault_is_one_line(faults: Any, text: str, line: str) -> None:
    assert faults(text, {"EMPTY": ""}) == [f"FILE: {line}"]


def test_all_faults_are_told_at_once(faults: Any) -> None:
    text = """
    [server]
    workers = 0
    wrokers = 1
    admin_listen = "0.0.0.0:81"
    [upstream]
    headers = { A = "${ONE} ${TWO}" }
    [upstreams.b]
    url = "nowhere"
    [[stage]]
    name = "a"
    heartbeat = "9s"
    retention = "soon"
    upstream = "c"
    [[stage]]
    name = "a"
    [[stage]]
    retention = 5
    """
    keys = [line.removeprefix("FILE: ").partition(":")[0] for line in faults(text)]
    assert keys == [
        "upstream.headers.A",
        "upstream.headers.A",
        "server.workers",
        "server.wrokers",
        "upstreams.b.url",
        "stage.a.retention",
        "stage[2].name",
        "server.admin_listen",
        "stage.a.name",
        "stage.a.upstream",
        "stage.a.heartbeat",
        "stage.a.heartbeat",
    ]


def test_a_value_left_out_does_not_shift_the_others(faults: Any) -> None:
    assert faults('stage = ["${X}", {}, { name = "a", share = "${X}" }]\n[upstream]\nurl = "${X}"') == [
        "FILE: stage[0]: expected the environment variable X to be set, found none of that name",
        "FILE: stage.a.share: expected the environment variable X to be set, found none of that name",
        "FILE: upstream.url: expected the environment variable X to be set, found none of that name",
        "FILE: stage[1].name: expected a value, found nothing",
    ]


def test_a_fault_of_a_flag_or_variable_names_it(faults: Any) -> None:
    assert faults("", {"SOLOFLIGHT_LISTEN": "x", "REDIS_URL": "y"}, workers="0", log_format="xml") == [
        'environment SOLOFLIGHT_LISTEN: server.listen: expected HOST:PORT, [IPV6]:PORT or unix:PATH, found "x"',
        'flag --workers: server.workers: expected a whole number, over 0, found "0"',
        "environment REDIS_URL: redis.url: expected a URL that starts with redis://, rediss://, unix://,"
        ' redis+sentinel://, redis+cluster://, found "y"',
        'flag --log-format: log.format: expected "text" or "json", found "xml"',
    ]


def test_a_flag_for_a_section_that_is_no_table(faults: Any) -> None:
    assert faults("server = 1", listen="127.0.0.1:1") == ["FILE: server: expected a table, found 1"]


def test_a_key_of_a_section_that_a_flag_also_sets_is_the_files(faults: Any) -> None:
    lines = faults("[server]\nworkers = 0", listen="127.0.0.1:1")
    assert lines == ["FILE: server.workers: expected a whole number, over 0, found 0"]


def test_a_fault_in_an_item_of_a_variable_names_the_variable(faults: Any) -> None:
    assert faults("", {"SOLOFLIGHT_CLIENT_KEYS": "good,not good"}) == [
        "environment SOLOFLIGHT_CLIENT_KEYS: server.client_keys[1]: expected a key of visible ASCII characters,"
        " found a value that is not shown"
    ]


SECRETS = [
    ('[upstream]\nurl = "https://user:s3cret@h"', {}),
    ('[upstream]\nurl = "https://h?key=s3cret"', {}),
    ('[upstream]\nurl = "https://h#s3cret"', {}),
    ('[upstream]\nurl = "sk-s3cret"', {}),
    ('[upstream]\nurl = "Bearer s3cret"', {}),
    ('[upstream]\nurl = "${KEY}"', {"KEY": "s3cret"}),
    ('[upstream]\nheaders = { A = "s3cret\\n" }', {}),
    ('[upstream]\nheaders = ["s3cret"]', {}),
    ('[upstream]\nproxy = "socks5://u:s3cret@h"', {}),
    ('[server]\nclient_keys = ["s3 s3cret"]', {}),
    ('[server]\nadmin_tokn = "s3cret"', {}),
    ('[redis]\nurl = "http://:s3cret@h"', {}),
    ("", {"REDIS_URL": "http://:s3cret@h"}),
    ("[redis]\nencryption_key = ['s3cret']", {}),
    ('[plugins]\npassword = "sk-s3cret"', {}),
]


@pytest.mark.parametrize(("text", "env"), SECRETS)
def test_no_secret_is_in_a_fault(faults: Any, text: str, env: dict[str, str]) -> None:
    assert "s3cret" not in "\n".join(faults(text, env))


def test_a_long_value_is_cut(faults: Any) -> None:
    (line,) = faults(f'[log]\nlevel = "{"x" * 1000}"')
    assert line.endswith('xxx…"') is True
    assert len(line) < 200


def test_a_reading_tells_where_it_stands() -> None:
    assert repr(_Reading("file", {}, {})) == "_Reading('file', faults=0)"
    assert load(None, {}, {}).server.workers == 1
