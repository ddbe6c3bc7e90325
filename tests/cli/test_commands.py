"""The commands in this process: what is printed where, and the exit codes."""

import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

import soloflight
from soloflight import hookimpl
from soloflight.cli import main
from soloflight.cli.group import COMMANDS
from soloflight.cli.show import markdown_section
from soloflight.config import Settings, load
from soloflight.plugins import Plugins, hooks

CONF = Path(__file__).parents[2] / "conf"
FLAGS = {
    "--upstream": ("http://127.0.0.1:9", "upstream.url"),
    "--listen": ("127.0.0.1:1", "server.listen"),
    "--admin-listen": ("off", "server.admin_listen"),
    "--backend": ("memory", "coordination.backend"),
    "--redis-url": ("redis://h", "redis.url"),
    "--workers": ("2", "server.workers"),
    "--log-level": ("debug", "log.level"),
    "--log-format": ("json", "log.format"),
}


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SOLOFLIGHT_CONFIG", "SOLOFLIGHT_UPSTREAM", "SOLOFLIGHT_WORKERS", "REDIS_URL"):
        monkeypatch.delenv(name, raising=False)


def run(*args: str) -> Result:
    result = CliRunner().invoke(main, args)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What ``serve`` hands over: its doors and its logging are replaced by a note of the call."""
    calls: list[tuple[Any, ...]] = []
    doors, logs = ModuleType("soloflight.web.serve"), ModuleType("soloflight.web.logs")
    doors.run = lambda settings, plugins, reload: calls.append((settings, plugins)) or 0  # type: ignore[attr-defined]
    logs.configure = lambda level, form: calls.append((level, form))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "soloflight.web.serve", doors)
    monkeypatch.setitem(sys.modules, "soloflight.web.logs", logs)
    return calls


def test_the_version() -> None:
    assert run("--version").output == f"soloflight, version {soloflight.__version__}\n"


def test_help_names_every_command() -> None:
    for flag in ("--help", "-h"):
        output = run(flag).output
        assert all(f"\n  {command} " in output for command in COMMANDS)


def test_a_command_that_nobody_has() -> None:
    result = run("fly")
    assert result.exit_code == 2
    assert "No such command 'fly'" in result.stderr


def test_an_option_that_there_is_not() -> None:
    assert run("serve", "--lisen", "x").exit_code == 2


def test_serve_takes_the_contracts_flags_and_no_other() -> None:
    serve = main.get_command(click.Context(main), "serve")
    assert serve is not None
    assert {option for parameter in serve.params for option in parameter.opts} == {*FLAGS, "--config"}


def test_serve_hands_settings_and_plugins_over(served: list[Any], tmp_path: Path) -> None:
    config = tmp_path / "x.toml"
    config.write_text("[server]\nworkers = 5\ndrain_timeout = 7")
    words = [word for flag, (value, _) in FLAGS.items() for word in (flag, value)]
    assert run("serve", "--config", str(config), *words).exit_code == 0
    logging, (settings, plugins) = served
    assert logging == ("debug", "json")
    for value, key in FLAGS.values():
        section, _, name = key.partition(".")
        assert str(getattr(getattr(settings, section), name)) == value
    assert settings.server.drain_timeout == 7.0
    assert isinstance(plugins, Plugins)


def test_serve_ends_with_the_doors_exit_code(served: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["soloflight.web.serve"], "run", lambda settings, plugins, reload: 2)
    assert run("serve").exit_code == 2


def test_serve_refuses_a_faulty_config_with_one_line_for_each_fault(served: list[Any], tmp_path: Path) -> None:
    config = tmp_path / "x.toml"
    config.write_text("[server]\nworkers = 0\n[servr]")
    result = run("serve", "--config", str(config), "--log-format", "xml")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        f"soloflight: {config}: server.workers: expected a whole number, over 0, found 0",
        'soloflight: flag --log-format: log.format: expected "text" or "json", found "xml"',
        f'soloflight: {config}: servr: expected a known key (nearest: server), found the unknown key "servr"',
    ]
    assert served == []


def test_serve_refuses_a_faulty_plugin(served: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    class Faulty:
        @hookimpl
        async def soloflight_observer(self, settings: Any) -> None: ...

    load_plugins = Plugins.load
    monkeypatch.setattr(Plugins, "load", lambda disabled=(): load_plugins(disabled, [("faulty", Faulty())]))
    result = run("serve")
    assert result.exit_code == 2
    assert result.stderr.startswith("soloflight: plugin faulty: soloflight_observer: is async def")
    assert served == []


def test_serve_disables_plugins_and_tells_of_names_that_nobody_has(served: list[Any], tmp_path: Path) -> None:
    config = tmp_path / "x.toml"
    config.write_text('[plugins]\ndisabled = ["openai", "memroy"]\n[plugins.xyz]\na = 1')
    result = run("serve", "--config", str(config))
    assert result.exit_code == 0
    assert result.stderr.splitlines() == [
        "soloflight: warning: [plugins] names memroy, which is not installed (nearest: memory)",
        "soloflight: warning: [plugins] names xyz, which is not installed",
    ]
    assert "openai" not in repr(served[-1][1])


def test_check_prints_what_is_in_effect(tmp_path: Path) -> None:
    config = tmp_path / "x.toml"
    config.write_text('[server]\nworkers = 3\nadmin_token = "s3cret"')
    result = run("check", str(config))
    assert result.exit_code == 0, result.stderr
    assert tomllib.loads(result.stdout)["server"]["workers"] == 3
    assert "s3cret" not in result.output


@pytest.mark.parametrize("file", sorted(CONF.glob("*.toml")), ids=lambda file: file.name)
def test_check_accepts_what_is_shipped(file: Path) -> None:
    result = run("check", str(file))
    assert (result.exit_code, result.stderr) == (0, "")


def test_check_without_a_file_takes_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    printed = tmp_path / "printed.toml"
    printed.write_text(run("check").stdout)
    assert load(printed, {}, {}).server == Settings().server
    monkeypatch.setenv("SOLOFLIGHT_WORKERS", "4")
    assert tomllib.loads(run("check").stdout)["server"]["workers"] == 4


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('[coordination]\nbackend = "nosuch"', 'none answers to coordination.backend = "nosuch" (asked: '),
        ('[plugins]\ndisabled = ["openai"]', 'none answers to stage "default" (asked: none)'),
    ],
)
def test_check_refuses_what_serve_would_refuse(tmp_path: Path, text: str, line: str) -> None:
    config = tmp_path / "x.toml"
    config.write_text(text)
    result = run("check", str(config))
    assert (result.exit_code, result.stdout) == (2, "")
    assert line in result.stderr
    assert result.stderr.count("\n") == 1


def test_check_refuses_a_file_that_is_not_there(tmp_path: Path) -> None:
    result = run("check", str(tmp_path / "no.toml"))
    assert result.exit_code == 2
    assert (
        result.stderr
        == f"soloflight: {tmp_path}/no.toml: expected a file that can be read, found no such file or directory\n"
    )


def test_plugins_lists_where_each_came_from() -> None:
    output = run("plugins").output
    assert f"memory  (soloflight {soloflight.__version__})" in output
    assert "soloflight_memory/__init__.py" in output
    assert "hooks  soloflight_coordinator" in output


def test_hooks_lists_each_with_its_contract() -> None:
    output = run("hooks").output
    markdown = run("hooks", "--markdown").output
    for hook in hooks():
        assert f"{hook.name}{hook.signature}\n" in output
        assert hook.contract.splitlines()[0] in output
        assert markdown_section(hook) in markdown


class Added:
    """A plugin with a command of its own."""

    @hookimpl
    def soloflight_cli(self, group: click.Group) -> None:
        group.add_command(click.Command("hello", callback=lambda: click.echo("hello from a plugin")))


def test_plugins_add_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    load_plugins = Plugins.load
    monkeypatch.setattr(Plugins, "load", lambda: load_plugins(extra=[("added", Added())], discover=False))
    monkeypatch.setattr(main, "_asked", False)
    monkeypatch.setattr(main, "commands", {})
    assert run("hello").output == "hello from a plugin\n"
    assert "\n  hello" in run("--help").output


def test_a_faulty_plugin_keeps_nobody_from_help(monkeypatch: pytest.MonkeyPatch) -> None:
    class Faulty:
        @hookimpl
        def soloflight_cli(self, group: click.Group) -> None:
            raise RuntimeError("boom")

    load_plugins = Plugins.load
    monkeypatch.setattr(Plugins, "load", lambda: load_plugins(extra=[("faulty", Faulty())], discover=False))
    monkeypatch.setattr(main, "_asked", False)
    result = run("--help")
    assert result.exit_code == 0
    assert result.stderr == "soloflight: plugin faulty: soloflight_cli: RuntimeError: boom\n"
    monkeypatch.setattr(main, "_asked", False)
    result = run("hello")
    assert result.exit_code == 2
    assert result.stderr == "soloflight: plugin faulty: soloflight_cli: RuntimeError: boom\n"
