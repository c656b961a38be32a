"""How much bursts of other phases should count where they ran the same code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from evaluation import simulation
from evaluation.bench import Bench
from evaluation.experiment import Goal
from evaluation.page import Page
from evaluation.results import Case, Row, cell, distinct
from evaluation.simulation import Settings
from reference.metrics import cdf_error, whole_run_error

COUNTS = (1.0, 0.3, 0.1, 0.03, 0.01)


class OwnPhase:
    """Simulated sessions whose windows are shared out among bursts of all phases, or rather not."""

    name = "own_phase"
    key = ("program", "seed")
    columns = ("count", "whole_run_error", "cdf_error")

    def cases(self, bench: Bench) -> Iterable[Case]:
        """Every program with every seed."""
        return bench.sessions()

    def measure(self, case: Case, bench: Bench) -> list[Row]:
        """Share the windows of one session out in each way."""
        windows = bench.offline(case[0])
        session = simulation.simulate(windows, Settings(), int(case[1]))
        curves = simulation.burst_curves(windows, session)
        rows: list[Row] = []
        for count in COUNTS:
            estimated = simulation.share_out(windows, session, curves, count)
            overall = np.average(estimated, axis=0, weights=windows.accesses)
            rows.append(
                {
                    "count": f"{count:g}",
                    "whole_run_error": whole_run_error(overall, windows.overall),
                    "cdf_error": cdf_error(
                        estimated, windows.accesses, windows.miss_ratio, windows.accesses
                    ),
                }
            )
        return rows

    def report(self, rows: Sequence[Mapping[str, str]], page: Page) -> Sequence[Goal]:
        """A table."""
        if not rows:
            return ()
        counts = distinct(rows, "count")

        def line(name: str, **where: str) -> list[str]:
            return [
                name,
                *(
                    cell(rows, column, 2, count=count, **where)
                    for column in ("whole_run_error", "cdf_error")
                    for count in counts
                ),
            ]

        page.table(
            [
                "program",
                *(f"{what} %, {count}" for what in ("whole run", "CDF") for count in counts),
            ],
            [
                *(line(program, program=program) for program in distinct(rows, "program")),
                line("**mean**"),
            ],
        )
        return ()
