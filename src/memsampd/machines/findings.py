"""What the doctor judges by, and what it finds."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from memsampd.machines.machine import Machine
from memsampd.machines.pmu import Pmu
from memsampd.machines.privileges import decode_capabilities
from memsampd.sampler.perf.costs import SamplingCost
from memsampd.sampler.perf.probes import ProbeResult
from memsampd.sampler.perf.ticks import NO_TICKS, Ticks
from memsampd.sampler.perf.watching_cost import WatchingCost
from memsampd.sampler.pmu.choice import NO_PMU, PmuTrials
from memsampd.sampler.process.status import ProcessStatus


class State(StrEnum):
    """How a thing stands."""

    OK = "ok"
    LIMITED = "limited"
    NO = "no"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the diagnosis.

    Attributes:
        name: what was looked at.
        state: how it stands.
        detail: what was found.
        remedy: what to do; empty if there is nothing to do.
    """

    name: str
    state: State
    detail: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Trials:
    """What was really tried, on a child of our own.

    Attributes:
        ptrace: why seizing, interrupting or detaching it failed; None if it works.
        task_clock: samples of the branch source.
        breakpoint: hits of a hardware breakpoint.
        replica: what a replica needs: its name, whether it is there, and what was found.
        pmu: events of the PMUs that there are.
        walk: whether accesses can be had without a stop, and what was found.
        sampling_cost: what branch samples take.
        watching_cost: what breakpoints on data take beside hits; or why they were refused.
        ticks: whether the kernel's ticks can be sampled.
    """

    ptrace: OSError | None
    task_clock: ProbeResult
    breakpoint: ProbeResult
    replica: tuple[tuple[str, bool, str], ...]
    pmu: PmuTrials = NO_PMU
    walk: tuple[bool, str] = (False, "not tried")
    sampling_cost: SamplingCost = field(default_factory=SamplingCost)
    watching_cost: WatchingCost | OSError = field(default_factory=WatchingCost)
    ticks: Ticks = NO_TICKS


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that the checks judge by.

    Attributes:
        root: where proc, sys, boot and run are.
        release: kernel release, as uname(2) says.
        machine: the hardware.
        status: our own process.
        pmus: units that the kernel shows.
        trials: what was tried.
    """

    root: Path
    release: str
    machine: Machine
    status: ProcessStatus
    pmus: tuple[Pmu, ...]
    trials: Trials

    @property
    def capabilities(self) -> frozenset[str]:
        """Our effective capabilities."""
        return decode_capabilities(self.status.cap_effective)
