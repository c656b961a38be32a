"""The bundled example compiles, is deterministic, and fails clearly."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from memsampd.demo.program import compile_demo, default_folder, find_compiler
from memsampd.errors import CapabilityError

KERNELS = ["triad", "matrix-naive", "matrix-blocked", "chase-16k", "chase-512k", "chase-8m"]
KERNELS += ["hash-build"]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_demo(tmp_path_factory.mktemp("demo"))


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)


def test_every_kernel_runs_in_order_with_the_same_checksums_each_round(kernels: Path) -> None:
    done = run(kernels, "--rounds", "2", "--scale", "0.002")
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [(row[0], row[1]) for row in rows] == [(r, k) for r in "01" for k in KERNELS]
    assert [row[2] for row in rows[:7]] == [row[2] for row in rows[7:]]


def test_both_matrix_products_agree(kernels: Path) -> None:
    done = run(kernels, "--rounds", "1", "--scale", "0.02", "matrix-naive", "matrix-blocked")
    naive, blocked = [line.split()[2] for line in done.stdout.splitlines()]
    assert naive == blocked != "0"


def test_a_chase_of_a_whole_cycle_ends_where_it_began(kernels: Path) -> None:
    # 240000001 passes scaled to 8192 steps: the cycle of 512 KiB has 8192 lines.
    done = run(kernels, "--rounds", "1", "--scale", repr(8192.5 / 240000001), "chase-512k")
    assert done.stdout == "0 chase-512k 0\n"


def test_times_cover_each_kernel_and_do_not_overlap(kernels: Path, tmp_path: Path) -> None:
    run(kernels, "--rounds", "1", "--scale", "0.001", "--times", tmp_path / "times")
    rows = [line.split() for line in (tmp_path / "times").read_text().splitlines()]
    assert [row[1] for row in rows] == KERNELS
    moments = [float(value) for row in rows for value in row[2:]]
    assert moments == sorted(moments)


@pytest.mark.parametrize(
    "arguments",
    [["no-such-kernel"], ["--rounds", "0"], ["--scale"], ["--what", "1"], ["--times", "/no/dir"]],
)
def test_a_wrong_argument_is_refused(kernels: Path, arguments: list[str]) -> None:
    done = run(kernels, *arguments)
    assert done.returncode == 2
    assert "usage:" in done.stderr
    assert done.stdout == ""


def test_the_executable_is_built_once(tmp_path: Path) -> None:
    first = compile_demo(tmp_path)
    before = first.stat().st_ino
    assert compile_demo(tmp_path) == first
    assert first.stat().st_ino == before
    assert [path.name for path in first.parent.iterdir()] == ["kernels"]


def test_without_a_compiler_the_remedy_is_named(tmp_path: Path) -> None:
    with pytest.raises(CapabilityError, match=r"C compiler.*install one"):
        find_compiler({"PATH": str(tmp_path)})


def test_a_failing_compiler_is_reported_with_its_first_line(tmp_path: Path) -> None:
    compiler = tmp_path / "broken-cc"
    compiler.write_text("#!/bin/sh\necho 'stdio.h: No such file' >&2\nexit 1\n")
    compiler.chmod(0o755)
    with pytest.raises(CapabilityError, match=r"stdio\.h: No such file"):
        compile_demo(tmp_path / "out", environment={**os.environ, "CC": str(compiler)})
    assert not list((tmp_path / "out").rglob("kernels"))


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CapabilityError, match="XDG_CACHE_HOME"):
        compile_demo(tmp_path / "file")


def test_the_cache_follows_xdg() -> None:
    assert default_folder({"XDG_CACHE_HOME": "/x"}) == Path("/x/memsampd")
    assert default_folder({"HOME": "/h"}) == Path("/h/.cache/memsampd")


def test_the_environment_names_the_compiler() -> None:
    gcc = shutil.which("gcc")
    assert gcc is not None
    assert find_compiler({"CC": "gcc", "PATH": os.environ["PATH"]}) == gcc
