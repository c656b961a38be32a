"""The access clock of machines without a PMU: bursts tell how long the target takes for them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from memsampd.sampler.records import UNKNOWN_RATE, AccessRate, Burst, TimedStretch

# How far what is taken off a measurement may be wrong: the hit of a breakpoint takes 10 to 31 us in
# a VM, 25 % more or less from one time to the next, and not as a mean of zero.
_TAKEN_OFF_ERROR = 0.25
_LARGEST_ERROR = 0.5
# What the rates of two stops in one phase are taken to differ by before there are two.
_USUAL_VARIATION = 0.2


class BurstClock:
    """Access rates from timed stretches (:class:`memsampd.sampler.protocols.AccessClock`).

    Stops are random in CPU time, and each tells the rate r of the code that ran then. The mean of r
    over stops, not accesses divided by seconds over all of them, therefore estimates accesses per
    CPU second: a burst is so many *accesses* long, so slow code would count for more than its time.

    A measurement t seconds long of which c were taken off (hits of breakpoints) has an error of
    about c / (4 t) of its own; it counts by 1 / (0.2^2 + error^2), so that short ones count
    little. The spread is the standard deviation of that mean, of the rates' own variance pulled
    towards 0.2^2 as if by one measurement more, plus the mean of the measurements' own errors:
    these have one sign and do not average out.
    """

    name = "in-target"

    def measure(self, bursts: Sequence[Burst]) -> AccessRate:
        """Estimate the rate of one phase; unknown without a burst that was timed."""
        stretches = [burst.timed for burst in bursts if burst.timed is not None]
        stretches = [stretch for stretch in stretches if is_usable(stretch)]
        if not stretches:
            return UNKNOWN_RATE
        mean, spread = mean_rate(
            np.array([stretch.accesses_per_cpu_second for stretch in stretches]),
            np.array([measurement_error(stretch) for stretch in stretches]),
        )
        methods = ", ".join(sorted({stretch.method for stretch in stretches}))
        return AccessRate(mean, spread, methods)


def mean_rate(rates: NDArray[np.float64], errors: NDArray[np.float64]) -> tuple[float, float]:
    """Return the mean of rates that were measured, and its relative standard deviation.

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


def is_usable(stretch: TimedStretch) -> bool:
    """Whether it tells a rate: what was taken off may be nearly all that there was."""
    is_something = stretch.cpu_seconds > 0 and stretch.accesses > 0
    return is_something and measurement_error(stretch) <= _LARGEST_ERROR


def measurement_error(stretch: TimedStretch) -> float:
    """Relative error that a measurement may have, because of what was taken off it at least."""
    return max(stretch.error, _TAKEN_OFF_ERROR * stretch.hit_seconds / stretch.cpu_seconds)
