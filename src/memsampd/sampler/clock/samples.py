"""The latest samples of a process, and pairs of them between which a thread ran all the time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from memsampd.sampler.clock.code import is_in
from memsampd.sampler.clock.odometer import Pairs, joined
from memsampd.sampler.latest import Latest
from memsampd.sampler.records import BranchSamples, no_registers

_SAMPLES = 4096  # that are remembered: at the usual period, of some seconds
# Two samples tell only if the thread ran all the time between them: wall time, by its CPU time.
_UNDISTURBED = (0.85, 1.15)


class LatestSamples:
    """Remembers samples that have registers, in the order of their times."""

    def __init__(self) -> None:
        self._ip = Latest(_SAMPLES, np.uint64)
        self._tid = Latest(_SAMPLES, np.int32)
        self._time = Latest(_SAMPLES, np.float64)  # ascending
        self._registers = Latest(_SAMPLES, np.uint64, no_registers().shape[1])
        self._used = Latest(_SAMPLES, np.float64)  # CPU time since the sample before
        self._ran = Latest(_SAMPLES, np.float64)  # CPU time of its thread, NaN if nobody tells
        self._is_told = False  # that

    def add(self, samples: BranchSamples) -> None:
        """Remember some."""
        ran = samples.thread_seconds
        self._used.add(samples.each_cpu_seconds)
        self._ran.add(np.full(len(samples), np.nan) if ran is None else ran)
        self._is_told |= ran is not None
        self._ip.add(samples.ip)
        self._tid.add(samples.tid)
        self._time.add(samples.time_seconds)
        self._registers.add(samples.registers)

    def threads(self, inside: slice) -> list[int]:
        """Threads that some samples are of, ascending."""
        return sorted(set(self._tid.rows[inside].tolist()))

    def between(self, start_seconds: float, end_seconds: float) -> slice:
        """Which samples lie in an interval."""
        time = self._time.rows
        first = int(time.searchsorted(start_seconds))
        return slice(first, int(time.searchsorted(end_seconds, side="right")))

    def pairs(self, tid: int, inside: slice, code_ip: NDArray[np.uint64] | None = None) -> Pairs:
        """Pairs of undisturbed samples of one thread, and in some code.

        Args:
            tid: the thread.
            inside: among which samples.
            code_ip: only pairs of which both are in this code; None: all.
        """
        is_own = self._tid.rows[inside] == tid
        own = inside if is_own.all() else inside.start + np.flatnonzero(is_own)
        used = self._used.rows[own]
        if self._is_told:  # they are as far apart in wall time: the thread may have waited
            used = np.minimum(used, np.diff(self._ran.rows[own], prepend=np.nan))
        return undisturbed(
            self._ip.rows[own],
            self._time.rows[own],
            self._registers.rows[own],
            used,
            code_ip,
        )

    def pairs_of_all(self, threads: list[int], inside: slice) -> Pairs:
        """Pairs of all these threads, in any code."""
        return joined([self.pairs(tid, inside) for tid in threads])


def undisturbed(
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
        used_seconds: CPU time since the sample before, shape (n,); NaN: not known.
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
