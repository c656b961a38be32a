"""The branch source of hosts with a PMU: conditional branches retired, at random periods."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence

import msgspec
import numpy as np

from memsampd import _core
from memsampd.machines.pmu import HardwareEvent
from memsampd.sampler.perf.costs import PERIODS_SECONDS
from memsampd.sampler.perf.counts import NO_COUNTERS, CounterSet
from memsampd.sampler.perf.groups import SamplerOptions
from memsampd.sampler.perf.source import (
    COUNTED_RECORD_BYTES,
    RING_BYTES,
    StreamedBranches,
    wakeup_bytes,
)
from memsampd.sampler.pmu.periods import MOST_OFF, PeriodJudge, RandomPeriods
from memsampd.sampler.records import BranchSamples

_USUAL_EVENTS_PER_SECOND = 3e8  # branches or micro-ops; what it really is shows soon
_PERIOD_LEAST, _PERIOD_MOST = 10_000, 1 << 40
_OPEN_ANEW_SECONDS = 10.0  # at least between two times


class PmuBranchSource(StreamedBranches):
    """A :class:`~memsampd.sampler.protocols.BranchSource` by branches that have been retired.

    A sample is taken every so many branches, about once in ``period_seconds`` of CPU time: the
    number follows the program's rate, in steps of a factor of two and more. Each sample tells the
    CPU time (in the kernel, too) that its thread has used since the one before, also where
    samples were lost: nothing of the target's time is missing.

    Args:
        pid: the process to sample.
        events: conditional branches, or on AMD micro-ops, as they were found to work
            (:func:`memsampd.sampler.pmu.trial.try_sampled`): one a kind of core.
        period_seconds: CPU time that a sample stands for, about.
        period: events between the first samples; None: what is usual.
        counters: read at each sample; none beside events of IBS.
        follow_forks: sample processes that it starts, too.
        ring_bytes: size of each ring buffer (one a CPU), a power of two of pages.
        most_files: descriptors that may be opened; None: what the process may.
        seed: of the periods.

    Attributes:
        name: "pmu-branches".

    Raises:
        TargetError: the process is gone or not ours.
        CapabilityError: perf events are refused; with the cause and what to do.
    """

    name = "pmu-branches"

    def __init__(
        self,
        pid: int,
        events: Sequence[HardwareEvent],
        *,
        period_seconds: float = PERIODS_SECONDS[0],
        period: int | None = None,
        counters: CounterSet = NO_COUNTERS,
        follow_forks: bool = False,
        ring_bytes: int = RING_BYTES,
        most_files: int | None = None,
        seed: int = 0,
    ) -> None:
        mean = round(_USUAL_EVENTS_PER_SECOND * period_seconds) if period is None else period
        step = max(event.period_step for event in events)
        self._periods = RandomPeriods(mean, step, random.Random(seed))
        self._own, self._inherited = PeriodJudge(period_seconds), PeriodJudge(period_seconds)
        self._opened_seconds = -math.inf
        options = SamplerOptions(
            pid=pid,
            period=self._periods.draw(),
            wakeup_bytes=wakeup_bytes(period_seconds, COUNTED_RECORD_BYTES, ring_bytes),
            ring_bytes=ring_bytes,
            follow_forks=follow_forks,
            most_files=most_files,
            groups=counters.groups(events),
            fields=_core.SAMPLE_COUNTS | _core.SAMPLE_REGISTERS,
        )
        super().__init__(period_seconds, counters, options, COUNTED_RECORD_BYTES)

    @property
    def ring_samples(self) -> int:
        """As many as fit if they come as often as is put up with."""
        return int(super().ring_samples / MOST_OFF)

    def read(self, timeout_seconds: float) -> BranchSamples:
        """Wait for samples, at most so long, and return all that have come, in order of time."""
        found = self._found(timeout_seconds)
        cpu_seconds = self._readings.elapsed(found.samples)
        told = self._told(found, cpu_seconds)
        is_own = np.isin(found.samples["tid"], self._stream.opened_threads())
        self._adapt(int(is_own.sum()), float(cpu_seconds[is_own].sum()))
        others = int((~is_own).sum()), float(cpu_seconds[~is_own].sum())
        if self._inherited.factor(*others) != 1:
            self._reach_all()
        return told

    def _adapt(self, samples: int, cpu_seconds: float) -> None:
        """Keep the CPU time between two samples near what was asked for; draw new periods.

        Only events that were opened here are reached: others are not to be judged by.
        """
        factor = self._own.factor(samples, cpu_seconds)
        if factor != 1:
            mean = round(self._periods.mean * factor)
            self._periods.mean = min(max(mean, _PERIOD_LEAST), _PERIOD_MOST)
        self._periods.renew(self._stream.sampling_files(), now=factor != 1)

    def _reach_all(self) -> None:
        """Threads have inherited a period that does not fit: open all events anew."""
        now_seconds = time.monotonic()
        if now_seconds - self._opened_seconds < _OPEN_ANEW_SECONDS:
            return
        self._opened_seconds = now_seconds
        if self._open_anew(msgspec.structs.replace(self._options, period=self._periods.draw())):
            self._readings.begin_anew()
