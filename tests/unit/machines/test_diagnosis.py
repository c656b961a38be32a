"""The checks of the doctor on fake trees and on trials that this machine cannot be made to fail."""

import errno
import os
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from memsampd.errors import CapabilityError
from memsampd.machines.diagnosis import diagnose
from memsampd.machines.findings import Evidence, Finding, State, Trials
from memsampd.machines.machine import Cpu, Machine
from memsampd.machines.pmu import HardwareEvent, Pmu, plan_events
from memsampd.machines.privileges import (
    CAPABILITIES,
    decode_capabilities,
)
from memsampd.sampler.perf.probes import ProbeResult
from memsampd.sampler.pmu.choice import PmuTrials
from memsampd.sampler.pmu.trial import Trial
from memsampd.sampler.process.status import parse_status

ALL_CAPABILITIES = (1 << len(CAPABILITIES)) - 1
EMERALD_RAPIDS = Cpu("x86_64", "GenuineIntel", 6, 0xCF, 2, "a Xeon", "cpuinfo")
REPLICA = (
    ("userfaultfd", True, "a page was supplied"),
    ("process_vm_readv", True, "a child was read"),
    ("procmap_query", True, "Linux 6.18"),
)
WORKING = Trials(None, ProbeResult(50), ProbeResult(3000), REPLICA)


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


@pytest.fixture
def evidence(tmp_path: Path) -> Evidence:
    """An ordinary machine and user, on which everything works."""
    write(tmp_path, "proc/sys/kernel/perf_event_paranoid", "2\n")
    status = parse_status("Pid:\t7\nTgid:\t7\nUid:\t1000\t1000\t1000\t1000\nSeccomp:\t0\n")
    return Evidence(tmp_path, "6.1.0-9", Machine(EMERALD_RAPIDS, (0,), ()), status, (), WORKING)


def find(evidence: Evidence, name: str) -> Finding:
    (finding,) = (f for f in diagnose(evidence).findings if f.name == name)
    if finding.state is State.NO:
        assert finding.remedy
    return finding


def with_capabilities(evidence: Evidence, mask: int) -> Evidence:
    return replace(evidence, status=msgspec.structs.replace(evidence.status, cap_effective=mask))


def test_what_watching_takes_may_not_be_known(evidence: Evidence) -> None:
    """A breakpoint alone works; one with a ring for its hits, as watching takes it, does not."""
    assert find(evidence, "hardware breakpoints").state is State.OK
    refused = OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))
    unknown = replace(evidence, trials=replace(WORKING, watching_cost=refused))
    found = find(unknown, "hardware breakpoints")
    assert found.state is State.LIMITED
    assert "no words are watched" in found.detail
    assert "a ring buffer for samples cannot be mapped" in found.detail
    assert "perf_event_mlock_kb" in found.remedy


def test_an_ordinary_user_is_served(evidence: Evidence) -> None:
    diagnosis = diagnose(evidence)
    assert diagnosis.works
    assert (diagnosis.branch_source, diagnosis.access_source) == ("perf-task-clock", "replica")
    assert find(evidence, "ptrace").state is State.OK
    assert find(evidence, "capabilities").state is State.LIMITED
    assert find(evidence, "PMU").remedy == "none is needed"


def test_yama_limits_ordinary_users_only(evidence: Evidence) -> None:
    write(evidence.root, "proc/sys/kernel/yama/ptrace_scope", "1\n")
    assert find(evidence, "ptrace").state is State.LIMITED
    assert diagnose(evidence).works
    root = with_capabilities(evidence, ALL_CAPABILITIES)
    assert find(root, "ptrace").state is State.OK


def test_refused_ptrace(evidence: Evidence) -> None:
    trials = replace(WORKING, ptrace=PermissionError(errno.EPERM, "Operation not permitted"))
    refused = replace(evidence, trials=trials)
    assert find(refused, "ptrace").state is State.NO
    assert "SYS_PTRACE" in find(refused, "ptrace").remedy
    assert diagnose(refused).access_source is None
    assert not diagnose(refused).works
    assert find(refused, "backend").state is State.NO


def test_a_replica_of_our_own_user_is_told_with_what_is_lacking(evidence: Evidence) -> None:
    assert find(
        replace(evidence, trials=replace(WORKING, replica=(("replica user", True, "7"),))),
        "replica user",
    ) == Finding("replica user", State.OK, "7")
    ours = (*REPLICA, ("replica user", False, "it keeps ours (0)"))
    kept = replace(evidence, trials=replace(WORKING, replica=ours))
    user = find(kept, "replica user")
    assert (user.state, user.detail) == (State.LIMITED, "it keeps ours (0)")
    assert "as root" in user.remedy
    assert diagnose(kept).works
    root = replace(kept, status=msgspec.structs.replace(kept.status, uid=0))
    assert find(root, "replica user").remedy == (
        "give memsampd CAP_SETUID, CAP_SETGID, CAP_SYS_PTRACE, CAP_KILL"
    )
    no_kill = with_capabilities(root, ALL_CAPABILITIES & ~(1 << CAPABILITIES.index("KILL")))
    assert find(no_kill, "replica user").remedy == "give memsampd CAP_KILL"
    all_of_them = with_capabilities(root, ALL_CAPABILITIES)
    assert "user namespace" in find(all_of_them, "replica user").remedy


def test_events_that_open_and_count_nothing(evidence: Evidence) -> None:
    broken = replace(evidence, trials=replace(WORKING, task_clock=ProbeResult(0)))
    assert "counts nothing" in find(broken, "branch samples").detail
    assert diagnose(broken).branch_source is None


def test_refused_perf_events(evidence: Evidence) -> None:
    error = CapabilityError("cause", "remedy")
    refused = replace(evidence, trials=replace(WORKING, task_clock=ProbeResult(None, error=error)))
    finding = find(refused, "branch samples")
    assert finding == Finding("branch samples", State.NO, "cause", "remedy")


def test_paranoid_levels(evidence: Evidence) -> None:
    path = "proc/sys/kernel/perf_event_paranoid"
    assert find(evidence, "perf_event_paranoid").state is State.OK
    write(evidence.root, path, "4\n")
    assert find(evidence, "perf_event_paranoid").state is State.NO
    perfmon = with_capabilities(evidence, 1 << 38)
    assert find(perfmon, "perf_event_paranoid").state is State.OK
    (evidence.root / path).unlink()
    assert find(evidence, "perf_event_paranoid").state is State.LIMITED


def test_another_architecture(evidence: Evidence) -> None:
    cpu = msgspec.structs.replace(EMERALD_RAPIDS, architecture="aarch64")
    arm = replace(evidence, machine=Machine(cpu, (0,), ()))
    assert find(arm, "architecture").state is State.NO
    assert diagnose(arm).access_source is None


@pytest.mark.parametrize(
    ("release", "state"),
    [
        ("5.12.99", State.LIMITED),
        ("5.13.0-rc1", State.OK),
        ("10.0", State.OK),
        ("x", State.LIMITED),
    ],
)
def test_kernels(evidence: Evidence, release: str, state: State) -> None:
    assert find(replace(evidence, release=release), "kernel").state is state


def pmu_trials(cpu: Cpu, *pmus: Pmu, broken: str = "") -> PmuTrials:
    """As if all events had passed their trials, but for one."""
    plan = plan_events(cpu, pmus, "6.18")

    def trial(event: HardwareEvent) -> Trial:
        refusal = CapabilityError("it counts nothing", "none") if event.name == broken else None
        return Trial(event, "tried", refusal)

    return PmuTrials(
        plan,
        tuple(trial(event) for event in plan.branches),
        tuple(tuple(trial(event) for event in kind) for kind in plan.counters),
        tuple(trial(event) for event in plan.addresses),
    )


def test_pmu_events_that_count_and_that_do_not(evidence: Evidence) -> None:
    pmus = (Pmu("cpu", 4, frozenset()), Pmu("arm_spe_0", 9, frozenset()))
    trials = pmu_trials(EMERALD_RAPIDS, *pmus)
    tried = replace(evidence, pmus=pmus, trials=replace(WORKING, pmu=trials))
    assert find(tried, "PMU: cpu conditional branches 0x11c4").state is State.OK
    assert find(tried, "PMU").state is State.LIMITED  # what SPE is there is not used
    diagnosis = diagnose(tried)
    assert (diagnosis.branch_source, diagnosis.clock) == ("pmu-branches", "counters")
    broken = pmu_trials(EMERALD_RAPIDS, *pmus, broken="cpu loads 0x81d0")
    tried = replace(evidence, pmus=pmus, trials=replace(WORKING, pmu=broken))
    assert find(tried, "PMU: cpu loads 0x81d0").state is State.NO
    diagnosis = diagnose(tried)
    assert (diagnosis.branch_source, diagnosis.clock) == ("perf-task-clock", "registers")
    assert "it counts nothing" in find(tried, "backend").detail
    assert diagnosis.works


@pytest.mark.parametrize(
    ("name", "state"),
    [("userfaultfd", State.NO), ("procmap_query", State.LIMITED), ("a new one", State.NO)],
)
def test_what_a_replica_needs(evidence: Evidence, name: str, state: State) -> None:
    """Without the one there are no bursts, without the other they are slower."""
    found = (*REPLICA, ("a new one", True, "found"))
    missing = tuple((each, works and each != name, detail) for each, works, detail in found)
    lacking = replace(evidence, trials=replace(WORKING, replica=missing))
    finding = find(lacking, f"replica: {name}")
    assert finding.state is state
    assert finding.remedy
    assert diagnose(lacking).works is (state is State.LIMITED)
    assert find(replace(evidence, trials=replace(WORKING, replica=found)), "replica: a new one")


def test_own_seccomp_is_told(evidence: Evidence) -> None:
    assert find(evidence, "seccomp").state is State.OK
    filtered = replace(evidence, status=msgspec.structs.replace(evidence.status, seccomp_mode=2))
    assert find(filtered, "seccomp").state is State.LIMITED


@pytest.mark.parametrize(
    ("path", "text", "name"),
    [
        (".dockerenv", "", "docker"),
        ("run/.containerenv", "", "podman"),
        ("run/systemd/container", "lxc\n", "lxc"),
        ("proc/self/cgroup", "0::/kubepods/besteffort/pod1\n", "kubernetes"),
    ],
)
def test_containers(evidence: Evidence, path: str, text: str, name: str) -> None:
    write(evidence.root, path, text)
    assert find(evidence, "container").detail.startswith(name)


def test_namespaces(evidence: Evidence) -> None:
    folder = evidence.root / "proc/self/ns"
    folder.mkdir(parents=True)
    (folder / "pid").symlink_to("pid:[4026531836]")
    (folder / "user").symlink_to("user:[4026531837]")
    assert find(evidence, "container").state is State.OK
    (folder / "pid").unlink()
    (folder / "pid").symlink_to("pid:[4026532999]")
    finding = find(evidence, "container")
    assert finding.state is State.LIMITED
    assert "a pid namespace of its own" in finding.detail


def test_capability_names() -> None:
    assert decode_capabilities(1 << 19 | 1 << 38) == {"SYS_PTRACE", "PERFMON"}
    assert decode_capabilities(1 << 21 | 1 << 40) == {"SYS_ADMIN", "CHECKPOINT_RESTORE"}
    assert len(decode_capabilities(0x1FFFFFFFFFF)) == 41
