"""How much CPU time of a thread a second in user mode stands for.

Samples of the timer and of ticks are taken in user mode only, so windows are made of user time.
Between two samples a thread was in the kernel as well: it touched pages for the first time, or made
calls. Samples that each tell their CPU time tell all of it, and so do windows of them: there is
nothing to convert.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Mapping

import msgspec
import numpy as np

from memsampd.sampler.records import BranchSamples

_AROUND_SECONDS = 0.05  # about a burst: how much of these was user time
_TURNS = 64  # that are remembered of a thread
_THREADS = 256  # that are remembered: the first ones are forgotten
_SAMPLES_LEAST = 16
_LOST_MOST = 0.02
_MOST = 10.0


class _Part(msgspec.Struct, frozen=True):
    """What a thread did from one look at it to the next.

    Attributes:
        end_seconds: CLOCK_MONOTONIC time of the last sample of any thread.
        cpu_seconds: CPU time.
        user_seconds: in user mode.
        samples: that tell this.
    """

    end_seconds: float
    cpu_seconds: float
    user_seconds: float
    samples: int


class UserTime:
    """Remembers of each thread how much of its CPU time was in user mode lately."""

    def __init__(self) -> None:
        self._parts: dict[int, deque[_Part]] = {}

    def add(self, samples: BranchSamples, cpu_seconds: Mapping[int, float]) -> None:
        """Take in what threads did since the last time.

        Args:
            samples: of them, not empty.
            cpu_seconds: CPU time by thread; of others nothing is learned, nor where samples were
                lost, which would count as time in the kernel.
        """
        if samples.cpu_seconds is not None:
            return
        if samples.overflowed or samples.lost > _LOST_MOST * len(samples):
            return
        end_seconds = float(samples.time_seconds[-1])
        for tid, used in cpu_seconds.items():
            own = samples.tid == tid
            count = int(np.count_nonzero(own))
            user = samples.weight * samples.period_seconds * count
            part = _Part(end_seconds, used, user, count)
            self._parts.setdefault(tid, deque(maxlen=_TURNS)).append(part)
        while len(self._parts) > _THREADS:
            self._parts.pop(next(iter(self._parts)))

    def factor(self, tids: set[int], start_seconds: float, end_seconds: float) -> float:
        """CPU time of threads in a second of their user time, 1 where it is not known.

        Args:
            tids: the threads.
            start_seconds: CLOCK_MONOTONIC time from which on.
            end_seconds: and until when.
        """
        found = [part for tid in tids for part in self._between(tid, start_seconds, end_seconds)]
        if sum(part.samples for part in found) < _SAMPLES_LEAST:
            return 1.0
        user = sum(part.user_seconds for part in found)
        return min(max(sum(part.cpu_seconds for part in found) / user, 1.0), _MOST)

    def factor_about(self, tid: int, time_seconds: float) -> float:
        """The same of a thread about a burst that began at this CLOCK_MONOTONIC time."""
        start_seconds, end_seconds = (
            time_seconds + at for at in (-_AROUND_SECONDS, _AROUND_SECONDS)
        )
        return self.factor({tid}, start_seconds, end_seconds)

    def _between(self, tid: int, start_seconds: float, end_seconds: float) -> list[_Part]:
        """The parts that overlap an interval."""
        parts = list(self._parts.get(tid, ()))
        ends = [part.end_seconds for part in parts]
        return parts[bisect_right(ends, start_seconds) : bisect_left(ends, end_seconds) + 1]
