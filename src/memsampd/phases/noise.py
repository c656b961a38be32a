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

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_SHIFT = 6  # Stirling's series from x + 6 on is exact to 1e-8


@dataclass(frozen=True, slots=True)
class Comparison:
    """One vector against k others.

    Attributes:
        distance: L1 distance of the normalised vectors, shape (k,), 0..2.
        expected: what the distance would be on average if both were one distribution, (k,).
        spread: standard deviation of that, shape (k,).
    """

    distance: NDArray[np.float64]
    expected: NDArray[np.float64]
    spread: NDArray[np.float64]

    def threshold(self, tolerance: float, deviations: float) -> NDArray[np.float64]:
        """The distance up to which two vectors count as alike.

        Two vectors are alike if the distance can be noise, or if what remains of it without the
        noise is tolerable. Differences in many bins add to noise as independent errors do, by
        squares, hence the second part. (Demanding both at once, hypot(tolerance, expected +
        deviations * spread), told 12 phases apart at 100 hits with an adjusted Rand index of 0.81
        where this rule reaches 0.98.)

        Args:
            tolerance: true L1 distance of the distributions that still counts as alike.
            deviations: standard deviations of noise allowed above its mean.

        Returns:
            Thresholds, shape (k,).
        """
        return np.maximum(self.quantile(deviations), np.hypot(tolerance, self.expected))

    def quantile(self, deviations: float) -> NDArray[np.float64]:
        """The distance that noise exceeds as rarely as a normal variable exceeds ``deviations``.

        Where hits crowd into two or three bins the distance is as skewed as the absolute value of
        a normal variable; mean + 4.5 deviations was exceeded in 8 of 10000 windows. So a
        chi distribution of the same mean and deviation stands in, its quantile by Wilson and
        Hilferty's cube. With many bins it tends to mean + deviations * spread.

        Returns:
            Distances, shape (k,).
        """
        square = self.expected**2 + self.spread**2
        # mean^2 / variance of a chi variable is 2 f - 1/2 for f degrees of freedom, nearly.
        spread = np.maximum(self.spread, 1e-12)
        freedom = np.maximum(((self.expected / spread) ** 2 + 0.25) / 2, 0.5)
        third = 2 / (9 * freedom)
        cube: NDArray[np.float64] = np.maximum(1 - third + deviations * np.sqrt(third), 0) ** 3
        return np.sqrt(square * cube)


def compare(counts: NDArray[np.float64], others: NDArray[np.float64]) -> Comparison:
    """Compare a vector of hits with others, and with what chance would give.

    Args:
        counts: hits a bin, shape (bins,), not negative, not all zero. Need not be whole.
        others: hits a bin of each other vector, shape (k, bins), each row likewise.

    Returns:
        Distances, their expectation and their deviation under one distribution, shape (k,) each.
    """
    hits = counts.sum()
    other_hits = others.sum(axis=1, keepdims=True)
    # Rounding may carry the distance of disjoint vectors past 2.
    distance = np.minimum(np.abs(counts / hits - others / other_hits).sum(axis=1), 2.0)

    # A bin that both lack adds nothing: leave out those that are empty everywhere.
    used = (counts > 0) | (others > 0).any(axis=0)
    pooled = counts[used] + others[:, used]
    total = hits + other_hits
    scale = (total / (hits * other_hits))[:, 0]

    deviation = _mean_absolute_deviation(pooled, total, hits)
    share = pooled / total
    variance = pooled * (hits * other_hits / total**2) * (1 - share)
    variance *= total / np.maximum(total - 1, 1)
    # Bins share one total, so they are correlated by -sqrt(odds_b * odds_c).
    odds = np.sqrt(variance) * share / np.maximum(1 - share, 1e-12)
    covariance = (odds.sum(axis=1) ** 2 - (odds**2).sum(axis=1)) / np.pi
    own = np.maximum(variance - deviation**2, 0).sum(axis=1)
    spread = scale * np.sqrt(own + covariance)
    return Comparison(distance, scale * deviation.sum(axis=1), spread)


def _mean_absolute_deviation(
    pooled: NDArray[np.float64], total: NDArray[np.float64], hits: np.float64
) -> NDArray[np.float64]:
    """E|x - mu| of hypergeometric x: ``hits`` drawn out of ``total``, ``pooled`` of them special.

    Counts that are not whole (aged centroids) are interpolated through the gamma function.
    """
    v = np.floor(pooled * (hits / total)) + 1
    rest = total - pooled - hits + v
    # v can lie beyond the support (a bin that takes everything): no deviation is possible there.
    possible = (v <= pooled) & (v <= hits) & (rest >= 0)
    v = np.where(possible, v, 0)
    rest = np.where(possible, rest, 0)
    # P(x = v) = C(pooled, v) * C(total - pooled, hits - v) / C(total, hits)
    ways = _log_factorial(np.stack([hits + 0 * total, total - hits, total]))
    up = [pooled, total - pooled]
    down = [v, np.maximum(pooled - v, 0), np.maximum(hits - v, 0), rest]
    logs = _log_factorial(np.stack(up + down))
    log_p = ways[0] + ways[1] - ways[2] + logs[:2].sum(axis=0) - logs[2:].sum(axis=0)
    return np.where(possible, 2 * v * rest / total * np.exp(np.minimum(log_p, 0)), 0)


def _log_factorial(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Log Gamma(x + 1) of x >= 0 (numpy has none; importing scipy.special costs 20 MB)."""
    product = x + 1.0
    for step in range(2, _SHIFT + 1):
        product *= x + step
    y = x + (_SHIFT + 1.0)
    series = (y - 0.5) * np.log(y) - y + 0.9189385332046727 + 1 / (12 * y) - 1 / (360 * y**3)
    return series - np.log(product)
