"""The Dockerfile, as far as it can be held without an engine: linted, small by rule, and its own commands run as they stand."""

import asyncio
import configparser
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.client import chat, connect, fresh
from harness.fixtures import StartProxy
from harness.process import eventually
from harness.proxy import clean_env
from soloflight.testing.chat import CH
from soloflight.testing.script import sse
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

ROOT = Path(__file__).parents[2]
Instruction = tuple[str, str]


def instructions() -> list[list[Instruction]]:
    """By stage: (word, rest), comments and line breaks undone."""
    text = re.sub(r"\\\n", " ", re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE))
    stages: list[list[Instruction]] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            stages.append([])
        stages[-1].append((word, rest.strip()))
    return stages


@pytest.fixture(scope="module")
def final() -> dict[str, str]:
    """The last stage; of a word that stands there more than once, the last."""
    return dict(instructions()[-1])


def exec_form(text: str) -> list[str]:
    words = json.loads(text[text.index("[") :])
    assert all(isinstance(word, str) for word in words)
    return list(words)


def test_the_linter_has_nothing_to_say() -> None:
    linter = Path(sys.executable).parent / "hadolint"
    said = subprocess.run(
        [str(linter), "--failure-threshold=style", str(ROOT / "Dockerfile")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (said.returncode, said.stdout, said.stderr) == (0, "", "")


def test_what_builds_stays_behind(final: dict[str, str]) -> None:
    build, last = instructions()
    assert dict(last)["FROM"] == dict(build)["FROM"].removesuffix(" AS build")  # one Python for both
    assert not dict(last)["FROM"].endswith(":latest")
    text = "\n".join(rest for word, rest in last if word == "RUN")
    for tool in ("pip", "gcc", "build-essential", "git", "curl", "-dev"):
        assert tool not in text
    assert final["COPY"] == "--from=build /opt/soloflight /opt/soloflight"


def test_nobody_runs_it(final: dict[str, str]) -> None:
    user, _, group = final["USER"].partition(":")
    assert int(user) > 0
    assert int(group) > 0
    words = [word for word, _ in instructions()[-1]]
    assert "RUN" not in words[words.index("USER") :]


def test_commands_are_in_exec_form(final: dict[str, str]) -> None:
    """A shell in between would be the one that gets SIGTERM."""
    assert [*exec_form(final["ENTRYPOINT"]), *exec_form(final["CMD"])] == ["soloflight", "serve"]
    assert final["STOPSIGNAL"] == "SIGTERM"


def test_the_build_sees_all_that_it_needs() -> None:
    (build, _) = instructions()
    copied = {name for word, rest in build if word == "COPY" for name in rest.split()[:-1]}
    rules = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in rules
    assert copied == {rule[1:] for rule in rules if rule.startswith("!")}
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    needed = {"setup.cfg", "pyproject.toml", setup["metadata"]["license_files"]}
    needed.add(setup["metadata"]["long_description"].removeprefix("file: "))
    needed |= {line.split(" = ")[1].split("/")[0] for line in setup["options"]["package_dir"].splitlines() if line}
    assert needed == copied
    assert all((ROOT / name).exists() for name in copied)


async def test_its_health_check(final: dict[str, str], start_proxy: StartProxy, upstream: ScriptedUpstream) -> None:
    program, *arguments = exec_form(final["HEALTHCHECK"])
    assert program == "python"
    proxy = start_proxy({"server": {"drain_delay": "10s", "drain_timeout": "10s"}}, upstream=upstream.port, check=False)

    async def healthy(port: int) -> bool:
        # A proxy for everything else is not asked.
        env = clean_env(SOLOFLIGHT_LISTEN=f"0.0.0.0:{port}", http_proxy="http://127.0.0.1:1")
        child = await asyncio.create_subprocess_exec(sys.executable, *arguments, env=env, stderr=subprocess.DEVNULL)
        async with asyncio.timeout(20):
            return await child.wait() == 0

    assert await healthy(proxy.port)
    assert not await healthy(1)
    upstream.play(sse(CH, asyncio.Event()))
    async with connect(proxy.port) as client:
        await client.send(chat(fresh()))
        await client.read_events(1)
        proxy.send(signal.SIGTERM)
        await eventually(lambda: "draining" in proxy.log)
        assert not await healthy(proxy.port)
    os.kill(proxy.pid, signal.SIGKILL)


def test_it_listens_beyond_its_own_loopback(final: dict[str, str]) -> None:
    assert "SOLOFLIGHT_LISTEN=0.0.0.0:8080" in final["ENV"].split()
    assert final["EXPOSE"] == "8080"
