"""The house itself: what setup.cfg promises stands on the disk, and no room breaks the house's rules.

The floors (who may import whom) are import-linter's. Here is what no linter in use can see.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from configparser import ConfigParser
from importlib.metadata import distribution
from pathlib import Path

import pluggy
import pytest

import soloflight

ROOT = Path(__file__).parents[1]
SOURCE_ROOTS = (ROOT / "proxy", ROOT / "plugins")
MODULES = sorted(path for root in SOURCE_ROOTS for path in root.rglob("*.py"))

TASKS_ARE_MADE_IN = ROOT / "proxy/soloflight/flow/tasks.py"
MAKES_A_TASK = {"create_task", "ensure_future", "run_coroutine_threadsafe"}
# brotli and zstandard are pure functions of bytes, like zlib: core/coding.py undoes content codings with them.
CORE_MAY_IMPORT = sys.stdlib_module_names | {"brotli", "msgpack", "orjson", "soloflight", "zstandard"}


@pytest.fixture(scope="module")
def setup_cfg() -> ConfigParser:
    parser = ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def listed(value: str) -> list[str]:
    return [line.strip() for line in value.splitlines() if line.strip()]


def packages_on_disk() -> list[str]:
    return sorted(
        ".".join(init.parent.relative_to(root).parts) for root in SOURCE_ROOTS for init in root.rglob("__init__.py")
    )


def task_makers(source: str) -> Iterator[int]:
    """Yield the line of each expression or import that could make an asyncio task."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(attr=name) | ast.Name(id=name) | ast.alias(name=name) if name in MAKES_A_TASK:
                yield node.lineno


def imported_tops(source: str) -> Iterator[str]:
    """Yield the top-level package of each import."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (alias.name.partition(".")[0] for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module.partition(".")[0]


def test_setup_cfg_lists_the_packages_on_the_disk(setup_cfg: ConfigParser) -> None:
    assert listed(setup_cfg["options"]["packages"]) == packages_on_disk()


def test_setup_cfg_maps_each_top_package_to_its_root(setup_cfg: ConfigParser) -> None:
    mapped = dict(line.split(" = ") for line in listed(setup_cfg["options"]["package_dir"]))
    tops = {package for package in packages_on_disk() if "." not in package}
    assert mapped.keys() == tops
    assert all((ROOT / folder / "__init__.py").is_file() for folder in mapped.values())


def test_import_linter_knows_every_top_package(setup_cfg: ConfigParser) -> None:
    tops = [package for package in packages_on_disk() if "." not in package]
    assert listed(setup_cfg["importlinter"]["root_packages"]) == tops
    in_tree = [top for top in tops if top != "soloflight"]
    assert listed(setup_cfg["importlinter:contract:plugins"]["source_modules"]) == in_tree
    assert listed(setup_cfg["importlinter:contract:strangers"]["modules"]) == in_tree
    assert listed(setup_cfg["importlinter:contract:privilege"]["forbidden_modules"]) == in_tree


def test_every_top_package_is_marked_as_typed() -> None:
    tops = [init.parent for root in SOURCE_ROOTS for init in root.glob("*/__init__.py")]
    assert tops
    assert [top.name for top in tops if not (top / "py.typed").is_file()] == []


def test_every_folder_with_modules_is_a_package() -> None:
    folders = {module.parent for module in MODULES} - set(SOURCE_ROOTS)
    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_module_says_what_lives_in_it(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_flow_tasks_makes_tasks(path: Path) -> None:
    if path != TASKS_ARE_MADE_IN:
        assert list(task_makers(path.read_text())) == []


@pytest.mark.parametrize(
    "source",
    [
        "asyncio.create_task(work())",
        "asyncio.get_running_loop().create_task(work())",
        "self.loop.create_task",
        "from asyncio import ensure_future",
        "from asyncio import create_task as spawn",
        "make = create_task",
    ],
)
def test_the_search_for_task_makers_finds(source: str) -> None:
    assert list(task_makers(source)) == [1]


def test_core_imports_the_standard_library_and_pure_codecs_only() -> None:
    core = [path for path in MODULES if path.is_relative_to(ROOT / "proxy/soloflight/core")]
    assert core
    strangers = {
        (str(path.relative_to(ROOT)), top)
        for path in core
        for top in imported_tops(path.read_text())
        if top not in CORE_MAY_IMPORT
    }
    assert strangers == set()


def test_the_version_is_the_installed_one_and_the_newest_in_the_changelog() -> None:
    assert distribution("soloflight").version == soloflight.__version__
    newest = next(line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ["))
    assert newest.startswith(f"## [{soloflight.__version__}] - ")


def test_the_entry_points_that_setup_cfg_promises_are_installed_and_load(setup_cfg: ConfigParser) -> None:
    promised = {
        line.split(" = ")[0]: line.split(" = ")[1] for line in listed(setup_cfg["options.entry_points"]["soloflight"])
    }
    installed = distribution("soloflight").entry_points.select(group="soloflight")
    assert {point.name: point.value for point in installed} == promised
    assert {point.load().__name__ for point in installed} == set(promised.values())


def test_hookimpl_marks_for_this_project() -> None:
    @soloflight.hookimpl
    def soloflight_nothing() -> None:
        """Only its mark counts."""

    assert isinstance(soloflight.hookimpl, pluggy.HookimplMarker)
    assert hasattr(soloflight_nothing, "soloflight_impl")


@pytest.mark.system
def test_every_package_is_importable_far_from_the_tree(tmp_path: Path) -> None:
    statement = f"import {', '.join(packages_on_disk())}"
    subprocess.run([sys.executable, "-I", "-W", "error", "-c", statement], cwd=tmp_path, check=True, timeout=30)
