"""Reuses longer than bursts can see: the survival function beyond a horizon, from watchpoints."""

from __future__ import annotations

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

from memsampd.models.bins import BINS, EDGES, bin_of
from memsampd.models.survival import SurvivalFunction

MIN_WATCHES = 4
"""Fewest watches that must have been able to see a distance to be within the horizon.

Those of one burst are alike, and count for fewer.
"""
_DEVIATIONS = 2.0
LINES_ALIKE = 0.25
"""How much alike the lines of one burst are: the correlation of what their watches tell."""
_ROUNDING = 1e-9  # of sums of weights


class WatchedReuses(msgspec.Struct, frozen=True):
    """What watchpoints told of w accesses that return late, or not at all.

    Attributes:
        entry: what a distance must be at least to be among these, accesses, shape (w,), float64.
        end: the distance, or where it was lost from sight, shape (w,), float64.
        returned: which of the two, shape (w,), bool.
        sight: how far the watch would have seen, shape (w,), float64.
        chance: how likely a visit to other words of the line than before touches one that was
            watched, shape (w,), float64.
        same: whether it returned to a word that had been touched before, shape (w,), bool.
        before: share of the watched words that had, shape (w,), float64.
        weight: what each counts: those of a watch together 1 where all watches count alike, shape
            (w,), float64.
        inconclusive: watches that told nothing: their words were touched too often.
        bursts: how many bursts told the lines; 0: as many as there are watches.
        alike: how much alike the lines of one burst are: the correlation of what their watches
            tell.
    """

    entry: NDArray[np.float64]
    end: NDArray[np.float64]
    returned: NDArray[np.bool_]
    sight: NDArray[np.float64]
    chance: NDArray[np.float64]
    same: NDArray[np.bool_]
    before: NDArray[np.float64]
    weight: NDArray[np.float64]
    inconclusive: float = 0.0
    bursts: int = 0
    alike: float = LINES_ALIKE

    @property
    def watches_for_one(self) -> float:
        """So many watches say as much as one would of a burst of its own."""
        each = self.watches / self.bursts if self.bursts else 1.0
        return 1 + self.alike * max(each - 1, 0)

    @property
    def watches(self) -> int:
        """How many watches these come from."""
        return round(float(self.weight.sum()))


class Constancy(msgspec.Struct, frozen=True):
    """How often a line is touched again where it was touched before.

    Where half of a line is watched, who touches the same words again is always seen; who touches
    any others is seen by chance.

    Attributes:
        low: lower bound, 0..1.
        middle: the estimate.
        high: upper bound.
    """

    low: float
    middle: float
    high: float

    @classmethod
    def of(cls, returns: int, same: int, by_chance: float) -> Constancy:
        """Estimate it from reuses of lines of which half was watched.

        Args:
            returns: reuses.
            same: those in which a word was touched first that had been touched before.
            by_chance: share of them if any of the watched words had been touched, below 1.
        """
        if not returns or by_chance >= 1:
            return cls(0.0, 0.5, 1.0)
        share = np.array([same / returns])
        told = [*(each[0] for each in wilson(share, returns)), (same + 1) / (returns + 2)]
        low, high, middle = np.clip((np.array(told) - by_chance) / (1 - by_chance), 0, 1).tolist()
        return cls(low, middle, high)


class Tail(msgspec.Struct, frozen=True):
    """S(k) / S(horizon) beyond a horizon: estimate and bounds, for the same distances.

    Attributes:
        low: lower bound.
        middle: the estimate.
        high: upper bound.
        count: as many watches of bursts of their own would say as much.
    """

    low: SurvivalFunction
    middle: SurvivalFunction
    high: SurvivalFunction
    count: float


def wilson(
    share: NDArray[np.float64], count: float | NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return bounds, two standard deviations away, of shares that were seen among ``count``.

    Wilson's interval (1927): honest where few were seen and all, or none, of them did it.
    """
    n = np.maximum(count, 1e-9)
    square = _DEVIATIONS**2
    centre = (share + square / (2 * n)) / (1 + square / n)
    half = _DEVIATIONS / (1 + square / n) * np.sqrt(share * (1 - share) / n + square / (4 * n * n))
    return np.clip(centre - half, 0, 1), np.clip(centre + half, 0, 1)


def tail_beyond(horizon_accesses: int, reuses: WatchedReuses, constancy: Constancy) -> Tail | None:
    """Estimate how late accesses return that have not returned within a horizon.

    Kaplan and Meier's product limit with delayed entry: a watch is at risk from ``entry`` on, or
    from the horizon. It ends before the first distance that fewer than ``MIN_WATCHES`` could see.

    A line that is touched now here, now there returns more often than half of its words tell: their
    reuses are then counted at ``chance`` times the distance.

    Args:
        horizon_accesses: what bursts saw.
        reuses: of words.
        constancy: of lines of which half was watched.

    Returns:
        None where too few watches tell of it.
    """
    first = int(np.searchsorted(EDGES, horizon_accesses))
    begin = np.maximum(np.searchsorted(EDGES, np.ceil(reuses.entry)), first)
    seen = bin_of(np.maximum(reuses.sight, 0))
    observable = _between(begin, np.maximum(seen, begin), reuses.weight)[first:]
    number = observable / reuses.watches_for_one
    poor = np.flatnonzero(number < MIN_WATCHES - _ROUNDING)
    bins = int(poor[0]) if len(poor) else len(number)
    if bins == 0:
        return None
    survival = [
        _product_limit(reuses, begin, each)[first : first + bins]
        for each in (constancy.low, constancy.middle, constancy.high)
    ]
    told = reuses.watches / (reuses.watches + reuses.inconclusive)
    low = wilson(survival[0], number[:bins])[0] * told
    high = wilson(survival[2], number[:bins])[1] * told + (1 - told)
    edges = np.concatenate([[0], EDGES[first : first + bins + 1]])
    low_part, middle, high_part = (
        _function(edges, each, reuses.watches) for each in (low, survival[1], high)
    )
    return Tail(low_part, middle, high_part, count=float(number[0]))


def _product_limit(
    reuses: WatchedReuses, begin: NDArray[np.int64], constancy: float
) -> NDArray[np.float64]:
    """S at the end of each bin, (BINS,); accesses are at risk from the bins ``begin`` on."""
    by_chance = (1 - constancy) * reuses.before
    as_before = np.divide(
        constancy, constancy + by_chance, out=np.zeros(len(by_chance)), where=reuses.same
    )
    share = np.where(reuses.returned & (reuses.chance < 1), as_before, 1.0)
    end = np.concatenate([reuses.end, reuses.end * reuses.chance])
    weight = np.concatenate([reuses.weight * share, reuses.weight * (1 - share)])
    begin, returned = np.tile(begin, 2), np.tile(reuses.returned, 2)
    at = bin_of(np.maximum(end, 0))
    lasts = np.where(returned, at + 1, at)  # bins that it was at risk in, the end excluded
    at_risk = _between(begin, np.maximum(lasts, begin), weight)
    is_reuse = returned & (at >= begin)
    count = np.bincount(at[is_reuse], weight[is_reuse], minlength=BINS)
    hazard = np.divide(count, at_risk, out=np.zeros(BINS), where=at_risk > _ROUNDING)
    return np.asarray(np.cumprod(np.clip(1 - hazard, 0, 1)))


def chance_of(words: int, touched: int, of: int = 8) -> float:
    """How likely some words of a line, chosen by chance, touch some that are watched.

    Args:
        words: that are watched.
        touched: that are touched.
        of: all of the line.
    """
    return 1 - math.comb(of - words, touched) / math.comb(of, touched)


def _between(
    begin: NDArray[np.int64], end: NDArray[np.int64], weight: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Sum of the weights of the ranges of bins, ends excluded, that each bin is in, (BINS,)."""
    begins, ends = (np.bincount(each, weight, minlength=BINS + 1) for each in (begin, end))
    return np.asarray(np.cumsum(begins[:BINS] - ends[:BINS]))


def _function(edges: NDArray[np.int64], after: NDArray[np.float64], count: int) -> SurvivalFunction:
    """1 up to the first distance, and then at the end of each bin what is known there."""
    survival = np.minimum.accumulate(np.concatenate([[1.0, 1.0], np.clip(after, 0, 1)]))
    keep = np.append(np.diff(edges) > 0, True)  # a horizon of 0
    return SurvivalFunction(edges[keep], survival[keep], count)
