"""A stranger's plugin: a real distribution in a folder on ``sys.path``, found as any installed one is."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """``install("acme", source)``: a distribution ``acme-plugin`` 1.2.3 whose module has that source."""
    site = tmp_path / "site-packages"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    modules: list[str] = []

    def install(name: str, source: str, *, distribution: str = "", value: str = "") -> None:
        module = f"{(distribution or name).replace('-', '_')}_module"
        modules.append(module)
        (site / f"{module}.py").write_text(f"from soloflight import hookimpl\n{dedent(source)}")
        info = site / f"{(distribution or name).replace('-', '_')}_plugin-1.2.3.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution or name}-plugin\nVersion: 1.2.3\n")
        (info / "entry_points.txt").write_text(f"[soloflight]\n{name} = {value or module}\n")

    yield install
    for module in modules:
        sys.modules.pop(module, None)
