"""The average curve by three ways of modelling the same samples (Sembrant et al. 2012, Fig. 3)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from evaluation.bench import Bench
from evaluation.clusterings import product
from evaluation.experiment import Goal
from evaluation.offline import SIZES_BYTES, Curve, OfflineWindows
from evaluation.page import Page
from evaluation.results import Case, Row, cell, distinct
from reference.metrics import whole_run_error

PROFILED = 20
WAYS = ("oblivious", "burst", "phase-aware")


class AverageCurve:
    """20 windows at random, their exact reuse distances, StatStack.

    Pooled over the whole run (oblivious), one curve a window (burst), one a phase (phase-aware).
    """

    name = "average_curve"
    key = ("program", "seed")
    columns = ("way", "error")

    def cases(self, bench: Bench) -> Iterable[Case]:
        """Every program with every seed."""
        return bench.sessions()

    def measure(self, case: Case, bench: Bench) -> list[Row]:
        """Errors of one program's curves."""
        windows = bench.offline(case[0])
        return [
            {"way": way, "error": whole_run_error(curve, windows.overall)}
            for way, curve in average_curves(windows, int(case[1])).items()
        ]

    def report(self, rows: Sequence[Mapping[str, str]], page: Page) -> Sequence[Goal]:
        """A table."""
        programs = distinct(rows, "program")
        if not programs:
            return ()
        table = [
            [program, *(cell(rows, "error", program=program, way=way) for way in WAYS)]
            for program in programs
        ]
        table.append(["**mean**", *(cell(rows, "error", way=way) for way in WAYS)])
        page.table(["error of the average curve, %", *WAYS], table)
        return ()


def average_curves(windows: OfflineWindows, seed: int) -> dict[str, Curve]:
    """Model a run in three ways from the same windows.

    Args:
        windows: the run.
        seed: of the choice of windows and of the branch samples.
    """
    rng = np.random.default_rng(seed)
    chosen = rng.choice(len(windows), min(PROFILED, len(windows)), replace=False)
    phases = product(windows.hits(seed))
    total = windows.accesses.sum()
    aware, known = np.zeros(len(SIZES_BYTES)), 0.0
    for phase in np.unique(phases[chosen]):
        weight = float(windows.accesses[phases == phase].sum() / total)
        aware += weight * windows.curve(chosen[phases[chosen] == phase])
        known += weight
    return {
        "oblivious": windows.curve(chosen),
        "burst": np.mean([windows.curve(np.array([window])) for window in chosen], axis=0),
        "phase-aware": aware / known,
    }
