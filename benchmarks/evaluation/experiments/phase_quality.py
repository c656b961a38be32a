"""How good the phases are: memsampd's against other clusterings of the same branch vectors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

import numpy as np

from evaluation import clusterings
from evaluation.bench import Bench
from evaluation.clusterings import Labels
from evaluation.experiment import Goal
from evaluation.offline import OfflineWindows
from evaluation.page import Page
from evaluation.results import Case, Row, cell, distinct
from evaluation.statistics import (
    adjusted_rand_index,
    deviation,
    deviation_within,
    group_means,
)
from memsampd.phases.accuracy import AccuracyTracker
from memsampd.phases.predictor import RunLengthMarkov
from reference.metrics import cdf_error

SEEDS = 5
METHODS = ("memsampd", "fixed 0.4", "DBSTREAM", "k-means", "k-means on miss ratios")


class PhaseQuality:
    """Variation within phases as a share of that of the whole run; phases found; predictions."""

    name = "phase_quality"
    key = ("program", "method")
    columns = (
        "phases",
        "miss_ratio_variation",
        "rate_variation",
        "mixing_cdf_error",
        "prediction_accuracy",
        "stability",
    )

    def cases(self, bench: Bench) -> Iterable[Case]:
        """Every program with every method."""
        return [(name, method) for name in bench.offline_names() for method in METHODS]

    def measure(self, case: Case, bench: Bench) -> list[Row]:
        """Cluster one program with as many seeds as make stability."""
        windows = bench.offline(case[0])
        runs = [label(windows, case[1], seed) for seed in range(SEEDS)]
        figures = [quality(windows, labels) for labels in runs]
        agreement = [adjusted_rand_index(a, b) for a, b in combinations(runs, 2)]
        return [
            {
                **{key: float(np.median([each[key] for each in figures])) for key in figures[0]},
                "stability": float(np.mean(agreement)),
            }
        ]

    def report(self, rows: Sequence[Mapping[str, str]], page: Page) -> Sequence[Goal]:
        """Means over programs by method, and memsampd's phases by program."""
        if not rows:
            return ()
        page.table(
            ["method (mean of programs)", *(each.replace("_", " ") for each in self.columns)],
            [
                [
                    method,
                    *(cell(rows, each, method=method) for each in self.columns),
                ]
                for method in METHODS
            ],
        )
        page.table(
            ["program (memsampd)", *(each.replace("_", " ") for each in self.columns)],
            [
                [
                    program,
                    *(
                        cell(rows, each, method=METHODS[0], program=program)
                        for each in self.columns
                    ),
                ]
                for program in distinct(rows, "program")
            ],
        )
        return ()


def label(windows: OfflineWindows, method: str, seed: int) -> Labels:
    """Put windows into phases.

    Args:
        windows: the run.
        method: one of ``METHODS``; those with k-means know the whole run in advance and get as many
            clusters as memsampd finds phases, the last of them even the miss ratios: no detector
            that sees code alone can do better.
        seed: of the branch samples.
    """
    hits = windows.hits(seed)
    if method == "memsampd":
        return clusterings.product(hits)
    if method == "fixed 0.4":
        return clusterings.fixed_threshold(hits)
    if method == "DBSTREAM":
        return clusterings.dbstream(hits)
    k = len(np.unique(clusterings.product(hits)))
    shares = hits / hits.sum(axis=1, keepdims=True)
    return clusterings.k_means(
        windows.miss_ratio if method == "k-means on miss ratios" else shares, k, seed
    )


def quality(windows: OfflineWindows, labels: Labels) -> dict[str, float]:
    """Judge phases.

    Returns:
        ``phases``; ``miss_ratio_variation``, the standard deviation of the miss ratio within phases
        over that of the run, mean of the sizes at which it varies; ``rate_variation``, the same of
        accesses an instruction; ``mixing_cdf_error``, the CDF error of exact mean curves of the
        phases, percent; ``prediction_accuracy``.
    """
    ratios, weights = windows.miss_ratio, windows.accesses
    rate = (windows.accesses / windows.instructions)[:, None]
    return {
        "phases": float(len(np.unique(labels))),
        "miss_ratio_variation": _left(ratios, weights, labels),
        "rate_variation": _left(rate, weights, labels),
        "mixing_cdf_error": cdf_error(
            group_means(ratios, weights, labels), weights, ratios, weights
        ),
        "prediction_accuracy": predicted(labels),
    }


def _left(values: clusterings.Hits, weights: clusterings.Hits, labels: Labels) -> float:
    whole = deviation(values, weights)
    varies = whole > 1e-6
    if not varies.any():
        return 0.0
    return float(np.mean(deviation_within(values, weights, labels)[varies] / whole[varies]))


def predicted(labels: Labels) -> float:
    """Share of windows whose phase the product's predictor would have told in advance, 0..1."""
    predictor, accuracy = RunLengthMarkov(), AccuracyTracker()
    for phase in labels.tolist():
        accuracy.update(predictor.predict(), phase)
        predictor.observe(phase)
    return accuracy.overall or 0.0
