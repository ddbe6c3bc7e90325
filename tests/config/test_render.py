"""The effective configuration: it loads to the same settings, and no secret is in it."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from soloflight.config import Settings, effective, load, stages
from soloflight.config.addresses import MASK
from soloflight.config.render import toml_value

FULL = """
[server]
listen = "[::1]:8080"
max_body = 1000
drain_delay = "1.5s"
[upstream]
url = "https://h.example/v1/"
verify_tls = "/etc/ca.pem"
[upstreams."a.b"]
url = "http://x"
connect_timeout = "250ms"
[redis]
url = "redis://h/1?timeout=5"
[log]
level = "DEBUG"
format = "json"
[plugins]
disabled = ["x"]
[plugins.mine]
day = 2026-01-31
text = "a ${EMPTY} $${b} \\u007f \\"q\\" é"
list = [1, 2.5, true, { deep = [] }]
"odd key" = { }
[prices."gpt-4o*"]
input = 2.5
[stage_defaults]
heartbeat = "500ms"
[[stage]]
name = "a"
match = { paths = ["/v1/*"], methods = ["POST"] }
scope = "header:X-User"
selectable = false
key_headers = ["X-One"]
[[stage]]
name = "default"
retention = 1
"""


def again(settings: Settings, folder: Path) -> Settings:
    file = folder / "effective.toml"
    file.write_text(effective(settings))
    return load(file, {}, {})


@pytest.mark.parametrize("text", ["", FULL])
def test_what_is_printed_loads_to_the_same(read: Any, tmp_path: Path, text: str) -> None:
    settings = read(text, {"EMPTY": ""})
    loaded = again(settings, tmp_path)
    assert loaded.model_dump(exclude={"stage"}) == settings.model_dump(exclude={"stage"})
    assert list(stages(loaded)) == list(stages(settings))
    assert effective(loaded) == effective(settings)


def test_every_key_is_printed(read: Any) -> None:
    document = tomllib.loads(effective(read(FULL, {"EMPTY": ""})))
    settings = read(FULL, {"EMPTY": ""})
    for section in ("server", "upstream", "coordination", "redis", "log"):
        assert document[section].keys() == set(type(getattr(settings, section)).model_fields)
    assert all(
        stage.keys() - {"match"} == set(type(settings.stage[0]).model_fields) - {"match"} for stage in document["stage"]
    )


SECRET = """
[server]
admin_token = "s3cret"
client_keys = ["s3cret", "s3cret2"]
scope_key = "s3cret"
[upstream]
headers = { Authorization = "Bearer s3cret", X-Empty = "" }
proxy = "http://user:s3cret@proxy:1"
[redis]
url = "redis://user:s3cret@h/1?password=s3cret&db=2"
encryption_key = "s3cret"
encryption_key_previous = "s3cret"
[plugins.mine]
api_key = "s3cret"
passwords = ["s3cret"]
deep = { token = "s3cret", url = "amqp://u:s3cret@h", empty_key = "" }
"""


def test_secrets_are_masked(read: Any) -> None:
    text = effective(read(SECRET))
    assert "s3cret" not in text
    document = tomllib.loads(text)
    assert document["server"]["client_keys"] == [MASK, MASK]
    assert document["upstream"]["headers"] == {"Authorization": MASK, "X-Empty": ""}
    assert document["redis"]["url"] == f"redis://user:{MASK}@h/1?password={MASK}&db=2"
    assert document["plugins"]["mine"]["deep"] == {"token": MASK, "url": f"amqp://u:{MASK}@h", "empty_key": ""}


def test_a_masked_secret_is_refused_when_it_is_read(read: Any, faults: Any) -> None:
    lines = faults(effective(read(SECRET)))
    assert len(lines) == 13
    assert all(line.endswith(f"expected the secret itself, found {MASK}, which stands for one") for line in lines)


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=20), max_size=3))
@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_is_written_so_that_it_is_read_back(tmp_path: Path, table: dict[str, str]) -> None:
    written = f"value = {toml_value(table)}"
    try:
        written.encode()
    except UnicodeEncodeError:
        return  # a lone surrogate can not come from a TOML file
    unescaped = {key: value.replace("${", "$${") for key, value in table.items()}
    assert tomllib.loads(written)["value"] == unescaped
