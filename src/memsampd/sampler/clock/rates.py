"""The mean of access rates that were measured."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

_USUAL_VARIATION = 0.2  # of the rates of two stops in the same code, relative


def mean_rate(rates: NDArray[np.float64], errors: NDArray[np.float64]) -> tuple[float, float]:
    """Return the mean of rates, and its relative standard deviation.

    Args:
        rates: accesses per CPU second, at least one, shape (n,).
        errors: relative errors that they may have, shape (n,).
    """
    weights = 1 / (_USUAL_VARIATION**2 + errors**2)
    total = float(weights.sum())
    mean = float(weights @ rates) / total
    variance = float(weights @ (rates / mean - 1) ** 2) / total
    count = total**2 / float(weights @ weights)
    of_mean = (variance * count + _USUAL_VARIATION**2) / (count + 1) / count
    own = float(weights @ errors) / total
    return mean, math.sqrt(of_mean + own**2)
