"""Counters of accesses, misses and write-backs, whatever an estimate is corrected by."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from memsampd.estimate.records import Totals


class Counters:
    """None runs backwards, and all advance together.

    From any moment to any later one there is at most one miss an access, and at most one write-back
    a miss. A correction upwards of misses alone waits for accesses, one downwards for later misses.

    Args:
        policies: of the caches.
        sizes: how many there are of each.

    Attributes:
        accesses: counted so far.
    """

    def __init__(self, policies: Sequence[str], sizes: int) -> None:
        self._policies = policies
        self.accesses = 0.0
        self._misses = np.zeros((len(policies), sizes))
        self._written_back = np.zeros((len(policies), sizes))

    def count_on(
        self,
        accesses: float,
        misses: NDArray[np.float64],
        written_back_share: NDArray[np.float64],
    ) -> None:
        """Count what is known to have happened since the start.

        Args:
            accesses: all of them.
            misses: all of these, shape (policies, s).
            written_back_share: of the lines that missed, shape (policies, s), 0..1.
        """
        step = max(accesses - self.accesses, 0.0)
        self.accesses += step
        before, written = self._misses, self._written_back
        self._misses = np.clip(misses, before, before + step)
        most = written + (self._misses - before)
        self._written_back = np.clip(written_back_share * misses, written, most)

    def totals(self) -> Totals:
        """Return what was counted so far."""
        misses = dict(zip(self._policies, self._misses, strict=True))
        return Totals(
            self.accesses, misses, dict(zip(self._policies, self._written_back, strict=True))
        )
