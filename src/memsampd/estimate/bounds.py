"""How wrong a mean curve may be: what bursts left out, and how far they stand for the rest."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from memsampd.estimate.accounts import WindowSums

_DEVIATIONS = 2.0
# Standard deviation of what the cache models themselves are wrong by, in units of sqrt(m (1 - m)),
# and the same where bursts saw stack distances (``python benchmarks/model_error.py``).
_MODEL = 0.02
_MODEL_OF_SEEN = 0.007
# The same of bursts, where these go on while the target does otherwise: in part or all of it.
_BEYOND = 0.06
# By how much other accesses differ that no burst met: of n bursts, 1 / n of all may be such. An
# access that a sample told, and whose line was watched, is a moment as each burst is.
_UNMET = 0.05


class Part(msgspec.Struct, frozen=True):
    """A phase as a part of a run.

    Attributes:
        sums: over all of its windows.
        squares: sum of the squares of weights of bursts that are not remembered by themselves.
        spread: relative standard deviation of its access rate; None if that is not known.
        scatter: variance of the curve of a single burst, shape (values,).
        beyond: share of its bursts that was made when the target ran on, 0..1.
        seen: share of its accesses by bursts that saw stack distances as large, 0..1, shape
            (values,) or for all of them.
        samples: accesses that samples told, and whose lines were watched.
    """

    sums: WindowSums
    squares: float
    spread: float | None
    scatter: NDArray[np.float64]
    beyond: float = 0.0
    seen: NDArray[np.float64] | float = 0.0
    samples: int = 0


def mean_row(parts: Sequence[Part]) -> NDArray[np.float64]:
    """Return misses per access of some parts together, in the figures of a curve layout."""
    accesses = sum(part.sums.accesses for part in parts)
    return np.asarray(sum(part.sums.misses for part in parts) / accesses)


def bounded(parts: Sequence[Part], points: int) -> NDArray[np.float64]:
    """Return the mean curve of some phases with bounds that hold the truth in 95 of 100 cases.

    To the bounds that bursts give by themselves (what lies beyond their horizons) comes, as errors
    that are independent of these and each other,

    - the scatter of bursts: each speaks for so many accesses, as if these were all like it;
    - accesses of another kind than any burst met: the fewer bursts, the more there may be;
    - what bursts do beyond a hold, where the target may do otherwise;
    - the access rates of phases: if one is wrong, the phase counts for too much or too little;
    - code that no burst has seen: it may differ as much as bursts do;
    - what the cache models are wrong by.

    No bound is above what the memory of the program allows for.

    Args:
        parts: phases with accesses.
        points: sizes, s.

    Returns:
        In the figures of a curve layout, shape (values,).
    """
    accesses = sum(part.sums.accesses for part in parts)
    row = mean_row(parts)
    ratio = np.clip(row, 0.0, 1.0)
    beyond = sum(part.beyond * part.sums.accesses for part in parts) / accesses
    seen = sum(part.seen * part.sums.accesses for part in parts) / accesses
    model = _MODEL + seen * (_MODEL_OF_SEEN - _MODEL)
    variance = (model**2 + (_BEYOND * beyond) ** 2) * ratio * (1 - ratio)
    unmet = 0.0
    rate_spreads = [part.spread for part in parts if part.spread is not None]
    usual_spread = max(rate_spreads, default=0.5)
    spreads = [usual_spread if part.spread is None else part.spread for part in parts]
    for part, spread in zip(parts, spreads, strict=True):
        share = part.sums.accesses / accesses
        if share <= 0:
            continue
        own = np.clip(part.sums.misses / part.sums.accesses, 0.0, 1.0)
        weights = part.sums.weights
        squares = (float(weights @ weights) + part.squares) / accesses**2
        unmet += squares / (1 + part.samples * squares / share**2)
        unseen = part.sums.unseen / accesses
        variance = variance + (squares + 4 * unseen**2) * part.scatter
        if len(parts) > 1:
            variance = variance + (share * spread * (own - row)) ** 2
    variance = variance + (_UNMET * unmet) ** 2
    # Of each policy: figures of the middle, of the low bound, of the high bound.
    table = row.reshape(-1, 3, points).copy()
    deviation = _DEVIATIONS * np.sqrt(variance).reshape(-1, 3, points)[:, 0]
    below, above = _open_ranges(parts, accesses, points)
    table[:, 1] = table[:, 0] - np.hypot(deviation, below)
    most = _most(parts, spreads, accesses).reshape(-1, points)
    table[:, 2] = np.minimum(table[:, 0] + np.hypot(deviation, above), most)
    return np.clip(table, 0.0, 1.0).ravel()


def spread_of_sum(parts: Sequence[Part], spreads: Sequence[float], accesses: float) -> float:
    """Return the relative error of all accesses, where those of phases are independent.

    Args:
        parts: phases.
        spreads: relative errors of their accesses.
        accesses: of all of them.
    """
    weighted = [part.sums.accesses * one for part, one in zip(parts, spreads, strict=True)]
    return float(np.hypot.reduce(np.array(weighted))) / accesses


def _most(parts: Sequence[Part], spreads: Sequence[float], accesses: float) -> NDArray[np.float64]:
    """Return the miss ratios that memory allows for, shape (policies * points,).

    It tells misses: what part of all accesses these are hangs on the access rate.
    """
    ratio = 1 - np.asarray(sum(part.sums.sure_hits for part in parts)) / accesses
    return np.asarray(ratio * (1 + _DEVIATIONS * spread_of_sum(parts, spreads, accesses)))


def _open_ranges(parts: Sequence[Part], accesses: float, points: int) -> NDArray[np.float64]:
    """How far below and above the estimate bursts leave the truth open, (2, policies, points).

    That lines of one phase return later than its bursts could see says nothing of those of another
    phase: squares are added. Phases of unknown code may all be unlike what stands in for them.
    """
    shape = 2, len(parts[0].sums.misses) // (3 * points), points
    sure, squares = np.zeros(shape), np.zeros(shape)
    for part in parts:
        middle, low, high = (part.sums.misses / accesses).reshape(-1, 3, points).swapaxes(0, 1)
        open_range = np.maximum([middle - low, high - middle], 0.0)
        unknown = np.minimum(open_range, part.sums.unknown_accesses / accesses)
        sure += unknown
        squares += (open_range - unknown) ** 2
    return np.asarray(sure + np.sqrt(squares))
