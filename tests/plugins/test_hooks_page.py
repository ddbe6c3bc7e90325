"""docs/plugins.md has every hook with its exact signature and contract, and no hook that there is not."""

import re
from pathlib import Path

import pytest

from soloflight.cli.show import markdown_section
from soloflight.plugins import HookInfo, hooks

PAGE = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text()


@pytest.mark.parametrize("hook", hooks(), ids=lambda hook: hook.name)
def test_the_page_has_the_hook_as_it_is(hook: HookInfo) -> None:
    """``soloflight hooks --markdown`` writes what belongs here."""
    assert f"\n{markdown_section(hook)}\n" in PAGE
    assert f"\n{hook.name}{hook.signature}\n" in PAGE


def test_the_page_has_the_hooks_in_their_order_and_no_other() -> None:
    assert re.findall(r"^### `(\w+)`$", PAGE, re.MULTILINE) == [hook.name for hook in hooks()]


def test_every_hook_has_a_contract_that_says_what_none_means() -> None:
    for hook in hooks():
        assert "None" in hook.contract or "returns nothing" in hook.contract
