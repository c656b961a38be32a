"""How fast a target went from one moment to another, as far as windows tell."""

from __future__ import annotations

import math

import numpy as np

_REMEMBERED = 1024  # windows at least: longer ago than any watch began


class Course:
    """Rates of the latest windows, in their order; always the same memory."""

    def __init__(self) -> None:
        self._count = 0
        self._index = np.zeros(2 * _REMEMBERED, np.int64)
        self._end_seconds = np.zeros(2 * _REMEMBERED)
        self._rate = np.full(2 * _REMEMBERED, math.nan)

    def begin(self, index: int, end_seconds: float) -> None:
        """Add the next window.

        Args:
            index: its number.
            end_seconds: its end, since the attach.
        """
        if self._count == len(self._index):
            for kept in (self._index, self._end_seconds, self._rate):
                kept[:_REMEMBERED] = kept[_REMEMBERED:]
            self._count = _REMEMBERED
        at = self._count
        self._index[at] = index
        self._end_seconds[at] = max(end_seconds, self._end_seconds[at - 1] if at else 0.0)
        self._rate[at] = math.nan
        self._count += 1

    def tell_rate(self, index: int, accesses_per_cpu_second: float) -> None:
        """Note what is known of a window now."""
        at = int(np.searchsorted(self._index[: self._count], index))
        if at < self._count and self._index[at] == index:
            self._rate[at] = accesses_per_cpu_second

    def present_rate(self) -> float | None:
        """Return the latest rate that is known; None if there is none."""
        known = np.flatnonzero(~np.isnan(self._rate[: self._count]))
        return float(self._rate[known[-1]]) if len(known) else None

    def accesses(self, begin_seconds: float, end_seconds: float, cpu_seconds: float) -> float:
        """Return how many accesses a stretch is worth; NaN where no rate is known.

        Args:
            begin_seconds: its begin, since the attach.
            end_seconds: its end.
            cpu_seconds: CPU time in between.
        """
        ends, rate = self._end_seconds[: self._count], self._rate[: self._count]
        first, last = np.searchsorted(ends, [begin_seconds, end_seconds])
        within = rate[min(first, max(self._count - 1, 0)) : last + 1]
        known = within[~np.isnan(within)]
        return cpu_seconds * float(known.mean()) if len(known) else math.nan
