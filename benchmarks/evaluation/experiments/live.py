"""Estimates as a Prometheus stores them while a program runs, beside those of the recording."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from evaluation.bench import Bench
from evaluation.counters import apart, judge_counters, miss_errors, replayed
from evaluation.experiment import Goal
from evaluation.page import Page
from evaluation.replay import exported, judge_document
from evaluation.results import Case, Row, distinct, numbers, text_of, unknown_rows
from evaluation.scraping import Scrape
from memsampd.estimate.events import BurstRecord
from memsampd.estimate.records import Totals
from reference.store import Reference

WHOLE_RUN_GOAL = 0.5
CDF_GOAL = 0.7
FLAT_CDF_JUDGED = 0.5
FLAT_BETTER_GOAL = 20.0
UNKNOWN_CPU_GOAL = 5.0
BOUNDS_BROKEN_GOAL = 5.0
MISS_ERROR_GOAL = 10.0
FIRST_CURVE_GOAL = 1.0
APART_GOAL = 0.01

_ERRORS = ("whole_run", "cdf", "flat_cdf")


class Live:
    """One run a program and round, scraped once a second and recorded."""

    name = "live"
    key = ("program", "repeat")
    columns = (
        *(f"{way}_{name}" for way in ("live", "recorded") for name in (*_ERRORS, "unknown_cpu")),
        *("first_curve_seconds", "bounds_broken", "miss_error", "worst_miss_error"),
        *("apart", "accesses_counted"),
    )

    def cases(self, bench: Bench) -> Iterable[Case]:
        """Every program and round."""
        return bench.rounds()

    def measure(self, case: Case, bench: Bench) -> list[Row]:
        """Run a program and judge both."""
        recording, scrapes = bench.runs.run(case[0], int(case[1])).read()
        document, states = exported(recording), replayed(recording)
        return [figures(scrapes, document, states, recording.bursts, bench.reference(case[0]))]

    def report(self, rows: Sequence[Mapping[str, str]], page: Page) -> Sequence[Goal]:
        """A table."""
        if not rows:
            return ()
        columns = (
            *("live_whole_run", "recorded_whole_run", "live_cdf", "recorded_cdf"),
            *("live_flat_cdf", "recorded_flat_cdf", "recorded_unknown_cpu", "bounds_broken"),
            *("miss_error", "worst_miss_error", "first_curve_seconds", "apart"),
        )
        lines = [
            [program, *(text_of(_median(rows, column, program)) for column in columns)]
            for program in distinct(rows, "program")
        ]
        page.table(
            [
                *("program", "whole run %", "recorded", "CDF %", "recorded", "flat CDF %"),
                *("recorded", "unknown CPU %", "bounds broken %", "misses off by %", "at most"),
                *("first curve, s", "live from replayed, %"),
            ],
            [*lines, ["**mean**", *(text_of(_mean(rows, column)) for column in columns)]],
        )
        return goals(rows)


def figures(
    scrapes: Sequence[Scrape],
    document: Mapping[str, Any],
    states: Sequence[Totals],
    bursts: Sequence[BurstRecord],
    reference: Reference,
) -> Row:
    """Judge one run by what was scraped and by what its recording says.

    Args:
        scrapes: of its counters.
        document: what is exported of its recording.
        states: the counters as this is replayed.
        bursts: the recording's.
        reference: the reference.

    Returns:
        The columns of :class:`Live`. What is live is None if nothing was counted.
    """
    recorded = judge_document(document, reference)
    row: dict[str, str | float | None] = dict.fromkeys(Live.columns)
    row |= {f"recorded_{name}": getattr(recorded, name) for name in _ERRORS}
    row["recorded_unknown_cpu"] = recorded.unknown_cpu
    row["bounds_broken"] = 100 - recorded.bounds_hold
    row["first_curve_seconds"] = first_curve_seconds(bursts)
    if not scrapes or not scrapes[-1].has_curve:
        return row
    last, live = scrapes[-1], judge_counters(scrapes, reference)
    errors = miss_errors(last.misses, reference)
    row |= {f"live_{name}": getattr(live, name) for name in _ERRORS}
    return row | {
        "live_unknown_cpu": 100 * last.unknown_cpu_share,
        "miss_error": float(np.mean(errors)),
        "worst_miss_error": float(np.max(errors)),
        "apart": apart(scrapes, states),
        "accesses_counted": last.accesses / reference.total_accesses,
    }


def first_curve_seconds(bursts: Sequence[BurstRecord]) -> float:
    """Return when the first burst counted, since the attach; infinity if none did."""
    counted = (burst.analysed_seconds for burst in bursts if burst.accesses)
    return min((moment for moment in counted if moment is not None), default=math.inf)


def goals(rows: Sequence[Mapping[str, str]]) -> list[Goal]:
    """Judge both ways of reading; a round of which nothing was counted has no figure but that."""
    found = []
    for way in ("live", "recorded"):
        found += [
            Goal(
                f"{way}: rounds of which nothing was counted",
                unknown_rows(rows, f"{way}_whole_run"),
                0,
            ),
            Goal(f"{way}: whole-run error, %", _mean(rows, f"{way}_whole_run"), WHOLE_RUN_GOAL),
            Goal(f"{way}: CDF error, %", _mean(rows, f"{way}_cdf"), CDF_GOAL),
            Goal(
                f"{way}: programs with phases of which a flat line is better, %",
                flat_is_better(rows, way),
                FLAT_BETTER_GOAL,
            ),
            Goal(
                f"{way}: CPU time without a curve, %",
                _mean(rows, f"{way}_unknown_cpu"),
                UNKNOWN_CPU_GOAL,
            ),
        ]
    worst = max(numbers(rows, "worst_miss_error"), default=float("nan"))
    return [
        *found,
        Goal("bounds that do not hold, %", _mean(rows, "bounds_broken"), BOUNDS_BROKEN_GOAL),
        Goal("relative error of a miss count, the largest, %", worst, MISS_ERROR_GOAL),
        Goal(
            "seconds to the first curve, the most",
            max(numbers(rows, "first_curve_seconds"), default=float("nan")),
            FIRST_CURVE_GOAL,
        ),
        Goal(
            "live counters from replayed ones, the most, %",
            max(numbers(rows, "apart"), default=float("nan")),
            APART_GOAL,
        ),
    ]


def flat_is_better(rows: Sequence[Mapping[str, str]], way: str) -> float:
    """Return for how many of the programs with phases a flat line at the true mean is better.

    Args:
        rows: of the experiment.
        way: "live" or "recorded".

    Returns:
        In percent of those whose flat line has a CDF error of at least ``FLAT_CDF_JUDGED``;
        medians of the rounds; NaN if there is none.
    """
    lost = []
    for program in distinct(rows, "program"):
        ours = numbers(rows, f"{way}_cdf", program=program)
        flat = numbers(rows, f"{way}_flat_cdf", program=program)
        if flat and np.median(flat) >= FLAT_CDF_JUDGED:
            lost.append(np.median(ours) >= np.median(flat))
    return 100 * float(np.mean(lost)) if lost else float("nan")


def _median(rows: Sequence[Mapping[str, str]], column: str, program: str) -> float:
    """The median of a program's rounds; NaN if there is none."""
    found = numbers(rows, column, program=program)
    return float(np.median(found)) if found else float("nan")


def _mean(rows: Sequence[Mapping[str, str]], column: str) -> float:
    """The mean of the programs' medians, of those that have one; NaN if none has."""
    medians = [_median(rows, column, program) for program in distinct(rows, "program")]
    known = [each for each in medians if not math.isnan(each)]
    return float(np.mean(known)) if known else float("nan")
