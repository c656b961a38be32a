"""What a program asks of a shared cache, from what is known of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memsampd.estimate.events import WindowRecord
from memsampd.estimate.records import Estimate
from memsampd.exporters.analysis import analyse
from memsampd.exporters.recording import Recording
from memsampd.models.corun import Demand
from memsampd.models.records import MissRatioCurve
from memsampd.models.sizes import default_sizes

Document = Mapping[str, Any]
"""As :mod:`memsampd.exporters.documents` makes them."""
LINE_BYTES = 64


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """One program that shares the cache.

    Attributes:
        name: short name (comm).
        pid: process id.
        start_ticks: its start time: with the pid it names one process for good; 0 if unknown.
        cpus: CPU seconds that it used in a second.
        demands: its phases that have a curve, and whose access rate is known.
        rate_known_share: share of its CPU time in code whose rate was measured, not modelled.
        is_told_anew: whether it is known how much it runs; else it is as if it did not.
        warnings: what to know of where this comes from.
    """

    name: str
    pid: int
    start_ticks: int
    cpus: float
    demands: tuple[Demand, ...]
    rate_known_share: float
    is_told_anew: bool = True
    warnings: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Name and process id."""
        return f"{self.name} ({self.pid})"

    @property
    def accesses_per_second(self) -> float:
        """Of wall time, as far as known."""
        return sum(demand.share * demand.accesses_per_second for demand in self.demands)

    @property
    def unknown_share(self) -> float:
        """Share of its CPU time in phases of which curve or rate is not known, 0..1."""
        return max(1 - sum(demand.share for demand in self.demands), 0.0)


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
    sizes = default_sizes(4, [cache_bytes])
    return np.union1d(sizes[sizes < cache_bytes], [cache_bytes])


def program_of_recording(recording: Recording, cache_bytes: int) -> Program:
    """Return the program that a recording shows last.

    Args:
        recording: of one process.
        cache_bytes: size of the cache that advice is wanted for.
    """
    estimate = analyse(recording, "lru", advice_sizes(cache_bytes)).estimate
    windows = [event for event in recording.last_program if isinstance(event, WindowRecord)]
    wall_seconds = windows[-1].end_seconds - windows[0].start_seconds if windows else 0.0
    cpus = estimate.cpu_seconds / wall_seconds if wall_seconds > 0 else 1.0
    target = recording.target
    return Program(
        name=target.command,
        pid=target.pid,
        start_ticks=target.start_ticks,
        cpus=cpus,
        demands=demands_of(estimate, cpus),
        rate_known_share=estimate.rate_known_share,
        warnings=recording.warnings,
    )


def program_of_documents(
    target: Document, phases: Document, curves: Document, cpus: float | None
) -> Program:
    """Return the program that a daemon tells of.

    Args:
        target: its target document.
        phases: its phases document.
        curves: its curves document.
        cpus: CPU seconds that it uses in a second; None: that is not known.

    Raises:
        KeyError: a document lacks what it is to have.
    """
    sizes_bytes = np.array(curves["sizes_bytes"], np.int64)
    by_id = {phase["id"]: phase for phase in curves["phases"]}
    total, used = sum(phase["cpu_seconds"] for phase in phases["phases"]), cpus or 0.0
    demands = []
    for phase in phases["phases"]:
        told, rate = by_id.get(phase["id"]), phase["accesses_per_cpu_second"]
        if told is None or told["miss_ratio"] is None or not rate or not phase["cpu_seconds"]:
            continue
        curve = MissRatioCurve(
            sizes_bytes=sizes_bytes,
            miss_ratio=np.array(told["miss_ratio"], np.float64),
            low=np.array(told["low"], np.float64),
            high=np.array(told["high"], np.float64),
            policy="lru",
            line_bytes=LINE_BYTES,
            sampled_accesses=phase["sampled_accesses"],
        )
        demands.append(
            Demand(phase["cpu_seconds"] / total, rate * used, phase["rate_spread"], curve)
        )
    return Program(
        name=target["command"],
        pid=target["pid"],
        start_ticks=target["start_ticks"],
        cpus=used,
        demands=tuple(demands),
        rate_known_share=target["rate_known_share"],
        is_told_anew=cpus is not None,
    )
