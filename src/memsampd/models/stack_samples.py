"""Stack distances that some reuses of a burst had, beside their reuse distances."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

_MOST = 2048  # that are kept of a burst
_PARTS = 4  # groups an octave, from 16 accesses on
REUSE_EDGES = np.round(2.0 ** (np.arange(4 * _PARTS, 24 * _PARTS + 1) / _PARTS)).astype(np.int64)
"""Reuses of distances d with REUSE_EDGES[g] <= d < REUSE_EDGES[g + 1] are alike; shape
(groups + 1,), int64, accesses."""


class StackSamples(msgspec.Struct, frozen=True, eq=False):
    """A sample of the reuses of one burst; of those of like reuse distance it is a fair one.

    Attributes:
        reuse: reuse distances, ascending, shape (n,), int64, accesses.
        stack: stack distances: how many other lines were accessed between, shape (n,), int64.
    """

    reuse: NDArray[np.int64]
    stack: NDArray[np.int64]

    def __post_init__(self) -> None:
        reuse, stack = self.reuse, self.stack
        if reuse.ndim != 1 or reuse.shape != stack.shape:
            raise ValueError("stack and reuse distances differ in number")
        if (stack < 0).any() or (stack > reuse).any() or (reuse[1:] < reuse[:-1]).any():
            raise ValueError("stack distances lie between 0 and ascending reuse distances")

    @classmethod
    def none(cls) -> StackSamples:
        """Return those of a burst of which nothing is known."""
        return cls(np.zeros(0, np.int64), np.zeros(0, np.int64))

    @classmethod
    def of(cls, pairs: NDArray[np.uint32]) -> StackSamples:
        """Keep what a burst showed, or so much of it as is enough.

        Args:
            pairs: reuse and stack distance of each, in any order, shape (n, 2), uint32.
        """
        order = np.lexsort((pairs[:, 1], pairs[:, 0]))
        kept = pairs[order[:: -(-len(order) // _MOST) or 1]].astype(np.int64)
        return cls(kept[:, 0], kept[:, 1])
