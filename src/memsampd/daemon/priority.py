"""How memsampd's threads give way to the target's, and whether they have to wait for a CPU."""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Callable

from memsampd.sampler.process.schedstat import Scheduled, read_scheduled

# The target goes first, but on a machine whose CPUs are all busy there must be turns: with two busy
# loops on two CPUs, 2 a second at 10, 6 at 5, 10 at 0.
ANALYSIS_NICENESS = 5
WALKS_NICENESS = 10

_MEMORY_SECONDS = 5.0
_MUCH = 0.5  # of the time that the thread ran
_SPACING_SECONDS = 0.5  # asking takes a tenth of a millisecond


def yield_to_others(
    asked: int | None, usual: int = ANALYSIS_NICENESS, *, preempts: bool = True
) -> None:
    """Analysis can wait, the target cannot: lower this thread (not the tracer, which stops it).

    Args:
        asked: niceness of it, and of threads and processes that it starts from now on; None: as
            usual.
        usual: the least that it has where nothing was asked for.
        preempts: whether it may take the CPU from who runs there when it wakes up; else it waits
            until that one has had its time.
    """
    tid = threading.get_native_id()
    with contextlib.suppress(OSError):
        niceness = max(os.getpriority(os.PRIO_PROCESS, tid), usual) if asked is None else asked
        os.setpriority(os.PRIO_PROCESS, tid, niceness)
    if not preempts:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


class Contention:
    """Whether this thread has to wait for a CPU: what it uses is then taken from somebody.

    At first all counts since the thread began, later what was some seconds ago counts less.

    Args:
        scheduled: what the scheduler tells of the thread; injected for tests.
    """

    def __init__(self, scheduled: Callable[[], Scheduled | None] = read_scheduled) -> None:
        self._scheduled = scheduled
        self._looked_seconds = -math.inf
        self._last = Scheduled()
        self._ran = self._waited = 0.0
        self._waits = False

    def look(self, now_seconds: float) -> bool:
        """Whether it waits for half as long as it runs, or longer; monotonic time.

        The kernel is asked now and then only.
        """
        if now_seconds - self._looked_seconds < _SPACING_SECONDS:
            return self._waits
        keep = math.exp((self._looked_seconds - now_seconds) / _MEMORY_SECONDS)
        last, now = self._last, self._scheduled() or Scheduled()
        self._ran = keep * self._ran + now.ran_ns - last.ran_ns
        self._waited = keep * self._waited + now.waited_ns - last.waited_ns
        self._looked_seconds, self._last = now_seconds, now
        self._waits = self._waited > _MUCH * self._ran
        return self._waits
