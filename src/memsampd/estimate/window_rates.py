"""How fast windows ran the same code on like data, and whether all went at one rate."""

from __future__ import annotations

import math
from collections import deque

from memsampd.sampler.rates import CodeRate
from memsampd.sampler.records import Spacing

_FEWEST = 8
_LATEST = 32
_SOON = 4096  # windows: what memory takes differs from hour to hour
_QUARTILES = (0.25, 0.5, 0.75)
_STEADY = 0.1  # between the quartiles, a logarithm
_LIKE_DATA = 1.0  # octaves between spacings


class WindowRates:
    """How fast windows ran the same code, those of late."""

    def __init__(self) -> None:
        self._latest: deque[tuple[float, float]] = deque(maxlen=_LATEST)  # logarithm, octaves
        self._told: tuple[tuple[float, float], ...] = ()  # of these, when they were looked at last
        self._count = 0
        self._due = _FEWEST

    def add(self, accesses_per_cpu_second: float, octaves: float = math.nan) -> bool:
        """Take in one; whether :meth:`steady` tells of others now: twice as many, or later ones.

        Args:
            accesses_per_cpu_second: its rate.
            octaves: the spacing of its data; NaN where it is not known.
        """
        self._latest.append((math.log(accesses_per_cpu_second), octaves))
        self._count += 1
        if self._count < self._due:
            return False
        self._due = min(2 * self._count, self._count + _SOON)
        self._told = tuple(self._latest)
        return True

    def steady(self, octaves: float = math.nan) -> float:
        """Return the logarithm of their median rate, if half of them are within a tenth; else NaN.

        Args:
            octaves: of windows on data with about this spacing, or an unknown one; NaN: of all.
        """
        rates = sorted(rate for rate, other in self._told if not abs(other - octaves) > _LIKE_DATA)
        if len(rates) < _FEWEST:
            return math.nan
        # Not by numpy, which takes three times as long for so few: each burst asks.
        low, middle, high = (_at_rank(rates, share * (len(rates) - 1)) for share in _QUARTILES)
        return middle if high - low <= _STEADY else math.nan


def _at_rank(values: list[float], rank: float) -> float:
    """A value between two of some, ascending, by its rank below the last one's."""
    at = int(rank)
    return values[at] + (values[at + 1] - values[at]) * (rank - at)


class RatesByCode:
    """How fast windows ran each code, by its id (:attr:`CodeRate.code`).

    Args:
        most: codes that are remembered: those that windows ran first are forgotten.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._rates: dict[int, WindowRates] = {}

    def add(self, rate: CodeRate, spacing: Spacing | None = None) -> bool:
        """Take in one of a window; whether :meth:`steady` tells otherwise now.

        Args:
            rate: of some code.
            spacing: of the window's data.
        """
        rates = self._rates.setdefault(rate.code, WindowRates())
        if len(self._rates) > self._most:
            del self._rates[next(iter(self._rates))]
        octaves = math.nan if spacing is None else spacing.octaves
        return rates.add(rate.accesses_per_cpu_second, octaves)

    def steady(self, code: int, octaves: float = math.nan) -> float:
        """Return the logarithm of the rate of a code; NaN where windows differ, or are too few.

        Args:
            code: its id.
            octaves: on data with about this spacing; NaN: on any.
        """
        rates = self._rates.get(code)
        return math.nan if rates is None else rates.steady(octaves)
