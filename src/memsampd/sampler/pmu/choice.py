"""Which sources a machine has, by trials of its PMU and its ticks, and which are used."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from memsampd.errors import CapabilityError
from memsampd.machines.machine import Cpu
from memsampd.machines.pmu import EventPlan, HardwareEvent, plan_events, read_pmus
from memsampd.sampler.perf.costs import PERIODS_SECONDS
from memsampd.sampler.perf.counts import NO_COUNTERS, CounterSet
from memsampd.sampler.perf.ticks import NO_TICKS, Ticks

if TYPE_CHECKING:
    from memsampd.sampler.pmu.trial import Role, Trial

BranchChoice = Literal["auto", "timer", "ticks", "pmu"]
BranchKind = Literal["timer", "ticks", "pmu"]
ClockChoice = Literal["auto", "registers", "counters"]

# From the period that is wanted: further off, and ticks are used only where they are asked for.
_PERIOD_OFF_MOST = 1.25
_COUNTED: tuple[Role, ...] = ("loads", "stores", "instructions", "cycles")


class PmuTrials(msgspec.Struct, frozen=True):
    """What came of trying the events of a machine.

    Attributes:
        plan: the events.
        branches: trials of each of these.
        counters: the same, by kind of core.
        addresses: the same.
    """

    plan: EventPlan = msgspec.field(default_factory=EventPlan)
    branches: tuple[Trial, ...] = ()
    counters: tuple[tuple[Trial, ...], ...] = ()
    addresses: tuple[Trial, ...] = ()

    @property
    def every(self) -> tuple[Trial, ...]:
        """All trials."""
        counted = tuple(trial for kind in self.counters for trial in kind)
        return (*self.branches, *counted, *self.addresses)

    @property
    def no_branches(self) -> str:
        """Why branches are not sampled; empty if they can be."""
        return _why_not(self.branches, self.plan)

    @property
    def no_counters(self) -> str:
        """Why accesses are not counted; empty if they can be."""
        return _why_not([trial for kind in self.counters for trial in kind], self.plan)

    @property
    def no_addresses(self) -> str:
        """Why accesses are not sampled with their addresses; empty if they can be."""
        return _why_not(self.addresses, self.plan)

    @property
    def branch_events(self) -> tuple[HardwareEvent, ...]:
        """Events to sample branches by, with the precise levels that they have."""
        return () if self.no_branches else tuple(trial.event for trial in self.branches)

    @property
    def address_events(self) -> tuple[HardwareEvent, ...]:
        """Events to sample accesses by."""
        return () if self.no_addresses else tuple(trial.event for trial in self.addresses)

    @property
    def counter_set(self) -> CounterSet:
        """What to count accesses by; empty if nothing."""
        return NO_COUNTERS if self.no_counters else CounterSet.of(self.plan)

    def distance_counters(self, choice: Choice) -> tuple[HardwareEvent, ...]:
        """Loads and stores, to be counted between touches of watched words; none: by the clock.

        An event of one kind of core would keep the breakpoints in its group off the others.
        """
        if choice.clock != "counters" or len(self.counter_set.kinds) != 1:
            return ()
        return self.counter_set.kinds[0][:2]


NO_PMU = PmuTrials()


def _why_not(trials: Sequence[Trial], plan: EventPlan) -> str:
    """Why these events cannot be used: all kinds of cores must have them."""
    if not trials:
        return "; ".join(plan.missing) or "this processor has no such events"
    return "; ".join(str(trial.refusal) for trial in trials if trial.refusal is not None)


def try_pmu(cpu: Cpu) -> PmuTrials:
    """Try this machine's events on the calling thread, a few milliseconds each.

    Args:
        cpu: the processor.
    """
    return try_plan(plan_events(cpu, read_pmus(Path("/sys")), os.uname().release))


def try_plan(plan: EventPlan, rounds: int | None = None) -> PmuTrials:
    """Try events, each on a CPU that has it, on so many rounds of the known loop."""
    if not (plan.addresses or plan.branches or plan.counters):
        return PmuTrials(plan)
    from memsampd.sampler.pmu.trial import ROUNDS, try_counter, try_sampled

    rounds = ROUNDS if rounds is None else rounds
    addresses = []
    for event in plan.addresses:
        with _running_on(event.cpus):
            addresses.append(try_sampled(event, _address_role(event), rounds))
    branches = []
    for event in plan.branches:
        with _running_on(event.cpus):
            branches.append(try_sampled(event, "branches", rounds))
    counters = []
    for kind in plan.counters:
        with _running_on(kind[0].cpus):
            counters.append(
                tuple(
                    try_counter(event, role, plan.is_speculative, rounds)
                    for event, role in zip(kind, _COUNTED, strict=True)
                )
            )
    return PmuTrials(plan, tuple(branches), tuple(counters), tuple(addresses))


def _address_role(event: HardwareEvent) -> Role | None:
    if event.is_ibs:
        return None
    return "stores" if "stores" in event.name else "loads"


@contextmanager
def _running_on(cpus: frozenset[int]) -> Iterator[None]:
    """Run this thread on some CPUs meanwhile, if any are named and allowed."""
    before = os.sched_getaffinity(0)
    if cpus & before:
        os.sched_setaffinity(0, cpus & before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Choice(msgspec.Struct, frozen=True):
    """What is used.

    Attributes:
        branches: where branch samples come from.
        clock: what accesses are timed by.
        why: for people, a sentence each.
    """

    branches: BranchKind
    clock: Literal["registers", "counters"]
    why: tuple[str, ...] = ()

    @property
    def said(self) -> str:
        """Why, in one line."""
        return "; ".join(self.why)


def choose(
    trials: PmuTrials,
    branches: BranchChoice = "auto",
    clock: ClockChoice = "auto",
    ticks: Ticks = NO_TICKS,
    period_seconds: float = PERIODS_SECONDS[0],
    tickless_cpus: Sequence[int] = (),
) -> Choice:
    """Choose sources: what the user wants, else what the PMU has if it is exact, else ticks.

    Args:
        trials: what the PMU has.
        branches: where branch samples are to come from.
        clock: what accesses are to be timed by.
        ticks: what came of trying them.
        period_seconds: CPU time between samples that is wanted.
        tickless_cpus: those that the target may run on, and that have no ticks then.

    Raises:
        CapabilityError: what the user wants is not to be had here; why.
    """
    chosen_clock, why_clock = _choose_clock(trials, clock)
    chosen_branches, why_branches = _choose_branches(
        trials, branches, chosen_clock, ticks, period_seconds, tickless_cpus
    )
    return Choice(chosen_branches, chosen_clock, tuple(dict.fromkeys((why_branches, why_clock))))


def _choose_branches(
    trials: PmuTrials,
    branches: BranchChoice,
    clock: str,
    ticks: Ticks,
    period_seconds: float,
    tickless_cpus: Sequence[int],
) -> tuple[BranchKind, str]:
    if branches == "timer":
        return "timer", "the timer is wanted"
    whys = []
    if branches != "ticks":
        whys.append(_why_no_pmu(trials, branches, clock))
        if not whys[0]:
            return "pmu", "the PMU's branches passed their trial"
    why = _why_no_ticks(ticks, branches, clock, period_seconds, tickless_cpus)
    whys.append(why or "ticks passed their trial")
    return "timer" if why else "ticks", "; ".join(whys)


def _why_no_pmu(trials: PmuTrials, branches: BranchChoice, clock: str) -> str:
    why = trials.no_branches
    if not why and clock == "counters" and any(event.is_ibs for event in trials.branch_events):
        why = "samples of AMD's IBS carry no counters: choose the timer, or --clock registers"
    if why and branches == "pmu":
        raise CapabilityError(f"--branches pmu: {why}", "leave it out: the timer is used then")
    if not why and branches == "auto" and clock == "registers":
        why = "the clock by registers was measured with the timer"
    return why


def _why_no_ticks(
    ticks: Ticks,
    branches: BranchChoice,
    clock: str,
    period_seconds: float,
    tickless_cpus: Sequence[int],
) -> str:
    """Why a timer of our own, which costs more, is used in place of ticks."""
    why = ticks.why_not
    if not why and clock == "counters":
        why = "counters are not read at ticks: choose the timer, or --clock registers"
    if why and branches == "ticks":
        raise CapabilityError(f"--branches ticks: {why}", "leave it out: the timer is used then")
    if not why and branches == "auto":
        off = ticks.every(period_seconds) * ticks.seconds / period_seconds
        if not 1 / _PERIOD_OFF_MOST < off < _PERIOD_OFF_MOST:
            why = (
                f"ticks come every {1e3 * ticks.seconds:g} ms, "
                f"samples are to come every {1e3 * period_seconds:.2g}"
            )
        elif tickless_cpus:
            cpus = ", ".join(map(str, tickless_cpus))
            why = f"CPUs that it may run on have no ticks (nohz_full={cpus})"
    return why


def _choose_clock(
    trials: PmuTrials, clock: ClockChoice
) -> tuple[Literal["registers", "counters"], str]:
    if clock == "registers":
        return "registers", "registers are wanted"
    why = trials.no_counters
    if why and clock == "counters":
        raise CapabilityError(
            f"--clock counters: {why}", "leave it out: registers are the clock then"
        )
    if not why and clock == "auto" and trials.plan.is_speculative:
        why = "the PMU counts accesses that are thrown away again, too"
    return ("registers", why) if why else ("counters", "the PMU's counters passed their trial")
