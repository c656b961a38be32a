"""How fast a target went from one moment to another, as far as windows tell."""

from __future__ import annotations

import math
from bisect import bisect_left

import msgspec
import numpy as np
from numpy.typing import NDArray

_REMEMBERED = 1024  # windows at least: longer ago than any watch began
# After so many more windows a rate is hardly ever told again: twice what windows wait, unless no
# burst has seen their code.
_SETTLED = 64


class Course:
    """Rates of the latest windows, in their order; always the same memory."""

    def __init__(self) -> None:
        self._count = 0
        self._index = np.zeros(2 * _REMEMBERED, np.int64)
        self._end_seconds = np.zeros(2 * _REMEMBERED)
        self._rate = np.full(2 * _REMEMBERED, math.nan)
        self._sums: _Sums | None = None  # as long as nothing new is told

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
        self._sums = None

    def tell_rates(
        self, index: NDArray[np.int64], accesses_per_cpu_second: NDArray[np.float64]
    ) -> None:
        """Note what is known of windows now.

        Args:
            index: their numbers, shape (n,); those that are not remembered any more do not matter.
            accesses_per_cpu_second: of each, shape (n,).
        """
        told = self._index[: self._count]
        at = np.minimum(told.searchsorted(index), max(self._count - 1, 0))
        is_found = told[at] == index if self._count else np.zeros(len(index), np.bool_)
        self._rate[at[is_found]] = accesses_per_cpu_second[is_found]
        self._sums = None

    def present_rate(self) -> float | None:
        """Return the latest rate that is known; None if there is none."""
        known = np.flatnonzero(~np.isnan(self._rate[: self._count]))
        return float(self._rate[known[-1]]) if len(known) else None

    @property
    def settled_seconds(self) -> float:
        """Up to when rates are as they will stay, since the attach; -inf if none are."""
        last = self._count - 1 - _SETTLED
        return float(self._end_seconds[last]) if last >= 0 else -math.inf

    def accesses(self, begin_seconds: float, end_seconds: float, cpu_seconds: float) -> float:
        """Return how many accesses a stretch is worth; NaN where no rate is known.

        Args:
            begin_seconds: its begin, since the attach.
            end_seconds: its end.
            cpu_seconds: CPU time in between.
        """
        if self._sums is None:
            self._sums = _Sums.of(self._end_seconds[: self._count], self._rate[: self._count])
        ends, rates, known = self._sums.ends_seconds, self._sums.rates, self._sums.known
        first = min(bisect_left(ends, begin_seconds), max(self._count - 1, 0))
        last = min(bisect_left(ends, end_seconds) + 1, self._count)
        windows = known[last] - known[first]
        return cpu_seconds * (rates[last] - rates[first]) / windows if windows else math.nan


class _Sums(msgspec.Struct, frozen=True):
    """Windows in lists: many stretches are asked about, and each of a few windows.

    Attributes:
        ends_seconds: of each, shape (n,).
        rates: sum of the rates of those before, shape (n + 1,).
        known: how many of those before have a rate, shape (n + 1,).
    """

    ends_seconds: list[float]
    rates: list[float]
    known: list[int]

    @classmethod
    def of(cls, ends_seconds: NDArray[np.float64], rate: NDArray[np.float64]) -> _Sums:
        """Add up."""
        is_known = ~np.isnan(rate)
        rates = np.cumsum(np.where(is_known, rate, 0.0)).tolist()
        return cls(ends_seconds.tolist(), [0.0, *rates], [0, *np.cumsum(is_known).tolist()])
