"""Agreement of labellings, variation within groups."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


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
