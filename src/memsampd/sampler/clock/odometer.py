"""Registers that advance steadily, alone or together: what they tell of a thread's progress."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from memsampd.sampler.records import Stretch

# A register is steady if its advances deviate by so much in the median, and nearly all by less than
# this.
_STEADY = 0.2
_ALIKE = 0.45
_MOST = 0.85
_STEPS_LEAST = 64  # smallest steps of a register in a burst: fewer tell too little
LARGEST_ADVANCE = 2**44
"""What counts goes no further from one sample to the next."""
_STRAIGHT = 0.1
_PART_LEAST = 0.02  # of a burst's accesses: of so many the advance is looked at by itself
_PART_APART = 3.0
# Samples do not tell how often a register came round between two of them. They need not, where it
# comes so many times as far as it advances: once round in nearly the same time would be chance.
_FAR = 8.0
_BY_CHANCE = 0.02


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
    def spans(self) -> NDArray[np.float64]:
        """How far each register comes, shape (16,)."""
        first = self.registers.astype(np.float64)
        second = first + self.advance.astype(np.float64)
        return np.asarray(np.ptp(np.concatenate([first, second]), axis=0))


def joined(every: Sequence[Pairs]) -> Pairs:
    """The pairs of several threads, at least one."""
    if len(every) == 1:
        return every[0]
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
    rate = _median(speed)
    if not limits[0] < rate < limits[1]:
        return None
    apart = np.abs(speed / rate - 1)
    deviation, alike = _median(apart), np.count_nonzero(apart < _ALIKE) / len(speed)
    if deviation > _STEADY or alike < _MOST:
        return None
    return SteadyRate(rate, deviation / len(speed) ** 0.5, alike - deviation)


def _median(values: NDArray[np.float64]) -> float:
    """The median; numpy's, as its unique, loads masked arrays: 50 ms of CPU time."""
    ordered, count = np.sort(values), len(values)
    return (ordered.item((count - 1) // 2) + ordered.item(count // 2)) / 2


def find_odometer(
    pairs: Pairs, stretch: Stretch, wider: Pairs
) -> tuple[Odometer, SteadyRate] | None:
    """Look for the register that advances steadiest.

    Args:
        pairs: samples of the running thread.
        stretch: a burst of it.
        wider: more of them, which tell how far registers come.
    """
    size = np.abs(pairs.advance)
    units = np.maximum(np.gcd.reduce(size, axis=0), 1)
    taken = np.abs(stretch.advance[-1]) / units
    tried = np.flatnonzero(size.any(axis=0) & (taken >= _STEPS_LEAST))
    steps = stretch.advance.astype(np.float64)
    tried = tried[_is_straight(steps[:, tried], stretch)]
    if not len(tried):
        return None
    per_step = stretch.accesses[-1] / steps[-1, tried]
    speeds = pairs.advance[:, tried] * per_step / pairs.seconds[:, None]
    rates = [steady_rate(speed, stretch.limits) for speed in speeds.T]
    faster = wider.spans[tried] * np.abs(per_step) / _median(pairs.seconds)
    counters = np.eye(len(taken))[tried]
    onwards = _onwards(wider.advance[:, tried])
    return steadiest(
        (Odometer(counter, float(each)), rate)
        for counter, each, rate, more, never_back in zip(
            counters, per_step, rates, faster, onwards, strict=True
        )
        if rate is not None
        and _is_alone(rate, float(more), stretch, len(wider.seconds) if never_back else 0)
    )


def steadiest(
    found: Iterable[tuple[Odometer, SteadyRate]],
) -> tuple[Odometer, SteadyRate] | None:
    """Return the one of which samples agree best, the first of equals; None of none."""
    return max(found, key=lambda each: each[1].agreement, default=None)


def _onwards(advance: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of some registers never go back, shape (p, c) to (c,)."""
    return np.asarray((advance >= 0).all(axis=0) | (advance <= 0).all(axis=0))


def _is_alone(rate: SteadyRate, faster: float, stretch: Stretch, onwards: int) -> bool:
    """Whether no faster rate explains the same samples.

    Args:
        rate: what they tell.
        faster: by how much faster a thread at least goes that comes round once more between two
            samples, accesses per second.
        stretch: the burst, which tells what is possible.
        onwards: pairs of samples, if the register goes back in none of them. If it came round in
            each, all but a part of what it comes would have been done before the second sample, and
            it would have gone back in as many pairs as that part is of the whole.
    """
    told = rate.accesses_per_second
    if told + faster > stretch.limits[1] or faster > _FAR * told:
        return True
    return onwards > 0 and max(1 - told / faster, 0.0) ** onwards < _BY_CHANCE


def _is_straight(steps: NDArray[np.float64], stretch: Stretch) -> NDArray[np.bool_]:
    """Whether a burst's own moments lie on one line, for each of some registers, shape (c,).

    Args:
        steps: of each up to each moment, shape (k, c).
        stretch: the burst.
    """
    is_moved = np.abs(steps[-1]) >= 1
    told = steps / np.where(is_moved, steps[-1], 1.0)
    share = (stretch.accesses / stretch.accesses[-1])[:, None]
    away = np.abs(told - share).max(axis=0)
    made, gone = np.diff(share, axis=0), np.diff(told, axis=0)
    is_even = (gone > made / _PART_APART) & (gone < made * _PART_APART) | (made < _PART_LEAST)
    return np.asarray(is_moved & (away <= _STRAIGHT) & is_even.all(axis=0))
