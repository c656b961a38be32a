"""What works on this machine for this user, and what to do about what does not."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

from memsampd import _core
from memsampd.machines.checks import CHECKS, check_architecture, check_replica
from memsampd.machines.findings import Evidence, Finding, State, Trials
from memsampd.machines.machine import Machine, read_machine
from memsampd.machines.pmu import plan_events, read_pmus
from memsampd.sampler.perf.costs import SamplingCost
from memsampd.sampler.perf.probes import (
    BusyChild,
    busy_child,
    probe_breakpoint,
    probe_task_clock,
)
from memsampd.sampler.perf.source import TaskClockSource
from memsampd.sampler.perf.ticks import TRACEFS, TickSource, try_ticks
from memsampd.sampler.perf.watching_cost import WatchingCost
from memsampd.sampler.pmu.branches import PmuBranchSource
from memsampd.sampler.pmu.choice import Choice, PmuTrials, choose, try_plan
from memsampd.sampler.process.status import read_status
from memsampd.sampler.replica.probe import probe as probe_replica
from memsampd.sampler.walk.probe import probe as probe_walk
from memsampd.sampler.walk.source import WalkSource

BRANCH_SOURCE = TaskClockSource.name
ACCESS_SOURCE = "replica"
WALK_SOURCE = WalkSource.name


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The whole of it.

    Attributes:
        machine: the hardware.
        findings: one a check.
        branch_source: backend that attach will use; None: there is none.
        access_source: the same for accesses.
        clock: what accesses will be timed by.
    """

    machine: Machine
    findings: tuple[Finding, ...]
    branch_source: str | None
    access_source: str | None
    clock: str

    @property
    def works(self) -> bool:
        """Whether a process can be attached to at all."""
        return self.branch_source is not None and self.access_source is not None


def gather_evidence(root: Path = Path("/")) -> Evidence:
    """Look at this machine and try out what can be tried (a fifth of a second of CPU time).

    Args:
        root: where proc, sys, boot and run are.
    """
    machine = read_machine(root)
    pmus = read_pmus(root / "sys")
    with busy_child() as child:
        trials = Trials(
            _try_ptrace(child),
            probe_task_clock(child),
            probe_breakpoint(child),
            tuple(probe_replica()),
            try_plan(plan_events(machine.cpu, pmus, platform.release())),
            probe_walk(child.pid),
            SamplingCost.measure(),
            _try_watching_cost(),
            try_ticks(root / TRACEFS.relative_to("/")),
        )
    own = read_status(os.getpid(), root / "proc")
    return Evidence(root, platform.release(), machine, own, pmus, trials)


def _try_ptrace(child: BusyChild) -> OSError | None:
    try:
        _core.probe_ptrace(child.pid)
    except OSError as error:
        return error
    return None


def _try_watching_cost() -> WatchingCost | OSError:
    try:
        return WatchingCost.measure()
    except OSError as error:
        return error


def diagnose(evidence: Evidence) -> Diagnosis:
    """Judge the evidence."""
    findings = tuple(finding for check in CHECKS for finding in check(evidence))
    needed = [*check_architecture(evidence), *check_replica(evidence)]
    cost = evidence.trials.sampling_cost
    choice = choose(
        evidence.trials.pmu, ticks=evidence.trials.ticks, period_seconds=cost.period_seconds
    )
    if choice.branches == "pmu":
        branches: str | None = PmuBranchSource.name
    elif choice.branches == "ticks":
        branches = TickSource.name
    else:
        branches = BRANCH_SOURCE if evidence.trials.task_clock.works else None
    trials = evidence.trials
    accesses: str | None = None
    if trials.ptrace is None and all(each.state is not State.NO for each in needed):
        accesses = ACCESS_SOURCE
    elif check_architecture(evidence)[0].state is State.OK and trials.walk[0]:
        accesses = WALK_SOURCE
    return Diagnosis(
        evidence.machine,
        (*findings, _check_backend(branches, accesses, choice, trials.pmu)),
        branches,
        accesses,
        choice.clock,
    )


def _check_backend(
    branches: str | None, accesses: str | None, choice: Choice, pmu: PmuTrials
) -> Finding:
    lines = "accesses and the PMU" if pmu.address_events else "accesses"
    counted = pmu.distance_counters(choice)
    distances = "as counted between touches" if counted else "CPU time at the clock's rates"
    detail = (
        f"branches: {branches or 'none'}, accesses: {accesses or 'none'}, clock: {choice.clock} "
        f"({choice.said}), lines to watch: of {lines}, long distances: {distances}"
    )
    if branches and accesses == WALK_SOURCE:
        return Finding(
            "backend",
            State.LIMITED,
            f"{detail}; no bursts can be taken, and walks tell less (docs/no-stop.md)",
            "see the lines marked 'no' above",
        )
    if branches and accesses:
        return Finding("backend", State.OK, detail)
    return Finding("backend", State.NO, detail, "see the lines marked 'no' above")
