"""The access clock: registers that advance steadily tell how fast a thread goes, at no cost to it.

Most loops keep a counter or a pointer in a register. A burst tells by how much it advances an
access, two samples of the running thread by how much in a known time; together they are a rate.
Which registers those are is not known beforehand: they are those whose advance from sample to
sample is steady.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from memsampd.sampler.clock.code import is_in, likeness
from memsampd.sampler.records import (
    BranchSamples,
    CodeRate,
    Speed,
    Stretch,
    TimedStretch,
    no_registers,
)

# Samples that are remembered: at the usual period, of some seconds.
_SAMPLES = 4096
# Two samples tell only if the thread ran all the time between them: wall time, by its CPU time.
_UNDISTURBED = (0.85, 1.15)
_PAIRS = (24, 12, 6)  # the nearest ones to a burst: fewer, where its speed changes
_PAIRS_LEAST = 4
_NEAR_SECONDS = 1.0
# A register is steady if its advances deviate by so much in the median, and nearly all by less than
# this.
_STEADY = 0.2
_ALIKE = 0.45
_MOST = 0.85
_STEPS_LEAST = 16  # smallest steps of a register in a burst: fewer tell too little
_INNER_MOST, _OUTER_MOST = 3, 4  # registers that are tried together
_LARGEST_ADVANCE = 2**44
_CODES = 32
_OFTEN = 0.01  # of the times of the instruction that was executed most often
_SAME_CODE = 0.8  # of the instructions
_SAME_PACE = 0.15
_STRAIGHT = 0.1
_CANCELLED = 0.2
_OTHER_SPEED = 4.0  # by what other working sets may leave the limits of a burst
_WINDOW_PAIRS_LEAST = 3


@dataclass(frozen=True, slots=True)
class Pairs:
    """Samples of one thread that another one follows.

    Attributes:
        first_ip: where the first one found it, shape (p,), uint64.
        second_ip: the same of the second one.
        time_seconds: of the first, shape (p,).
        seconds: from the first to the second, shape (p,).
        advance: of each register, shape (p, 16), int64.
    """

    first_ip: NDArray[np.uint64]
    second_ip: NDArray[np.uint64]
    time_seconds: NDArray[np.float64]
    seconds: NDArray[np.float64]
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
            self.advance[which],
        )


def joined(every: Sequence[Pairs]) -> Pairs:
    """The pairs of several threads, at least one."""
    return Pairs(
        np.concatenate([each.first_ip for each in every]),
        np.concatenate([each.second_ip for each in every]),
        np.concatenate([each.time_seconds for each in every]),
        np.concatenate([each.seconds for each in every]),
        np.concatenate([each.advance for each in every]),
    )


@dataclass(slots=True)
class _SteadyCode:
    """Code of which some registers are known to advance steadily.

    Attributes:
        id: its id.
        code_ip: its instructions.
        odometer: its registers.
        limits: rates that are possible.
        bursts: how many agree.
        is_disputed: another burst of like code says otherwise: a step may be much work or little.
    """

    id: int
    code_ip: NDArray[np.uint64]
    odometer: Odometer
    limits: tuple[float, float]
    bursts: int = 1
    is_disputed: bool = False

    @property
    def is_believed(self) -> bool:
        """Whether windows may be timed by it."""
        return self.bursts > 1 or not self.is_disputed


class ProgressClock:
    """Remembers the latest samples of a process, and times bursts and windows by them."""

    name = "registers"

    def __init__(self) -> None:
        self._ip = np.empty(0, np.uint64)
        self._tid = np.empty(0, np.int32)
        self._time = np.empty(0, np.float64)
        self._registers = no_registers()
        self._used = np.empty(0, np.float64)  # CPU time since the sample before
        self._codes: list[_SteadyCode] = []
        self._next_code = 0

    def add(self, samples: BranchSamples) -> None:
        """Remember samples; such as have no registers tell nothing."""
        if len(samples.registers) != len(samples) or not len(samples):
            return
        used = samples.cpu_seconds
        if used is None:
            used = np.full(len(samples), samples.period_seconds)
        self._used = np.concatenate([self._used, used])[-_SAMPLES:]
        self._ip = np.concatenate([self._ip, samples.ip])[-_SAMPLES:]
        self._tid = np.concatenate([self._tid, samples.tid])[-_SAMPLES:]
        self._time = np.concatenate([self._time, samples.time_seconds])[-_SAMPLES:]
        self._registers = np.concatenate([self._registers, samples.registers])[-_SAMPLES:]

    def measure(self, stretch: Stretch) -> tuple[TimedStretch, int] | None:
        """Time the code of a burst; None if no register of it advances steadily.

        Args:
            stretch: what the burst tells.

        Returns:
            The time that it takes, and the id of its code in :class:`CodeRate`.
        """
        if len(stretch.registers) < 2 or not stretch.accesses[-1] > 0 or not len(stretch.code_ip):
            return None
        # Elsewhere than in its loops registers have other uses.
        if not is_in(stretch.ip[[0, -1]], stretch.code_ip).all():
            return None
        start, end = (stretch.time_seconds + at for at in (-_NEAR_SECONDS, _NEAR_SECONDS))
        pairs = self._pairs(stretch.tid, start, end).inside(stretch.code_ip)
        away = np.abs(pairs.time_seconds - stretch.time_seconds)
        order = np.argsort(away, kind="stable")
        for many in _PAIRS:
            if many == _PAIRS[0] or many < len(order):
                found = self._measure(stretch, pairs.chosen(order[:many]))
                if found is not None:
                    return found
        return None

    def _measure(self, stretch: Stretch, pairs: Pairs) -> tuple[TimedStretch, int] | None:
        if len(pairs.seconds) < _PAIRS_LEAST:
            return None
        found = self._by_known(stretch, pairs)
        if found is None:
            odometer = find_odometer(pairs, stretch)
            found = odometer and (self._learn(stretch, odometer[0]), odometer[1])
        if found is None:
            return None
        code, rate = found
        total = float(pairs.seconds.sum())
        accesses = round(rate.accesses_per_second * total)
        return TimedStretch(accesses, total, self.name, error=rate.error), code

    def _by_known(self, stretch: Stretch, pairs: Pairs) -> tuple[int, SteadyRate] | None:
        """The rate by what is known of the same code, if that fits this burst, too."""
        for known in self._codes:
            if likeness(known.code_ip, stretch.code_ip) < _SAME_CODE:
                continue
            steps = float(stretch.advance[-1].astype(np.float64) @ known.odometer.weights)
            told = steps * known.odometer.accesses_per_step
            if abs(told / stretch.accesses[-1] - 1) < _SAME_PACE:
                rate = steady_rate(known.odometer.rates(pairs), stretch.limits)
                if rate is not None:
                    known.bursts += 1
                    return known.id, rate
        return None

    def _learn(self, stretch: Stretch, odometer: Odometer) -> int:
        low, high = stretch.limits
        limits = low / _OTHER_SPEED, high * _OTHER_SPEED
        new = _SteadyCode(self._next_code, stretch.code_ip, odometer, limits)
        for known in self._codes:
            if likeness(known.code_ip, new.code_ip) >= _SAME_CODE:
                known.is_disputed = new.is_disputed = True
        self._codes.append(new)
        self._codes = self._codes[-_CODES:]
        self._next_code += 1
        return self._next_code - 1

    def rates(self, start_seconds: float, end_seconds: float) -> tuple[CodeRate, ...]:
        """How fast known code went from one moment to another."""
        inside = (self._time >= start_seconds) & (self._time <= end_seconds)
        believed = [code for code in self._codes if code.is_believed]
        if not inside.any() or not believed:
            return ()
        threads = sorted(set(self._tid[inside].tolist()))
        pairs = joined([self._pairs(tid, start_seconds, end_seconds) for tid in threads])
        return tuple(rate for code in believed for rate in self._rate(code, pairs))

    def speed(self, start_seconds: float, end_seconds: float) -> Speed | None:
        """How fast the process went all in all: nothing is counted."""
        return None

    @staticmethod
    def _rate(code: _SteadyCode, pairs: Pairs) -> Iterator[CodeRate]:
        speed = code.odometer.rates(pairs.inside(code.code_ip))
        if len(speed) >= _WINDOW_PAIRS_LEAST:
            rate = steady_rate(speed, code.limits)
            if rate is not None:
                yield CodeRate(code.id, rate.accesses_per_second, len(speed))

    def _pairs(self, tid: int, start_seconds: float, end_seconds: float) -> Pairs:
        """Pairs of undisturbed samples of one thread in an interval."""
        index = np.flatnonzero(
            (self._tid == tid) & (self._time >= start_seconds) & (self._time <= end_seconds)
        )
        lasted = np.diff(self._time[index])
        low, high = (share * self._used[index[1:]] for share in _UNDISTURBED)
        good = np.flatnonzero((lasted > low) & (lasted < high))
        first, second = index[good], index[good + 1]
        return Pairs(
            self._ip[first],
            self._ip[second],
            self._time[first],
            lasted[good],
            (self._registers[second] - self._registers[first]).view(np.int64),
        )


def often_executed(
    code_ip: NDArray[np.uint64], code_times: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """Return the loops of a burst: instructions that it executed often, ascending.

    Args:
        code_ip: instructions, shape (c,), some more than once.
        code_times: how often each was executed, shape (c,).
    """
    if not len(code_ip):
        return code_ip
    order = np.argsort(code_ip, kind="stable")
    ip = code_ip[order]
    first = np.flatnonzero(np.concatenate([[True], ip[1:] != ip[:-1]]))
    times = np.add.reduceat(code_times[order].astype(np.float64), first)
    return np.asarray(ip[first][times >= _OFTEN * times.max()])


@dataclass(frozen=True, slots=True)
class Odometer:
    """Registers that together advance steadily.

    That is a counter; or one that begins anew, and those that count how often it did.

    Attributes:
        weights: what an advance of each register by one counts, shape (16,).
        accesses_per_step: accesses in one step of the sum.
    """

    weights: NDArray[np.float64]
    accesses_per_step: float

    def rates(self, pairs: Pairs) -> NDArray[np.float64]:
        """Accesses per second between the samples of each pair, shape (p,)."""
        steps = pairs.advance.astype(np.float64) @ self.weights
        return np.asarray(steps * self.accesses_per_step / pairs.seconds)


@dataclass(frozen=True, slots=True)
class SteadyRate:
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


def find_odometer(pairs: Pairs, stretch: Stretch) -> tuple[Odometer, SteadyRate] | None:
    """Look for registers that advance steadily.

    A single one is looked for first; then, where there are samples enough, one that begins anew,
    and one or two others that count how often: its advance is ``v t - M_1 a_1 - M_2 a_2``, with t
    the time, a the others' advances, and M how far it comes each time.

    Args:
        pairs: samples of the running thread.
        stretch: a burst of it.
    """
    size = np.abs(pairs.advance)
    steps = np.maximum(np.gcd.reduce(size, axis=0), 1)
    taken = np.abs(stretch.advance[-1]) / steps
    inner = np.flatnonzero(size.any(axis=0) & (taken >= _STEPS_LEAST))
    found = _steadiest(pairs, stretch, np.eye(size.shape[1])[inner])
    if found is None and len(pairs.seconds) >= _PAIRS[0]:
        is_counter = size.any(axis=0) & (size.max(axis=0, initial=0) < _LARGEST_ADVANCE)
        inner = inner[is_counter[inner]]
        inner = inner[np.argsort(-taken[inner], kind="stable")][:_INNER_MOST]
        kinds = np.array([len(set(column)) for column in pairs.advance.T.tolist()])
        outer = np.flatnonzero(is_counter)
        outer = outer[np.argsort(kinds[outer], kind="stable")][:_OUTER_MOST]
        tried = [_counted(pairs, inner.tolist(), outer.tolist(), count) for count in (1, 2)]
        found = _steadiest(pairs, stretch, np.concatenate(tried))
    return found


def _counted(
    pairs: Pairs, inner: Sequence[int], outer: Sequence[int], count: int
) -> NDArray[np.float64]:
    """Weights of registers that begin anew, with some that count how often, shape (c, 16)."""
    tried = [
        (register, *others)
        for register in inner
        for others in combinations([each for each in outer if each != register], count)
    ]
    weights = np.zeros((len(tried), pairs.advance.shape[1]))
    if not tried:
        return weights
    registers = np.array(tried)
    advance = pairs.advance.astype(np.float64).T[registers]  # (c, 1 + count, p)
    time = np.broadcast_to(pairs.seconds, (len(tried), 1, len(pairs.seconds)))
    known = np.concatenate([time, advance[:, 1:]], axis=1)
    scale = np.abs(known).max(axis=2)
    inverse = np.linalg.pinv((known / scale[:, :, None]).transpose(0, 2, 1))
    fitted = (inverse @ advance[:, 0, :, None])[:, :, 0]
    rows = np.arange(len(tried))
    weights[rows, registers[:, 0]] = 1.0
    weights[rows[:, None], registers[:, 1:]] = -fitted[:, 1:] / scale[:, 1:]
    return weights


def _steadiest(
    pairs: Pairs, stretch: Stretch, weights: NDArray[np.float64]
) -> tuple[Odometer, SteadyRate] | None:
    """Of some sums of registers, weights of shape (c, 16), the one that advances most steadily."""
    steps = stretch.advance.astype(np.float64) @ weights.T
    # A burst's own moments must lie on the same line.
    share = (stretch.accesses / stretch.accesses[-1])[:, None]
    is_moved = np.abs(steps[-1]) >= 1
    away = np.abs(steps / np.where(is_moved, steps[-1], 1.0) - share).max(axis=0)
    advance = pairs.advance.astype(np.float64)
    told = advance @ weights.T
    # Registers that go together, so that the sum is next to nothing, say nothing of time.
    parts = np.abs(advance) @ np.abs(weights).T
    is_cancelled = _median(np.abs(told)) < _CANCELLED * _median(parts)
    fits = np.flatnonzero(is_moved & (away <= _STRAIGHT) & ~is_cancelled)
    if not len(fits):
        return None
    per_step = stretch.accesses[-1] / steps[-1, fits]
    speeds = told[:, fits] * per_step / pairs.seconds[:, None]
    found = [
        (Odometer(weights[at], float(each)), rate)
        for at, each, rate in zip(
            fits.tolist(), per_step, _steady_rates(speeds, stretch.limits), strict=True
        )
        if rate is not None
    ]
    return max(found, key=lambda each: each[1].agreement, default=None)
