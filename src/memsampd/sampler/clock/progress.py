"""The access clock: registers that advance steadily tell how fast a thread goes, at no cost to it.

Most loops keep a counter or a pointer in a register. A burst tells by how much it advances an
access, two samples of the running thread by how much in a known time; together they are a rate.
Which registers those are is not known beforehand: they are those whose advance from sample to
sample is steady.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from memsampd.sampler.clock.code import is_in, likeness
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
from memsampd.sampler.clock.user_time import UserTime
from memsampd.sampler.latest import Latest
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
_WIDER = 96  # pairs that tell how far registers come before they begin anew
_NEAR_SECONDS = 1.0
_CODES = 32
_OFTEN = 0.01  # of the times of the instruction that was executed most often
_SAME_CODE = 0.8  # of the instructions
_SAME_PACE = 0.15
_FAR_APART = math.log(3)  # of what two odometers say of the same samples: one of them is wrong
_OTHER_SPEED = 4.0  # by what other working sets may leave the limits of a burst
# By what samples about a burst may differ from those just before it: threads go faster and slower
# from millisecond to millisecond.
_SAME_AS_CLOSELY = 1.6
_AROUND = 0.05  # seconds about a burst: how much of these was user time
_CLOSE_SECONDS = 3.2e-3  # that samples in quick succession take
_CLOSE_REMEMBERED = 8  # bursts
_NO_CODE = -1
_WINDOW_PAIRS_LEAST = 3
_RELEASE, _END = 1, 2  # of a burst, among the moments of its stretch


class _SteadyCode(msgspec.Struct):
    """Code of which some registers are known to advance steadily.

    Attributes:
        id: its id.
        code_ip: its instructions.
        odometer: its registers.
        limits: rates that are possible.
        begins_anew: so often between two samples that not nearly all pairs of these agree.
        accesses: of the bursts that agree.
        steps: that the odometer made in these.
        bursts: how many agree.
        is_disputed: another burst of like code says otherwise: a step may be much work or little.
    """

    id: int
    code_ip: NDArray[np.uint64]
    odometer: Odometer
    limits: tuple[float, float]
    accesses: float
    steps: float
    begins_anew: bool = False
    bursts: int = 1
    is_disputed: bool = False

    @property
    def is_believed(self) -> bool:
        """Whether windows may be timed by it."""
        return self.bursts > 1 or not self.is_disputed

    def confirm(self, accesses: float, steps: float) -> None:
        """Learn from another burst how many accesses a step is."""
        self.bursts += 1
        self.accesses += accesses
        self.steps += steps
        self.odometer = replace(self.odometer, accesses_per_step=self.accesses / self.steps)


class ProgressClock:
    """Remembers the latest samples of a process, and times bursts and windows by them.

    Args:
        interrupt_seconds: CPU time that a sample takes from the thread.
    """

    name = "registers"

    def __init__(self, interrupt_seconds: float = 0.0) -> None:
        self._interrupt_seconds = interrupt_seconds
        self._ip = Latest(_SAMPLES, np.uint64)
        self._tid = Latest(_SAMPLES, np.int32)
        self._time = Latest(_SAMPLES, np.float64)  # ascending
        self._registers = Latest(_SAMPLES, np.uint64, no_registers().shape[1])
        self._used = Latest(_SAMPLES, np.float64)  # CPU time since the sample before
        self._user_time = UserTime()
        self._close: deque[BranchSamples] = deque(maxlen=_CLOSE_REMEMBERED)
        self._codes: list[_SteadyCode] = []
        self._next_code = 0
        # Instructions of all of these, ascending, and of which: a bit for each of them.
        self._any_ip = np.empty(0, np.uint64)
        self._whose = np.empty(0, np.uint64)

    def add(self, samples: BranchSamples, cpu_seconds: Mapping[int, float] | None = None) -> None:
        """Remember samples; such as have no registers tell nothing.

        Args:
            samples: of the running target.
            cpu_seconds: what threads used since the last time, that in the kernel included.
        """
        if len(samples.registers) != len(samples) or not len(samples):
            return
        self._user_time.add(samples, cpu_seconds or {})
        self._used.add(samples.each_cpu_seconds)
        self._ip.add(samples.ip)
        self._tid.add(samples.tid)
        self._time.add(samples.time_seconds)
        self._registers.add(samples.registers)

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
        at = stretch.time_seconds
        by_user_time = self._user_time.factor({stretch.tid}, at - _AROUND, at + _AROUND)
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
        return None if rate is None else (self._timed(rate, float(near.seconds.sum())), _NO_CODE)

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
        code = next((known.id for known, _ in self._known(stretch)), _NO_CODE)
        nearest = near.part(_PAIRS[0])
        speed = odometer.rates(nearest)
        usual = agreed_rate(speed, nearly.limits) if len(speed) >= _PAIRS_LEAST else None
        if usual is None:
            return self._timed(rate, _CLOSE_SECONDS), code
        if code == _NO_CODE:  # windows are timed by it, too
            if steady_rate(speed, nearly.limits) is not None:
                code = self._learn(stretch, odometer, stretch.limits)
            elif not any(self._like(stretch)):
                code = self._learn(stretch, odometer, nearly.limits, begins_anew=True)
        return self._timed(usual, float(nearest.seconds.sum())), code

    def _close_rate(
        self, stretch: Stretch, close: BranchSamples
    ) -> tuple[Odometer, SteadyRate] | None:
        """A sum of registers that counts a burst's accesses, and how fast the thread went."""
        return fitted_rate(stretch, self._close_pairs(stretch, close))

    def _close_pairs(self, stretch: Stretch, close: BranchSamples) -> Pairs:
        """Pairs of samples in quick succession, without the time that the samples took."""
        used = np.full(len(close), close.period_seconds)
        pairs = _undisturbed(close.ip, close.time_seconds, close.registers, used, stretch.code_ip)
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
        pairs = self._pairs(stretch.tid, self._between(start, end), stretch.code_ip)
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
                self._known_better(stretch, odometer[1], pairs)
                or (self._learn(stretch, odometer[0], possible), odometer[1])
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
        for known, steps in self._known(stretch):
            rate = steady_rate(known.odometer.rates(pairs), stretch.limits)
            if rate is not None:
                known.confirm(float(stretch.accesses[-1]), steps)
                return known.id, rate
        return None

    def _like(self, stretch: Stretch) -> Iterator[_SteadyCode]:
        """The same code as a burst's, as far as known."""
        for known in self._codes:
            if likeness(known.code_ip, stretch.code_ip) >= _SAME_CODE:
                yield known

    def _known(self, stretch: Stretch) -> Iterator[tuple[_SteadyCode, float]]:
        """The same code, as far as known, whose odometer fits a burst, and its steps in that."""
        for known in self._like(stretch):
            steps = float(known.odometer.steps(stretch.advance[-1]))
            told = steps * known.odometer.accesses_per_step
            if abs(told / stretch.accesses[-1] - 1) < _SAME_PACE:
                yield known, steps

    def _known_better(
        self, stretch: Stretch, rate: SteadyRate, pairs: Pairs
    ) -> tuple[int, SteadyRate] | None:
        """What a known odometer of the same code says, if it is far from a rate, and likelier.

        A burst that went on with what the target had changed meanwhile does as much, but other
        work: some registers then advance too little in it.
        """
        for known in self._like(stretch):
            other = steady_rate(known.odometer.rates(pairs), stretch.limits)
            if other is None:
                continue
            told, known_told = (
                math.log(each.accesses_per_second / stretch.modelled) for each in (rate, other)
            )
            if abs(told - known_told) > _FAR_APART:
                if abs(known_told) < abs(told):
                    return known.id, other
                known.bursts = 1  # it has to be confirmed anew
        return None

    def _learn(
        self,
        stretch: Stretch,
        odometer: Odometer,
        possible: tuple[float, float],
        *,
        begins_anew: bool = False,
    ) -> int:
        low, high = possible
        limits = possible if begins_anew else (low / _OTHER_SPEED, high * _OTHER_SPEED)
        accesses = float(stretch.accesses[-1])
        steps = accesses / odometer.accesses_per_step
        new = _SteadyCode(
            self._next_code, stretch.code_ip, odometer, limits, accesses, steps, begins_anew
        )
        for known in self._like(stretch):
            known.is_disputed = new.is_disputed = True
        self._codes.append(new)
        self._codes = self._codes[-_CODES:]
        self._next_code += 1
        self._tell_apart()
        return self._next_code - 1

    def _tell_apart(self) -> None:
        """Note which instructions are of which code."""
        ip = np.concatenate([code.code_ip for code in self._codes])
        bits = [1 << at for at in range(len(self._codes))]
        sizes = [len(code.code_ip) for code in self._codes]
        order = np.argsort(ip, kind="stable")
        ip = ip[order]
        first = np.flatnonzero(np.concatenate([[True], ip[1:] != ip[:-1]]))
        self._any_ip = ip[first]
        self._whose = np.bitwise_or.reduceat(
            np.repeat(np.array(bits, np.uint64), sizes)[order], first
        )

    def _codes_of(self, ip: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Known code that each address is of, a bit for each, shape (n,)."""
        at = np.minimum(self._any_ip.searchsorted(ip), len(self._any_ip) - 1)
        return np.asarray(self._whose[at] * (self._any_ip[at] == ip))

    def rates(self, start_seconds: float, end_seconds: float) -> tuple[CodeRate, ...]:
        """How fast known code went from one moment to another."""
        inside = self._between(start_seconds, end_seconds)
        threads = sorted(set(self._tid.rows[inside].tolist()))
        if not threads or not any(code.is_believed for code in self._codes):
            return ()
        pairs = joined([self._pairs(tid, inside) for tid in threads])
        stayed = self._codes_of(pairs.first_ip) & self._codes_of(pairs.second_ip)
        met = int(np.bitwise_or.reduce(stayed))
        by_user_time = self._user_time.factor(set(threads), start_seconds, end_seconds)
        return tuple(
            replace(rate, accesses_per_cpu_second=rate.accesses_per_cpu_second * by_user_time)
            for at, code in enumerate(self._codes)
            if code.is_believed and met >> at & 1
            for rate in _rate(code, pairs.chosen(np.flatnonzero(stayed & np.uint64(1 << at))))
        )

    def speed(self, start_seconds: float, end_seconds: float) -> Speed | None:
        """How fast the process went all in all: nothing is counted."""
        return None

    def _between(self, start_seconds: float, end_seconds: float) -> slice:
        """Samples in an interval."""
        time = self._time.rows
        first = int(time.searchsorted(start_seconds))
        return slice(first, int(time.searchsorted(end_seconds, side="right")))

    def _pairs(self, tid: int, inside: slice, code_ip: NDArray[np.uint64] | None = None) -> Pairs:
        """Pairs of undisturbed samples of one thread in an interval, and in some code."""
        is_own = self._tid.rows[inside] == tid
        own = inside if is_own.all() else inside.start + np.flatnonzero(is_own)
        return _undisturbed(
            self._ip.rows[own],
            self._time.rows[own],
            self._registers.rows[own],
            self._used.rows[own],
            code_ip,
        )


def _undisturbed(
    ip: NDArray[np.uint64],
    time_seconds: NDArray[np.float64],
    registers: NDArray[np.uint64],
    used_seconds: NDArray[np.float64],
    code_ip: NDArray[np.uint64] | None,
) -> Pairs:
    """Pairs of samples of a thread that ran all the time between them.

    Args:
        ip: where each sample found it, shape (n,).
        time_seconds: when, shape (n,).
        registers: shape (n, 16).
        used_seconds: CPU time since the sample before, shape (n,).
        code_ip: only pairs of which both are in this code; None: all.
    """
    lasted, used = time_seconds[1:] - time_seconds[:-1], used_seconds[1:]
    low, high = _UNDISTURBED
    is_told = (lasted > low * used) & (lasted < high * used)
    if code_ip is not None:
        is_inside = is_in(ip, code_ip)
        is_told &= is_inside[:-1] & is_inside[1:]
    first = is_told.nonzero()[0]
    second = first + 1
    return Pairs(
        ip[first],
        ip[second],
        time_seconds[first],
        lasted[first],
        registers[first].view(np.int64),
        (registers[second] - registers[first]).view(np.int64),
    )


def _rate(code: _SteadyCode, pairs: Pairs) -> Iterator[CodeRate]:
    """How fast code went by pairs of samples in it; nothing where these do not tell."""
    speed = code.odometer.rates(pairs)
    if len(speed) >= _WINDOW_PAIRS_LEAST:
        told = agreed_rate if code.begins_anew else steady_rate
        rate = told(speed, code.limits)
        if rate is not None:
            yield CodeRate(code.id, rate.accesses_per_second, len(speed))


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
