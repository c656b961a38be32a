"""The branch source of hosts with a PMU: conditional branches retired, at random periods."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

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
from memsampd.sampler.perf.stream import SampleStream
from memsampd.sampler.pmu.periods import RandomPeriods
from memsampd.sampler.process.identity import PROC
from memsampd.sampler.records import BranchSamples

_USUAL_EVENTS_PER_SECOND = 3e8  # branches or micro-ops; what it really is shows soon
_PERIOD_LEAST, _PERIOD_MOST = 10_000, 1 << 40
_SAMPLES_TO_ADAPT, _SECONDS_TO_ADAPT = 32, 0.5
_TOO_FAR = 2.0  # from the CPU time that a sample should stand for


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
        proc: root of the proc file system.
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
        proc: Path = PROC,
        most_files: int | None = None,
        seed: int = 0,
    ) -> None:
        mean = round(_USUAL_EVENTS_PER_SECOND * period_seconds) if period is None else period
        step = max(event.period_step for event in events)
        self._periods = RandomPeriods(mean, step, random.Random(seed))
        self._samples, self._seconds = 0, 0.0  # since the period was last judged
        options = SamplerOptions(
            pid=pid,
            period=self._periods.draw(),
            wakeup_bytes=wakeup_bytes(period_seconds, COUNTED_RECORD_BYTES, ring_bytes),
            ring_bytes=ring_bytes,
            follow_forks=follow_forks,
            proc=proc,
            most_files=most_files,
            groups=counters.groups(events),
            fields=_core.SAMPLE_COUNTS | _core.SAMPLE_REGISTERS,
        )
        super().__init__(period_seconds, counters, SampleStream(options), COUNTED_RECORD_BYTES)

    @property
    def mean_period(self) -> int:
        """Events between two samples, at present."""
        return self._periods.mean

    def read(self, timeout_seconds: float) -> BranchSamples:
        """Wait for samples, at most so long, and return all that have come, in order of time."""
        found = self._found(timeout_seconds)
        cpu_seconds = self._readings.elapsed(found.samples)
        self._adapt(len(found.samples), float(cpu_seconds.sum()))
        return self._told(found, cpu_seconds)

    def _adapt(self, samples: int, cpu_seconds: float) -> None:
        """Keep the CPU time between two samples near what was asked for; draw new periods."""
        self._samples += samples
        self._seconds += cpu_seconds
        is_told = self._samples >= _SAMPLES_TO_ADAPT or self._seconds >= _SECONDS_TO_ADAPT
        has_changed = False
        if self._samples and self._seconds and is_told:
            apart = self.period_seconds * self._samples / self._seconds
            has_changed = not 1 / _TOO_FAR < apart < _TOO_FAR
            if has_changed:
                mean = round(self._periods.mean * apart)
                self._periods.mean = min(max(mean, _PERIOD_LEAST), _PERIOD_MOST)
            self._samples, self._seconds = 0, 0.0
        self._periods.renew(self._stream.sampling_files(), now=has_changed)
