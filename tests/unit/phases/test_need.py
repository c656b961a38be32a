"""Bursts where they are needed: held against the allocation of least variance, which is known."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np
import pytest

from memsampd.phases.schedule import BurstShape, make_schedule
from memsampd.phases.schedule.need import PhaseNeed, needs

SHAPE = BurstShape(1000, 1000, 1000, stop_seconds=0.001, seconds_per_access=0.0)


def optimum(
    windows: Sequence[float], scatter: Sequence[float], costs: Sequence[float]
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Shares of bursts of least variance for a given sum of costs (Neyman, Tschuprow)."""
    best = np.array(windows) * np.array(scatter) / np.sqrt(costs)
    return np.asarray(best / best.sum())


def allocated(
    windows: Sequence[float],
    scatter: Sequence[float],
    costs: Sequence[float],
    *,
    gap: float,
    count: int = 6000,
    **options: float,
) -> dict[int, int]:
    """Bursts that phases get which come at random, if a burst every ``gap`` windows can be paid."""
    schedule = make_schedule(
        "phase-guided", random.Random(1), share=math.inf, shape=SHAPE, max_gap=1e9, **options
    )
    rng = random.Random(1)
    taken = dict.fromkeys(range(len(windows)), 0)
    for index in range(count):
        phase = rng.choices(range(len(windows)), windows)[0]
        schedule.pace(1.0, gap * 0.1, 0.1)
        if schedule.decide(index, phase).profile:
            taken[phase] += 1
            schedule.record(phase, 1000, costs[phase])
            schedule.weigh({each: scatter[each] for each in taken if taken[each]}, {})
    return taken


@pytest.mark.parametrize(
    ("windows", "scatter", "costs"),
    [
        ((0.5, 0.5), (1.0, 2.0), (0.03, 0.03)),
        ((0.8, 0.2), (1.0, 1.0), (0.03, 0.03)),
        ((0.6, 0.3, 0.1), (0.5, 1.0, 2.0), (0.03, 0.03, 0.03)),
        ((0.5, 0.5), (1.0, 1.0), (0.01, 0.04)),
        ((0.7, 0.3), (1.0, 1.5), (0.02, 0.08)),
    ],
)
def test_bursts_are_shared_out_as_the_least_variance_wants(
    windows: tuple[float, ...], scatter: tuple[float, ...], costs: tuple[float, ...]
) -> None:
    taken = allocated(windows, scatter, costs, gap=20.0, resolution=1e9)
    shares = np.array(list(taken.values())) / sum(taken.values())
    assert shares == pytest.approx(optimum(windows, scatter, costs), abs=0.05)


def test_their_variance_is_nearly_the_least_and_less_than_by_time_alone() -> None:
    windows, scatter = np.array([0.85, 0.15]), np.array([0.2, 3.0])
    taken = allocated(windows.tolist(), scatter.tolist(), (0.03, 0.03), gap=20.0, resolution=1e9)
    bursts = np.array(list(taken.values()), float)
    total = bursts.sum()

    def variance(each: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
        return float(((windows * scatter) ** 2 / each).sum())

    best = variance(total * optimum(windows.tolist(), scatter.tolist(), (1.0, 1.0)))
    assert variance(bursts) < 1.15 * best
    assert variance(bursts) < 0.8 * variance(total * windows)


def test_a_phase_with_fewer_bursts_than_its_part_gets_the_next_ones() -> None:
    late = {0: PhaseNeed(50, 10, 0.3), 1: PhaseNeed(50, 1, 0.03)}
    found = needs(late, {0: 1.0, 1: 1.0})
    assert found[0] < 1 < found[1]
    level = {0: PhaseNeed(50, 10, 0.3), 1: PhaseNeed(50, 10, 0.3)}
    assert needs(level, {0: 1.0, 1: 1.0}) == pytest.approx({0: 1.0, 1: 1.0})


def test_a_phase_whose_bursts_agree_is_still_looked_at() -> None:
    phases = {0: PhaseNeed(100, 5, 0.1), 1: PhaseNeed(100, 5, 0.1)}
    assert needs(phases, {0: 0.0, 1: 1.0})[0] == 0.25
    assert needs(phases, {0: 0.0, 1: 0.0}) == {}
    assert needs({}, {}) == {}


def test_what_can_be_paid_for_lasts() -> None:
    taken = allocated((1.0,), (1.0,), (0.03,), gap=25.0, count=800)
    # Age alone would make 32 bursts in as many windows, and 22 a doubling: some 130.
    assert taken[0] == pytest.approx(800 / 25 + 1, rel=0.25)


def test_an_idle_target_has_no_pace() -> None:
    schedule = make_schedule("phase-guided", random.Random(1), share=math.inf, shape=SHAPE)
    schedule.pace(0.0, 0.0, 0.1)
    assert schedule.decide(0, 0).profile


def test_merged_phases_need_what_both_had() -> None:
    schedule = make_schedule("phase-guided", random.Random(1), share=math.inf, shape=SHAPE)
    for index, phase in enumerate((0, 1)):
        assert schedule.decide(index, phase).profile
        schedule.record(phase, 1000, 0.02)
    schedule.weigh({0: 1.0, 1: 1.0}, {})
    schedule.merge(1, 0)
    schedule.weigh({0: 1.0}, {})
    assert schedule._phases[0].seen == PhaseNeed(2, 2.0, 0.04)  # type: ignore[attr-defined]


def test_long_bursts_are_taken_where_bounds_are_wide_without_them() -> None:
    shape = BurstShape(1000, 1000, 5000, stop_seconds=0.001, seconds_per_access=0.0)

    def asked(band: float) -> list[int]:
        schedule = make_schedule("phase-guided", random.Random(1), share=math.inf, shape=shape)
        found = []
        for index in range(40):
            decision = schedule.decide(index, 0)
            if decision.profile:
                found.append(decision.max_accesses)
                schedule.record(0, decision.max_accesses, 0.01)
                schedule.weigh({0: 1.0}, {0: band})
        return found

    assert set(asked(0.0)) == {1000}
    assert asked(0.5)[:3] == [1000, 5000, 1000]


def test_short_bursts_that_cost_as_much_as_usual_ones_are_not_followed_by_more() -> None:
    """Where they cost little, four of a quarter of the length come in place of one."""

    def taken(cpu_seconds: float) -> int:
        schedule = make_schedule(
            "phase-guided", random.Random(1), share=math.inf, shape=SHAPE, first_gap=20, max_gap=20
        )
        count = 0
        for index in range(2000):
            if schedule.decide(index, 0).profile:
                schedule.record(0, 250, cpu_seconds)
                count += 1
        return count

    assert taken(0.03) == pytest.approx(2000 / 20.5, rel=0.1)
    assert taken(0.005) > 3 * taken(0.03)


def test_a_pace_is_kept_when_windows_become_longer() -> None:
    left = []
    for window_seconds in (0.1, 0.2):
        schedule = make_schedule(
            "phase-guided", random.Random(1), share=math.inf, shape=SHAPE, max_gap=1e9
        )
        schedule.pace(1.0, 100.0, window_seconds)
        assert schedule.decide(0, 0).profile
        schedule.record(0, 1000, 0.03)
        left.append(schedule.windows_left(0))
    assert left[0] == pytest.approx(2 * left[1], rel=0.01)
