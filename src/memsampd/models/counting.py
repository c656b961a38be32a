"""Counting the reuse distances of a burst while its lines are produced."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from memsampd.models.histogram import ReuseHistogram

_FIRST_LINES = 1 << 16


class LineCounter:
    """Gathers the lines of one burst after the other, always in the same memory.

    New memory costs a page fault every 512 lines, as much as all that is done with them.
    """

    def __init__(self) -> None:
        self._lines: NDArray[np.uint64] = np.empty(_FIRST_LINES, np.uint64)
        self._count = 0

    def begin(self) -> None:
        """Forget what was added, and begin another burst."""
        self._count = 0

    def add(self, line: NDArray[np.uint64]) -> None:
        """Add the next lines of the present burst, shape (n,), in program order."""
        end = self._count + len(line)
        if end > len(self._lines):
            grown = np.empty(max(end, 2 * len(self._lines)), np.uint64)
            grown[: self._count] = self._lines[: self._count]
            self._lines = grown
        self._lines[self._count : end] = line
        self._count = end

    def histogram(self) -> ReuseHistogram:
        """Count the burst."""
        return ReuseHistogram.from_lines(self._lines[: self._count])
