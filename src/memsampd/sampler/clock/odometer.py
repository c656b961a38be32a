"""Registers that advance steadily, alone or together: what they tell of a thread's progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import permutations

import msgspec
import numpy as np
from numpy.typing import NDArray

from memsampd.sampler.clock.code import is_in
from memsampd.sampler.records import Stretch

# A register is steady if its advances deviate by so much in the median, and nearly all by less than
# this.
_STEADY = 0.2
_ALIKE = 0.45
_MOST = 0.85
_STEPS_LEAST = 64  # smallest steps of a register in a burst: fewer tell too little
# From so many pairs on several registers are tried together, and if so many parts of a burst tell
# whether its own accesses go with their sum: one part always does.
_MANY_PAIRS = 24
_MANY_PARTS = 2
_INNER_MOST, _OUTER_MOST = 3, 4  # registers that are tried together
LARGEST_ADVANCE = 2**44
"""What counts goes no further from one sample to the next."""
_STRAIGHT = 0.1
_PART_LEAST = 0.02  # of a burst's accesses: of so many the advance is looked at by itself
_PART_APART = 3.0
# What least squares say of how far a register comes before it begins anew, as a part of how far it
# was seen to come: less where the thread goes unevenly.
_FITTED = (0.4, 1.3)
# Samples do not tell how often a register came round between two of them. They need not, where it
# comes so many times as far as it advances: once round in nearly the same time would be chance.
_FAR = 8.0


class Pairs(msgspec.Struct, frozen=True):
    """Samples of one thread that another one follows.

    Attributes:
        first_ip: where the first one found it, shape (p,), uint64.
        second_ip: the same of the second one.
        time_seconds: of the first, shape (p,).
        seconds: from the first to the second, shape (p,).
        registers: at the first one, shape (p, 16), int64.
        advance: of each register, shape (p, 16), int64.
    """

    first_ip: NDArray[np.uint64]
    second_ip: NDArray[np.uint64]
    time_seconds: NDArray[np.float64]
    seconds: NDArray[np.float64]
    registers: NDArray[np.int64]
    advance: NDArray[np.int64]

    def inside(self, code_ip: NDArray[np.uint64]) -> Pairs:
        """Those of which both are in some code."""
        both = is_in(self.first_ip, code_ip) & is_in(self.second_ip, code_ip)
        return self.chosen(np.flatnonzero(both))

    def chosen(self, which: NDArray[np.int64]) -> Pairs:
        """Some of them."""
        return Pairs(
            self.first_ip[which],
            self.second_ip[which],
            self.time_seconds[which],
            self.seconds[which],
            self.registers[which],
            self.advance[which],
        )

    def part(self, count: int) -> Pairs:
        """The first so many of them."""
        return self.chosen(np.arange(min(count, len(self.seconds))))

    def spans(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """How far some sums of registers come, weights of shape (c, 16): shape (c,)."""
        first = self.registers.astype(np.float64) @ weights.T
        second = first + self.advance.astype(np.float64) @ weights.T
        return np.asarray(np.ptp(np.concatenate([first, second]), axis=0))

    @property
    def ranges(self) -> NDArray[np.float64]:
        """From where to where each register goes, as far as its values tell, shape (16,).

        The largest and the smallest of n values are (n - 1) / (n + 1) of their range apart.
        """
        seen = np.concatenate([self.registers, self.registers + self.advance]).astype(np.float64)
        values = len(self.seconds) + 1  # most second samples are the first ones of the next pair
        return np.asarray(np.ptp(seen, axis=0) * (values + 1) / (values - 1))


def joined(every: Sequence[Pairs]) -> Pairs:
    """The pairs of several threads, at least one."""
    return Pairs(
        np.concatenate([each.first_ip for each in every]),
        np.concatenate([each.second_ip for each in every]),
        np.concatenate([each.time_seconds for each in every]),
        np.concatenate([each.seconds for each in every]),
        np.concatenate([each.registers for each in every]),
        np.concatenate([each.advance for each in every]),
    )


class Odometer(msgspec.Struct, frozen=True):
    """Registers that together advance steadily.

    That is a counter; or one that begins anew, and those that count how often it did.

    Attributes:
        weights: what an advance of each register by one counts, shape (16,).
        accesses_per_step: accesses in one step of the sum.
    """

    weights: NDArray[np.float64]
    accesses_per_step: float

    def steps(self, advance: NDArray[np.int64]) -> NDArray[np.float64]:
        """Steps of the sum in advances of the registers, shape (..., 16)."""
        return np.asarray(advance.astype(np.float64) @ self.weights)

    def rates(self, pairs: Pairs) -> NDArray[np.float64]:
        """Accesses per second between the samples of pairs, shape (p,)."""
        return np.asarray(self.steps(pairs.advance) * self.accesses_per_step / pairs.seconds)


class SteadyRate(msgspec.Struct, frozen=True):
    """A rate that most pairs of samples agree on.

    Attributes:
        accesses_per_second: the median.
        error: its relative standard error.
        agreement: how well they agree, 0..1.
    """

    accesses_per_second: float
    error: float
    agreement: float


def steady_rate(speed: NDArray[np.float64], limits: tuple[float, float]) -> SteadyRate | None:
    """The rate that most of these agree on, if it is one.

    Args:
        speed: accesses per second by pairs of samples, at least one, shape (p,).
        limits: what is possible.
    """
    return _steady_rates(speed[:, None], limits)[0]


def _steady_rates(
    speed: NDArray[np.float64], limits: tuple[float, float]
) -> list[SteadyRate | None]:
    """The same for each column, shape (p, c)."""
    rate = _median(speed)
    is_possible = (limits[0] < rate) & (rate < limits[1])
    apart = np.abs(speed / np.where(is_possible, rate, 1.0) - 1)
    deviation, alike = _median(apart), np.mean(apart < _ALIKE, axis=0)
    is_steady = is_possible & (deviation <= _STEADY) & (alike >= _MOST)
    error = deviation / len(speed) ** 0.5
    told = np.column_stack([rate, error, alike - deviation]).tolist()
    return [SteadyRate(*each) if fits else None for each, fits in zip(told, is_steady, strict=True)]


def _median(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Median of each column; numpy's, as its unique, loads masked arrays: 50 ms of CPU time."""
    ordered, count = np.sort(values, axis=0), len(values)
    return np.asarray((ordered[(count - 1) // 2] + ordered[count // 2]) / 2)


def find_odometer(
    pairs: Pairs, stretch: Stretch, wider: Pairs | None = None
) -> tuple[Odometer, SteadyRate] | None:
    """Look for registers that advance steadily.

    A single one is looked for first; then, where there are samples and parts of the burst enough,
    one that begins anew, with one or two others that count how often.

    Args:
        pairs: samples of the running thread.
        stretch: a burst of it.
        wider: more of them, which tell how far registers come; the same by default.
    """
    size = np.abs(pairs.advance)
    units = np.maximum(np.gcd.reduce(size, axis=0), 1)
    taken = np.abs(stretch.advance[-1]) / units
    inner = np.flatnonzero(size.any(axis=0) & (taken >= _STEPS_LEAST))
    wider = pairs if wider is None else wider
    found = _steadiest(pairs, stretch, np.eye(size.shape[1])[inner], wider)
    parts = np.diff(stretch.accesses) >= _PART_LEAST * stretch.accesses[-1]
    if found is not None or len(pairs.seconds) < _MANY_PAIRS or parts.sum() < _MANY_PARTS:
        return found
    is_counter = size.any(axis=0) & (size.max(axis=0, initial=0) < LARGEST_ADVANCE)
    inner = inner[is_counter[inner]]
    inner = inner[np.argsort(-taken[inner], kind="stable")][:_INNER_MOST]
    kinds = np.array([len(set(column)) for column in pairs.advance.T.tolist()])
    outer = np.flatnonzero(is_counter)
    outer = outer[np.argsort(kinds[outer], kind="stable")][:_OUTER_MOST]
    nests = list(_nests(pairs, stretch, units, wider.ranges, inner.tolist(), outer.tolist()))
    return _steadiest(pairs, stretch, np.array(nests), wider, _is_fitted) if nests else None


def _nests(
    pairs: Pairs,
    stretch: Stretch,
    units: NDArray[np.int64],
    ranges: NDArray[np.float64],
    inner: Sequence[int],
    outer: Sequence[int],
) -> Iterator[NDArray[np.float64]]:
    """Weights of registers that begin anew, with others that count how often, shape (16,) each.

    A loop in a loop: the inner register comes as far as it was seen to come, M, and the outer one
    then goes one unit on. So does the next outer one. The inner one counts 1, or -1.
    """
    direction = np.sign(np.sign(pairs.advance).sum(axis=0))
    for register in inner:
        for count in (1, 2):
            for others in permutations([each for each in outer if each != register], count):
                weights = np.zeros(len(ranges))
                weights[register] = float(np.sign(stretch.advance[-1, register]))
                each_time = ranges[register]
                for other in others:
                    weights[other] = each_time * direction[other] / units[other]
                    each_time *= ranges[other] / units[other] + 1
                if weights[list(others)].all():
                    yield weights


def _is_fitted(pairs: Pairs, weights: NDArray[np.float64]) -> bool:
    """Whether least squares find about the same: the inner one goes back when others go on."""
    told = pairs.advance.astype(np.float64) * weights
    used = np.flatnonzero(weights)
    inner = used[np.argmin(np.abs(weights[used]))]
    known = np.column_stack([pairs.seconds, told[:, used[used != inner]]])
    scale = np.abs(known).max(axis=0)
    parts = -(np.linalg.pinv(known / scale) @ told[:, inner] / scale)[1:]
    return bool(((_FITTED[0] <= parts) & (parts <= _FITTED[1])).all())


def _steadiest(
    pairs: Pairs,
    stretch: Stretch,
    weights: NDArray[np.float64],
    wider: Pairs,
    is_good: Callable[[Pairs, NDArray[np.float64]], bool] = lambda pairs, weights: True,
) -> tuple[Odometer, SteadyRate] | None:
    """Of some sums of registers, weights of shape (c, 16), the good one that advances steadiest.

    Pairs that are ``wider`` tell how far these come.
    """
    steps = stretch.advance.astype(np.float64) @ weights.T
    fits = np.flatnonzero(_is_straight(steps, stretch))
    if not len(fits):
        return None
    per_step = stretch.accesses[-1] / steps[-1, fits]
    told = pairs.advance.astype(np.float64) @ weights[fits].T
    speeds = told * per_step / pairs.seconds[:, None]
    rates = _steady_rates(speeds, stretch.limits)
    faster = wider.spans(weights[fits]) * np.abs(per_step) / _median(pairs.seconds)
    found = [
        (Odometer(weights[at], float(each)), rate)
        for at, each, rate, more in zip(fits.tolist(), per_step, rates, faster, strict=True)
        if rate is not None and _is_alone(rate, float(more), stretch)
    ]
    found.sort(key=lambda each: -each[1].agreement)
    return next((each for each in found if is_good(pairs, each[0].weights)), None)


def _is_alone(rate: SteadyRate, faster: float, stretch: Stretch) -> bool:
    """Whether no faster rate explains the same samples.

    Args:
        rate: what they tell.
        faster: by how much faster a thread at least goes that comes round once more between two
            samples, accesses per second.
        stretch: the burst, which tells what is possible.
    """
    told = rate.accesses_per_second
    return told + faster > stretch.limits[1] or faster > _FAR * told


def _is_straight(steps: NDArray[np.float64], stretch: Stretch) -> NDArray[np.bool_]:
    """Whether a burst's own moments lie on one line, for each of some sums, shape (c,).

    Args:
        steps: of each sum up to each moment, shape (k, c).
        stretch: the burst.
    """
    is_moved = np.abs(steps[-1]) >= 1
    told = steps / np.where(is_moved, steps[-1], 1.0)
    share = (stretch.accesses / stretch.accesses[-1])[:, None]
    away = np.abs(told - share).max(axis=0)
    made, gone = np.diff(share, axis=0), np.diff(told, axis=0)
    is_even = (gone > made / _PART_APART) & (gone < made * _PART_APART) | (made < _PART_LEAST)
    return np.asarray(is_moved & (away <= _STRAIGHT) & is_even.all(axis=0))
