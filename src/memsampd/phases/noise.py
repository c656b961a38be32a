"""How far two branch vectors of one phase lie apart by chance alone.

Two samples of n and M hits from one distribution over bins differ; with 100 hits a window their
L1 distance is 0.3 to 0.6 of at most 2 although nothing changed. To tell a phase from noise we ask
the permutation question: *given the hits of both together*, t_b a bin and T = n + M in all, every
way of dealing n of them to the window is equally likely if both come from one distribution. Then
x_b, the window's share of bin b, is hypergeometric, whatever the unknown distribution is, and

* the distance is D = T/(nM) * sum_b |x_b - n t_b / T|;
* its mean is exact: E|x_b - mu_b| = 2 v (T - t_b - n + v)/T * P(x_b = v), v = floor(mu_b) + 1
  (De Moivre's identity, here for the hypergeometric law);
* its variance takes the exact variances of the terms and the covariances of |X|, |Y| of two
  correlated normals, about r^2/pi of the product of their deviations.

For bins with many hits the mean tends to sum_b sqrt(2 p(1-p)/pi * (1/n + 1/M)), the normal
approximation, and for n = M to sqrt(4 p(1-p)/(pi n)). That one is a third too large and more
where bins hold less than a hit, the usual case at 30 hits in 32 bins.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

from memsampd import _core


class Comparison(msgspec.Struct, frozen=True):
    """One vector against another.

    Attributes:
        distance: L1 distance of the normalised vectors, 0..2.
        expected: what the distance would be on average if both were one distribution.
        spread: standard deviation of that.
    """

    distance: float
    expected: float
    spread: float

    def threshold(self, tolerance: float, deviations: float) -> float:
        """The distance up to which two vectors count as alike.

        Two vectors are alike if the distance can be noise, or if what remains of it without the
        noise is tolerable. Differences in many bins add to noise as independent errors do, by
        squares, hence the second part. (Demanding both at once, hypot(tolerance, expected +
        deviations * spread), told 12 phases apart at 100 hits with an adjusted Rand index of 0.81
        where this rule reaches 0.98.)

        Args:
            tolerance: true L1 distance of the distributions that still counts as alike.
            deviations: standard deviations of noise allowed above its mean.
        """
        return max(self.quantile(deviations), math.hypot(tolerance, self.expected))

    def quantile(self, deviations: float) -> float:
        """The distance that noise exceeds as rarely as a normal variable exceeds ``deviations``.

        Where hits crowd into two or three bins the distance is as skewed as the absolute value of
        a normal variable; mean + 4.5 deviations was exceeded in 8 of 10000 windows. So a
        chi distribution of the same mean and deviation stands in, its quantile by Wilson and
        Hilferty's cube. With many bins it tends to mean + deviations * spread.
        """
        square = self.expected**2 + self.spread**2
        # mean^2 / variance of a chi variable is 2 f - 1/2 for f degrees of freedom, nearly.
        freedom = max(((self.expected / max(self.spread, 1e-12)) ** 2 + 0.25) / 2, 0.5)
        third = 2 / (9 * freedom)
        cube = max(1 - third + deviations * math.sqrt(third), 0.0) ** 3
        return math.sqrt(square * cube)


def compare(counts: NDArray[np.float64], other: NDArray[np.float64]) -> Comparison:
    """Compare a vector of hits with another, and with what chance would give.

    Args:
        counts: hits a bin, shape (bins,), not negative, not all zero. Need not be whole.
        other: the same of the other one, shape (bins,).
    """
    both = (np.ascontiguousarray(each, np.float64) for each in (counts, other))
    return Comparison(*_core.compare_hits(*both))
