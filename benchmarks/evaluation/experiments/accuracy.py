"""The main table: errors and overhead on live programs, periodic against phase-guided, goals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from evaluation.bench import Bench
from evaluation.estimating import estimate_of
from evaluation.experiment import Goal
from evaluation.live import DEFAULT, DETECTION, MAIN, PERIODIC, LiveRun, slowdowns
from evaluation.page import Page
from evaluation.results import Case, Row, cell, distinct, numbers
from evaluation.statistics import Interval, bootstrap, mean_of_medians
from reference.judging import judge
from reference.store import Reference

WHOLE_RUN_GOAL = 0.5
CDF_GOAL = 0.5
SLOWDOWN_GOAL = 2.0
DETECTION_GOAL = 1.0
PAPER = (
    ("Sembrant et al., CGO 2012, phase-guided", "1.08", "21"),
    ("Sembrant et al., CGO 2012, periodic", "1.76", "133"),
)


class Accuracy:
    """Rounds of runs alone, as installed, with the periodic schedule and without bursts."""

    name = "accuracy"
    key = ("program", "repeat")
    columns = (
        *("setting", "whole_run_error", "cdf_error", "fine_cdf_error", "band", "slowdown"),
        *(
            "extra_cpu",
            "spent",
            "phases",
            "bursts",
            "sampled_accesses",
            "windows",
            "unknown_windows",
        ),
        "prediction_accuracy",
    )

    def cases(self, bench: Bench) -> Iterable[Case]:
        """Round by round, so that an evaluation that was cut short has a few of each program."""
        return bench.rounds(bench.scale.repeats)

    def measure(self, case: Case, bench: Bench) -> list[Row]:
        """Run one round and judge it."""
        runs = bench.runs.round("main", case[0], int(case[1]))
        reference = bench.reference(case[0])
        return [figures(runs, setting.name, reference) for setting in MAIN]

    def report(self, rows: Sequence[Mapping[str, str]], page: Page) -> Sequence[Goal]:
        """The main table, the comparison, the two schedules."""
        if not rows:
            return ()
        _main_table(rows, page)
        _comparison(rows, page)
        _schedules(rows, page)
        return goals(rows)


def figures(runs: Sequence[LiveRun], setting: str, reference: Reference) -> Row:
    """Judge the run of one setting in a round."""
    (run,) = (run for run in runs if run.setting == setting)
    (alone,) = (run for run in runs if run.recording is None)
    estimate = estimate_of(run)
    errors = judge(estimate, reference)
    summary = run.read().summary
    blind = not estimate.sampled_accesses  # there is nothing to judge
    return {
        "setting": setting,
        "whole_run_error": None if blind else errors.whole_run,
        "cdf_error": None if blind else errors.cdf,
        "fine_cdf_error": None if blind else errors.fine_cdf,
        "band": None if blind else 100 * estimate.band,
        "slowdown": slowdowns(runs, setting)[0],
        "extra_cpu": 100 * (run.timing.total_cpu_seconds / alone.timing.total_cpu_seconds - 1),
        "spent": None if summary is None else 100 * summary.overhead.spent_share,
        "phases": estimate.phases,
        "bursts": estimate.bursts,
        "sampled_accesses": estimate.sampled_accesses,
        "windows": len(estimate.windows),
        "unknown_windows": estimate.unknown_windows,
        "prediction_accuracy": None if summary is None else summary.prediction_accuracy,
    }


def over_programs(rows: Sequence[Mapping[str, str]], column: str, setting: str) -> Interval:
    """Return the mean over programs of the medians over rounds."""
    groups = [
        numbers(rows, column, setting=setting, program=program)
        for program in distinct(rows, "program")
    ]
    return mean_of_medians([group for group in groups if group])


def goals(rows: Sequence[Mapping[str, str]]) -> list[Goal]:
    """Judge the means over programs."""
    judged = (
        ("whole-run error, %", "whole_run_error", DEFAULT, WHOLE_RUN_GOAL),
        ("CDF error, %", "cdf_error", DEFAULT, CDF_GOAL),
        ("slowdown, %", "slowdown", DEFAULT, SLOWDOWN_GOAL),
        ("slowdown by phase detection alone, %", "slowdown", DETECTION, DETECTION_GOAL),
    )
    return [
        Goal(f"mean {what}", over_programs(rows, column, setting.name).value, limit)
        for what, column, setting, limit in judged
    ]


def _main_table(rows: Sequence[Mapping[str, str]], page: Page) -> None:
    default = [row for row in rows if row["setting"] == DEFAULT.name]

    def line(program: str) -> list[str]:
        def interval(column: str, setting: str = DEFAULT.name, digits: int = 2) -> str:
            found = numbers(rows, column, program=program, setting=setting)
            return bootstrap(found).text(digits) if found else "-"

        return [
            program,
            interval("whole_run_error"),
            interval("cdf_error"),
            cell(default, "fine_cdf_error", program=program),
            interval("slowdown", digits=1),
            cell(default, "spent", 1, program=program),
            interval("slowdown", DETECTION.name, 1),
            *(
                cell(default, column, 0, program=program)
                for column in ("extra_cpu", "bursts", "phases", "windows", "unknown_windows")
            ),
        ]

    mean = [
        "**mean**",
        over_programs(rows, "whole_run_error", DEFAULT.name).text(),
        over_programs(rows, "cdf_error", DEFAULT.name).text(),
        f"{over_programs(rows, 'fine_cdf_error', DEFAULT.name).value:.2f}",
        over_programs(rows, "slowdown", DEFAULT.name).text(1),
        f"{over_programs(rows, 'spent', DEFAULT.name).value:.1f}",
        over_programs(rows, "slowdown", DETECTION.name).text(1),
        *("",) * 5,
    ]
    page.table(
        [
            *("program", "whole run %", "CDF %", "fine CDF %", "slowdown %", "charged %"),
            *("detection alone %", "extra CPU %", "bursts", "phases", "windows", "unknown"),
        ],
        [*(line(program) for program in distinct(rows, "program")), mean],
    )
    rounds = len(distinct(rows, "repeat"))
    page.text(
        f"Medians of {rounds} rounds, with 95 % bootstrap intervals. The goals: mean whole-run "
        f"error at most {WHOLE_RUN_GOAL} %, CDF error at most {CDF_GOAL} %, slowdown at most "
        f"{SLOWDOWN_GOAL:g} %, by phase detection alone at most {DETECTION_GOAL:g} %."
    )


def _comparison(rows: Sequence[Mapping[str, str]], page: Page) -> None:
    ours = [
        (
            f"memsampd, {setting.what}",
            over_programs(rows, "cdf_error", setting.name).text(),
            over_programs(rows, "slowdown", setting.name).text(1),
        )
        for setting in (DEFAULT, PERIODIC)
    ]
    page.table(["", "mean CDF error %", "mean overhead %"], [*PAPER, *ours])


def _schedules(rows: Sequence[Mapping[str, str]], page: Page) -> None:
    programs = distinct(rows, "program")
    places = np.arange(len(programs) + 1)
    with page.figure(
        "schedules", "CDF error and overhead by program", 2, 1, figsize=(9, 5)
    ) as axes:
        for at, column, label in (
            (axes[0, 0], "cdf_error", "CDF error, %"),
            (axes[1, 0], "slowdown", "overhead, %"),
        ):
            for offset, setting in ((-0.2, DEFAULT), (0.2, PERIODIC)):
                medians = [
                    bootstrap(
                        numbers(rows, column, program=program, setting=setting.name) or [np.nan]
                    )
                    for program in programs
                ]
                medians.append(over_programs(rows, column, setting.name))
                values = np.array([each.value for each in medians])
                ends = [
                    values - [each.low for each in medians],
                    [each.high for each in medians] - values,
                ]
                at.bar(
                    places + offset, values, 0.38, label=setting.what,
                    yerr=np.maximum(ends, 0), capsize=2, error_kw={"lw": 0.8},
                )  # fmt: skip
            at.set_ylabel(label)
            at.axhline(0, color="k", lw=0.6)
            at.set_xticks(places, [*programs, "mean"], rotation=30, ha="right", fontsize=8)
        axes[0, 0].legend(fontsize=8)
