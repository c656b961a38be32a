"""Registers that advance steadily, alone or together: what they tell of a thread's progress."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from memsampd import _core
from memsampd.sampler.rates import Stretch

LARGEST_ADVANCE = 2**44
"""What counts goes no further from one sample to the next."""


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

    def chosen(self, which: NDArray[np.int64] | slice) -> Pairs:
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
        return self.chosen(slice(0, count))


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
    found = _core.steady_rate(np.ascontiguousarray(speed), *limits)
    return None if found is None else SteadyRate(*found)


def find_odometer(
    pairs: Pairs, stretch: Stretch, wider: Pairs
) -> tuple[Odometer, SteadyRate] | None:
    """Look for the register that advances steadiest (``_core/clock/odometer.c``).

    Args:
        pairs: samples of the running thread.
        stretch: a burst of it.
        wider: more of them, which tell how far registers come.
    """
    advance = stretch.advance
    found = _core.find_counter(
        np.ascontiguousarray(pairs.advance),
        np.ascontiguousarray(pairs.seconds),
        advance,
        np.ascontiguousarray(stretch.accesses),
        *stretch.limits,
        np.ascontiguousarray(wider.registers),
        np.ascontiguousarray(wider.advance),
    )
    if found is None:
        return None
    counter, *rate = found
    weights = np.zeros(advance.shape[1])
    weights[counter] = 1.0
    per_step = float(stretch.accesses[-1]) / float(advance[-1, counter])
    return Odometer(weights, per_step), SteadyRate(*rate)


def steadiest(
    found: Iterable[tuple[Odometer, SteadyRate]],
) -> tuple[Odometer, SteadyRate] | None:
    """Return the one of which samples agree best, the first of equals; None of none."""
    return max(found, key=lambda each: each[1].agreement, default=None)
