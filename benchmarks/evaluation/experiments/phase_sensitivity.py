"""What the settings of phase detection change: window length, samples, bins, threshold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from evaluation import clusterings
from evaluation.bench import Bench
from evaluation.experiment import Goal
from evaluation.experiments.phase_quality import quality
from evaluation.offline import PRODUCT, SAMPLES, WINDOW_ACCESSES, windows_wanted
from evaluation.page import Page
from evaluation.results import Case, Row, cell
from memsampd.phases.leader import LeaderFollower

_IN_A_ROW = "tolerance of windows in a row"
SWEEPS: dict[str, tuple[float, ...]] = {
    "window (M accesses)": (25, 50, 100, 200, 400),
    "samples a window": (10, 25, 50, 100, 400, 1600),
    "bins": (8, 16, 32, 64, 128, 256),
    "tolerance": (0.05, 0.1, 0.2, 0.3, 0.5, 0.8),
    _IN_A_ROW: (0.3, 0.6, 1.0, 2.0),  # 2: they are not looked at together
}
FIGURES = ("phases", "miss_ratio_variation", "mixing_cdf_error", "prediction_accuracy")


class PhaseSensitivity:
    """One setting at a time, the others as memsampd has them."""

    name = "phase_sensitivity"
    key = ("program", "seed", "setting", "value")
    columns = (*FIGURES, "rate_variation")

    def cases(self, bench: Bench) -> Iterable[Case]:
        """Every program, seed, setting and value."""
        return [
            (name, seed, setting, f"{value:g}")
            for name in bench.offline_names()
            for seed in bench.seeds()
            for setting, values in SWEEPS.items()
            for value in values
        ]

    def measure(self, case: Case, bench: Bench) -> list[Row]:
        """Cluster one program with one setting."""
        name, seed, setting, value = case[0], int(case[1]), case[2], float(case[3])
        asked = {setting: value}
        length = asked.get("window (M accesses)")
        count = None
        if length is not None:
            total = bench.reference(name).total_accesses
            count = windows_wanted(total, int(length * 1e6))
        windows = bench.offline(name, count)
        # The sampling period stays: a longer window has more samples.
        samples = SAMPLES * (length * 1e6 / WINDOW_ACCESSES if length else 1)
        hits = windows.hits(
            seed,
            round(asked.get("samples a window", samples)),
            int(asked.get("bins", PRODUCT.bins)),
        )
        product = LeaderFollower()
        model = LeaderFollower(
            asked.get("tolerance", product.tolerance),
            split_tolerance=asked.get(_IN_A_ROW, product.split_tolerance),
        )
        return [quality(windows, clusterings.product(hits, model))]

    def report(self, rows: Sequence[Mapping[str, str]], page: Page) -> Sequence[Goal]:
        """Means over programs."""
        if not rows:
            return ()
        page.table(
            ["setting", "value", *(figure.replace("_", " ") for figure in FIGURES)],
            [
                [
                    setting,
                    f"{value:g}",
                    *(
                        cell(rows, figure, setting=setting, value=f"{value:g}")
                        for figure in FIGURES
                    ),
                ]
                for setting, values in SWEEPS.items()
                for value in values
            ],
        )
        return ()
