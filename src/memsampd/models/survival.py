"""The survival function of reuse distances, estimated from censored histograms."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from memsampd.models.bins import EDGES
from memsampd.models.histogram import ReuseHistogram
from memsampd.models.stack_samples import StackSamples

MIN_OBSERVABLE = 64
"""Fewest accesses from which a distance must have been observable to be within the horizon."""

OBSERVABLE_PER_DISTANCE = 0.25
"""The same as a share of the distance: what happens at distance k is known from k/4 accesses."""


class SurvivalFunction(msgspec.Struct, frozen=True, eq=False):
    """S(k) = P(d >= k), the share of accesses whose line is not touched within k accesses.

    Between edges S is linear: the reuses of a bin are spread evenly over it. Nothing is claimed
    beyond the last edge, the horizon, except that S cannot rise.

    Attributes:
        edges_accesses: distances k_0 = 0 < k_1 < ... < k_m, shape (m + 1,), int64.
        survival: S at each, shape (m + 1,), float64, 0..1, S(0) = 1, non-increasing.
        sampled_accesses: accesses behind the estimate.
        stacks: stack distances that some of the reuses had; None where nobody looked.
    """

    edges_accesses: NDArray[np.int64]
    survival: NDArray[np.float64]
    sampled_accesses: int
    stacks: StackSamples | None = None

    def __post_init__(self) -> None:
        edges, survival = self.edges_accesses, self.survival
        if not (len(edges) == len(survival) >= 1 and edges[0] == 0 and survival[0] == 1):
            raise ValueError("a survival function starts with S(0) = 1")
        is_falling = not (survival[1:] > survival[:-1]).any() and survival[-1] >= 0
        if (edges[1:] <= edges[:-1]).any() or not is_falling:
            raise ValueError("a survival function falls from 1 to 0 over ascending distances")

    @classmethod
    def from_histogram(
        cls, histogram: ReuseHistogram, min_observable: int = MIN_OBSERVABLE
    ) -> SurvivalFunction:
        """Estimate by Kaplan and Meier's product limit (J. Am. Stat. Assoc. 53, 1958).

        ``S(end of bin) = S(start) * (1 - reuses / at_risk)``, where the accesses at risk in a bin
        are those that survived to its start and could see to its end.

        The horizon is where too few accesses could see on: at_risk / S(k) estimates how many
        could see as far as k, whether or not they had returned by then. It ends before the first
        bin with fewer than ``min_observable`` or fewer than a quarter of the distance.

        Args:
            histogram: the bursts of one phase, added up.
            min_observable: fewest accesses that must have been able to see a distance.
        """
        reuses, censored = histogram.reuses, histogram.censored
        # From the bin on for reuses, beyond it for what was censored in it: see ReuseHistogram.
        at_risk = np.cumsum((reuses + censored)[::-1])[::-1] - censored
        returned = np.divide(reuses, at_risk, out=np.zeros(len(reuses)), where=at_risk > 0)
        survival = np.ones(len(reuses) + 1)
        np.cumprod(1.0 - returned, out=survival[1:])
        start = survival[:-1]
        observable = np.divide(at_risk, start, out=np.zeros(len(start)), where=start > 0)
        needed = np.maximum(min_observable, OBSERVABLE_PER_DISTANCE * EDGES[1:])
        poor = np.flatnonzero(observable < np.maximum(needed, 1))
        end = int(poor[0]) if len(poor) else len(start)
        return cls(EDGES[: end + 1], survival[: end + 1], histogram.accesses, histogram.stacks)

    def continued_by(self, other: SurvivalFunction) -> SurvivalFunction:
        """Go on beyond the horizon as another function does, where it reaches further.

        ``S(k) = S(H) * other(k) / other(H)`` for k > H: an access that has not returned within
        the horizon H returns later as those of the other that had not.

        Args:
            other: of longer samples from like code, for instance of the whole phase.
        """
        horizon = self.horizon_accesses
        left = float(other(horizon))
        beyond = other.edges_accesses > horizon
        if left <= 0 or not beyond.any():
            return self
        tail = self.never_returned * np.minimum(other.survival[beyond] / left, 1.0)
        return SurvivalFunction(
            np.concatenate([self.edges_accesses, other.edges_accesses[beyond]]),
            np.concatenate([self.survival, tail]),
            self.sampled_accesses,
            self.stacks,
        )

    def thinned(self) -> SurvivalFunction:
        """Return the same with edges at most 1/16 apart from 64 on: some 300 in place of 4000."""
        edges = self.edges_accesses
        octaves = np.log2(np.maximum(edges, 1))
        step = np.where(edges <= 64, edges, 64 + np.floor((octaves - 6) * 16)).astype(np.int64)
        keep = np.append(np.diff(step) > 0, True)
        keep[0] = True
        return SurvivalFunction(
            edges[keep], self.survival[keep], self.sampled_accesses, self.stacks
        )

    @property
    def horizon_accesses(self) -> int:
        """The longest distance that the samples can say something about.

        Where everything was seen to return, the distance by which it had.
        """
        return int(self.edges_accesses[-1])

    @property
    def never_returned(self) -> float:
        """S(horizon): the share of accesses not seen to return."""
        return float(self.survival[-1])

    def __call__(self, distances: ArrayLike) -> NDArray[np.float64]:
        """Return S at these distances; beyond the horizon its upper bound, S(horizon)."""
        at = np.asarray(distances, dtype=np.float64)
        return np.asarray(np.interp(at, self.edges_accesses, self.survival))
