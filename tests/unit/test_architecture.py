"""Imports go one way: sampler, phases, models, estimate, exporters, web, daemon, cli."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
PACKAGE = SOURCE / "memsampd"

# A module may import what stands on its own line or above it. The longest prefix counts.
LAYERS = (
    ("memsampd.cost",),
    ("memsampd.errors", "memsampd.names", "memsampd.closing", "memsampd._core"),
    ("memsampd.machines",),
    ("memsampd.sampler",),
    ("memsampd.phases",),
    ("memsampd.models",),
    ("memsampd.estimate",),
    ("memsampd.exporters",),
    ("memsampd.web",),
    ("memsampd.machines.findings",),
    ("memsampd.machines.checks",),
    ("memsampd.machines.diagnosis", "memsampd.demo"),
    ("memsampd.machines.target_diagnosis",),
    ("memsampd.daemon",),
    ("memsampd.cli",),
)
RANKS = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}


def layer_of(module: str) -> str | None:
    """Return the entry of LAYERS that a module belongs to; None for strangers and the root."""
    found = [name for name in RANKS if module == name or module.startswith(f"{name}.")]
    return max(found, key=len, default=None)


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def is_module(name: str) -> bool:
    path = SOURCE.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").exists() or path.with_suffix(".pyi").exists()


def imported_modules(source: str) -> Iterator[str]:
    """Yield what is imported anywhere in a source, names of modules made absolute."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide their direction"
            assert node.module is not None
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                yield submodule if is_module(submodule) else node.module


def wrong_imports(module: str, source: str) -> list[str]:
    """Return the imports of a module that go against the direction."""
    own = layer_of(module)
    assert own is not None
    return [
        f"{module} imports {name}"
        for name in imported_modules(source)
        if (layer := layer_of(name)) is not None
        and (RANKS[layer] > RANKS[own] or (RANKS[layer] == RANKS[own] and layer != own))
    ]


@pytest.mark.parametrize(
    "path",
    [path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "__init__.py"],
    ids=module_name,
)
def test_imports_go_one_way(path: Path) -> None:
    assert wrong_imports(module_name(path), path.read_text(encoding="utf-8")) == []


def test_commands_load_nothing_at_import() -> None:
    """The list of commands names modules as text: `memsampd --version` must not import numpy."""
    assert not [
        name
        for file in ("main.py", "command.py")
        for name in imported_modules((PACKAGE / "cli" / file).read_text(encoding="utf-8"))
        if layer_of(name) not in (None, "memsampd.cli", "memsampd.errors", "memsampd.names")
    ]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("memsampd.sampler.records", "from memsampd.phases.records import Window"),
        ("memsampd.models.lines", "def f():\n    import memsampd.exporters.snapshot"),
        ("memsampd.exporters.http", "from memsampd import daemon"),
        ("memsampd.exporters.http", "from memsampd.daemon.session import Session"),
        ("memsampd.daemon.session", "from memsampd.cli import main"),
        ("memsampd.web.process", "from memsampd.daemon.session import Session"),
        ("memsampd.exporters.http", "from memsampd.web.process import WebProcess"),
        ("memsampd.machines.pmu", "from memsampd.sampler.perf.source import TaskClockSource"),
        ("memsampd.machines.pmu", "from memsampd.machines import diagnosis"),
    ],
)
def test_a_wrong_import_is_found(module: str, source: str) -> None:
    assert len(wrong_imports(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("memsampd.exporters.snapshot", "from memsampd.sampler.records import AccessRate"),
        ("memsampd.sampler.perf.source", "from memsampd import _core, errors"),
        ("memsampd.cli.doctor", "from memsampd.machines.diagnosis import diagnose"),
        ("memsampd.daemon.outputs", "from memsampd.web.process import WebProcess"),
        ("memsampd.phases.leader", "import numpy\nfrom memsampd.phases.noise import mean"),
    ],
)
def test_a_right_import_is_not(module: str, source: str) -> None:
    assert wrong_imports(module, source) == []


def requirement_names(requirements: list[str]) -> set[str]:
    """Names of requirements as modules are named: all that we use are named alike."""
    names = (re.match(r"[\w.-]+", requirement) for requirement in requirements)
    return {name[0].replace("-", "_") for name in names if name is not None}


def test_every_dependency_is_declared_and_imported_and_explained() -> None:
    with (SOURCE.parent / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    extras = project["optional-dependencies"].values()
    declared = requirement_names([*project["dependencies"], *chain.from_iterable(extras)])
    imported = (
        {
            name.partition(".")[0]
            for path in PACKAGE.rglob("*.py")
            for name in imported_modules(path.read_text(encoding="utf-8"))
        }
        - set(sys.stdlib_module_names)
        - {"memsampd"}
    )
    explained = (SOURCE.parent / "docs" / "dependencies.md").read_text(encoding="utf-8")
    assert imported == declared
    assert [name for name in declared if f"| {name.replace('_', '-')} |" not in explained] == []
