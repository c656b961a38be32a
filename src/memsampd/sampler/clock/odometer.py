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
# From so many pairs on several registers are tried together, or such as begin anew.
_MANY_PAIRS = 24
_INNER_MOST, _OUTER_MOST = 3, 4  # registers that are tried together
_LARGEST_ADVANCE = 2**44
_STRAIGHT = 0.1
_PART_LEAST = 0.02  # of a burst's accesses: of so many the advance is looked at by itself
_PART_APART = 3.0
# What least squares say of how far a register comes before it begins anew, as a part of how far it
# was seen to come: less where the thread goes unevenly.
_FITTED = (0.4, 1.3)
# Of a register that begins anew: by how much its rounds may differ, in how many pairs it must go
# on, and by how much the share of the others may differ from what is expected, beyond chance.
_SAME_LENGTH = 0.3
_FORWARD_LEAST = 0.2
_SHARE_APART = 0.05
_PART_OF_ROUND = 0.75  # a burst that goes on for longer may well have gone over the end of a round


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

    That is a counter; or one that begins anew, and those that count how often it did; or one that
    begins anew now and then, and nobody counts how often.

    Attributes:
        weights: what an advance of each register by one counts, shape (16,).
        accesses_per_step: accesses in one step of the sum.
        begins_anew: whether it goes back at times: such pairs of samples tell nothing.
    """

    weights: NDArray[np.float64]
    accesses_per_step: float
    begins_anew: bool = False

    def steps(self, advance: NDArray[np.int64]) -> NDArray[np.float64]:
        """Steps of the sum in advances of the registers, shape (..., 16)."""
        return np.asarray(advance.astype(np.float64) @ self.weights)

    def rates(self, pairs: Pairs) -> NDArray[np.float64]:
        """Accesses per second between the samples of pairs, those that tell it, shape (<= p,)."""
        speed = self.steps(pairs.advance) * self.accesses_per_step / pairs.seconds
        return np.asarray(speed[speed > 0] if self.begins_anew else speed)


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

    A single one is looked for first; then, where there are samples enough, one that begins anew,
    with one or two others that count how often, or without.

    Args:
        pairs: samples of the running thread.
        stretch: a burst of it.
        wider: more of them, which tell how far registers come; the same by default.
    """
    size = np.abs(pairs.advance)
    units = np.maximum(np.gcd.reduce(size, axis=0), 1)
    taken = np.abs(stretch.advance[-1]) / units
    inner = np.flatnonzero(size.any(axis=0) & (taken >= _STEPS_LEAST))
    found = _steadiest(pairs, stretch, np.eye(size.shape[1])[inner])
    if found is not None or len(pairs.seconds) < _MANY_PAIRS:
        return found
    is_counter = size.any(axis=0) & (size.max(axis=0, initial=0) < _LARGEST_ADVANCE)
    inner = inner[is_counter[inner]]
    inner = inner[np.argsort(-taken[inner], kind="stable")][:_INNER_MOST]
    kinds = np.array([len(set(column)) for column in pairs.advance.T.tolist()])
    outer = np.flatnonzero(is_counter)
    outer = outer[np.argsort(kinds[outer], kind="stable")][:_OUTER_MOST]
    ranges = (pairs if wider is None else wider).ranges
    nests = list(_nests(pairs, stretch, units, ranges, inner.tolist(), outer.tolist()))
    found = _steadiest(pairs, stretch, np.array(nests), _is_fitted) if nests else None
    return found or _that_begins_anew(pairs, stretch, inner.tolist())


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
    is_good: Callable[[Pairs, NDArray[np.float64]], bool] = lambda pairs, weights: True,
) -> tuple[Odometer, SteadyRate] | None:
    """Of some sums of registers, weights of shape (c, 16), the good one that advances steadiest."""
    steps = stretch.advance.astype(np.float64) @ weights.T
    fits = np.flatnonzero(_is_straight(steps, stretch))
    if not len(fits):
        return None
    per_step = stretch.accesses[-1] / steps[-1, fits]
    told = pairs.advance.astype(np.float64) @ weights[fits].T
    speeds = told * per_step / pairs.seconds[:, None]
    found = [
        (Odometer(weights[at], float(each)), rate)
        for at, each, rate in zip(
            fits.tolist(), per_step, _steady_rates(speeds, stretch.limits), strict=True
        )
        if rate is not None
    ]
    found.sort(key=lambda each: -each[1].agreement)
    return next((each for each in found if is_good(pairs, each[0].weights)), None)


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


def _that_begins_anew(
    pairs: Pairs, stretch: Stretch, inner: Sequence[int]
) -> tuple[Odometer, SteadyRate] | None:
    """A single register that goes back now and then, always about as far, and as often as it must.

    A counter of rounds of a length M goes back in ``v t / M`` of the pairs of samples, if it goes
    on by v and they are t apart; those in which it does not tell v.
    """
    share = stretch.advance[-1] / stretch.accesses[-1]
    found = []
    for register in inner:
        weights = np.zeros(pairs.advance.shape[1])
        weights[register] = np.sign(share[register])
        steps = (stretch.advance.astype(np.float64) @ weights)[:, None]
        going = pairs.advance.astype(np.float64) @ weights
        on = going > 0
        length = _round_of(going, on, pairs.seconds)
        if length is None or steps[-1, 0] > _PART_OF_ROUND * length:
            continue
        if not _is_straight(steps, stretch)[0]:
            continue
        odometer = Odometer(weights, float(1 / abs(share[register])), begins_anew=True)
        rate = steady_rate(odometer.rates(pairs), stretch.limits)
        if rate is not None:
            found.append((odometer, rate))
    return max(found, key=lambda each: each[1].agreement, default=None)


def _round_of(
    going: NDArray[np.float64], on: NDArray[np.bool_], seconds: NDArray[np.float64]
) -> float | None:
    """After how many steps a register begins anew; None if it does not go back as one that does.

    Args:
        going: its advances, shape (p,).
        on: those that are no way back, shape (p,).
        seconds: the time that each took, shape (p,).
    """
    if on.all() or on.mean() < _FORWARD_LEAST:
        return None
    pace = float(_median(going[on] / seconds[on]))
    rounds = pace * seconds[~on] - going[~on]
    length = float(_median(rounds))
    expected = pace * float(seconds.mean()) / length
    chance = 2 * (expected * max(1 - expected, 0) / len(on)) ** 0.5
    is_even = bool((np.abs(rounds / length - 1) <= _SAME_LENGTH).all())
    is_as_often = abs(float((~on).mean()) - expected) <= chance + _SHARE_APART
    return length if expected < 1 and is_even and is_as_often else None
