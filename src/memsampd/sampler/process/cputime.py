"""CPU time that a process has used, all its threads counted, those that exited included."""

from __future__ import annotations

import time

from memsampd.errors import TargetError


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
