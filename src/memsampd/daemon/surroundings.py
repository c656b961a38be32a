"""What all sessions of a process have in common: this machine, and what it allows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from memsampd.daemon.accesses import ReplicaTrial
from memsampd.daemon.own_cpu import ProcessCpu
from memsampd.errors import CapabilityError
from memsampd.machines.cache_seconds import measure_cache_seconds
from memsampd.machines.machine import Machine, read_machine
from memsampd.machines.machine_file import MemoryPeak, known_peak
from memsampd.models.sizes import default_sizes, with_caches
from memsampd.sampler.perf.costs import SamplingCost, SwitchCostMeter
from memsampd.sampler.perf.ticks import NO_TICKS, Ticks, try_ticks
from memsampd.sampler.perf.watching_cost import WatchingCost
from memsampd.sampler.pmu.choice import NO_PMU, PmuTrials, try_pmu

logger = logging.getLogger(__name__)


class Surroundings(msgspec.Struct, frozen=True):
    """What all sessions of a process have in common.

    Attributes:
        machine: this machine.
        sampling_cost: what branch samples by the timer take from a target.
        switch_cost: tells what switches between threads take more then.
        process_cpu: accounts of what is done for each of them.
        cache_seconds: what an access to its caches takes ("L3"), as far as that was measured.
        memory_peak: what memory gives at most; None if it was not measured.
        pmu: what came of trying the PMU's events.
        ticks: what came of trying the kernel's ticks.
        replica_trial: knows whether replicas can be made.
        watching_cost: tells what a data breakpoint does to a thread, measured once; OSError where
            that cannot be measured: it is tried again the next time.
    """

    machine: Machine
    sampling_cost: SamplingCost
    process_cpu: ProcessCpu
    cache_seconds: Mapping[str, float] = msgspec.field(default_factory=dict)
    memory_peak: MemoryPeak | None = None
    pmu: PmuTrials = NO_PMU
    ticks: Ticks = NO_TICKS
    replica_trial: ReplicaTrial = msgspec.field(default_factory=ReplicaTrial)
    switch_cost: SwitchCostMeter = msgspec.field(default_factory=SwitchCostMeter)
    watching_cost: Callable[[], WatchingCost] = msgspec.field(
        default_factory=lambda: cache(WatchingCost.measure)
    )

    @classmethod
    def read(cls, process_cpu: ProcessCpu | None = None) -> Surroundings:
        """Read and measure them."""
        machine = read_machine()
        return cls(
            machine,
            SamplingCost.measure_interrupts(),
            process_cpu or ProcessCpu(),
            measure_cache_seconds(machine.cache_sizes_bytes()),
            _memory_peak(machine),
            try_pmu(machine.cpu),
            try_ticks(),
        )

    def curve_sizes(self) -> NDArray[np.int64]:
        """Sizes of live curves: powers of two, and the caches of this machine."""
        caches = self.machine.cache_sizes_bytes().values()
        return with_caches(default_sizes(cache_sizes_bytes=caches), caches)


def _memory_peak(machine: Machine) -> MemoryPeak | None:
    """The measured peak; a file that cannot be used is told of, and no reason to stop."""
    try:
        return known_peak(machine)
    except CapabilityError as error:
        logger.warning("%s", error)
        return None
