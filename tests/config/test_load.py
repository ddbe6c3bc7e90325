"""Where values come from: precedence, ``${NAME}``, and files that can not be read."""

from pathlib import Path
from typing import Any

import pytest

from soloflight.config import ConfigError, Settings, config_path, load
from soloflight.config.models import Plugins
from soloflight.config.sources import OVERRIDES, Given, Substitution


def test_without_anything_there_are_the_contracts_defaults() -> None:
    settings = load(None, {}, {})
    assert settings == Settings()
    assert settings.server.listen == "127.0.0.1:8080"
    assert settings.server.admin_listen == "127.0.0.1:8081"
    assert settings.upstream.url == "https://api.openai.com"
    assert settings.coordination.backend == "memory"
    assert settings.server.workers == 1


@pytest.mark.parametrize(
    ("flags", "env", "text", "found"),
    [
        ({"listen": "127.0.0.1:1"}, "127.0.0.1:2", "127.0.0.1:3", "127.0.0.1:1"),
        ({"listen": None}, "127.0.0.1:2", "127.0.0.1:3", "127.0.0.1:2"),
        ({}, "127.0.0.1:2", "127.0.0.1:3", "127.0.0.1:2"),
        ({}, "", "127.0.0.1:3", "127.0.0.1:3"),
        ({}, None, "127.0.0.1:3", "127.0.0.1:3"),
        ({}, None, None, "127.0.0.1:8080"),
    ],
)
def test_flag_before_environment_before_file_before_default(
    read: Any, flags: dict[str, object], env: str | None, text: str | None, found: str
) -> None:
    variables = {} if env is None else {"SOLOFLIGHT_LISTEN": env}
    file = "" if text is None else f'[server]\nlisten = "{text}"'
    assert read(file, variables, **flags).server.listen == found


VALUES = {
    "upstream.url": "http://other.example",
    "server.listen": "127.0.0.1:9",
    "server.admin_listen": "off",
    "coordination.backend": "redis",
    "redis.url": "redis://other:1/2",
    "server.workers": "3",
    "log.level": "debug",
    "log.format": "json",
    "server.admin_token": "t0ken",
    "server.client_keys": "one, two",
    "server.scope_key": "sc0pe",
    "redis.encryption_key": "k3y",
}
TYPED: dict[str, object] = {"server.workers": 3, "server.client_keys": ["one", "two"]}


def value_at(settings: Settings, key: str) -> object:
    section, _, name = key.partition(".")
    value = getattr(getattr(settings, section), name)
    if isinstance(value, tuple):
        return [item.get_secret_value() for item in value]
    return value.get_secret_value() if hasattr(value, "get_secret_value") else value


@pytest.mark.parametrize("override", OVERRIDES, ids=lambda override: ".".join(override.loc))
def test_every_variable_and_flag_reaches_its_key(override: Any) -> None:
    key = ".".join(override.loc)
    expected = TYPED.get(key, VALUES[key])
    for variable in override.variables:
        assert value_at(load(None, {variable: VALUES[key]}, {}), key) == expected
    if override.flag:
        assert value_at(load(None, {}, {override.flag: VALUES[key]}), key) == expected


def test_redis_url_is_only_the_fallback() -> None:
    both = {"REDIS_URL": "redis://fallback", "SOLOFLIGHT_REDIS_URL": "redis://ours"}
    assert load(None, both, {}).redis.url == "redis://ours"
    assert load(None, {"REDIS_URL": "redis://fallback"}, {}).redis.url == "redis://fallback"


def test_variables_that_are_not_ours_are_left_alone() -> None:
    # What Kubernetes sets in every container beside a service called soloflight.
    env = {"SOLOFLIGHT_PORT": "tcp://10.0.0.1:80", "SOLOFLIGHT_SERVICE_HOST": "10.0.0.1"}
    assert load(None, env, {}) == Settings()


def test_the_file_is_named_or_in_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text("[server]\nworkers = 2")
    env = {"SOLOFLIGHT_CONFIG": str(file)}
    assert load(None, env, {}).server.workers == 2
    assert config_path(Path("named"), env) == Path("named")
    assert config_path(None, env) == file
    assert config_path(None, {}) is None
    assert config_path(None, {"SOLOFLIGHT_CONFIG": ""}) is None


def test_variables_are_replaced_in_every_string(read: Any) -> None:
    settings = read(
        """
        [server]
        workers = "${N}"
        client_keys = ["${K}", "b"]
        [upstream]
        url = "https://${HOST}${PATH}"
        headers = { Authorization = "Bearer ${K}" }
        [plugins.mine]
        deep = [{ template = "$${K} ${K}" }]
        """,
        {"N": "2", "K": "k3y", "HOST": "h.example", "PATH": "/v1"},
    )
    assert settings.server.workers == 2
    assert [key.get_secret_value() for key in settings.server.client_keys] == ["k3y", "b"]
    assert settings.upstream.url == "https://h.example/v1"
    assert settings.upstream.headers["Authorization"].get_secret_value() == "Bearer k3y"
    assert settings.plugins.section("mine") == {"deep": [{"template": "${K} k3y"}]}


@pytest.mark.parametrize(("text", "value"), [("true", True), ("False", False), ("/etc/ca.pem", "/etc/ca.pem")])
def test_a_switch_may_come_from_a_variable(read: Any, text: str, value: bool | str) -> None:
    assert read('[upstream]\nverify_tls = "${TLS}"', {"TLS": text}).upstream.verify_tls == value


def test_what_a_variable_says_is_not_looked_into_again(read: Any) -> None:
    assert read('[plugins.p]\nx = "${A}"', {"A": "${B}"}).plugins.section("p")["x"] == "${B}"


def test_a_file_value_that_a_flag_replaces_needs_no_variable(read: Any) -> None:
    text = '[upstream]\nurl = "${NOT_SET}"'
    assert read(text, upstream="http://x").upstream.url == "http://x"


def test_other_values_than_strings_stay_what_they_are(read: Any) -> None:
    section = read("[plugins.p]\nday = 2026-01-31\nn = 1\nf = 1.5\nb = true").plugins.section("p")
    assert [type(value).__name__ for value in section.values()] == ["date", "int", "float", "bool"]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "no.toml", {}, {})
    assert str(caught.value) == f"{tmp_path}/no.toml: expected a file that can be read, found no such file or directory"


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (
            b"[server\n",
            "expected TOML, found a fault: expected ']' at the end of a table declaration (at line 1, column 8)",
        ),
        (b"a = 1\na = 2", "expected TOML, found a fault: cannot overwrite a value (at end of document)"),
        (b'[server]\nlisten = "\xff"', "expected UTF-8, found the byte 0xff at offset 19"),
    ],
)
def test_a_file_that_is_no_toml(tmp_path: Path, content: bytes, line: str) -> None:
    file = tmp_path / "x.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load(file, {}, {})
    assert str(caught.value) == f"{file}: {line}"


def test_settings_are_frozen(read: Any) -> None:
    settings = read("[plugins.p]\nx = 1")
    for model in (settings, settings.server, settings.upstream, settings.stage_defaults, settings.plugins):
        with pytest.raises(ValueError, match="frozen"):
            model.x = 1
    with pytest.raises(TypeError):
        settings.plugins.section("p")["x"] = 2


def test_no_secret_is_in_a_repr() -> None:
    settings = load(
        None,
        {
            "SOLOFLIGHT_ADMIN_TOKEN": "s3cret",
            "SOLOFLIGHT_CLIENT_KEYS": "s3cret",
            "SOLOFLIGHT_SCOPE_KEY": "s3cret",
            "SOLOFLIGHT_REDIS_URL": "redis://:s3cret@h",
            "SOLOFLIGHT_REDIS_ENCRYPTION_KEY": "s3cret",
        },
        {},
    )
    assert "s3cret" not in repr(settings) + str(settings)


def test_no_secret_of_a_file_is_in_a_repr(read: Any) -> None:
    settings = read(
        """
        [upstream]
        headers = { Authorization = "Bearer s3cret" }
        proxy = "http://user:s3cret@proxy"
        [redis]
        encryption_key_previous = "s3cret"
        [plugins.mine]
        password = "s3cret"
        """
    )
    assert "s3cret" not in repr(settings) + str(settings)
    assert repr(settings.plugins) == "Plugins(disabled=(), sections=['mine'])"


def test_a_plugin_without_a_table_has_an_empty_one() -> None:
    assert Plugins().section("mine") == {}


def test_upstreams_are_found_by_name(read: Any) -> None:
    settings = read('[upstreams.azure]\nurl = "https://azure.example"')
    assert settings.upstream_called("default") is settings.upstream
    assert settings.upstream_called("azure").url == "https://azure.example"
    with pytest.raises(KeyError):
        settings.upstream_called("aws")


def test_listeners_are_there_as_addresses(read: Any) -> None:
    server = read('[server]\nlisten = "unix:/run/s"\nadmin_listen = "[::1]:1"').server
    assert (server.public.path, server.admin.host, server.admin.port) == ("/run/s", "::1", 1)
    assert read('[server]\nadmin_listen = "off"').server.admin is None


def test_the_parts_tell_what_they_are() -> None:
    substitution = Substitution({})
    substitution.apply({"a": "${X}"})
    assert repr(substitution) == "Substitution(missing=1)"
    assert Given(1, "flag --x").source == "flag --x"


CONTRACT = """
[server]
listen = "127.0.0.1:8080"
admin_listen = "127.0.0.1:8081"
admin_token = ""
client_keys = []
allow_open = false
workers = 1
drain_timeout = "30s"
drain_delay = 0
max_body = "1GiB"
max_shared_body = "32MiB"
max_memory = "1GiB"
header_timeout = "15s"
body_timeout = "60s"
write_timeout = "60s"
trusted_proxies = ["127.0.0.1/32", "::1/128"]
scope_key = ""

[upstream]
url = "https://api.openai.com"
headers = { }
connect_timeout = "5s"
max_connections = 0
verify_tls = true
proxy = ""
forwarded = "off"

[upstreams.azure]
url = "https://example.openai.azure.com"

[coordination]
backend = "memory"
on_backend_error = "local"
command_timeout = "500ms"

[redis]
url = "redis://127.0.0.1:6379/0"
prefix = "soloflight"
encryption_key = ""
encryption_key_previous = ""

[plugins]
disabled = []

[stage_defaults]
follower_wait = "65s"

[[stage]]
name = "evaluation"
match = { paths = ["/v1/chat/completions"], models = ["gpt-4o*"], methods = ["POST"] }
heartbeat = "1s"
"""


def test_the_contracts_example_is_the_defaults_and_what_it_adds(read: Any) -> None:
    settings = read(CONTRACT)
    added = {"upstreams", "stage"}
    assert settings.model_dump(exclude=added) == Settings().model_dump(exclude=added)
    assert settings.upstreams["azure"].url == "https://example.openai.azure.com"
    (stage,) = settings.stage
    assert (stage.name, stage.heartbeat, stage.match.models) == ("evaluation", 1.0, ("gpt-4o*",))
