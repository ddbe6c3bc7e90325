"""docs/configuration.md has every key with its real default, and every flag and variable."""

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from soloflight.config import Settings, stages
from soloflight.config.faults import SHAPES
from soloflight.config.models import Prices
from soloflight.config.sources import OVERRIDES

PAGE = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
ROW = re.compile(r"^\| `(\w+)` \| `(.*?)` \| (.+) \|$", re.MULTILINE)
SECTIONS = {str(loc[0]): shape for loc, shape in SHAPES.items() if len(loc) == 1}


def rows(section: str) -> dict[str, str]:
    """Key and default of each row under the heading that begins with ``section``."""
    (part,) = re.findall(rf"^## [^\n]*`\[{section}[\].].*?(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return {key: default for key, default, _ in ROW.findall(part)}


@pytest.mark.parametrize(("section", "shape"), SECTIONS.items())
def test_a_section_has_its_keys_in_their_order(section: str, shape: type[BaseModel]) -> None:
    assert list(rows(section)) == [key for key in shape.model_fields if key != "selectable"]


def test_prices_have_their_keys() -> None:
    assert list(rows("prices")) == list(Prices.model_fields)


def test_the_defaults_are_the_real_ones(read: Any) -> None:
    tables = {section: rows(section) for section in SECTIONS}
    text = "\n".join(
        f"[{section}]\n" + "\n".join(f"{key} = {default}" for key, default in table.items())
        for section, table in tables.items()
    )
    settings = read(text)
    assert settings == Settings()
    assert list(stages(settings)) == list(stages(Settings()))
    assert settings.server.model_fields_set == set(type(settings.server).model_fields)


def test_every_flag_and_variable_is_there() -> None:
    for override in OVERRIDES:
        flag = f"`--{override.flag.replace('_', '-')}`" if override.flag else ""
        variables = ", ".join(f"`{name}`" for name in override.variables)
        assert f"| `{'.'.join(override.loc)}` | {flag} | {variables} |" in PAGE
