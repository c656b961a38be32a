"""The distribution of the miss ratio at 64 KiB over windows (Sembrant et al. 2012, Fig. 8)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from evaluation.bench import Bench
from evaluation.estimating import estimate_of
from evaluation.experiment import Goal
from evaluation.page import Page
from evaluation.results import Case, Row, distinct, numbers
from reference.judging import exact_windows
from reference.metrics import cumulative
from reference.windows import ERROR_SIZES_BYTES

SIZE_BYTES = 64 << 10
COLUMN = ERROR_SIZES_BYTES.index(SIZE_BYTES)
POINTS = 60


class Distribution:
    """Cumulative distributions, estimated and exact, on a common grid of miss ratios."""

    name = "distribution"
    key = ("program", "repeat")
    columns = ("miss_ratio", "exact", "estimated")

    def cases(self, bench: Bench) -> Iterable[Case]:
        """Every program and round."""
        return bench.rounds(bench.scale.repeats)

    def measure(self, case: Case, bench: Bench) -> list[Row]:
        """Compare one run's windows with the reference's."""
        run = bench.runs.as_installed(case[0], int(case[1]))
        estimate = estimate_of(run)
        exact, weights = exact_windows(bench.reference(case[0]), "lru", len(estimate.windows))
        # The grid depends on the reference's finest windows alone: it is the same in every round.
        finest, _ = exact_windows(bench.reference(case[0]), "lru")
        grid = np.linspace(0, min(1.0, 1.3 * float(finest[:, COLUMN].max()) + 1e-3), POINTS)
        columns = (
            grid,
            cumulative(exact[:, COLUMN], weights, grid),
            cumulative(estimate.windows[:, COLUMN], estimate.weights, grid),
        )
        return [
            dict(zip(self.columns, map(float, point), strict=True))
            for point in zip(*columns, strict=True)
        ]

    def report(self, rows: Sequence[Mapping[str, str]], page: Page) -> Sequence[Goal]:
        """A small figure a program."""
        programs = distinct(rows, "program")
        if not programs:
            return ()
        title = "distribution of the miss ratio at 64 KiB"
        with page.figure_by_program("64K", title, programs) as (axes, pairs):
            for at, program in pairs:
                rounds = distinct([row for row in rows if row["program"] == program], "repeat")

                def curves(
                    column: str, program: str = program, rounds: Sequence[str] = tuple(rounds)
                ) -> np.ndarray:
                    return np.array(
                        [numbers(rows, column, program=program, repeat=each) for each in rounds]
                    )

                grid = 100 * curves("miss_ratio").mean(axis=0)
                middle, spread = curves("estimated").mean(axis=0), curves("estimated").std(axis=0)
                at.plot(grid, 100 * curves("exact").mean(axis=0), "k-", lw=1.2, label="exact")
                at.plot(grid, middle, "C0-", lw=1.2, label="memsampd")
                at.fill_between(
                    grid,
                    100 * (middle - spread),
                    100 * (middle + spread),
                    color="C0",
                    alpha=0.3,
                    lw=0,
                )
            axes[0, 0].set_ylabel("accesses at or below, %")
            axes[-1, 0].set_xlabel("miss ratio at 64 KiB, %")
            axes[0, 0].legend(fontsize=7)
        return ()
