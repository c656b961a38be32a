"""The doctor's checks: what of a machine is there, and what to do about what is not."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace

from memsampd.machines.findings import Evidence, Finding, State
from memsampd.machines.kernel import parse_release
from memsampd.machines.pmu import ARM_SPE
from memsampd.machines.privileges import CAPABILITIES, detect_container, in_first_namespace
from memsampd.sampler.perf.probes import ProbeResult
from memsampd.sampler.perf.refusal import explain_refusal, read_paranoid
from memsampd.sampler.perf.watching_cost import WatchingCost
from memsampd.sampler.replica.precedence import QUOTA_REMEDY

_OLDEST_KERNEL = (5, 13)  # inherit_thread of perf events

# What a replica needs, as its probe names it, and what to do where that is missing.
_REPLICA_REMEDIES = {
    "replica process": "allow userfaultfd, clone, prctl and memfd_create in the container's "
    "seccomp profile; userfaultfd takes Linux 5.11 with CONFIG_USERFAULTFD; 'too large': its "
    "memory is a file, so raise the hard limit of their sizes (ulimit -Hf, LimitFSIZE)",
    "replica priority": "give memsampd CAP_SYS_NICE (sudo; --cap-add SYS_NICE in a container)",
    "replica quota": QUOTA_REMEDY,
    "burst": "allow ptrace, process_vm_readv and /proc/PID/pagemap (--cap-add SYS_PTRACE)",
    "read-only pages": "Linux 5.19 or later",
    "kept pages": "Linux 6.4 or later",
    "procmap_query": "Linux 6.11 or later",
}
_ONLY_LIMITED_WITHOUT = {
    "kept pages",
    "procmap_query",
    "read-only pages",
    "replica priority",
    "replica quota",
    "replica user",
}
# To make it another user's, and to trace and end it then.
_REPLICA_USER_TAKES = ("SETUID", "SETGID", "SYS_PTRACE", "KILL")


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
            f"samples of a busy child by the task clock, one in {1e3 * cost.period_seconds:.2g} ms "
            f"of CPU time by default; each takes {1e6 * cost.interrupt_seconds:.1f} us of that, "
            "and a switch to and away from "
            f"a thread that is sampled up to {1e6 * cost.switch.timer_seconds:.1f} us more",
        )
    ]


def check_ticks(evidence: Evidence) -> list[Finding]:
    """The kernel's ticks. Nothing needs them."""
    ticks, name = evidence.trials.ticks, "ticks"
    if ticks.event is None:
        return [Finding(name, State.LIMITED, ticks.why_not, "none is needed: a timer is used")]
    detail = f"one in {1e3 * ticks.seconds:g} ms on each CPU, sampled at a few us each"
    return [Finding(name, State.OK, detail)]


def check_breakpoint(evidence: Evidence) -> list[Finding]:
    """Hardware breakpoints."""
    trials = evidence.trials
    found = _judge(
        "hardware breakpoints",
        trials.breakpoint,
        "hits on a busy child's word (distances longer than bursts)",
    )
    if found.state is not State.OK:
        return [found]
    cost = trials.watching_cost
    if isinstance(cost, OSError):
        refusal = explain_refusal(
            cost, "measuring what watching takes from a process", evidence.root / "proc"
        )
        detail = f"no words are watched, long distances are not measured: {refusal.cause}"
        return [Finding(found.name, State.LIMITED, detail, refusal.remedy)]
    return [replace(found, detail=found.detail + _said_of_copies(cost))]


def _said_of_copies(cost: WatchingCost) -> str:
    """What becomes of copies while words are watched, and what is done about it."""
    said = "" if cost.sees_kernel else "; hits by system calls cannot be counted, nor limited"
    if cost.repeat_seconds == 0:
        return said
    return (
        f"; meanwhile string instructions (rep movs) take {cost.times:.0f} times as long here: "
        "words are watched the less, the more a target copies" + said
    )


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
    check_ticks,
    check_breakpoint,
    check_walk,
    check_pmu,
    check_paranoid,
    check_capabilities,
    check_seccomp,
    check_container,
)
