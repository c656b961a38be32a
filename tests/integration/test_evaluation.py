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
LIVE = ("accuracy", "burst_scatter", "distribution", "heat_maps", "access_rate", "time_to_answer")
OFFLINE = ("average_curve", "profiled_windows", "phase_quality", "phase_sensitivity", "ablation")

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
    verdict = done.stdout.splitlines()[-1]
    assert (verdict, done.returncode) in [("all goals met", 0), ("goals missed", 1)]


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.skipif(shutil.which("cc") is None, reason="programs have to be compiled")
def test_the_smallest_evaluation_fills_tables_and_figures(tmp_path: Path) -> None:
    evaluate(tmp_path)
    for name in (*LIVE, *OFFLINE):
        assert {row["program"] for row in rows_of(tmp_path / f"{name}.csv")} == {"graph"}, name
    runs = rows_of(tmp_path / "runs.csv")
    settings = sorted(row["setting"] for row in runs)
    assert settings == ["alone", "default", "detection", "periodic", "scraped"]
    assert all((tmp_path / row["recording"]).exists() for row in runs)
    document = (tmp_path / "evaluation.md").read_text()
    assert "| mean CDF error, % |" in document
    assert "| graph |" in document
    drawn = {path.name for path in (tmp_path / "images" / "evaluation").iterdir()}
    assert {"heat_maps-maps.svg", "distribution-64K.svg", "accuracy-schedules.svg"} <= drawn
    assert (tmp_path / "figures" / "heat_maps-maps.png").exists()
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.csv")}
    evaluate(tmp_path, "--only", "accuracy", "phase_quality")
    assert kept == {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.csv")}
