"""Error over the number of profiled windows a phase (Sembrant et al. 2012, Figs 5 and 7)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from evaluation.bench import Bench
from evaluation.clusterings import Labels, product
from evaluation.experiment import Goal
from evaluation.nearest import nearest
from evaluation.offline import OfflineWindows
from evaluation.page import Page
from evaluation.results import Case, Row, cell
from reference.metrics import cdf_error, whole_run_error

COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
ORDERS = ("in order", "at random")
SPREADS = ("mean", "nearest")


class ProfiledWindows:
    """Exact curves of n windows of each phase stand for the phase.

    Their mean, as in the paper, or for each window that of the nearest one, as memsampd does.
    """

    name = "profiled_windows"
    key = ("program", "seed")
    columns = ("order", "stand_in", "windows", "whole_run_error", "cdf_error")

    def cases(self, bench: Bench) -> Iterable[Case]:
        """Every program with every seed."""
        return bench.sessions()

    def measure(self, case: Case, bench: Bench) -> list[Row]:
        """Errors of one program."""
        windows, seed = bench.offline(case[0]), int(case[1])
        phases = product(windows.hits(seed))
        rng = np.random.default_rng(seed)
        rows: list[Row] = []
        for order in ORDERS:
            for count in COUNTS:
                profiled = choose(phases, count, rng if order == "at random" else None)
                for stand_in in SPREADS:
                    estimated = spread(windows, phases, profiled, stand_in)
                    rows.append(
                        {
                            "order": order,
                            "stand_in": stand_in,
                            "windows": count,
                            "whole_run_error": whole_run_error(
                                np.average(estimated, axis=0, weights=windows.accesses),
                                windows.overall,
                            ),
                            "cdf_error": cdf_error(
                                estimated, windows.accesses, windows.miss_ratio, windows.accesses
                            ),
                        }
                    )
        return rows

    def report(self, rows: Sequence[Mapping[str, str]], page: Page) -> Sequence[Goal]:
        """Means over programs."""
        if not rows:
            return ()
        page.table(
            ["mean of programs, %", *map(str, COUNTS)],
            [
                [
                    f"{what}, {order}, {stand_in}",
                    *(
                        cell(rows, column, order=order, stand_in=stand_in, windows=str(count))
                        for count in COUNTS
                    ),
                ]
                for what, column in (("whole run", "whole_run_error"), ("CDF", "cdf_error"))
                for order in ORDERS
                for stand_in in SPREADS
            ],
        )
        return ()


def choose(
    phases: Labels, count: int, rng: np.random.Generator | None
) -> dict[int, NDArray[np.intp]]:
    """Choose windows of each phase: the first ones, or ones at random if there is a generator."""
    chosen = {}
    for phase in np.unique(phases).tolist():
        mine = np.flatnonzero(phases == phase)
        chosen[phase] = mine[:count] if rng is None else np.sort(rng.permutation(mine)[:count])
    return chosen


def spread(
    windows: OfflineWindows, phases: Labels, profiled: dict[int, NDArray[np.intp]], stand_in: str
) -> NDArray[np.float64]:
    """Give each window the mean of its phase's profiled ones, or the nearest of them, (w, s)."""
    estimated = np.empty_like(windows.miss_ratio)
    for phase, chosen in profiled.items():
        mine = np.flatnonzero(phases == phase)
        if stand_in == "nearest":
            estimated[mine] = windows.miss_ratio[nearest(mine, chosen)]
        else:
            estimated[mine] = windows.misses[chosen].sum(axis=0) / windows.accesses[chosen].sum()
    return estimated
