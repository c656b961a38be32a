"""Counting the reuse distances of a burst while its lines are produced."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from memsampd import _core
from memsampd.models.histogram import ReuseHistogram


class LineCounter:
    """Counts the lines of one burst after the other, always in the same memory.

    Lines are counted as they come, from the caches that they were just written to, and not kept.

    Args:
        seed: of the choice of lines whose long distances are looked at, where they are many
            (:class:`ReuseHistogram`); each burst has another one.
    """

    def __init__(self, seed: int = 0) -> None:
        self._counter = _core.ReuseCounter(seed)

    def begin(self) -> None:
        """Forget what was added, and begin another burst."""
        self._counter.begin()

    def add(self, lines: NDArray[np.uint64]) -> None:
        """Count the next accesses of the present burst.

        Args:
            lines: line numbers, below 2**58, in program order, shape (n,).

        Raises:
            OverflowError: the burst gets longer than 4 billion accesses.
        """
        self._counter.add(np.ascontiguousarray(lines, np.uint64))

    @property
    def core(self) -> _core.ReuseCounter:
        """What counts, for an executor to hand it lines without the way through Python."""
        return self._counter

    def histogram(self) -> ReuseHistogram:
        """Return what the burst has shown so far."""
        return ReuseHistogram.from_counter(self._counter)
