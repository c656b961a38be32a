"""The catalogue of programs says what is missing, and prepares each thing once."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from programs.catalogue import CATALOGUE, find, lacking_packages, packages
from programs.preparing import PreparationError, compiled, corpus, run
from programs.workload import Launch, Workload


def workload(**changes: object) -> Workload:
    made = Workload("x", "what", "/x", ("some-package",), ("sh",), lambda _: Launch(("sh",)))
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


def test_names_are_unique_and_found() -> None:
    names = [each.name for each in CATALOGUE]
    assert len(set(names)) == len(names) >= 14
    assert [each.name for each in find(["xz", "go"])] == ["xz", "go"]
    assert find([]) == list(CATALOGUE)
    with pytest.raises(KeyError):
        find(["nonesuch"])


def test_what_is_missing_is_named_with_its_remedy() -> None:
    assert workload().lacks() == ""
    missing = workload(programs=("sh", "no-such-program")).lacks()
    assert missing == "not installed: apt-get install some-package (no-such-program)"
    assert workload(modules=("no_such_module",)).lacks() == (
        "not installed: pip install no_such_module"
    )
    assert set(lacking_packages()) <= set(packages())


def test_inputs_are_made_once(tmp_path: Path) -> None:
    first = corpus(tmp_path, 1)
    before = first.stat()
    assert before.st_size == 1 << 20
    assert corpus(tmp_path, 1).stat().st_mtime_ns == before.st_mtime_ns
    assert list(tmp_path.iterdir()) == [first]


def test_a_failed_compilation_says_why(tmp_path: Path) -> None:
    with pytest.raises(PreparationError, match="cannot read"):
        run(["sh", "-c", "echo cannot read >&2; exit 3"])
    with pytest.raises(PreparationError):
        compiled(tmp_path, "strings.c", "strings", ("false",))
    assert list(tmp_path.iterdir()) == []
