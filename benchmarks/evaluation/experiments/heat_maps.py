"""Miss ratio over time and size, exact and estimated (Sembrant et al. 2012, Figs 1 and 2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from evaluation.bench import Bench
from evaluation.estimating import estimate_of
from evaluation.experiment import Goal
from evaluation.page import Page, size_text
from evaluation.results import Case, Row, distinct
from reference.judging import exact_windows
from reference.windows import ERROR_SIZES_BYTES

COLUMNS = 100
SOURCES = ("exact", "memsampd")


class HeatMaps:
    """The first round of each program, over the share of its accesses."""

    name = "heat_maps"
    key = ("program",)
    columns = ("source", "position", *(size_text(size) for size in ERROR_SIZES_BYTES))

    def cases(self, bench: Bench) -> Iterable[Case]:
        """Every program."""
        return [(name,) for name in bench.live_names()]

    def measure(self, case: Case, bench: Bench) -> list[Row]:
        """Lay both out in columns."""
        run = bench.runs.as_installed(case[0], 0)
        estimate = estimate_of(run)
        maps = (
            columns_of(*exact_windows(bench.reference(case[0]), "lru")),
            columns_of(estimate.windows, estimate.weights),
        )
        return [
            {
                "source": source,
                "position": position,
                **dict(zip(self.columns[2:], map(float, ratios), strict=True)),
            }
            for source, columns in zip(SOURCES, maps, strict=True)
            for position, ratios in enumerate(columns)
        ]

    def report(self, rows: Sequence[Mapping[str, str]], page: Page) -> Sequence[Goal]:
        """Both maps of each program side by side, on one colour scale."""
        programs = distinct(rows, "program")
        if not programs:
            return ()
        with page.figure(
            "maps", "miss ratio over time and size, exact and estimated", len(programs), 2,
            figsize=(9, 1.5 * len(programs) + 0.4),
        ) as axes:  # fmt: skip
            for line, program in zip(axes, programs, strict=True):
                maps = [
                    np.array(
                        [
                            [float(row[size]) for size in self.columns[2:]]
                            for row in rows
                            if row["program"] == program and row["source"] == source
                        ]
                    )
                    for source in SOURCES
                ]
                top = max(float(each.max()) for each in maps)
                for at, values, source in zip(line, maps, SOURCES, strict=True):
                    mesh = at.pcolormesh(
                        100 * values.T, vmin=0, vmax=100 * top, cmap="magma_r", rasterized=True
                    )
                    at.set_yticks(np.arange(12)[::3] + 0.5, self.columns[2::3], fontsize=7)
                    at.set_xticks([])
                    at.set_title(f"{program}, {source}", fontsize=8)
                at.figure.colorbar(mesh, ax=list(line), label="%", pad=0.01)
        return ()


def columns_of(values: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the values at the middle of each of ``COLUMNS`` equal shares of the weight, (c, s)."""
    ends = np.cumsum(weights) / weights.sum()
    middles = (np.arange(COLUMNS) + 0.5) / COLUMNS
    return values[np.minimum(np.searchsorted(ends, middles), len(values) - 1)]
