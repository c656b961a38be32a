"""The average curve by three ways of modelling the same samples (Sembrant et al. 2012, Fig. 3)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from evaluation import simulation
from evaluation.bench import Bench
from evaluation.experiment import Goal
from evaluation.offline import SIZES_BYTES, Curve, OfflineWindows
from evaluation.page import Page, size_text
from evaluation.results import Case, Row, cell, distinct, mean_of
from reference.metrics import whole_run_error

PROFILED = 20
WAYS = ("oblivious", "burst", "phase-aware")
STYLES = {"reference": "k-", "oblivious": "C1:", "burst": "C2--", "phase-aware": "C0-"}


class AverageCurve:
    """20 windows at random, their exact reuse distances, StatStack.

    Pooled over the whole run (oblivious), one curve a window (burst), one a phase (phase-aware).
    """

    name = "average_curve"
    key = ("program", "seed")
    columns = ("way", "size_bytes", "miss_ratio", "error")

    def cases(self, bench: Bench) -> Iterable[Case]:
        """Every program with every seed."""
        return bench.sessions()

    def measure(self, case: Case, bench: Bench) -> list[Row]:
        """Curves of one program."""
        windows = bench.offline(case[0])
        curves = {"reference": windows.overall} | average_curves(windows, int(case[1]))
        return [
            {
                "way": way,
                "size_bytes": int(size),
                "miss_ratio": float(ratio),
                "error": whole_run_error(curve, windows.overall),
            }
            for way, curve in curves.items()
            for size, ratio in zip(SIZES_BYTES, curve, strict=True)
        ]

    def report(self, rows: Sequence[Mapping[str, str]], page: Page) -> Sequence[Goal]:
        """A figure a program, a table of the errors."""
        programs = distinct(rows, "program")
        if not programs:
            return ()
        with page.figure_by_program("curves", "average miss-ratio curves", programs) as (
            axes,
            pairs,
        ):
            for at, program in pairs:
                for way, style in STYLES.items():
                    ratios = [
                        100
                        * mean_of(
                            rows, "miss_ratio", program=program, way=way, size_bytes=str(size)
                        )
                        for size in SIZES_BYTES
                    ]
                    at.plot(SIZES_BYTES, ratios, style, label=way, lw=1.4)
                at.set_xscale("log", base=2)
                at.set_xticks(SIZES_BYTES[::3], [size_text(int(s)) for s in SIZES_BYTES[::3]])
            axes[0, 0].set_ylabel("miss ratio, %")
            axes[0, 0].legend(fontsize=7)
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
    phases = simulation.simulate(windows, simulation.Settings(), seed).phases
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
