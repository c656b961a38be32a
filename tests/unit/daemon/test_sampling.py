"""Samples are charged with what they take, and taken for the part of the time that is allowed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from memsampd.daemon.sampling import SamplingPlan
from memsampd.sampler.perf.costs import SamplingCost, SwitchCost

COST = SamplingCost(6e-6, SwitchCost(13e-6, 1e-6, 0.004))


@dataclass
class Source:
    """Samples as it is told to; late by a tenth each time."""

    not_thinned: str = ""
    period_seconds: float = 0.002
    share: float = 1.0
    told: list[float] = field(default_factory=list)

    @property
    def weight(self) -> float:
        return 1.0 if self.share == 1 else 0.9 / self.share

    def thin(self, share: float) -> None:
        self.told.append(share)
        self.share, self.period_seconds = share, max(0.002 * share, 1e-4)


@dataclass
class Switches:
    """As many as there were, told every second."""

    per_cpu_second: float = 0.0
    switches: int = 0
    looked_seconds: float = -1.0

    def look(self, now_seconds: float) -> bool:
        is_due = now_seconds >= self.looked_seconds + 1
        if is_due:
            self.looked_seconds = now_seconds
        return is_due


def planned(source: Source, switches: Switches, *told: Any, **options: Any) -> SamplingPlan:
    given: Any = source, COST, 0.01, switches
    return SamplingPlan(*given, *told, **options)


def test_who_does_not_switch_pays_for_interrupts_only() -> None:
    """Ticks in the kernel, too, which give no sample."""
    source = Source()
    plan = planned(source, Switches())
    for quarter in range(41):
        told = plan.look(quarter / 4, 0.8 * quarter / 4)
    assert told.seconds == pytest.approx(8.0 / 0.002 * 6e-6)
    assert (told.share, told.why, source.told) == (1.0, "", [])
    assert plan.look(11.0, 7.9).seconds == told.seconds  # it has ended: its clock is gone


def test_who_switches_often_is_charged_and_sampled_for_a_part_of_the_time() -> None:
    source, switches = Source(), Switches()
    said: list[str] = []
    changes: list[float] = []
    plan = planned(source, switches, lambda: changes.append(source.share), said.append)
    told = plan.look(0.0, 0.0)
    assert told.share == 1
    switches.per_cpu_second, switches.switches = 20_000, 20_000
    told = plan.look(1.0, 1.0)
    whole = 1e-6 + 0.75 * 12e-6  # with 2 ms every fourth timer is due after the tick
    assert told.seconds == pytest.approx(500 * 6e-6 + 20_000 * whole)
    assert told.share == 1 / 32
    assert "20,000 times" in told.why
    assert "20 %" in told.why
    assert changes == [1 / 32]
    assert said == [f"sampled for 3.1 % of the time: {told.why}"]
    switches.switches += 20_000
    later = plan.look(2.0, 2.0)
    part = (1 / 32) / 0.9  # of the time, as it came to
    taken = 1e-6 + (1 - 1e-4 / 0.008) * 12e-6
    rarer = 1 + (1 - part) * 20_000 * taken  # it used a CPU all the time
    interrupts = part / 1e-4
    at_switches = 20_000 * part * taken / rarer
    assert later.seconds - told.seconds == pytest.approx(interrupts * 6e-6 + at_switches)
    assert later.share == 1 / 32
    switches.per_cpu_second = 10.0
    assert plan.look(3.0, 3.0).share == 1
    assert plan.look(4.0, 4.0).why == ""
    assert source.told == [1 / 32, 1]


@pytest.mark.parametrize("is_busy", [True, False])
def test_switches_of_who_is_busy_are_rarer_while_they_take_longer(is_busy: bool) -> None:
    """Against turns of both kinds, counted one by one."""
    source = Source("it stays so", 2.5e-4, 1 / 8)
    taken = COST.switch.sampled_seconds(source.period_seconds)
    part, work_seconds = 1 / source.weight, 50e-6
    if is_busy:
        sampled, others = part / (work_seconds + taken), (1 - part) / work_seconds
        cpu_seconds = 1.0
    else:  # it is asked every 100 ms, however long it takes then
        sampled, others = part * 10, (1 - part) * 10
        cpu_seconds = 10 * work_seconds + sampled * taken
    switches = Switches((sampled + others) / cpu_seconds)
    plan = planned(source, switches)
    plan.look(0.0, 0.0)
    switches.switches = round(1000 * (sampled + others))
    charged = plan.look(1000.0, 1000 * cpu_seconds).seconds
    interrupts = 1000 * cpu_seconds * part / source.period_seconds * 6e-6
    assert charged - interrupts == pytest.approx(1000 * sampled * taken, rel=0.1)


def test_where_it_cannot_be_less_that_is_said() -> None:
    source, switches = Source("child processes are sampled, too"), Switches(20_000, 20_000)
    plan = planned(source, switches)
    told = plan.look(0.0, 1.0)
    assert told.seconds > 20_000 * 9e-6
    assert told.share == 1
    assert told.why.endswith("takes 20 % of it (not less, as child processes are sampled, too)")
    assert source.told == []


def test_what_a_switch_costs_is_asked_where_it_matters() -> None:
    """Until then it costs what is usual, and it is asked again though it was little."""
    costs = [SwitchCost(1e-6, 0.5e-6, 0.004), SwitchCost(26e-6, 2e-6, 0.004)]
    asked: list[float] = []

    def measure(now_seconds: float) -> SwitchCost:
        asked.append(now_seconds)
        return costs[len(asked) - 1]

    source, switches = Source(), Switches(100.0)
    plan = planned(source, switches, measure_switch=measure)
    plan.look(0.0, 0.0)
    switches.switches = 100
    usual = 500 * 6e-6 + 100 * (1e-6 + 0.75 * 12e-6)
    assert plan.look(1.0, 1.0).seconds == pytest.approx(usual)
    assert not asked
    switches.per_cpu_second, switches.switches = 500.0, 600
    told = plan.look(2.0, 2.0)
    little = usual + 500 * 6e-6 + 500 * (0.5e-6 + 0.75 * 0.5e-6)
    assert told.seconds == pytest.approx(little)
    switches.switches = 1100
    told = plan.look(3.0, 3.0)
    assert told.seconds == pytest.approx(little + 500 * 6e-6 + 500 * (2e-6 + 0.75 * 24e-6))
    assert asked == [2.0, 3.0]
