"""What the scatter of bursts alone costs: the error that so few of them must have."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from evaluation.bench import Bench
from evaluation.experiment import Goal
from evaluation.experiments.accuracy import WHOLE_RUN_GOAL
from evaluation.nearest import burst_curves
from evaluation.offline import SIZES_BYTES
from evaluation.page import Page
from evaluation.results import Case, Row, cell, distinct
from evaluation.statistics import deviation_within
from memsampd.exporters.analysis import Analysis, analyse
from memsampd.exporters.recording import Recording
from memsampd.models.statstack import StatStack

LINE_BYTES = 64


class BurstScatter:
    """How far the curves of bursts in one phase differ, and what follows for their mean."""

    name = "burst_scatter"
    key = ("program", "repeat")
    columns = ("bursts", "scatter", "expected_error", "bursts_needed", "charged_a_burst")

    def cases(self, bench: Bench) -> Iterable[Case]:
        """Every program and round."""
        return bench.rounds(bench.scale.repeats)

    def measure(self, case: Case, bench: Bench) -> list[Row]:
        """Look at one recording."""
        return [scatter(bench.runs.as_installed(case[0], int(case[1])).read())]

    def report(self, rows: Sequence[Mapping[str, str]], page: Page) -> Sequence[Goal]:
        """A table."""
        if not rows:
            return ()
        page.table(
            [
                *("program", "bursts", "scatter within phases, %", "expected error, %"),
                *(f"bursts for {WHOLE_RUN_GOAL} %", "charged a burst, ms"),
            ],
            [
                [
                    program,
                    cell(rows, "bursts", 0, program=program),
                    cell(rows, "scatter", program=program),
                    cell(rows, "expected_error", program=program),
                    cell(rows, "bursts_needed", 0, program=program),
                    cell(rows, "charged_a_burst", 1, program=program),
                ]
                for program in distinct(rows, "program")
            ],
        )
        return ()


def expected_error(
    deviation: NDArray[np.float64], weights: NDArray[np.float64], bursts: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the mean absolute error of a weighted mean of phases' means, by size, shape (s,).

    Args:
        deviation: standard deviation of a burst about the mean of its phase, shape (s,).
        weights: of the phases that have bursts, shape (p,).
        bursts: that each has, at least one, shape (p,).
    """
    share = weights / weights.sum()
    return deviation * math.sqrt(2 / math.pi) * math.sqrt(float(np.sum(share**2 / bursts)))


def scatter(recording: Recording) -> Row:
    """Summarise a recording.

    Returns:
        Its bursts; the standard deviation of their miss ratios about the means of their phases;
        the whole-run error that this makes; the bursts that would bring it down to the goal; what
        one was charged, in milliseconds. Means over sizes, in percent.
    """
    analysis = analyse(recording, "lru", SIZES_BYTES)
    phases, curves = _curves(analysis)
    known, counts = np.unique(phases, return_counts=True)
    if len(phases) == len(known):  # nothing to compare
        return {**dict.fromkeys(BurstScatter.columns, None), "bursts": len(phases)}
    freedom = len(phases) / (len(phases) - len(known))
    deviation = deviation_within(curves, np.ones(len(phases)), phases) * math.sqrt(freedom)
    weights = np.array([analysis.phase(int(phase)).weight for phase in known])
    error = 100 * float(expected_error(deviation, weights, counts).mean())
    cost = sum(burst.cost.target_seconds for burst in recording.bursts)
    return {
        "bursts": len(phases),
        "scatter": 100 * float(deviation.mean()),
        "expected_error": error,
        "bursts_needed": len(phases) * (error / WHOLE_RUN_GOAL) ** 2,
        "charged_a_burst": 1e3 * cost / len(recording.bursts),
    }


def _curves(analysis: Analysis) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Phase, shape (n,), and miss ratios, shape (n, s), of each burst."""
    phase_of = {window.record.index: window.phase for window in analysis.windows}
    phases, rows = [], []
    for phase in analysis.phases:
        histograms = {
            number: burst.histogram()
            for number, burst in enumerate(analysis.recording.bursts)
            if burst.accesses and phase_of.get(burst.window) == phase.id
        }
        for curve in burst_curves(histograms, StatStack(), SIZES_BYTES, LINE_BYTES).values():
            phases.append(phase.id)
            rows.append(curve.miss_ratio)
    return np.array(phases, dtype=np.int64), np.array(rows).reshape(len(rows), -1)
