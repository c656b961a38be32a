"""Whether one process can be observed, and what is to be expected of it."""

from __future__ import annotations

import math
import time

from memsampd.errors import MemsampdError
from memsampd.machines.findings import Finding, State
from memsampd.sampler.perf.costs import SamplingCost, SwitchCost, measure_switch_cost
from memsampd.sampler.perf.source import TaskClockSource
from memsampd.sampler.perf.switches import SwitchCounter, planned_share
from memsampd.sampler.perf.ticks import cost_of_ticks, tickless_cpus_of
from memsampd.sampler.process.cgroup import CgroupLimits, read_limits
from memsampd.sampler.process.status import count_sleeps, read_threads
from memsampd.sampler.process.target import check_target

LOOK_SECONDS = 0.5
# Programs make a third to three times as many accesses in a second of CPU time.
_USUAL_RATE = 1e9
_WORTH_SAYING = 0.02


def diagnose_target(
    pid: str,
    burst_accesses: int,
    max_stop_seconds: float,
    period_seconds: float,
    budget_share: float,
    *,
    by_ticks: bool = False,
) -> tuple[Finding, ...]:
    """Check one process as attach would, without stopping it, and watch it for half a second.

    Args:
        pid: as typed by a user.
        burst_accesses: usual length of a burst.
        max_stop_seconds: how long a thread may be held.
        period_seconds: CPU time between branch samples.
        budget_share: of its CPU time: so much may they take at switches.
        by_ticks: they are taken by the kernel's ticks, where its CPUs have these, not by a timer.
    """
    try:
        facts = check_target(pid)
        with TaskClockSource(facts.identity.pid) as source:
            notes = facts.notes + source.notes
    except MemsampdError as error:
        return (Finding("target", State.NO, error.cause, error.remedy),)
    detail = f"{facts.identity.pid} ({facts.identity.command}) can be observed"
    state = State.LIMITED if notes else State.OK
    cost, counter = SamplingCost(switch=measure_switch_cost()), SwitchCounter(facts.identity.pid)
    if by_ticks and not tickless_cpus_of(facts.identity.pid):
        cost, budget_share = cost_of_ticks(cost), math.inf  # it is sampled all the time
    counter.look(time.monotonic())
    cpu_seconds, sleeps = _look(facts.identity.pid)
    counter.look(math.inf)
    return (
        Finding("target", state, "; ".join([detail, *notes])),
        limits_finding(read_limits(facts.identity.pid)),
        sampling_finding(counter.per_cpu_second, cost.switch, period_seconds, budget_share),
        bursts_finding(cpu_seconds, sleeps, burst_accesses, max_stop_seconds),
    )


def limits_finding(limits: CgroupLimits) -> Finding:
    """What its control groups allow it. None of it is spent by memsampd, which is outside."""
    name, parts = "target: limits", []
    if limits.cpus is not None:
        parts.append(f"{limits.cpus:g} CPUs at most, granted every {limits.period_seconds:g} s")
    if limits.memory_bytes is not None:
        used, most = (
            round(each / 2**20) for each in (limits.memory_used_bytes, limits.memory_bytes)
        )
        parts.append(f"{used} of {most} MiB of memory are used")
    if not parts:
        return Finding(name, State.OK, "no CPU quota, no limit of memory")
    if (limits.throttled_share or 0.0) < _WORTH_SAYING:
        return Finding(name, State.OK, f"{'; '.join(parts)}; memsampd takes nothing of that")
    parts.insert(1, f"it had to wait in {limits.throttled_share:.0%} of these periods")
    return Finding(
        name,
        State.LIMITED,
        f"{'; '.join(parts)}; memsampd takes nothing of that",
        "windows count CPU time, so waits lengthen them; a hold comes on top of a wait: lower "
        "--max-stop where answers are to come in time",
    )


def bursts_finding(
    cpu_seconds: float, sleeps: int, burst_accesses: int, max_stop_seconds: float
) -> Finding:
    """What bursts of it will be like, as far as half a second tells.

    Args:
        cpu_seconds: CPU time that it used in :data:`LOOK_SECONDS`.
        sleeps: how often its threads went to sleep meanwhile.
        burst_accesses: usual length of a burst.
        max_stop_seconds: how long a thread may be held.
    """
    name = "target: bursts"
    held = f"a thread is held for {1e3 * max_stop_seconds:g} ms at most in any 100"
    if cpu_seconds < 1e-4:
        words = f"it used no CPU time in {LOOK_SECONDS:g} s: a burst waits until it runs; {held}"
        return Finding(name, State.OK, words)
    run_seconds = cpu_seconds / max(sleeps, 1)
    accesses = run_seconds * _USUAL_RATE
    runs = f"it used {cpu_seconds / LOOK_SECONDS:.0%} of a CPU"
    runs += f", {1e3 * run_seconds:.2g} ms between two sleeps" if sleeps else " and did not sleep"
    if accesses >= burst_accesses:
        words = f"{runs}: bursts of {burst_accesses:,} accesses or more can be expected"
    else:
        words = (
            f"{runs}, some {accesses:,.0f} accesses: a burst of {burst_accesses:,} has to be put"
            f" together from {burst_accesses / accesses:,.0f} stretches or so, and may end early"
        )
    return Finding(name, State.OK, f"{words}; {held}")


def sampling_finding(
    switches_per_cpu_second: float, cost: SwitchCost, period_seconds: float, budget_share: float
) -> Finding:
    """For which part of the time its branches will be sampled, as far as half a second tells.

    Args:
        switches_per_cpu_second: how often its threads were switched to, by their CPU time.
        cost: of a switch.
        period_seconds: CPU time between branch samples.
        budget_share: of its CPU time: so much may they take at switches.
    """
    name = "target: sampling"
    share = planned_share(switches_per_cpu_second, cost, period_seconds, budget_share)
    taken = switches_per_cpu_second * cost.sampled_seconds(period_seconds)
    words = (
        f"its threads are switched to {switches_per_cpu_second:,.0f} times in a second of their "
        f"CPU time; sampling all the time takes {100 * taken:.2g} % of it at switches"
    )
    if share == 1:
        return Finding(name, State.OK, words)
    return Finding(
        name,
        State.LIMITED,
        f"{words}: it is sampled for {100 * share:.2g} % of the time",
        "--budget allows more; changes of its phases that last for less than some pauses of "
        "sampling are seen less well",
    )


def _look(pid: int) -> tuple[float, int]:
    """CPU time and sleeps in a while."""
    before = {each.tid: each.cpu_ns for each in read_threads(pid)}
    slept = count_sleeps(pid)
    time.sleep(LOOK_SECONDS)
    ran_ns = sum(max(each.cpu_ns - before.get(each.tid, 0), 0) for each in read_threads(pid))
    return ran_ns * 1e-9, max(count_sleeps(pid) - slept, 0)
