"""How fast windows ran the same code, and whether all went at one rate."""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from memsampd.sampler.records import CodeRate

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


class RatesByCode:
    """How fast windows ran each code, by its id (:attr:`CodeRate.code`).

    Args:
        most: codes that are remembered: those that windows ran first are forgotten.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._rates: dict[int, WindowRates] = {}

    def add(self, rate: CodeRate) -> bool:
        """Take in one of a window; whether :meth:`steady` was worked out anew."""
        rates = self._rates.setdefault(rate.code, WindowRates())
        if len(self._rates) > self._most:
            del self._rates[next(iter(self._rates))]
        return rates.add(rate.accesses_per_cpu_second)

    def steady(self, code: int) -> float:
        """Return the logarithm of the rate of a code; NaN where windows differ, or are too few."""
        rates = self._rates.get(code)
        return math.nan if rates is None else rates.steady
