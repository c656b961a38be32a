"""Whether windows that ran the same code all went at one rate."""

from __future__ import annotations

import math
from collections import deque

import numpy as np

_FEWEST = 8
_LATEST = 32
_STEADY = 0.1  # between the quartiles, a logarithm


class WindowRates:
    """How fast windows ran the same code, those of late.

    Attributes:
        steady: logarithm of their median, accesses per CPU second, if half of them are within a
            tenth; else NaN. Worked out anew whenever there are twice as many.
    """

    def __init__(self) -> None:
        self.steady = math.nan
        self._latest: deque[float] = deque(maxlen=_LATEST)
        self._count = 0
        self._due = _FEWEST

    def add(self, accesses_per_cpu_second: float) -> bool:
        """Take in one; whether ``steady`` was worked out anew."""
        self._latest.append(math.log(accesses_per_cpu_second))
        self._count += 1
        if self._count < self._due:
            return False
        self._due = 2 * self._count
        # Not by numpy.quantile: its first call loads numpy.ma, 20 ms of CPU time and more.
        ranks = np.linspace(0, 1, len(self._latest))
        low, middle, high = np.interp((0.25, 0.5, 0.75), ranks, sorted(self._latest)).tolist()
        self.steady = middle if high - low <= _STEADY else math.nan
        return True
