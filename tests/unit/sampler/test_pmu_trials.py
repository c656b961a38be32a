"""Trials of events on a loop of known counts, and the choice by them."""

from __future__ import annotations

import errno
import os
import random

import numpy as np
import pytest
from msgspec.structs import replace

from memsampd import _core
from memsampd.errors import CapabilityError
from memsampd.machines.pmu import EventPlan, HardwareEvent
from memsampd.sampler.perf.groups import TASK_CLOCK
from memsampd.sampler.perf.rings import SAMPLE_DTYPE
from memsampd.sampler.perf.ticks import NO_TICKS, Ticks
from memsampd.sampler.pmu.addresses import valid_accesses
from memsampd.sampler.pmu.choice import NO_PMU, PmuTrials, choose, try_plan
from memsampd.sampler.pmu.periods import PeriodJudge, RandomPeriods
from memsampd.sampler.pmu.trial import Trial, settle, try_counter, try_sampled

ROUNDS = 2000  # each hit of a breakpoint takes some microseconds
LOAD_IP, STORE_IP, _, _, LOADED, STORED = _core.run_known_loop(1)


def accesses_of(address: int, kind: int = 3) -> HardwareEvent:
    return HardwareEvent("accesses", _core.PERF_TYPE_BREAKPOINT, 0, address, 8, bp_type=kind)


@pytest.mark.usefixtures("perf_events")
def test_an_event_that_counts_what_it_should() -> None:
    for address in (LOADED, STORED):
        trial = try_counter(accesses_of(address), "loads", rounds=ROUNDS)
        assert trial.works, trial.detail
        assert "1 in a loop of known counts (1 expected)" in trial.detail


@pytest.mark.usefixtures("perf_events")
def test_an_event_that_counts_nothing() -> None:
    for trial in (
        try_counter(accesses_of(STORED + 8), "stores", rounds=ROUNDS),
        try_sampled(accesses_of(LOADED, kind=2), "loads", rounds=ROUNDS),
    ):
        assert not trial.works
        assert "counts nothing" in trial.detail


@pytest.mark.usefixtures("perf_events")
def test_an_event_that_counts_something_else() -> None:
    """One access a round is not four instructions; twice as much as expected may be speculative."""
    wrong = try_counter(accesses_of(LOADED), "instructions", rounds=ROUNDS)
    assert not wrong.works
    assert "counts 1 a round where 4 are executed" in wrong.detail
    assert not try_counter(accesses_of(LOADED), "instructions", True, rounds=ROUNDS).works
    assert try_counter(TASK_CLOCK, "cycles", rounds=ROUNDS).works  # nobody knows how many


@pytest.mark.usefixtures("perf_events")
def test_sampled_addresses() -> None:
    right = try_sampled(accesses_of(LOADED), "loads", rounds=ROUNDS)
    assert right.works, right.detail
    assert "200 data addresses" in right.detail
    # A breakpoint tells the instruction after the one that it is about.
    assert "0% tell the instruction itself, the others skid" in right.detail
    wrong = try_sampled(accesses_of(LOADED), "stores", rounds=ROUNDS)
    assert "only 0% of its data addresses" in wrong.detail
    none = try_sampled(TASK_CLOCK, None)
    assert not none.works
    assert "no data addresses" in none.detail


@pytest.mark.usefixtures("perf_events")
def test_sampled_instructions() -> None:
    right = try_sampled(TASK_CLOCK, "branches", rounds=20_000_000)
    assert right.works, right.detail
    assert "tell the branch itself" in right.detail
    gone = try_sampled(HardwareEvent("nothing", 0x7FFFFFF, 0), "branches")
    assert not gone.works
    assert gone.refusal is not None


@pytest.mark.usefixtures("perf_events")
def test_precise_levels_step_down_and_say_so() -> None:
    tried = []

    def open_counter(*_: int, precise_ip: int, **__: int) -> int:
        tried.append(precise_ip)
        if precise_ip > 1:
            raise OSError(errno.EOPNOTSUPP, "not supported")
        return os.open("/dev/null", os.O_RDONLY)

    wanted = HardwareEvent("loads", 4, 0x81D0, precise_level=3)
    event, note = settle(wanted, open_counter)
    assert tried == [3, 2, 1]
    assert event.precise_level == 1
    assert note == "precise level 3 is refused (the counter cannot be sampled so): 1 is used"
    assert settle(TASK_CLOCK) == (TASK_CLOCK, "")

    def refuse(*_: int, precise_ip: int, **__: int) -> int:
        raise OSError(errno.ENODEV, str(precise_ip))

    with pytest.raises(CapabilityError, match="no such counter"):
        settle(wanted, refuse)


def test_addresses_of_pebs() -> None:
    made = np.zeros(5, SAMPLE_DTYPE)
    made["address"] = [0x1000, 0x2000, 0, 1 << 63, 0x3000]
    made["data_source"] = [0x02, 0x04, 0x02, 0x02, 0x08]
    assert valid_accesses(made, False).tolist() == [True, True, False, False, False]


def test_addresses_of_ibs() -> None:
    """Of any micro-ops: those that are loads or stores, no prefetches, and told their address."""
    load, store, is_valid, prefetch = 1 << 0, 1 << 1, 1 << 17, 1 << 21
    made = np.zeros(6, SAMPLE_DTYPE)
    made["address"] = 0x1000
    made["ibs_op_data3"] = [
        load | is_valid,
        store | is_valid,
        load | store | is_valid,
        load,
        is_valid,
        load | is_valid | prefetch,
    ]
    assert valid_accesses(made, True).tolist() == [True, True, True, False, False, False]


def test_periods_are_random_and_multiples() -> None:
    periods = RandomPeriods(100_000, 16, random.Random(1))
    drawn = [periods.draw() for _ in range(2000)]
    assert {period % 16 for period in drawn} == {0}
    assert 75_000 - 16 <= min(drawn) < 76_000
    assert 124_000 < max(drawn) <= 125_000 + 16
    assert np.mean(drawn) == pytest.approx(100_000, rel=0.02)
    assert len(set(drawn)) > 1000
    assert RandomPeriods(1, 16, random.Random(1)).draw() == 16


def test_periods_are_judged_once_enough_samples_have_come() -> None:
    judge = PeriodJudge(2e-3)
    assert [judge.factor(10, 10 * 4e-4) for _ in range(4)] == [1, 1, 1, pytest.approx(5)]
    assert judge.factor(40, 40 * 3e-3) == 1  # about right
    assert judge.factor(0, 0.0) == 1
    assert judge.factor(2, 0.8) == pytest.approx(1 / 200)  # few, of much CPU time


def all_tried(
    *, is_ibs: bool = False, is_speculative: bool = False, refused: str = ""
) -> PmuTrials:
    branches = HardwareEvent("branches", 4, 0x11C4, is_ibs=is_ibs)
    counted = (
        HardwareEvent("loads", 4, 1),
        HardwareEvent("stores", 4, 2),
        HardwareEvent("instructions", 0, 1),
        HardwareEvent("cycles", 0, 0),
    )
    plan = EventPlan((branches,), (counted,), (), is_speculative)

    def trial(event: HardwareEvent) -> Trial:
        error = CapabilityError(f"{event.name} fail", "none")
        return Trial(event, "", error if event.name == refused else None)

    return PmuTrials(plan, (trial(branches),), (tuple(map(trial, counted)),), ())


def test_the_choice_by_itself() -> None:
    assert choose(NO_PMU).branches == "timer"
    assert choose(NO_PMU).clock == "registers"
    both = choose(all_tried())
    assert (both.branches, both.clock) == ("pmu", "counters")
    uncounted = choose(all_tried(refused="stores"))
    assert (uncounted.branches, uncounted.clock) == ("timer", "registers")
    assert any("stores fail" in why for why in uncounted.why)
    no_branches = choose(all_tried(refused="branches"))
    assert (no_branches.branches, no_branches.clock) == ("timer", "counters")
    amd = choose(all_tried(is_ibs=True, is_speculative=True))
    assert (amd.branches, amd.clock) == ("timer", "registers")


def test_the_choice_of_a_user() -> None:
    amd = all_tried(is_ibs=True, is_speculative=True)
    assert choose(amd, clock="counters").clock == "counters"
    assert choose(amd, clock="counters").branches == "timer"
    assert choose(amd, "pmu", "registers").branches == "pmu"
    assert choose(all_tried(), "timer", "registers").why == (
        "the timer is wanted",
        "registers are wanted",
    )
    with pytest.raises(CapabilityError, match="carry no counters"):
        choose(amd, "pmu", "counters")
    with pytest.raises(CapabilityError, match="--clock counters: loads fail"):
        choose(all_tried(refused="loads"), clock="counters")
    with pytest.raises(CapabilityError, match="--branches pmu: branches fail"):
        choose(all_tried(refused="branches"), "pmu")


TICKS = Ticks(HardwareEvent("ticks", 2, 7), 0xFFFF, 0.004)


def test_ticks_are_chosen_where_they_come_as_often_as_samples_are_wanted() -> None:
    def chosen(period_seconds: float, ticks: Ticks = TICKS) -> tuple[str, str]:
        choice = choose(NO_PMU, ticks=ticks, period_seconds=period_seconds)
        return choice.branches, choice.said

    assert chosen(0.004)[0] == chosen(0.0034)[0] == chosen(0.008)[0] == "ticks"
    assert chosen(0.002)[0] == chosen(0.0055)[0] == "timer"
    assert "ticks come every 4 ms, samples are to come every 2" in chosen(0.002)[1]
    assert chosen(0.002, replace(TICKS, seconds=0.001))[0] == "ticks"
    assert chosen(0.004, NO_TICKS) == ("timer", choose(NO_PMU).said)
    assert choose(all_tried(), ticks=TICKS, period_seconds=0.004).branches == "pmu"
    counted = choose(all_tried(refused="branches"), ticks=TICKS, period_seconds=0.004)
    assert (counted.branches, counted.clock) == ("timer", "counters")


def test_cpus_without_ticks_are_sampled_by_the_timer() -> None:
    choice = choose(NO_PMU, ticks=TICKS, period_seconds=0.004, tickless_cpus=(2, 3))
    assert choice.branches == "timer"
    assert "CPUs that it may run on have no ticks (nohz_full=2, 3)" in choice.said
    asked = choose(NO_PMU, "ticks", ticks=TICKS, period_seconds=0.004, tickless_cpus=(2,))
    assert asked.branches == "ticks"


def test_ticks_that_a_user_wants() -> None:
    wanted = choose(all_tried(), "ticks", "registers", TICKS, 0.002)
    assert (wanted.branches, wanted.clock) == ("ticks", "registers")
    assert choose(NO_PMU, "timer", ticks=TICKS, period_seconds=0.004).branches == "timer"
    with pytest.raises(CapabilityError, match="--branches ticks: be root"):
        choose(NO_PMU, "ticks", ticks=Ticks(why_not="be root"))
    with pytest.raises(CapabilityError, match="counters are not read at ticks"):
        choose(all_tried(), "ticks", "counters", TICKS)


@pytest.mark.usefixtures("perf_events")
def test_a_whole_plan_is_tried() -> None:
    """Breakpoints and the task clock in the place of a PMU's events."""
    loads, stores = accesses_of(LOADED), accesses_of(STORED)
    plan = EventPlan(
        branches=(loads,),
        counters=((loads, stores, loads, TASK_CLOCK),),
        missing=("something",),
    )
    small = try_plan(plan, rounds=ROUNDS)
    assert not small.no_branches
    assert "accesses: it counts 1 a round" in small.no_counters  # they are no instructions
    assert [trial.works for trial in small.counters[0]] == [True, True, False, True]
    assert small.no_addresses == "something"
