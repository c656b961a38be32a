"""What all benchmarks end with."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from verdict import add_options, finish


@dataclass
class Row:
    """A dataclass, as benchmarks have them."""

    error: float


@pytest.mark.parametrize(
    ("missed", "status", "told"),
    [([], 0, "goals met\n"), (["x", "y"], 1, "goal missed: x\ngoal missed: y\n")],
)
def test_figures_are_kept_and_missed_goals_are_told(
    missed: list[str], status: int, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    add_options(parser, "less")
    path = parser.parse_args(["--quick", "--json", str(tmp_path / "x")]).json
    assert finish(path, {"rows": [Row(0.5)]}, missed) == status
    assert json.loads(path.read_text()) == {"rows": [{"error": 0.5}]}
    assert finish(None, None, missed) == status
    assert capsys.readouterr().out == 2 * told
