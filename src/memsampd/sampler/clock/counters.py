"""The access clock of hosts with a PMU: loads and stores retired, counted all the time."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from memsampd.sampler.clock.code import is_in, likeness
from memsampd.sampler.clock.user_time import UserTime
from memsampd.sampler.rates import CodeRate, Speed, Stretch, TimedStretch
from memsampd.sampler.records import BranchSamples

_SAMPLES = 4096  # that are remembered: of some seconds
_NEAR_SECONDS = 1.0
_NEAREST = 24  # samples about a burst
_LEAST = 4
_WINDOW_LEAST = 3
_CODES = 32
_SAME_CODE = 0.8  # of the instructions


class CounterClock:
    """Remembers what was counted up to the latest samples, and times bursts and windows by it.

    What was counted up to a sample counts for the code of a burst if that sample and the one
    before of its thread were found in it. Counters count instructions' loads and stores: one that
    gathers many words, or crosses a line, counts once. They count user mode only, but the time that
    they count is all CPU time: rates are converted to user time, where windows are made of that.
    """

    name = "counters"

    def __init__(self) -> None:
        self._tid = np.empty(0, np.int32)
        self._time = np.empty(0, np.float64)
        self._ip = np.empty(0, np.uint64)
        # Accesses, instructions, cycles, and CPU seconds for which they were counted, shape (n, 4).
        self._counted = np.empty((0, 4))
        self._codes: list[tuple[int, NDArray[np.uint64]]] = []
        self._next_code = 0
        self._user_time = UserTime()

    def add(self, samples: BranchSamples, cpu_seconds: Mapping[int, float] | None = None) -> None:
        """Remember samples; such as counted nothing tell nothing."""
        counted = samples.counted
        if counted is None or not len(samples):
            return
        self._user_time.add(samples, cpu_seconds or {})
        rows = np.column_stack(
            [counted.accesses, counted.instructions, counted.cycles, counted.seconds]
        )
        self._tid = np.concatenate([self._tid, samples.tid])[-_SAMPLES:]
        self._time = np.concatenate([self._time, samples.time_seconds])[-_SAMPLES:]
        self._ip = np.concatenate([self._ip, samples.ip])[-_SAMPLES:]
        self._counted = np.concatenate([self._counted, rows])[-_SAMPLES:]

    def measure(
        self, stretch: Stretch, close: BranchSamples | None = None
    ) -> tuple[TimedStretch, int] | None:
        """Time the code of a burst; None if too few samples about it found its thread there.

        Args:
            stretch: what the burst tells.
            close: not needed.

        Returns:
            The time that it takes, and the id of its code in :class:`CodeRate`.
        """
        if not len(stretch.code_ip):
            return None
        start, end = (stretch.time_seconds + at for at in (-_NEAR_SECONDS, _NEAR_SECONDS))
        rows = self._rows(start, end, stretch.code_ip, stretch.tid)
        away = np.abs(self._time[rows] - stretch.time_seconds)
        rows = rows[np.argsort(away, kind="stable")[:_NEAREST]]
        accesses, seconds = self._counted[rows][:, [0, 3]].T
        if len(rows) < _LEAST or not accesses.sum() > 0:
            return None
        total = float(seconds.sum())
        mean = float(accesses.sum()) / total
        # By how much the samples' own rates differ, longer ones counting more.
        variance = float(seconds @ (accesses / seconds / mean - 1) ** 2) / total
        error = float(np.sqrt(variance / len(rows)))
        user_seconds = total / self._user_time.factor_about(stretch.tid, stretch.time_seconds)
        timed = TimedStretch(round(float(accesses.sum())), user_seconds, self.name, error=error)
        return timed, self._code_of(stretch.code_ip)

    def rates(self, start_seconds: float, end_seconds: float) -> tuple[CodeRate, ...]:
        """How fast known code went from one moment to another."""
        found = []
        for code, code_ip in self._codes:
            rows = self._rows(start_seconds, end_seconds, code_ip)
            accesses, seconds = self._counted[rows][:, [0, 3]].sum(axis=0).tolist()
            if len(rows) >= _WINDOW_LEAST and accesses > 0:
                seconds /= self._by_user_time(rows, start_seconds, end_seconds)
                found.append(CodeRate(code, accesses / seconds, len(rows)))
        return tuple(found)

    def by_user_time(self, tid: int, start_seconds: float, end_seconds: float) -> float:
        """CPU time of a thread in a second of its user time, 1 where that is not known."""
        return self._user_time.factor({tid}, start_seconds, end_seconds)

    def speed(self, start_seconds: float, end_seconds: float) -> Speed | None:
        """How fast the process went from one moment to another; None if nothing tells."""
        rows = self._rows(start_seconds, end_seconds)
        accesses, instructions, cycles, seconds = self._counted[rows].sum(axis=0).tolist()
        if not seconds > 0:
            return None
        seconds /= self._by_user_time(rows, start_seconds, end_seconds)
        each = cycles / instructions if instructions > 0 else float("nan")
        return Speed(accesses / seconds, instructions / seconds, each, seconds)

    def _by_user_time(
        self, rows: NDArray[np.int64], start_seconds: float, end_seconds: float
    ) -> float:
        """CPU time of the threads of some samples in a second of their user time."""
        return self._user_time.factor(set(self._tid[rows].tolist()), start_seconds, end_seconds)

    def _rows(
        self,
        start_seconds: float,
        end_seconds: float,
        code_ip: NDArray[np.uint64] | None = None,
        tid: int | None = None,
    ) -> NDArray[np.int64]:
        """Samples in an interval up to which something was counted, if wanted in some code only."""
        good = (self._time >= start_seconds) & (self._time <= end_seconds)
        good &= self._counted[:, 3] > 0
        if tid is not None:
            good &= self._tid == tid
        if code_ip is not None:
            inside = is_in(self._ip, code_ip)
            good &= inside
            for each in sorted(set(self._tid[good].tolist())):
                own = np.flatnonzero(self._tid == each)
                good[own] &= np.concatenate([[False], inside[own[:-1]]])
        return np.flatnonzero(good)

    def _code_of(self, code_ip: NDArray[np.uint64]) -> int:
        for code, known in self._codes:
            if likeness(known, code_ip) >= _SAME_CODE:
                return code
        self._codes = [*self._codes, (self._next_code, code_ip)][-_CODES:]
        self._next_code += 1
        return self._next_code - 1
