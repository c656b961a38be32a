"""Sums of registers that count a burst's accesses, found in the burst itself.

A burst knows its registers at some forty moments. Counters and pointers of loops in loops are such
that a sum of one to three of them goes on with the accesses: least squares find which, and what
each counts. Samples of the running thread in quick succession then tell how fast it goes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from memsampd import _core
from memsampd.sampler.clock.code import is_in
from memsampd.sampler.clock.odometer import (
    LARGEST_ADVANCE,
    Odometer,
    Pairs,
    SteadyRate,
    steadiest,
    steady_rate,
)
from memsampd.sampler.rates import Stretch

MOMENTS_LEAST = 8
"""Moments of a burst at which its registers are known: fewer tell too little."""
_TOGETHER_MOST = 3
_FITTED = 0.02  # the deviation from a sum, as a part of the burst
_DEVIATION_MOST = 0.25  # the same, as a part of what is done between two samples
_CANDIDATES = 16
_PARTS = (1, 2, 4)  # where the whole burst went through several loops, its halves, its quarters
_PAIRS_LEAST = 6


def fitted_rate(stretch: Stretch, pairs: Pairs) -> tuple[Odometer, SteadyRate] | None:
    """Look for a sum of registers that counts the accesses of a burst, and how fast a thread goes.

    Args:
        stretch: the burst.
        pairs: samples of the running thread about a tenth of a millisecond apart, both in the
            loops of the burst.

    Returns:
        The sum, and the rate that most of them agree on; None if they do not, or if there is none.
    """
    inside = np.flatnonzero(is_in(stretch.ip, stretch.code_ip))
    if len(pairs.seconds) < _PAIRS_LEAST:
        return None
    for parts in _PARTS:
        found = (_rate_of_part(stretch, pairs, each) for each in _split(inside, parts))
        best = steadiest(filter(None, found))
        if best is not None:
            return best
    return None


def _split(moments: NDArray[np.int64], parts: int) -> Iterator[NDArray[np.int64]]:
    """Some moments in so many parts of nearly equal length: numpy's array_split is slow."""
    each, longer = divmod(len(moments), parts)
    end = 0
    for part in range(parts):
        begin, end = end, end + each + (part < longer)
        yield moments[begin:end]


def _rate_of_part(
    stretch: Stretch, pairs: Pairs, moments: NDArray[np.int64]
) -> tuple[Odometer, SteadyRate] | None:
    """The same by what a part of a burst tells, some of its moments."""
    if len(moments) < MOMENTS_LEAST:
        return None
    advance = stretch.advance[moments].astype(np.float64)
    for weights, deviations in _counting(advance, stretch.accesses[moments]):
        speeds = (pairs.advance.astype(np.float64) @ weights.T / pairs.seconds[:, None]).T.copy()
        best = steadiest(
            (Odometer(weight, 1.0), rate)
            for weight, speed, deviation in zip(
                weights, speeds, deviations / pairs.seconds.mean(), strict=True
            )
            if (rate := agreed_rate(speed)) is not None
            and deviation < _DEVIATION_MOST * rate.accesses_per_second
        )
        if best is not None:  # if it is impossible, others are chance
            low, high = stretch.limits
            return best if low < best[1].accesses_per_second < high else None
    return None


def _counting(
    advance: NDArray[np.float64], accesses: NDArray[np.float64]
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Find sums of one register, of two, and of three that go on with the accesses, best first.

    Args:
        advance: of each register up to each moment, shape (k, 16).
        accesses: made up to each moment, shape (k,).

    Yields:
        Accesses for each unit of a register, shape (c, 16), and by how many accesses each sum
        deviates, shape (c,).
    """
    registers = advance - advance.mean(axis=0)
    made = accesses - accesses.mean()
    scale = np.sqrt((registers**2).sum(axis=0))
    length = float(np.sqrt((made**2).sum()))
    moved = np.flatnonzero((scale > 0) & (np.ptp(advance, axis=0) < LARGEST_ADVANCE))
    unit = registers[:, moved] / scale[moved]
    products, told = unit.T @ unit, unit.T @ (made / length)
    for together in range(1, min(_TOGETHER_MOST, len(moved)) + 1):
        chosen = _choices(len(moved), together)
        # Registers that always go together would have no single solution.
        square = products[chosen[:, :, None], chosen[:, None, :]] + 1e-9 * np.eye(together)
        parts = np.linalg.solve(square, told[chosen][..., None])[..., 0]
        left = np.maximum(1 - (parts * told[chosen]).sum(axis=1), 0.0)
        deviations = np.sqrt(left / len(accesses)) * length
        good = np.argsort(deviations, kind="stable")[:_CANDIDATES]
        good = good[deviations[good] < _FITTED * np.ptp(accesses)]
        if not len(good):
            continue
        weights = np.zeros((len(good), advance.shape[1]))
        which = moved[chosen[good]]
        np.put_along_axis(weights, which, parts[good] * length / scale[which], axis=1)
        yield weights, deviations[good]


@cache
def _choices(registers: int, together: int) -> NDArray[np.int64]:
    """All choices of so many of them, shape (c, together); nobody may write into it."""
    return np.array(list(combinations(range(registers), together)))


def agreed_rate(
    speed: NDArray[np.float64], limits: tuple[float, float] = (0.0, np.inf)
) -> SteadyRate | None:
    """The rate that nearly all of these agree on about, or half of those that go on closely.

    Args:
        speed: accesses per second by pairs of samples, at least one, shape (p,).
        limits: what is possible.
    """
    steady = steady_rate(speed, limits)
    if steady is not None:
        return steady
    found = _core.agreed_rate(np.ascontiguousarray(speed), *limits)
    return None if found is None else SteadyRate(*found)
