"""Measures what is missing, then writes the report.

usage: python -m evaluation [--quick | --smoke] [--only NAME...] [--programs NAME...]
                            [--held-out] [--rounds N] [--folder FOLDER] [--markdown FILE]
                            [--report] [-- OPTION...]

Run it in ``benchmarks/``, or with that in PYTHONPATH. Whatever is measured is kept in the folder at
once; a second start goes on where the first one stopped. What follows -- goes to ``memsampd run``
in all live runs, which another folder is for. Exit status 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from evaluation.bench import SCALES, Bench
from evaluation.experiment import Experiment, Goal
from evaluation.experiments import EXPERIMENTS
from evaluation.live import LiveRuns
from evaluation.page import Page
from evaluation.results import Results
from reference.documents import replace_section
from reference.programs import BUILD, copies_alike, judged
from verdict import finish

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "evaluation.md"


def measure(experiment: Experiment, bench: Bench, folder: Path) -> None:
    """Measure the cases of an experiment that are not kept yet."""
    results = open_results(experiment, folder)
    missing = [case for case in experiment.cases(bench) if not results.has(case)]
    start = time.monotonic()
    for case in missing:
        results.add(case, experiment.measure(case, bench))
        spent = time.monotonic() - start
        print(f"{experiment.name}: {' '.join(case)}  ({spent:.0f} s)", flush=True)


def open_results(experiment: Experiment, folder: Path) -> Results:
    """Return what is kept of an experiment."""
    return Results(folder / f"{experiment.name}.csv", experiment.key, experiment.columns)


def report(
    experiments: Sequence[Experiment], folder: Path, markdown: Path, scale: str
) -> list[Goal]:
    """Write the sections of all that is kept, goals in one of their own; returns the goals."""
    goals: list[Goal] = []
    for experiment in experiments:
        results = open_results(experiment, folder)
        page = Page()
        page.text(measured(results) or "Not measured at this scale.")
        judged_by_it = experiment.report(results.rows, page)
        replace_section(markdown, experiment.name, page.markdown())
        if judged_by_it:
            text = goals_page(judged_by_it, f"{measured(results)} Scale: {scale}.").markdown()
            replace_section(markdown, f"{experiment.name} goals", text)
        goals += judged_by_it
    return goals


def measured(results: Results) -> str:
    """Say when, where and by which version; empty if nothing was measured."""
    return f"Measured {'; '.join(results.made)}." if results.made else ""


def goals_page(goals: Sequence[Goal], heading: str) -> Page:
    """Write which goals are met."""
    page = Page()
    page.text(heading)
    page.table(
        ("goal", "measured", "at most", ""),
        [
            (
                goal.what,
                f"{goal.value:.2f}",
                f"{goal.limit:g}",
                "met" if goal.is_met else "**missed**",
            )
            for goal in goals
        ],
    )
    return page


def main() -> int:
    parser = argparse.ArgumentParser(prog="evaluation", description=__doc__.partition("\n")[0])
    scales = parser.add_mutually_exclusive_group()
    scales.add_argument("--quick", action="store_true", help="seven minutes: fewer programs")
    scales.add_argument("--smoke", action="store_true", help="the smallest case of everything")
    names = [experiment.name for experiment in EXPERIMENTS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="EXPERIMENT")
    parser.add_argument("--programs", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--held-out", action="store_true", help="programs held out as well")
    parser.add_argument("--rounds", type=int, metavar="N", help="live rounds of each program")
    parser.add_argument("--folder", type=Path, help="where results are kept")
    parser.add_argument("--markdown", type=Path, help="document whose sections are replaced")
    parser.add_argument("--report", action="store_true", help="measure nothing more")
    parser.add_argument("options", nargs="*", metavar="OPTION", help="of memsampd run, after --")
    args = parser.parse_args()
    try:
        judged(args.programs, args.held_out)
    except (KeyError, ValueError) as error:
        parser.error(f"--programs: {error}")
    scale = SCALES["quick" if args.quick else "smoke" if args.smoke else "whole"]
    if args.rounds is not None:
        scale = replace(scale, repeats=args.rounds)
    folder = (args.folder or ROOT / "build" / "evaluation" / scale.name).resolve()
    markdown = args.markdown or folder / "evaluation.md"
    folder.mkdir(parents=True, exist_ok=True)
    if not markdown.exists():
        markdown.write_text(DOCUMENT.read_text(encoding="utf-8"), encoding="utf-8")
    BUILD.mkdir(parents=True, exist_ok=True)
    runs = LiveRuns(folder, BUILD, args.options)
    bench = Bench(scale, BUILD, runs, tuple(args.programs), args.held_out)
    chosen = [experiment for experiment in EXPERIMENTS if experiment.name in args.only]
    if not args.report:
        for experiment in chosen:
            measure(experiment, bench, folder)
    goals = report(chosen, folder, markdown, scale.name)
    missed = [goal for goal in goals if not goal.is_met]
    print(markdown)
    if not copies_alike():
        print("note: this CPU has no ERMS, copies make more accesses than in the references")
    told = [f"{goal.what}: {goal.value:.2f}, goal {goal.limit:g}" for goal in missed]
    return finish(None, None, told)


if __name__ == "__main__":
    sys.exit(main())
