"""The references that are kept are of what the programs run today."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from reference import programs, store
from reference.programs import PROGRAMS, Program, copies_alike


def without_folders(command: Sequence[str]) -> list[str]:
    """The words of a command but the first, which may depend on versions."""
    return [" ".join(Path(part).name for part in word.split()) for word in command[1:]]


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc says where cc1 is")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_reference_is_of_the_present_command(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "_input", lambda path, write: path)  # a big file
    monkeypatch.setattr(programs, "_compiled", lambda folder, name: folder / name)
    monkeypatch.setattr(programs, "compile_demo", lambda folder: folder / "kernels")
    kept = store.load(store.path_of(program.name))
    assert kept.name == program.name
    made_by = without_folders(shlex.split(kept.made["command"]))
    assert made_by == without_folders(program.command(tmp_path))


@pytest.mark.parametrize(
    ("flags", "alike"), [("fpu rep_good erms fsrm", True), ("fpu rep_good", False)]
)
def test_a_cpu_without_fast_repeated_moves_is_told(flags: str, alike: bool, tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"model name\t: erms\nflags\t\t: {flags}\n", "utf-8")
    assert copies_alike(cpuinfo) == alike
