"""What works on this machine for this user, and what to do about what does not."""

from __future__ import annotations

import errno
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from memsampd import _core
from memsampd.machines.kernel import parse_release
from memsampd.machines.machine import Machine, read_machine
from memsampd.machines.pmu import ARM_SPE, Pmu, plan_events, read_pmus
from memsampd.machines.privileges import (
    CAPABILITIES,
    decode_capabilities,
    detect_container,
    in_first_namespace,
)
from memsampd.sampler.perf.costs import SamplingCost
from memsampd.sampler.perf.probes import (
    BusyChild,
    ProbeResult,
    busy_child,
    probe_breakpoint,
    probe_task_clock,
)
from memsampd.sampler.perf.refusal import read_paranoid
from memsampd.sampler.perf.source import TaskClockSource
from memsampd.sampler.pmu.branches import PmuBranchSource
from memsampd.sampler.pmu.choice import NO_PMU, Choice, PmuTrials, choose, try_plan
from memsampd.sampler.process.status import ProcessStatus, read_status
from memsampd.sampler.replica.probe import probe as probe_replica
from memsampd.sampler.walk.probe import probe as probe_walk
from memsampd.sampler.walk.source import WalkSource

BRANCH_SOURCE = TaskClockSource.name
ACCESS_SOURCE = "replica"
WALK_SOURCE = WalkSource.name

_OLDEST_KERNEL = (5, 13)  # inherit_thread of perf events

# What a replica needs, as its probe names it, and what to do where that is missing.
_REPLICA_REMEDIES = {
    "replica process": "allow userfaultfd, clone, prctl and memfd_create in the container's "
    "seccomp profile; userfaultfd takes Linux 5.11 with CONFIG_USERFAULTFD",
    "burst": "allow ptrace, process_vm_readv and /proc/PID/pagemap (--cap-add SYS_PTRACE)",
    "read-only pages": "Linux 5.19 or later",
    "kept pages": "Linux 6.4 or later",
    "procmap_query": "Linux 6.11 or later",
}
_ONLY_LIMITED_WITHOUT = {"kept pages", "procmap_query", "read-only pages", "replica user"}
# To make it another user's, and to trace and end it then.
_REPLICA_USER_TAKES = ("SETUID", "SETGID", "SYS_PTRACE", "KILL")


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
    """

    ptrace: OSError | None
    task_clock: ProbeResult
    breakpoint: ProbeResult
    replica: tuple[tuple[str, bool, str], ...]
    pmu: PmuTrials = NO_PMU
    walk: tuple[bool, str] = (False, "not tried")
    sampling_cost: SamplingCost = field(default_factory=SamplingCost)


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
        )
    own = read_status(os.getpid(), root / "proc")
    return Evidence(root, platform.release(), machine, own, pmus, trials)


def _try_ptrace(child: BusyChild) -> OSError | None:
    try:
        _core.probe_ptrace(child.pid)
    except OSError as error:
        return error
    return None


def diagnose(evidence: Evidence) -> Diagnosis:
    """Judge the evidence."""
    findings = tuple(finding for check in CHECKS for finding in check(evidence))
    needed = [*check_architecture(evidence), *check_replica(evidence)]
    choice = choose(evidence.trials.pmu)
    if choice.branches == "pmu":
        branches: str | None = PmuBranchSource.name
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


def check_architecture(evidence: Evidence) -> list[Finding]:
    """Bursts are taken on x86-64 only."""
    architecture = evidence.machine.cpu.architecture
    if architecture == "x86_64":
        return [Finding("architecture", State.OK, architecture)]
    return [Finding("architecture", State.NO, architecture, "bursts need an x86-64 Linux machine")]


def check_kernel(evidence: Evidence) -> list[Finding]:
    """Old kernels lack inherit_thread."""
    if parse_release(evidence.release) >= _OLDEST_KERNEL:
        return [Finding("kernel", State.OK, evidence.release)]
    return [
        Finding(
            "kernel",
            State.LIMITED,
            f"{evidence.release}: child processes are sampled too and thrown away",
            "Linux 5.13 or later",
        )
    ]


def check_cpu(evidence: Evidence) -> list[Finding]:
    """The processor and its caches."""
    cpu, sizes = evidence.machine.cpu, evidence.machine.cache_sizes_bytes()
    name = cpu.name or cpu.vendor or "unknown processor"
    count = len(evidence.machine.cpus)
    found = [
        Finding("processor", State.OK, f"{name}, {count} CPU{'s' if count > 1 else ''}"),
    ]
    if not sizes:
        hidden = "neither sysfs nor CPUID tells its caches"
        return [*found, Finding("caches", State.LIMITED, hidden, "curves lack the marks of sizes")]
    sources = sorted({cache.source for cache in evidence.machine.caches})
    listed = ", ".join(f"{name} {size >> 10} KiB" for name, size in sizes.items())
    return [*found, Finding("caches", State.OK, f"{listed} (from {' and '.join(sources)})")]


def check_ptrace(evidence: Evidence) -> list[Finding]:
    """Tracing, and which processes Yama leaves to it."""
    error, proc = evidence.trials.ptrace, evidence.root / "proc"
    if error is not None:
        forbidden = error.errno in (errno.EPERM, errno.ENOSYS)
        remedy = (
            "allow ptrace in the container's seccomp profile (--cap-add SYS_PTRACE), or lower "
            "kernel.yama.ptrace_scope"
            if forbidden
            else ""
        )
        detail = f"a child of our own cannot be traced: {error.strerror}"
        return [Finding("ptrace", State.NO, detail, remedy)]
    try:
        scope = int((proc / "sys/kernel/yama/ptrace_scope").read_text())
    except (OSError, ValueError):
        scope = 0
    worked = "a child was seized, interrupted and detached"
    if scope and "SYS_PTRACE" not in evidence.capabilities:
        return [
            Finding(
                "ptrace",
                State.LIMITED,
                f"{worked}, but kernel.yama.ptrace_scope is {scope}: only one's own children",
                "sysctl kernel.yama.ptrace_scope=0, or CAP_SYS_PTRACE (sudo)",
            )
        ]
    whose = "any process" if "SYS_PTRACE" in evidence.capabilities else "your own processes"
    return [Finding("ptrace", State.OK, f"{worked}; {whose} (yama ptrace_scope {scope})")]


def check_replica(evidence: Evidence) -> list[Finding]:
    """What a replica is made with."""
    found = []
    for name, works, detail in evidence.trials.replica:
        if works:
            found.append(Finding(_title(name), State.OK, detail))
            continue
        state = State.LIMITED if name in _ONLY_LIMITED_WITHOUT else State.NO
        if name == "replica user":
            remedy = _remedy_for_user(evidence)
        else:
            remedy = _REPLICA_REMEDIES.get(name, "see docs/doctor.md")
        found.append(Finding(_title(name), state, detail, remedy))
    return found


def _remedy_for_user(evidence: Evidence) -> str:
    """What has the replica run as a user of its own."""
    if evidence.status.uid != 0:
        return "run memsampd as root (sudo), or where no stranger's processes have your user"
    lacking = [name for name in _REPLICA_USER_TAKES if name not in evidence.capabilities]
    if lacking:
        return f"give memsampd {', '.join(f'CAP_{name}' for name in lacking)}"
    return "run memsampd in a user namespace that has more ids, or in the machine's own"


def _title(trial: str) -> str:
    return trial if trial.startswith("replica") else f"replica: {trial}"


def check_task_clock(evidence: Evidence) -> list[Finding]:
    """The branch source."""
    cost = evidence.trials.sampling_cost
    return [
        _judge(
            "branch samples",
            evidence.trials.task_clock,
            "samples of a busy child by the task clock; each takes "
            f"{1e6 * cost.interrupt_seconds:.1f} us of its CPU time, and a switch to and away from "
            f"a thread that is sampled up to {1e6 * cost.switch.timer_seconds:.1f} us more",
        )
    ]


def check_breakpoint(evidence: Evidence) -> list[Finding]:
    """Hardware breakpoints."""
    return [
        _judge(
            "hardware breakpoints",
            evidence.trials.breakpoint,
            "hits on a busy child's word (distances longer than bursts)",
        )
    ]


def check_walk(evidence: Evidence) -> list[Finding]:
    """Accesses without a stop."""
    works, detail = evidence.trials.walk
    if works:
        return [Finding("no-stop accesses", State.OK, f"{detail} (--accesses watchpoints)")]
    return [
        Finding("no-stop accesses", State.NO, detail, "perf events of one's own processes allow it")
    ]


def _judge(name: str, result: ProbeResult, counted: str) -> Finding:
    if result.error is not None:
        return Finding(name, State.NO, result.error.cause, result.error.remedy)
    if not result.works:
        return Finding(
            name,
            State.NO,
            "it opens but counts nothing",
            "the hypervisor or the kernel drops it: use another machine, or report a bug there",
        )
    return Finding(name, State.OK, f"{result.count} {counted}")


def check_pmu(evidence: Evidence) -> list[Finding]:
    """The PMUs. Nothing needs one."""
    trials, name = evidence.trials.pmu, "PMU"
    if not evidence.pmus:
        none = "none (mostly: a virtual machine without one)"
        return [Finding(name, State.NO, none, "none is needed")]
    found = [Finding(name, State.OK, ", ".join(pmu.name for pmu in evidence.pmus))]
    found += [Finding(name, State.LIMITED, why) for why in trials.plan.missing]
    if any(pmu.name == ARM_SPE for pmu in evidence.pmus):
        found.append(Finding(name, State.LIMITED, "arm_spe_0 is present, not tried, and not used"))
    for trial in trials.every:
        state = State.OK if trial.works else State.NO
        remedy = trial.refusal.remedy if trial.refusal is not None else ""
        found.append(Finding(f"PMU: {trial.event.name}", state, trial.detail, remedy))
    return _each_named_once(found)


def _each_named_once(findings: list[Finding]) -> list[Finding]:
    """Join those of one name: the worst state, all details."""
    joined: dict[str, Finding] = {}
    for each in findings:
        before = joined.get(each.name)
        if before is not None:
            state = max(before.state, each.state, key=list(State).index)
            detail = f"{before.detail}; {each.detail}"
            each = replace(before, state=state, detail=detail)
        joined[each.name] = each
    return list(joined.values())


def check_paranoid(evidence: Evidence) -> list[Finding]:
    """kernel.perf_event_paranoid."""
    name, level = "perf_event_paranoid", read_paranoid(evidence.root / "proc")
    if level is None:
        return [
            Finding(
                name, State.LIMITED, "not readable", "a kernel without perf events or a sandbox"
            )
        ]
    if level <= 2 or evidence.capabilities & {"PERFMON", "SYS_ADMIN"}:
        return [Finding(name, State.OK, f"{level}")]
    return [
        Finding(
            name,
            State.NO,
            f"{level}: no perf events for ordinary users",
            "sysctl kernel.perf_event_paranoid=2, or CAP_PERFMON (sudo)",
        )
    ]


def check_capabilities(evidence: Evidence) -> list[Finding]:
    """Effective capabilities, and whether they reach beyond one's own processes."""
    held = evidence.capabilities
    lacking = [name for name in CAPABILITIES if name not in held]
    if not lacking:
        detail = "all"
    elif len(lacking) < len(held):
        detail = f"all but {', '.join(lacking)}"
    else:
        detail = ", ".join(sorted(held)) or "none"
    if "SYS_PTRACE" in held and held & {"PERFMON", "SYS_ADMIN"}:
        return [Finding("capabilities", State.OK, detail)]
    return [
        Finding(
            "capabilities",
            State.LIMITED,
            f"{detail}: only processes of user {evidence.status.uid} can be observed",
            "CAP_SYS_PTRACE and CAP_PERFMON for those of others (sudo)",
        )
    ]


def check_seccomp(evidence: Evidence) -> list[Finding]:
    """A filter on ourselves; one on a target is in nobody's way."""
    mode = evidence.status.seccomp_mode
    if not mode:
        return [Finding("seccomp", State.OK, "none on memsampd")]
    return [Finding("seccomp", State.LIMITED, f"memsampd runs under seccomp (mode {mode})")]


def check_container(evidence: Evidence) -> list[Finding]:
    """Containers and namespaces, which narrow what can be seen."""
    container = detect_container(evidence.root) or "none"
    proc = evidence.root / "proc"
    nested = [kind for kind in ("pid", "user") if in_first_namespace(kind, proc) is False]
    if not nested:
        return [Finding("container", State.OK, f"{container}; the machine's own namespaces")]
    return [
        Finding(
            "container",
            State.LIMITED,
            f"{container}; a {' and '.join(nested)} namespace of its own: only processes in it "
            "can be observed",
            "for others start memsampd in the machine's own namespaces (--pid=host)",
        )
    ]


CHECKS: tuple[Callable[[Evidence], list[Finding]], ...] = (
    check_architecture,
    check_kernel,
    check_cpu,
    check_ptrace,
    check_replica,
    check_task_clock,
    check_breakpoint,
    check_walk,
    check_pmu,
    check_paranoid,
    check_capabilities,
    check_seccomp,
    check_container,
)
