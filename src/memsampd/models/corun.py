"""Programs that share one LRU cache: how much of it each holds, and what it then misses.

A curve m(l) tells how fast a program fills a cache: at l lines it brings a new one every 1/m(l)
accesses, so that l lines take T(l) = integral of dl / m(l) accesses. This is StatStack backwards: T
is the reuse distance whose expected stack distance is l, and m(l) = S(T(l)). Programs that run side
by side fill the cache together. After t seconds it holds F_i(r_i t) lines of program i, with F_i
the inverse of T_i and r_i its accesses a second; it is full when these add up to its size. A line
that is not touched until then is gone: program i misses as alone in a cache of F_i(r_i t) lines.

In other words: reuse distances of each are stretched by what the others touch meanwhile, survival
functions add up in proportion to access rates, and StatStack models the sum (Eklov, Black-Schaffer
and Hagersten, HiPEAC 2011; Xiang et al., ASPLOS 2013).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from memsampd.models.records import MissRatioCurve

_STEPS_PER_OCTAVE = 16
_LEAST_RATIO = 1e-9  # a program that misses more rarely fills nothing more of a cache
_DEVIATIONS = 2.0  # of access rates: bounds are to hold in 95 of 100 cases
_MOST_COMBINATIONS = 256
_MOMENTS = 600
_MIDDLE, _LOW, _HIGH = range(3)


@dataclass(frozen=True, slots=True, eq=False)
class Demand:
    """A phase of a program, as what it asks of a cache.

    Attributes:
        share: of the program's time, 0..1.
        accesses_per_second: of wall time, of all its threads.
        spread: relative standard deviation of that rate; None if that is not known.
        curve: its miss-ratio curve of LRU caches.
    """

    share: float
    accesses_per_second: float
    spread: float | None
    curve: MissRatioCurve


@dataclass(frozen=True, slots=True)
class SharedMisses:
    """What a program misses beside others.

    Attributes:
        miss_ratio: misses per access.
        low: bound: it holds as much of the cache as may be, with its low curve.
        high: bound: it holds as little as may be, with its high curve.
        misses_per_second: of wall time.
        low_per_second: bound of that.
        high_per_second: bound of that.
        held_bytes: of the cache, on average over time.
    """

    miss_ratio: float
    low: float
    high: float
    misses_per_second: float
    low_per_second: float
    high_per_second: float
    held_bytes: float


def share_cache(programs: Sequence[Sequence[Demand]], size_bytes: int) -> list[SharedMisses]:
    """Predict the misses of programs that run at the same time and share one cache.

    Phases of different programs are taken to meet by chance. Where they meet in more than 256 ways,
    so many are drawn. Of time without a curve nothing is known: a program then misses between what
    it would with all of the cache, and always.

    Args:
        programs: the phases of each that have a curve; one at least.
        size_bytes: of the cache.
    """
    meetings, weights = _meetings(programs, np.random.default_rng(0))
    fillings = [[_Filling.of(demand, size_bytes) for demand in demands] for demands in programs]
    known = float(np.prod([sum(demand.share for demand in demands) for demands in programs]))
    held = _held(fillings, meetings)
    return [
        _missed(demands, fillings[i], held[:, i], meetings[:, i], weights, known)
        for i, demands in enumerate(programs)
    ]


def run_alone(demands: Sequence[Demand], size_bytes: int) -> SharedMisses:
    """Return what a program misses with a cache of its own.

    Args:
        demands: its phases that have a curve; one at least.
        size_bytes: of the cache.
    """
    return share_cache([demands], size_bytes)[0]


def at_bound(demands: Sequence[Demand], bound: Literal["low", "high"]) -> list[Demand]:
    """Return the demands as if their curves lay at one of their bounds."""
    return [
        replace(
            demand,
            curve=msgspec.structs.replace(
                demand.curve,
                miss_ratio=getattr(demand.curve, bound),
                low=getattr(demand.curve, bound),
                high=getattr(demand.curve, bound),
            ),
        )
        for demand in demands
    ]


def _meetings(
    programs: Sequence[Sequence[Demand]], random: np.random.Generator
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Return which phases meet, shape (k, n), and how much of the time; this sums to 1."""
    shares = [np.array([demand.share for demand in demands]) for demands in programs]
    shares = [each / each.sum() for each in shares]
    if np.prod([float(len(each)) for each in shares]) <= _MOST_COMBINATIONS:
        each_one = np.indices([len(each) for each in shares]).reshape(len(shares), -1).T
        parts = [each[each_one[:, i]] for i, each in enumerate(shares)]
        return each_one, np.asarray(np.prod(parts, axis=0))
    # Each program's time is cut into equal slices, and these meet in random order.
    slices = (np.arange(_MOST_COMBINATIONS) + 0.5) / _MOST_COMBINATIONS
    columns = [
        random.permutation(np.minimum(np.searchsorted(np.cumsum(each), slices), len(each) - 1))
        for each in shares
    ]
    return np.transpose(columns), np.full(_MOST_COMBINATIONS, 1 / _MOST_COMBINATIONS)


@dataclass(frozen=True, slots=True, eq=False)
class _Filling:
    """How long a program takes to fill a cache, by its middle, low and high curve.

    Attributes:
        lines: shape (g,), from 0 to the cache's size.
        seconds: until it has brought so many, shape (3, g), ascending.
        ratios: its miss ratio in caches of so many, shape (3, g).
        line_bytes: size of a line.
    """

    lines: NDArray[np.float64]
    seconds: NDArray[np.float64]
    ratios: NDArray[np.float64]
    line_bytes: int

    @classmethod
    def of(cls, demand: Demand, size_bytes: int) -> _Filling:
        """Integrate the demand's curves up to a size."""
        curve = demand.curve
        size = size_bytes / curve.line_bytes
        octaves = int(np.ceil(np.log2(max(size, 2))))
        steps = octaves * _STEPS_PER_OCTAVE
        lines = np.concatenate([[0.0], size * 2.0 ** (np.arange(-steps, 1) / _STEPS_PER_OCTAVE)])
        rows = (curve.miss_ratio, curve.low, curve.high)
        ratios = np.array([_ratios(curve, row, lines) for row in rows])
        ratios[_LOW, lines * curve.line_bytes > curve.sizes_bytes[-1]] = 0.0  # nobody looked there
        # Exact where 1/m is linear; steps are small.
        accesses = np.diff(lines) / np.maximum((ratios[:, 1:] + ratios[:, :-1]) / 2, _LEAST_RATIO)
        factor = _factor(demand)
        rate = demand.accesses_per_second * np.array([1.0, 1 / factor, factor])
        seconds = np.cumsum(accesses, axis=1) / rate[:, None]
        return cls(lines, np.pad(seconds, ((0, 0), (1, 0))), ratios, curve.line_bytes)

    def held(self, seconds: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the lines that it has brought by these moments, shape (3, moments)."""
        return np.array([np.interp(seconds, pace, self.lines) for pace in self.seconds])

    def ratios_when_held(self, held: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the miss ratio with the lines expected, and its bounds, shape (3,).

        Args:
            held: lines expected, at most, at least: the most of them go with the low curve.
        """
        pairs = zip(held, self.ratios, strict=True)
        return np.array([np.interp(lines, self.lines, ratios) for lines, ratios in pairs])


def _ratios(
    curve: MissRatioCurve, row: NDArray[np.float64], lines: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Read a curve at any number of lines: 1 at none, between sizes linear in their logarithm."""
    known = curve.sizes_bytes / curve.line_bytes
    ratios = np.interp(np.log2(np.maximum(lines, 1e-3)), np.log2(known), row)
    below = lines < known[0]
    ratios[below] = 1 - (1 - row[0]) * lines[below] / known[0]
    return np.asarray(ratios)


def _held(
    fillings: Sequence[Sequence[_Filling]], meetings: NDArray[np.intp]
) -> NDArray[np.float64]:
    """Return the lines that each program holds once the cache is full.

    Args:
        fillings: of each phase of each program.
        meetings: phases that meet, shape (k, n).

    Returns:
        Lines expected, at most and at least, shape (k, n, 3).
    """
    every = [filling for phases in fillings for filling in phases]
    first = min(float(filling.seconds[:, 1].min()) for filling in every)
    last = max(float(filling.seconds[:, -1].max()) for filling in every)
    moments = np.concatenate([[0.0], np.geomspace(first, last, _MOMENTS)])
    size = float(every[0].lines[-1])
    # By program: lines by the phases that meet, shape (k, 3, moments).
    brought = [
        np.array([filling.held(moments) for filling in phases])[meetings[:, i]]
        for i, phases in enumerate(fillings)
    ]
    total = np.sum(brought, axis=0)
    held = np.empty((*meetings.shape, 3))
    for i, own in enumerate(brought):
        held[:, i, 0] = _when_full(total[:, _MIDDLE], own[:, _MIDDLE], size)
        for column, mine, others in ((1, _HIGH, _LOW), (2, _LOW, _HIGH)):
            together = total[:, others] - own[:, others] + own[:, mine]
            held[:, i, column] = _when_full(together, own[:, mine], size)
    return held


def _when_full(
    total: NDArray[np.float64], own: NDArray[np.float64], size: float
) -> NDArray[np.float64]:
    """Return what one has brought when all together have brought so much.

    Args:
        total: lines of all, shape (k, moments), ascending along a row.
        own: lines of the one, likewise.
        size: lines; where they are never reached, what it brings in the end.
    """
    after = np.argmax(total >= size * (1 - 1e-12), axis=1)
    after[total[:, -1] < size * (1 - 1e-12)] = total.shape[1] - 1
    row, before = np.arange(len(total)), np.maximum(after - 1, 0)
    step = total[row, after] - total[row, before]
    left = np.clip(size - total[row, before], 0.0, step)
    part = np.divide(left, step, out=np.ones(len(row)), where=step > 0)
    return np.asarray(own[row, before] + part * (own[row, after] - own[row, before]))


def _factor(demand: Demand) -> float:
    """By what an access rate may be wrong, either way."""
    return 1 + _DEVIATIONS * (demand.spread or 0.0)


def _missed(
    demands: Sequence[Demand],
    fillings: Sequence[_Filling],
    held: NDArray[np.float64],
    phases: NDArray[np.intp],
    weights: NDArray[np.float64],
    known: float,
) -> SharedMisses:
    """Add up a program's misses over all that its phases met.

    Args:
        demands: its phases.
        fillings: of each of these.
        held: lines that it held in each meeting: expected, at most, at least; shape (k, 3).
        phases: which of its phases met, shape (k,).
        weights: of the meetings, sum 1.
        known: share of the time in which all programs have curves.
    """
    rates = np.array([demands[phase].accesses_per_second for phase in phases])
    ratios = np.array(
        [fillings[phase].ratios_when_held(row) for row, phase in zip(held, phases, strict=True)]
    )
    alone = np.array([fillings[phase].ratios[_LOW, -1] for phase in phases])
    ratios[:, _LOW] = known * ratios[:, _LOW] + (1 - known) * alone
    ratios[:, _HIGH] = known * ratios[:, _HIGH] + (1 - known)
    accesses = float(weights @ rates)
    misses = (weights * rates) @ ratios
    # A rate that is wrong has the program make more accesses, or fewer.
    off = np.array([_factor(demands[phase]) for phase in phases])
    fewest, most = (weights * rates / off) @ ratios, (weights * rates * off) @ ratios
    per_access = misses / accesses if accesses > 0 else 0 * misses
    return SharedMisses(
        miss_ratio=float(per_access[_MIDDLE]),
        low=float(per_access[_LOW]),
        high=float(per_access[_HIGH]),
        misses_per_second=float(misses[_MIDDLE]),
        low_per_second=float(fewest[_LOW]),
        high_per_second=float(most[_HIGH]),
        held_bytes=float(weights @ held[:, 0]) * fillings[0].line_bytes,
    )
