"""Listeners, URLs and networks: what is read and refused, and that no password is shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soloflight.config.addresses import (
    MASK,
    Listen,
    is_secret_name,
    mask_url,
    parse_http_proxy,
    parse_listen,
    parse_network,
    parse_origin,
    parse_redis_url,
    parse_tcp_listen,
)


@pytest.mark.parametrize(
    ("text", "listen", "local"),
    [
        ("127.0.0.1:8080", Listen("127.0.0.1", 8080), True),
        ("127.9.9.9:0", Listen("127.9.9.9", 0), True),
        ("localhost:80", Listen("localhost", 80), True),
        ("[::1]:8080", Listen("::1", 8080), True),
        ("unix:/run/soloflight.sock", Listen(path="/run/soloflight.sock"), True),
        ("unix:relative.sock", Listen(path="relative.sock"), True),
        ("0.0.0.0:8080", Listen("0.0.0.0", 8080), False),
        ("[::]:8080", Listen("::", 8080), False),
        ("10.0.0.1:65535", Listen("10.0.0.1", 65535), False),
        ("proxy.example:8080", Listen("proxy.example", 8080), False),
        ("127.0.0.1.example:8080", Listen("127.0.0.1.example", 8080), False),
    ],
)
def test_a_listener_is_read(text: str, listen: Listen, local: bool) -> None:
    assert parse_listen(text) == listen
    assert listen.is_local is local


@pytest.mark.parametrize(
    "text",
    [
        "",
        "8080",
        ":8080",
        "host",
        "host:",
        "host:x",
        "h:65536",
        "h:123456",
        "::1:80",
        "[x]:80",
        "[127.0.0.1]:80",
        "[::1",
        "[:::]:80",
        "a b:80",
        "http://h:80",
        "user@h:80",
        "unix:",
        "unix:/x\0y",
        "unix:/" + "x" * 107,
        "h:٨٠",
    ],
)
def test_a_listener_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="unix:PATH"):
        parse_listen(text)


def test_a_tcp_listener_is_no_unix_socket() -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        parse_tcp_listen("unix:/run/x")


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("https://api.openai.com", "https://api.openai.com"),
        ("https://api.openai.com/", "https://api.openai.com"),
        ("http://127.0.0.1:9000", "http://127.0.0.1:9000"),
        ("http://[::1]:9000/v1/", "http://[::1]:9000/v1"),
        ("https://openrouter.ai/api", "https://openrouter.ai/api"),
    ],
)
def test_an_upstream_is_read(text: str, origin: str) -> None:
    assert parse_origin(text) == origin


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ftp://x", "http:// or https://"),
        ("api.openai.com", "http:// or https://"),
        ("", "http:// or https://"),
        ("https://", "with a host"),
        ("https:///v1", "with a host"),
        ("https://x:port", "http:// or https://"),
        ("https://x:70000", "http:// or https://"),
        ("https://[::1", "http:// or https://"),
        ("https://x/ y", "http:// or https://"),
        ("https://x\n", "http:// or https://"),
        ("https://user:pw@x", "headers"),
        ("https://user@x", "headers"),
        ("https://x?", "without query"),
        ("https://x/?key=1", "without query"),
        ("https://x/#top", "without query"),
    ],
)
def test_an_upstream_is_refused(text: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        parse_origin(text)


@pytest.mark.parametrize("text", ["", "env", "http://proxy:3128", "http://user:pw@proxy:3128/", "https://proxy"])
def test_an_outbound_proxy_is_read(text: str) -> None:
    assert parse_http_proxy(text) == text


@pytest.mark.parametrize(
    "text", ["proxy:3128", "socks5://x", "http://", "http://x/path", "http://x?q", "http://x#f", "ENV"]
)
def test_an_outbound_proxy_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match='"env"'):
        parse_http_proxy(text)


@pytest.mark.parametrize(
    "text",
    [
        "redis://127.0.0.1:6379/0",
        "redis://cache",
        "redis://[::1]:6379/1",
        "redis://[::1]",
        "rediss://user:p%40ss@cache:6380/0?ssl_cert_reqs=required",
        "unix:///run/redis.sock?db=1",
        "unix://user:pw@/run/redis.sock",
        "redis+sentinel://:pw@a:26379,b:26379,[::1]:26379/mymaster/0",
        "redis+cluster://a:7000,b",
        "rediss+cluster://a:7000",
    ],
)
def test_a_redis_url_is_read(text: str) -> None:
    assert parse_redis_url(text) == text


@pytest.mark.parametrize(
    "text",
    [
        *("", "127.0.0.1:6379", "http://x", "redis:/x", "REDIS://x"),
        *("redis://", "redis:///0", "redis://a:x/0", "redis://a b/0", "redis://h:99999"),
        *("unix://", "unix://run", "unix:///", "redis+sentinel://a:1,,b:2/m"),
    ],
)
def test_a_redis_url_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"://|HOST"):
        parse_redis_url(text)


@pytest.mark.parametrize(
    ("text", "network"),
    [("127.0.0.1", "127.0.0.1/32"), ("10.1.2.3/8", "10.0.0.0/8"), (" ::1 ", "::1/128"), ("fd00::/8", "fd00::/8")],
)
def test_a_network_is_read(text: str, network: str) -> None:
    assert parse_network(text) == network


@pytest.mark.parametrize("text", ["", "localhost", "10.0.0.0/33", "10.0.0", "*"])
def test_a_network_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="network"):
        parse_network(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
        ("redis://user:s3cret@h:1/0", f"redis://user:{MASK}@h:1/0"),
        ("redis://:s3/cr@et@h:1/0", f"redis://:{MASK}@h:1/0"),
        ("redis://s3cret@h", f"redis://{MASK}@h"),
        ("redis://:s3?cr@et@h", f"redis://:{MASK}@h"),
        ("user:s3cret@h", f"user:{MASK}@h"),
        ("unix:///run/r.sock?password=s3cret&db=1", f"unix:///run/r.sock?password={MASK}&db=1"),
        ("plain", "plain"),
        ("https://h/?a", "https://h/?a"),
    ],
)
def test_no_password_is_shown(text: str, shown: str) -> None:
    assert mask_url(text) == shown


def test_a_whole_query_can_be_hidden() -> None:
    assert mask_url("https://h/p?code=s3cret#s3cret", whole_query=True) == f"https://h/p?{MASK}"
    assert mask_url("https://h/p#s3cret", whole_query=True) == "https://h/p"
    assert mask_url("https://h/p?", whole_query=True) == "https://h/p?"


@given(st.text(alphabet="abc:/@?&=", max_size=12))
def test_a_password_never_shows_whatever_is_around_it(rest: str) -> None:
    assert "s3cret" not in mask_url(f"redis://user:s3cret@{rest}")


@pytest.mark.parametrize("name", ["api_key", "authToken", "db_password", "Cookie", "clientSecret", "credentials"])
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ["url", "design", "interval", "path"])
def test_names_of_no_secrets(name: str) -> None:
    assert not is_secret_name(name)
