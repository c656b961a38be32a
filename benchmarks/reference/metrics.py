"""How far an estimate is from its reference, in percent (0 is perfect).

Miss ratios lie in 0..1; the errors are absolute differences of them, times 100.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def whole_run_error(estimated: Floats, reference: Floats) -> float:
    """Return the mean over sizes of the absolute error of the whole run's miss ratio, in percent.

    Args:
        estimated: miss ratio of each cache size, shape (s,).
        reference: the same, exact, shape (s,).
    """
    return float(100 * np.mean(np.abs(estimated - reference)))


def distribution_area(
    left: Floats, left_weights: Floats, right: Floats, right_weights: Floats
) -> float:
    """Return the area between the cumulative distributions of two weighted samples.

    Args:
        left: values, shape (n,).
        left_weights: their weights, >= 0, not all 0, shape (n,).
        right: values, shape (m,).
        right_weights: their weights, shape (m,).

    Returns:
        The integral of the absolute difference, 0..1 for values in 0..1.
    """
    steps = np.unique(np.concatenate([left, right]))
    gap = np.abs(cumulative(left, left_weights, steps) - cumulative(right, right_weights, steps))
    return float(np.sum(gap[:-1] * np.diff(steps)))


def cumulative(values: Floats, weights: Floats, at: Floats) -> Floats:
    """Return the share of the weight that lies at or below each point, shape of ``at``."""
    order = np.argsort(values)
    running = np.concatenate([[0.0], np.cumsum(weights[order])])
    share: Floats = running[np.searchsorted(values[order], at, side="right")] / running[-1]
    return share


def cdf_error(
    estimated: Floats, estimated_weights: Floats, reference: Floats, reference_weights: Floats
) -> float:
    """Return the mean over sizes of the area between the distributions over windows, in percent.

    The measure of Sembrant, Eklov & Hagersten ("Efficient software-based online phase
    classification", IISWC 2011, section 5.1), with windows weighted by their accesses.

    Args:
        estimated: miss ratio of each window and cache size, shape (w, s).
        estimated_weights: accesses of each window, shape (w,).
        reference: the same, exact, with windows of its own, shape (v, s).
        reference_weights: shape (v,).
    """
    areas = [
        distribution_area(left, estimated_weights, right, reference_weights)
        for left, right in zip(estimated.T, reference.T, strict=True)
    ]
    return float(100 * np.mean(areas))
