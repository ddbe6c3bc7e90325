"""How stages inherit, what is derived, and that the file's rules are the core's."""

from dataclasses import fields
from typing import Any

import pytest

from soloflight.config import stages
from soloflight.config.stage_rules import StageRules, StageSettings
from soloflight.core.stage import Stage


def test_the_file_has_every_rule_of_the_core_with_its_default() -> None:
    core = {field.name for field in fields(Stage)}
    assert core == {*StageRules.model_fields, "name", "match"}
    assert core == set(StageSettings.model_fields)
    written_nothing = StageRules()
    for name in core - {"name", "match", "selectable"}:
        assert getattr(written_nothing, name) == getattr(Stage(), name)


def test_without_stages_there_is_the_default(read: Any) -> None:
    assert list(stages(read())) == [Stage()]


def test_the_default_inherits_too_and_is_last(read: Any) -> None:
    resolved = stages(read('[stage_defaults]\nretention = 7\n[[stage]]\nname = "a"\nretention = 8'))
    assert [(stage.name, stage.retention) for stage in resolved] == [("a", 8.0), ("default", 7.0)]


def test_a_stage_called_default_is_the_default(read: Any) -> None:
    resolved = stages(read('[[stage]]\nname = "default"\nretention = 9\n[[stage]]\nname = "a"'))
    assert [(stage.name, stage.retention) for stage in resolved] == [("a", 300.0), ("default", 9.0)]


def test_what_a_stage_writes_goes_before_the_defaults_even_if_it_is_the_cores_default(read: Any) -> None:
    text = '[stage_defaults]\nshare = "never"\n[[stage]]\nname = "a"\nshare = "always"'
    assert stages(read(text)).chosen("a").share == "always"


def test_match_is_read(read: Any) -> None:
    text = '[[stage]]\nname = "a"\nmatch = { paths = ["/v1/*"], models = ["gpt*"], methods = ["post"] }'
    resolved = stages(read(text))
    assert resolved.match("POST", "/v1/x", "gpt-4o").name == "a"
    assert resolved.match("GET", "/v1/x", "gpt-4o").name == "default"


@pytest.mark.parametrize(
    ("rules", "selectable"),
    [
        ("", True),
        ('scope = "header:X-User"', True),
        ('scope = "everyone"', False),
        ('upstream = "b"', False),
        ('scope = "everyone"\nselectable = true', True),
        ("selectable = false", False),
    ],
)
def test_selectable_follows_from_scope_and_upstream(read: Any, rules: str, selectable: bool) -> None:
    upstream = '[upstreams.b]\nurl = "http://b"\n'
    resolved = stages(read(f'{upstream}[[stage]]\nname = "a"\n{rules}'))
    assert next(iter(resolved)).selectable is selectable
    inherited = stages(read(f'{upstream}[stage_defaults]\n{rules}\n[[stage]]\nname = "a"'))
    assert next(iter(inherited)).selectable is selectable


@pytest.mark.parametrize(
    ("rules", "local_s"),
    [
        ("local_retention = 10", 10.0),
        ("local_retention = 0", 0.0),
        ('local_retention = "2d"', 86400.0),
        ("local_retention = 90\nretention = 60\nsampled_retention = 5\nidempotency_retention = 0", 60.0),
        ("retention = 0\nsampled_retention = 0\nidempotency_retention = 0", 0.0),
    ],
)
def test_local_retention_outlives_no_other(read: Any, rules: str, local_s: float) -> None:
    assert stages(read(f"[stage_defaults]\n{rules}")).default.local_retention == local_s


def test_field_names_are_lower_case_for_the_core(read: Any) -> None:
    assert stages(read('[stage_defaults]\nkey_headers = ["X-Tenant"]')).default.key_headers == ("x-tenant",)
