"""What a program asks of a shared cache, from what is known of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memsampd.estimate.records import Estimate
from memsampd.models.corun import Demand
from memsampd.models.sizes import default_sizes


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """One program that shares the cache.

    Attributes:
        name: short name (comm).
        pid: process id.
        start_ticks: its start time: with the pid it names one process for good; 0 if unknown.
        cpus: CPU seconds that it used in a second.
        demands: its phases that have a curve, and whose access rate is known.
        unknown_share: share of its CPU time in others, 0..1.
        rate_known_share: share of its CPU time in code whose rate was measured, not modelled.
    """

    name: str
    pid: int
    start_ticks: int
    cpus: float
    demands: tuple[Demand, ...]
    unknown_share: float
    rate_known_share: float

    @property
    def label(self) -> str:
        """Name and process id."""
        return f"{self.name} ({self.pid})"

    @property
    def accesses_per_second(self) -> float:
        """Of wall time, as far as known."""
        return sum(demand.share * demand.accesses_per_second for demand in self.demands)


def demands_of(estimate: Estimate, cpus: float) -> tuple[Demand, ...]:
    """Return the phases of which curve and rate are known.

    Args:
        estimate: of the program.
        cpus: CPU seconds that it uses in a second.
    """
    return tuple(
        Demand(
            share=phase.cpu_seconds / estimate.cpu_seconds,
            accesses_per_second=phase.rate.accesses_per_cpu_second * cpus,
            spread=phase.rate.spread,
            curve=phase.curves["lru"],
        )
        for phase in estimate.phases
        if "lru" in phase.curves and phase.cpu_seconds and phase.rate.accesses_per_cpu_second
    )


def advice_sizes(cache_bytes: int) -> NDArray[np.int64]:
    """Return the sizes at which curves are wanted for advice on a cache: up to it, int64."""
    sizes = default_sizes(4)
    return np.union1d(sizes[sizes < cache_bytes], [cache_bytes])
