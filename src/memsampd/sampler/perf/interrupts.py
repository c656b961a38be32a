"""What a branch sample costs the thread that is sampled."""

from __future__ import annotations

import os
import threading
import time

from memsampd import _core

_TASK_CLOCK = 1  # PERF_COUNT_SW_TASK_CLOCK
_PERIOD_NS = 50_000  # often enough that a millisecond of work is delayed by several per cent
_PAIRS = 7
_TURNS = 20_000  # some 0.4 ms


def measure_sample_seconds() -> float:
    """CPU time that one timer interrupt of the branch source takes, measured on this thread.

    The same work is done with and without the interrupts, in turns, some 6 ms in all; the median
    of the differences counts. Writing the sample itself is not in it, and makes no difference
    that can be seen.

    Returns:
        Seconds; 0 where that is too little to be seen, or the event is refused.
    """
    costs = []
    for _ in range(_PAIRS):
        alone_ns = _work_ns()
        try:
            event = _core.perf_open_counter(
                threading.get_native_id(), _core.PERF_TYPE_SOFTWARE, _TASK_CLOCK, period=_PERIOD_NS
            )
        except OSError:
            return 0.0
        sampled_ns = _work_ns()
        os.close(event)
        costs.append((sampled_ns - alone_ns) / (sampled_ns / _PERIOD_NS))
    return max(sorted(costs)[len(costs) // 2], 0.0) * 1e-9


def _work_ns() -> int:
    """Do the work; CPU time that it took."""
    start_ns = time.thread_time_ns()
    for _ in range(_TURNS):
        pass
    return time.thread_time_ns() - start_ns
