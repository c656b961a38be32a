"""Counting the reuse distances of a burst while its lines are produced."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from memsampd import _core
from memsampd.models.histogram import ReuseHistogram


class LineCounter:
    """Counts the lines of one burst after the other, always in the same memory.

    Lines are counted as they come, from the caches that they were just written to, and not kept.
    """

    def __init__(self) -> None:
        self._counter = _core.ReuseCounter()

    def begin(self) -> None:
        """Forget what was added, and begin another burst."""
        self._counter.begin()

    def add(self, line: NDArray[np.uint64], starts: int | None = None) -> None:
        """Count the next lines of the present burst.

        Args:
            line: in program order, shape (n,).
            starts: accesses after so many of them, and all later ones, count no more: they only
                tell whether earlier ones return. None, or n: all count, unless it was said before.

        Raises:
            OverflowError: the burst gets longer than 4 billion accesses.
        """
        self._counter.add(np.ascontiguousarray(line, np.uint64), starts)

    def histogram(self) -> ReuseHistogram:
        """Return what the burst has shown so far."""
        return ReuseHistogram.from_counter(self._counter)
