"""docs/stage-plugin.md, to the letter: its module, installed as it says, chooses the stages of conf/interview.toml."""

import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from governance.jobs import JOB, LONE
from harness.client import ask, chat, fresh
from harness.fixtures import StartProxy
from harness.process import eventually
from harness.proxy import PROGRAM, Proxy, clean_env
from harness.refusals import refused
from soloflight.testing.upstream import ScriptedUpstream

pytestmark = pytest.mark.beside

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "stage-plugin.md").read_text()
INTERVIEW = (ROOT / "conf" / "interview.toml").read_text()
STAGES = ("evaluation", "followup", "extraction", "demeanor", "default")


def block(language: str) -> str:
    """The page's one code block in a language."""
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """The page's distribution as an installer would leave it in a folder; the environment in which it is found there."""
    folder = tmp_path / "site"
    project = tomllib.loads(block("toml"))
    named = project["project"]
    (module,) = project["tool"]["setuptools"]["py-modules"]
    assert block("python").startswith(f"# {module}.py\n")
    info = folder / f"{named['name'].replace('-', '_')}-{named['version']}.dist-info"
    info.mkdir(parents=True)
    (folder / f"{module}.py").write_text(block("python"))
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {named['name']}\nVersion: {named['version']}\n")
    points = "\n".join(f"{name} = {value}" for name, value in named["entry-points"]["soloflight"].items())
    (info / "entry_points.txt").write_text(f"[soloflight]\n{points}\n")
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {"PYTHONPATH": path}


def chosen(proxy: Proxy) -> dict[str, float]:
    """How many requests each stage has had."""
    counts = {stage: proxy.metric("soloflight_requests_total", stage=stage) for stage in STAGES}
    return {stage: count for stage, count in counts.items() if count}


PURPOSES: list[tuple[Any, str]] = [
    ({"purpose": "grade"}, "evaluation"),
    ({"purpose": "ask"}, "followup"),
    ({"purpose": "extract"}, "extraction"),
    ({"purpose": "observe"}, "demeanor"),
    ({"purpose": "something else"}, "default"),
    ({"purpose": ["grade"]}, "default"),
    ({"purpose": None}, "default"),
    ({"purpose": 1}, "default"),
    ({}, "default"),
    ("grade", "default"),
    (["purpose"], "default"),
    (None, "default"),
]


async def test_it_chooses(installed: dict[str, str], start_proxy: StartProxy, upstream: ScriptedUpstream) -> None:
    upstream.play(JOB)
    proxy = start_proxy(INTERVIEW, upstream=upstream.port, env=installed)
    expected: dict[str, float] = {}

    async def counts(raw: bytes, stage: str) -> None:
        assert (await ask(proxy.port, raw)).status == 200
        expected[stage] = expected.get(stage, 0) + 1
        await eventually(lambda: chosen(proxy) == expected)

    for metadata, stage in PURPOSES:
        await counts(chat({**fresh(stream=False), "metadata": metadata}), stage)
    await counts(chat(fresh(stream=False)), "default")
    await counts(chat(b"[1]"), "default")
    await counts(chat(b"no JSON"), "default")
    graded = {**fresh(stream=False), "metadata": {"purpose": "grade"}}
    await counts(chat(graded, "X-Soloflight-Stage: followup"), "followup")
    await counts(chat(graded, target=LONE), "default")
    assert refused(await ask(proxy.port, chat(graded, "X-Soloflight-Stage: nowhere"))) == (400, "bad_request")
    assert upstream.requests[0].body.endswith(b'"metadata": {"purpose": "grade"}}'), "which goes on as it came"


async def test_a_stage_that_is_not_configured_is_not_chosen(
    installed: dict[str, str], start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    """And one that clients may not choose is open to it."""
    upstream.play(JOB)
    config = {"stage": [{"name": "evaluation", "selectable": False}]}
    proxy = start_proxy(config, upstream=upstream.port, env=installed)
    for purpose in ("grade", "ask"):
        answer = await ask(proxy.port, chat({**fresh(stream=False), "metadata": {"purpose": purpose}}))
        assert answer.status == 200
    await eventually(lambda: chosen(proxy) == {"evaluation": 1, "default": 1})
    named = await ask(proxy.port, chat(fresh(stream=False), "X-Soloflight-Stage: evaluation"))
    assert refused(named) == (400, "bad_request")


def test_it_is_listed(installed: dict[str, str]) -> None:
    listed = subprocess.run(
        [PROGRAM, "plugins"], env=clean_env(**installed), capture_output=True, text=True, check=True, timeout=30
    ).stdout
    entry = r"^interview-stages  \(interview-stages 1\.0\)\n.*\n    hooks  soloflight_stage$"
    assert re.search(entry, listed, re.MULTILINE)


async def test_it_can_be_left_out(
    installed: dict[str, str], start_proxy: StartProxy, upstream: ScriptedUpstream
) -> None:
    upstream.play(JOB)
    disabled = f'{INTERVIEW}\n[plugins]\ndisabled = ["interview-stages"]\n'
    proxy = start_proxy(disabled, upstream=upstream.port, env=installed)
    await ask(proxy.port, chat({**fresh(stream=False), "metadata": {"purpose": "grade"}}))
    await eventually(lambda: chosen(proxy) == {"default": 1})


@pytest.mark.parametrize(
    ("code", "fault"),
    [("return 'nowhere'", "is no stage"), ("raise KeyError('x')", "KeyError")],
    ids=["a name that is none", "a hook that raises"],
)
async def test_what_a_bad_one_does(
    code: str,
    fault: str,
    installed: dict[str, str],
    start_proxy: StartProxy,
    upstream: ScriptedUpstream,
) -> None:
    """The request is answered with a 500 that says nothing of the inside; the log names the fault; the process serves on."""
    upstream.play(JOB)
    module = Path(installed["PYTHONPATH"].partition(os.pathsep)[0]) / "interview_stages.py"
    module.write_text(f"from soloflight import hookimpl\n\n\n@hookimpl\ndef soloflight_stage(request):\n    {code}\n")
    proxy = start_proxy({}, upstream=upstream.port, env=installed, check=False)
    for target in ("/v1/chat/completions", LONE):
        assert refused(await ask(proxy.port, chat(fresh(stream=False), target=target))) == (500, "internal_error")
    await eventually(lambda: fault in proxy.log)
    assert upstream.calls == 0
    assert (await ask(proxy.port, chat(fresh(stream=False), "X-Soloflight-Stage: default"))).status == 200
