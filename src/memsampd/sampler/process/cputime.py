"""CPU time that a process has used, all its threads counted, those that exited included."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from memsampd.errors import TargetError
from memsampd.sampler.process.identity import PROC, read_stat


def process_cpu_ns(pid: int) -> int:
    """User and system CPU time of a process in nanoseconds, by its CPU-time clock.

    Raises:
        TargetError: no such process (a zombie still has its clock).
    """
    # The clock that clock_getcpuclockid(3) names: CPUCLOCK_SCHED of the whole process.
    clock = (~pid << 3) | 2
    try:
        return time.clock_gettime_ns(clock)
    except OSError as error:
        raise TargetError(f"process {pid} is gone") from error


@dataclass(frozen=True, slots=True)
class CpuTime:
    """CPU time by mode, in seconds, as fine as the kernel's ticks (mostly 10 ms).

    Attributes:
        user_seconds: in user mode.
        system_seconds: in the kernel on its behalf.
    """

    user_seconds: float
    system_seconds: float


def read_cpu_time(pid: int, proc: Path = PROC) -> CpuTime:
    """Read the split of a process's CPU time.

    Raises:
        TargetError: no such process.
    """
    try:
        stat = read_stat(pid, proc)
    except OSError as error:
        raise TargetError(f"process {pid} is gone") from error
    ticks = os.sysconf("SC_CLK_TCK")
    return CpuTime(stat.user_ticks / ticks, stat.system_ticks / ticks)
