"""``soloflight plugins`` and ``soloflight hooks``: what is installed, and what a plugin may answer."""

from __future__ import annotations

import textwrap

import click

from soloflight.cli.refusal import refusing
from soloflight.plugins import HookInfo, PluginInfo, Plugins
from soloflight.plugins import hooks as all_hooks

__all__ = ["hooks", "markdown_section", "plugins"]


@click.command()
def plugins() -> None:
    """List the plugins found, the hooks each implements, and where each came from."""
    with refusing():
        found = Plugins.load().describe()
    click.echo("\n\n".join(_plugin(info) for info in found))


@click.command()
@click.option("--markdown", is_flag=True, help="As docs/plugins.md has them.")
def hooks(markdown: bool) -> None:
    """List every hook with its signature and contract."""
    write = markdown_section if markdown else _hook
    click.echo("\n\n".join(write(hook) for hook in all_hooks()))


def markdown_section(hook: HookInfo) -> str:
    """The section of docs/plugins.md about ``hook``, without a line end."""
    asked = "The first answer that is not None wins." if hook.firstresult else "All plugins are asked."
    signature = f"```python\n{hook.name}{hook.signature}\n```"
    return f"### `{hook.name}`\n\n{signature}\n\n{asked}\n\n{hook.contract}"


def _plugin(info: PluginInfo) -> str:
    lines = [
        f"{info.name}  ({info.distribution} {info.version})",
        f"    from   {info.location}",
        f"    hooks  {', '.join(info.hooks) or 'none'}",
    ]
    return "\n".join(lines)


def _hook(hook: HookInfo) -> str:
    asked = "the first answer wins" if hook.firstresult else "all are asked"
    return f"{hook.name}{hook.signature}\n    [{asked}]\n{textwrap.indent(hook.contract, '    ')}"
