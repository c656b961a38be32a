"""Which part costs how much: from the exact reference to memsampd, one part at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from evaluation import simulation
from evaluation.bench import Bench
from evaluation.experiment import Goal
from evaluation.offline import OfflineWindows
from evaluation.page import Page
from evaluation.results import Case, Row, cell, distinct, mean_of
from evaluation.simulation import Settings, SimulatedSession
from evaluation.statistics import group_means
from reference.metrics import cdf_error, whole_run_error

PARTS = (
    "phase mixing",
    "exact vectors",
    "sampled windows",
    "model",
    "burst length",
    "clock",
)


class Ablation:
    """Errors of a simulated session, of which ever more is memsampd's.

    Each part includes those before it, but for "exact vectors", which is phase mixing without the
    noise of timer samples:

    phase mixing      exact mean curve of each detected phase in all its windows
    sampled windows   exact curves of the windows that had a burst, shared out by code and distance
    model             StatStack from the exact reuse distances of these windows
    burst length      the same, censored at each burst's horizon and continued by its phase's
    clock             windows weighted by time, as instructions tell it, instead of accesses
    """

    name = "ablation"
    key = ("program", "seed")
    columns = ("part", "whole_run_error", "cdf_error", "bursts", "phases")

    def cases(self, bench: Bench) -> Iterable[Case]:
        """Every program with every seed."""
        return bench.sessions()

    def measure(self, case: Case, bench: Bench) -> list[Row]:
        """Take one simulated session to pieces."""
        windows, seed = bench.offline(case[0]), int(case[1])
        session = simulation.simulate(windows, Settings(), seed)
        exact_vectors = simulation.simulate(windows, Settings(samples=None), seed)
        rows: list[Row] = []
        for part in PARTS:
            used = exact_vectors if part == "exact vectors" else session
            estimated = estimate(windows, used, part)
            weights = windows.instructions if part == "clock" else windows.accesses
            overall = np.average(estimated, axis=0, weights=weights)
            rows.append(
                {
                    "part": part,
                    "whole_run_error": whole_run_error(overall, windows.overall),
                    "cdf_error": cdf_error(
                        estimated, weights, windows.miss_ratio, windows.accesses
                    ),
                    "bursts": len(used.profiled),
                    "phases": len(np.unique(used.phases)),
                }
            )
        return rows

    def report(self, rows: Sequence[Mapping[str, str]], page: Page) -> Sequence[Goal]:
        """Errors by program and part, and a figure of the CDF error."""
        if not rows:
            return ()
        programs = distinct(rows, "program")
        for column, what in (("whole_run_error", "whole-run"), ("cdf_error", "CDF")):
            page.table(
                [f"{what} error, %", *PARTS, "bursts", "phases"],
                [
                    *(
                        [
                            program,
                            *(cell(rows, column, program=program, part=part) for part in PARTS),
                            cell(rows, "bursts", 0, program=program, part="clock"),
                            cell(rows, "phases", 0, program=program, part="clock"),
                        ]
                        for program in programs
                    ),
                    ["**mean**", *(cell(rows, column, part=part) for part in PARTS), "", ""],
                ],
            )
        with page.figure("parts", "CDF error by part", 1, 1, figsize=(9, 3)) as axes:
            at = axes[0, 0]
            places = np.arange(len(programs))
            for number, part in enumerate(PARTS):
                errors = [mean_of(rows, "cdf_error", program=each, part=part) for each in programs]
                at.bar(places + 0.13 * (number - 2.5), errors, 0.13, label=part)
            at.set_xticks(places, programs, rotation=30, ha="right", fontsize=8)
            at.set_ylabel("CDF error, %")
            at.legend(fontsize=7, ncols=3)
        return ()


def estimate(windows: OfflineWindows, session: SimulatedSession, part: str) -> NDArray[np.float64]:
    """Return the miss ratio of each window with memsampd's parts up to one, shape (w, s)."""
    if part in ("phase mixing", "exact vectors"):
        return group_means(windows.miss_ratio, windows.accesses, session.phases)
    if part == "sampled windows":
        return simulation.share_out(windows, session, lambda window: windows.miss_ratio[window])
    if part == "model":
        return simulation.share_out(
            windows, session, lambda window: windows.curve(np.array([window]))
        )
    return simulation.share_out(windows, session, simulation.burst_curves(windows, session))
