"""The distribution of the miss ratio at 64 KiB over windows (Sembrant et al. 2012, Fig. 8)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from evaluation.bench import Bench
from evaluation.estimating import estimate_of
from evaluation.experiment import Goal
from evaluation.live import DEFAULT
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
        return [
            (name, str(repeat))
            for repeat in range(bench.scale.repeats)
            for name in bench.live_names()
        ]

    def measure(self, case: Case, bench: Bench) -> list[Row]:
        """Compare one run's windows with the reference's."""
        runs = bench.runs.round("main", case[0], int(case[1]))
        (run,) = (run for run in runs if run.setting == DEFAULT.name)
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
        columns = min(4, len(programs))
        with page.figure(
            "64K", "distribution of the miss ratio at 64 KiB", -(-len(programs) // columns), columns
        ) as axes:
            for at, program in zip(axes.flat, programs, strict=False):
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
                at.set_title(program, fontsize=9)
            axes[0, 0].set_ylabel("accesses at or below, %")
            axes[-1, 0].set_xlabel("miss ratio at 64 KiB, %")
            axes[0, 0].legend(fontsize=7)
        return ()
