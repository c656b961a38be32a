"""The access clock: registers that advance steadily tell how fast a thread goes, at no cost to it.

Most loops keep a counter or a pointer in a register. A burst tells by how much it advances an
access, two samples of the running thread by how much in a known time; together they are a rate.
Which registers those are is not known beforehand: they are those whose advance from sample to
sample is steady.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

import numpy as np
from msgspec.structs import replace

from memsampd.sampler.clock.code import is_in
from memsampd.sampler.clock.fitted import agreed_rate, fitted_rate
from memsampd.sampler.clock.odometer import (
    Odometer,
    Pairs,
    SteadyRate,
    find_odometer,
    joined,
    steady_rate,
)
from memsampd.sampler.clock.repeated import repeated_rate
from memsampd.sampler.clock.samples import LatestSamples, undisturbed
from memsampd.sampler.clock.steady_code import NO_CODE, SteadyCodes
from memsampd.sampler.clock.user_time import UserTime
from memsampd.sampler.rates import CodeRate, Speed, Stretch, TimedStretch
from memsampd.sampler.records import BranchSamples

_PAIRS = (24, 12, 6)  # the nearest ones to a burst: fewer, where its speed changes
_PAIRS_LEAST = 4
_WIDER = 96  # pairs that tell how far registers come before they begin anew
_NEAR_SECONDS = 1.0
# By what samples about a burst may differ from those just before it: threads go faster and slower
# from millisecond to millisecond.
_SAME_AS_CLOSELY = 1.6
_CLOSE_SECONDS = 3.2e-3  # that samples in quick succession take
_CLOSE_REMEMBERED = 8  # bursts
_RELEASE, _END = 1, 2  # of a burst, among the moments of its stretch


class ProgressClock:
    """Remembers the latest samples of a process, and times bursts and windows by them.

    Args:
        interrupt_seconds: CPU time that a sample takes from the thread.
    """

    name = "registers"

    def __init__(self, interrupt_seconds: float = 0.0) -> None:
        self._interrupt_seconds = interrupt_seconds
        self._samples = LatestSamples()
        self._user_time = UserTime()
        self._close: deque[BranchSamples] = deque(maxlen=_CLOSE_REMEMBERED)
        self._codes = SteadyCodes()

    def add(self, samples: BranchSamples, cpu_seconds: Mapping[int, float] | None = None) -> None:
        """Remember samples; such as have no registers tell nothing.

        Args:
            samples: of the running target.
            cpu_seconds: what threads used since the last time, that in the kernel included.
        """
        if len(samples.registers) != len(samples) or not len(samples):
            return
        self._user_time.add(samples, cpu_seconds or {})
        self._samples.add(samples)

    def measure(
        self, stretch: Stretch, close: BranchSamples | None = None
    ) -> tuple[TimedStretch, int] | None:
        """Time the code of a burst, by user time; None if no register of it advances steadily.

        What a burst did when the target ran on may have led it astray, and its begin may lie
        elsewhere: then what it did before, or only since, is looked at. Samples in quick succession
        show what comes round unseen between two others: what they contradict is not believed.

        Args:
            stretch: what the burst tells.
            close: samples of its thread in quick succession, just before it was taken.

        Returns:
            The time that it takes, and the id of its code in :class:`CodeRate`, or -1.
        """
        if close is not None and not any(each is close for each in self._close):
            self._close.append(close)
        found = self._measure_repeated(stretch) if len(stretch.code_ip) == 1 else None
        if found is None and len(stretch.registers) and len(stretch.code_ip):
            found = self._measure_by_cpu_time(stretch, close)
        if found is None:
            return None
        timed, code = found
        by_user_time = self._user_time.factor_about(stretch.tid, stretch.time_seconds)
        return replace(timed, accesses=round(timed.accesses * by_user_time)), code

    def _measure_repeated(self, stretch: Stretch) -> tuple[TimedStretch, int] | None:
        """Time an instruction that repeats itself, by all CPU time.

        Many are over before the next of the usual samples comes: then those in quick succession
        tell, about this burst or others of late, as they need not have found it on the way here.
        """
        near = self._near(stretch).part(_PAIRS[0])
        rate = repeated_rate(near, stretch.limits)
        if rate is None and self._close:
            near = joined([self._close_pairs(stretch, each) for each in self._close])
            rate = repeated_rate(near, stretch.limits)
        return None if rate is None else (self._timed(rate, float(near.seconds.sum())), NO_CODE)

    def _measure_by_cpu_time(
        self, stretch: Stretch, close: BranchSamples | None
    ) -> tuple[TimedStretch, int] | None:
        """The same by all CPU time."""
        fitted = None if close is None else self._close_rate(stretch, close)
        near = self._near(stretch)
        if fitted is None:
            return self._measure_about(stretch, near, stretch.limits)
        odometer, rate = fitted
        told = rate.accesses_per_second
        nearly = replace(stretch, limits=(told / _SAME_AS_CLOSELY, told * _SAME_AS_CLOSELY))
        found = self._measure_about(nearly, near, stretch.limits)
        if found is not None:
            return found
        code = next((known.id for known, _ in self._codes.known(stretch)), NO_CODE)
        nearest = near.part(_PAIRS[0])
        speed = odometer.rates(nearest)
        usual = agreed_rate(speed, nearly.limits) if len(speed) >= _PAIRS_LEAST else None
        if usual is None:
            return self._timed(rate, _CLOSE_SECONDS), code
        if code == NO_CODE:  # windows are timed by it, too
            if steady_rate(speed, nearly.limits) is not None:
                code = self._codes.learn(stretch, odometer, stretch.limits)
            elif not any(self._codes.like(stretch)):
                code = self._codes.learn(stretch, odometer, nearly.limits, begins_anew=True)
        return self._timed(usual, float(nearest.seconds.sum())), code

    def _close_rate(
        self, stretch: Stretch, close: BranchSamples
    ) -> tuple[Odometer, SteadyRate] | None:
        """A sum of registers that counts a burst's accesses, and how fast the thread went."""
        return fitted_rate(stretch, self._close_pairs(stretch, close))

    def _close_pairs(self, stretch: Stretch, close: BranchSamples) -> Pairs:
        """Pairs of samples in quick succession, without the time that the samples took."""
        used = np.full(len(close), close.period_seconds)
        pairs = undisturbed(close.ip, close.time_seconds, close.registers, used, stretch.code_ip)
        worked = np.maximum(pairs.seconds - self._interrupt_seconds, pairs.seconds / 2)
        return replace(pairs, seconds=worked)

    def _measure_about(
        self, stretch: Stretch, near: Pairs, possible: tuple[float, float]
    ) -> tuple[TimedStretch, int] | None:
        """Time it by the samples before and after it; what its code may do at all is possible."""
        for part in _parts(stretch):
            found = self._measure_part(part, near, possible)
            if found is not None:
                return found
        return None

    def _near(self, stretch: Stretch) -> Pairs:
        """Samples about a burst and in its loops, the nearest first."""
        start, end = (stretch.time_seconds + at for at in (-_NEAR_SECONDS, _NEAR_SECONDS))
        pairs = self._samples.pairs(stretch.tid, self._samples.between(start, end), stretch.code_ip)
        away = np.abs(pairs.time_seconds - stretch.time_seconds)
        return pairs.chosen(np.argsort(away, kind="stable")[:_WIDER])

    def _measure_part(
        self, stretch: Stretch, near: Pairs, possible: tuple[float, float]
    ) -> tuple[TimedStretch, int] | None:
        for many in _PAIRS:
            if many == _PAIRS[0] or many < len(near.seconds):
                found = self._measure(stretch, near.part(many), near, possible)
                if found is not None:
                    return found
        return None

    def _measure(
        self, stretch: Stretch, pairs: Pairs, wider: Pairs, possible: tuple[float, float]
    ) -> tuple[TimedStretch, int] | None:
        if len(pairs.seconds) < _PAIRS_LEAST:
            return None
        found = self._by_known(stretch, pairs)
        if found is None:
            odometer = find_odometer(pairs, stretch, wider)
            found = odometer and (
                self._codes.known_better(stretch, odometer[1], pairs)
                or (self._codes.learn(stretch, odometer[0], possible), odometer[1])
            )
        if found is None:
            return None
        code, rate = found
        return self._timed(rate, float(pairs.seconds.sum())), code

    def _timed(self, rate: SteadyRate, seconds: float) -> TimedStretch:
        accesses = round(rate.accesses_per_second * seconds)
        return TimedStretch(accesses, seconds, self.name, error=rate.error)

    def _by_known(self, stretch: Stretch, pairs: Pairs) -> tuple[int, SteadyRate] | None:
        """The rate by what is known of the same code, if that fits this burst, too."""
        for known, steps in self._codes.known(stretch):
            rate = steady_rate(known.odometer.rates(pairs), stretch.limits)
            if rate is not None:
                known.confirm(float(stretch.accesses[-1]), steps)
                return known.id, rate
        return None

    def rates(self, start_seconds: float, end_seconds: float) -> tuple[CodeRate, ...]:
        """How fast known code went from one moment to another."""
        inside = self._samples.between(start_seconds, end_seconds)
        threads = self._samples.threads(inside)
        if not threads or not self._codes.is_any_believed:
            return ()
        by_user_time = self._user_time.factor(set(threads), start_seconds, end_seconds)
        return tuple(
            replace(rate, accesses_per_cpu_second=rate.accesses_per_cpu_second * by_user_time)
            for rate in self._codes.rates(self._samples.pairs_of_all(threads, inside))
        )

    def by_user_time(self, tid: int, start_seconds: float, end_seconds: float) -> float:
        """CPU time of a thread in a second of its user time, 1 where that is not known."""
        return self._user_time.factor({tid}, start_seconds, end_seconds)

    def speed(self, start_seconds: float, end_seconds: float) -> Speed | None:
        """How fast the process went all in all: nothing is counted."""
        return None


def _parts(stretch: Stretch) -> Iterator[Stretch]:
    """A burst and parts of it that begin and end in its loops: elsewhere registers have other uses.

    That is all that is known of it; the same up to its end; what it did before its release, for
    later it may have gone astray; and what it did since, where it began elsewhere.
    """
    last = len(stretch.registers) - 1
    inside = is_in(stretch.ip, stretch.code_ip)
    for first, end in dict.fromkeys(((0, last), (0, _END), (0, _RELEASE), (_RELEASE, last))):
        if not first < end <= last or not (inside[first] and inside[end]) or (first and inside[0]):
            continue
        part = stretch.between(first, end)
        if part.accesses[-1] > 0:
            yield part
