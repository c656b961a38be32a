"""The smallest case of the evaluation, from programs to document."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXPERIMENTS = (
    "average_curve",
    "profiled_windows",
    "phase_quality",
    "phase_sensitivity",
    "live",
    "sources",
)

# The evaluation of one program, which does a fifth of what its reference did: its figures mean
# nothing, but there are some.
SMALL = """
import sys
from dataclasses import replace
from reference import programs
(graph,) = programs.find(["graph"])
small = replace(graph, prepare=lambda folder: (graph.prepare(folder)[0], "16", "150", "400"))
programs.PROGRAMS = (small,)
from evaluation.__main__ import main
sys.exit(main())
"""


def evaluate(folder: Path, *options: str) -> None:
    """Run it to its end, which may be that goals are missed."""
    command = [sys.executable, "-c", SMALL, "--smoke", "--folder", str(folder), *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "benchmarks")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    said = done.stdout.splitlines()[-1].partition(":")[0]
    assert (said, done.returncode) in [("goals met", 0), ("goal missed", 1)]


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def changed(folder: Path) -> dict[Path, int]:
    """When each table and recording was last written."""
    kept = (path for path in folder.rglob("*") if path.suffix in (".csv", ".mem"))
    return {path: path.stat().st_mtime_ns for path in kept}


@pytest.mark.skipif(shutil.which("cc") is None, reason="programs have to be compiled")
def test_the_smallest_evaluation_fills_tables(tmp_path: Path) -> None:
    evaluate(tmp_path)
    for name in EXPERIMENTS:
        assert {row["program"] for row in rows_of(tmp_path / f"{name}.csv")} == {"graph"}, name
    (scrapes,) = (tmp_path / "recordings").glob("*.scrapes.json")
    assert scrapes.with_name("graph-scraped-live-0.mem").exists()
    document = (tmp_path / "evaluation.md").read_text()
    assert "| recorded: CDF error, % |" in document
    assert "| graph |" in document
    kept = changed(tmp_path)
    evaluate(tmp_path, "--only", "live", "phase_quality")
    assert changed(tmp_path) == kept
