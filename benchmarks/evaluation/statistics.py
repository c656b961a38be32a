"""Medians with confidence intervals, agreement of labellings, variation within groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

RESAMPLES = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and the ends of its confidence interval."""

    value: float
    low: float
    high: float

    def text(self, digits: int = 2) -> str:
        """Return it for a table."""
        return f"{self.value:.{digits}f} ({self.low:.{digits}f} to {self.high:.{digits}f})"


def bootstrap(
    values: Sequence[float],
    statistic: Callable[..., NDArray[np.float64]] = np.median,
    seed: int = 1,
) -> Interval:
    """Return a statistic with its percentile bootstrap interval (95 %).

    Args:
        values: the measurements, at least one.
        statistic: of the last axis of an array, as ``np.median``.
        seed: of the resampling.

    References:
        Efron, Tibshirani: An introduction to the bootstrap, 1993, section 13.3.
    """
    array = np.asarray(values, dtype=float)
    drawn = np.random.default_rng(seed).integers(0, len(array), (RESAMPLES, len(array)))
    spread = statistic(array[drawn], axis=-1)
    low, high = np.quantile(spread, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(float(statistic(array, axis=-1)), float(low), float(high))


def mean_of_medians(groups: Sequence[Sequence[float]], seed: int = 1) -> Interval:
    """Return the mean over groups (programs) of their medians, runs resampled within groups.

    The programs are the ones of the evaluation, not a sample of all programs: they are not
    resampled.
    """
    rng = np.random.default_rng(seed)
    medians = []
    for group in groups:
        array = np.asarray(group, dtype=float)
        drawn = rng.integers(0, len(array), (RESAMPLES, len(array)))
        medians.append(np.median(array[drawn], axis=-1))
    spread = np.mean(medians, axis=0)
    low, high = np.quantile(spread, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(float(np.mean([np.median(group) for group in groups])), float(low), float(high))


def adjusted_rand_index(a: ArrayLike, b: ArrayLike) -> float:
    """Agreement of two labellings, 1 for the same partition, 0 on average for random ones.

    Hubert and Arabie: Comparing partitions, Journal of Classification 2, 1985, equation 5.

    Args:
        a: labels, shape (n,).
        b: labels of the same things, shape (n,).
    """
    _, first = np.unique(np.asarray(a), return_inverse=True)
    _, second = np.unique(np.asarray(b), return_inverse=True)
    table = np.zeros((first.max() + 1, second.max() + 1))
    np.add.at(table, (first, second), 1)

    def pairs(n: NDArray[np.float64]) -> float:
        return float((n * (n - 1) / 2).sum())

    both, rows, columns = pairs(table), pairs(table.sum(axis=1)), pairs(table.sum(axis=0))
    chance = rows * columns / pairs(np.array([float(len(first))])) if len(first) > 1 else 0.0
    most = (rows + columns) / 2
    return 1.0 if most == chance else (both - chance) / (most - chance)


def group_means(
    values: NDArray[np.float64], weights: NDArray[np.float64], groups: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return for each row the weighted mean of its group.

    Args:
        values: shape (n, s).
        weights: shape (n,), not all 0 in any group.
        groups: shape (n,).

    Returns:
        Shape (n, s).
    """
    means = np.empty_like(values)
    for group in np.unique(groups):
        mine = groups == group
        means[mine] = np.average(values[mine], axis=0, weights=weights[mine])
    return means


def deviation_within(
    values: NDArray[np.float64], weights: NDArray[np.float64], groups: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the weighted standard deviation of values about the means of their groups, (s,)."""
    rest = values - group_means(values, weights, groups)
    return np.asarray(np.sqrt(np.average(rest**2, axis=0, weights=weights)))


def deviation(values: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the weighted standard deviation of values, shape (s,)."""
    return deviation_within(values, weights, np.zeros(len(values), dtype=np.int64))
