"""The files that are shipped in conf/: complete, loadable, and as the contract describes them."""

import re
import tomllib
from pathlib import Path

import pytest
from pydantic import BaseModel

from soloflight.config import Settings, load, stages
from soloflight.config.faults import SHAPES

CONF = Path(__file__).parents[2] / "conf"
SHIPPED = CONF / "soloflight.toml"


def test_the_shipped_file_is_the_defaults() -> None:
    settings = load(SHIPPED, {}, {})
    assert settings == Settings()
    assert list(stages(settings)) == list(stages(Settings()))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=lambda shape: shape.__name__)
def test_the_shipped_file_names_every_key(shape: type[BaseModel]) -> None:
    text = SHIPPED.read_text()
    missing = [
        key
        for key in shape.model_fields
        if not re.search(rf"^(?:# )?(?:{key} = |\[+{key}[].])|{{.*\b{key} = ", text, re.MULTILINE)
    ]
    assert missing == []


def test_every_key_that_has_a_default_is_written_out_and_explained() -> None:
    document = tomllib.loads(SHIPPED.read_text())
    for loc, shape in SHAPES.items():
        if loc and "*" not in loc:
            assert document[str(loc[0])].keys() == set(shape.model_fields) - {"selectable"}
    lines = [line for line in SHIPPED.read_text().splitlines() if re.match(r"[a-z_]+ = ", line)]
    assert [line for line in lines if " # " not in line] == []


def test_the_examples_in_the_shipped_file_load(tmp_path: Path) -> None:
    lines = SHIPPED.read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("# [upstreams.azure]"))
    wanted = re.compile(r"# (\[|[a-z_]+ = )")
    examples = [line.removeprefix("# ") for line in lines[start:] if wanted.match(line)]
    examples = [line for line in examples if not line.startswith("selectable")]
    file = tmp_path / "examples.toml"
    file.write_text("\n".join(examples))
    settings = load(file, {"AZURE_OPENAI_KEY": "k"}, {})
    assert list(settings.upstreams) == ["azure"]
    assert list(settings.prices) == ["gpt-4o*"]
    assert [stage.name for stage in settings.stage] == ["evaluation"]


def test_the_interview_file_has_its_four_stages_as_the_contract_says() -> None:
    settings = load(CONF / "interview.toml", {}, {})
    resolved = stages(settings)
    default = stages(Settings()).default
    assert [stage.name for stage in settings.stage] == ["evaluation", "followup", "extraction", "demeanor"]
    evaluation, extraction, demeanor = (resolved.chosen(name) for name in ("evaluation", "extraction", "demeanor"))
    assert evaluation.heartbeat < default.heartbeat
    assert evaluation.local_retention > default.local_retention
    assert evaluation.sampled_retention > default.sampled_retention
    assert min(extraction.pending_lease, extraction.running_lease) > default.running_lease
    assert extraction.retention > default.retention
    assert extraction.session != "off"
    assert demeanor.local_retention == 0


def test_every_line_of_the_interview_file_is_explained() -> None:
    settings = [line for line in (CONF / "interview.toml").read_text().splitlines() if re.match(r"[a-z_]+ = ", line)]
    assert len(settings) > 30
    assert [line for line in settings if " # " not in line] == []
