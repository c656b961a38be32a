"""The survival function of reuse distances, estimated from censored histograms."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from memsampd import _core
from memsampd.models.bins import EDGES
from memsampd.models.histogram import ReuseHistogram
from memsampd.models.stack_samples import StackSamples

MIN_OBSERVABLE = 64
"""Fewest accesses from which a distance must have been observable to be within the horizon."""


def _steps(edges: NDArray[np.int64]) -> NDArray[np.int64]:
    """In which step each edge lies, of one access up to 64, and of a sixteenth of an octave."""
    octaves = np.log2(np.maximum(edges, 1))
    return np.where(edges <= 64, edges, 64 + np.floor((octaves - 6) * 16)).astype(np.int64)


_EDGE_STEPS = _steps(EDGES)


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
        survival = np.frombuffer(
            _core.product_limit(
                np.ascontiguousarray(histogram.reuses, np.int64),
                np.ascontiguousarray(histogram.censored, np.int64),
                EDGES,
                min_observable,
            )
        )
        edges = EDGES[: len(survival)]
        return cls(edges, survival, histogram.accesses, histogram.stacks)

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
        is_usual = np.array_equal(edges, EDGES[: len(edges)])
        step = _EDGE_STEPS[: len(edges)] if is_usual else _steps(edges)
        keep = np.append(step[1:] > step[:-1], True)
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

    def contiguous(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return edges and S at each as the core takes them."""
        edges = np.ascontiguousarray(self.edges_accesses, np.int64)
        return edges, np.ascontiguousarray(self.survival, np.float64)

    def __call__(self, distances: ArrayLike) -> NDArray[np.float64]:
        """Return S at these distances; beyond the horizon its upper bound, S(horizon)."""
        at = np.asarray(distances, dtype=np.float64)
        return np.asarray(np.interp(at, self.edges_accesses, self.survival))
