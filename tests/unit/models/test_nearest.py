"""Windows and the bursts nearest to them, at once and while they come."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memsampd.models.histogram import ReuseHistogram
from memsampd.models.nearest import burst_curves, nearest
from memsampd.models.records import MissRatioCurve
from memsampd.models.running import RunningCurve
from memsampd.models.statstack import StatStack
from memsampd.models.survival import SurvivalFunction

SIZES = np.array([1 << octave for octave in range(10, 20)], np.int64)


def level(ratio: float) -> MissRatioCurve:
    flat = np.full(3, ratio)
    return MissRatioCurve(np.array([1024, 2048, 4096]), flat, flat, flat, "lru", 64, 1)


def loop(lines: int, accesses: int) -> ReuseHistogram:
    return ReuseHistogram.from_lines(np.arange(accesses, dtype=np.uint64) % np.uint64(lines))


@given(st.lists(st.integers(0, 60), max_size=30), st.sets(st.integers(0, 60), min_size=1))
def test_nearest_is_the_least_distance_and_the_earlier_of_two(
    windows: list[int], profiled: set[int]
) -> None:
    expected = [min(profiled, key=lambda other: (abs(other - at), other)) for at in windows]
    assert nearest(windows, sorted(profiled)).tolist() == expected


@given(st.sets(st.integers(0, 40), min_size=1), st.integers(0, 20))
def test_running_mean_is_that_of_the_nearest_bursts(taken: set[int], more: int) -> None:
    """But for the windows in the middle between two, of which each gets half."""
    running, profiled = RunningCurve(), sorted(taken)
    windows = range(profiled[-1] + 1 + more)
    for window in windows:
        running.add_window()
        if window in taken:
            running.add_burst(level(window / 100))
    stand_ins = nearest(windows, profiled)
    assert running.curve is not None
    tolerance = sum(b - a for a, b in pairwise(profiled)) / 200
    assert running.curve.miss_ratio[0] == pytest.approx(
        stand_ins.mean() / 100, abs=(tolerance + 1e-9) / len(windows) + 1e-9
    )


def test_merged_phases_keep_the_windows_of_both() -> None:
    one, other = RunningCurve(), RunningCurve()
    for running, windows, ratio in ((one, 30, 0.1), (other, 10, 0.5)):
        running.add_window()
        running.add_burst(level(ratio))
        for _ in range(windows - 1):
            running.add_window()
    one.merge(other)
    assert one.curve is not None
    assert one.curve.miss_ratio[0] == pytest.approx((30 * 0.1 + 10 * 0.5) / 40)


def test_bursts_of_one_window_are_its_mean() -> None:
    running = RunningCurve()
    for window, ratios in enumerate(((0.1, 0.2, 0.6), (), (), (0.5, 0.7))):
        running.add_window()
        for ratio in ratios:
            running.add_burst(level(ratio))
        if window == 2:
            assert running.curve is not None
            assert running.curve.miss_ratio[0] == pytest.approx(0.3)
    assert running.curve is not None
    assert running.curve.miss_ratio[0] == pytest.approx((2.5 * 0.3 + 1.5 * 0.6) / 4)


def test_nothing_is_known_before_the_first_burst() -> None:
    running = RunningCurve()
    running.add_window()
    assert running.curve is None


def test_changes_of_locality_are_not_mixed_before_they_are_modelled() -> None:
    """Two loops by turns: each fits or not; the pooled distances would say something between."""
    curves = burst_curves({0: loop(30, 20_000), 9: loop(3000, 20_000)}, StatStack(), SIZES, 64)
    small, large = curves[0].miss_ratio, curves[9].miss_ratio
    np.testing.assert_allclose(small, SIZES < 30 * 64, atol=0.01)
    np.testing.assert_allclose(large, SIZES < 3000 * 64, atol=0.01)


def test_a_short_burst_is_continued_by_the_phase() -> None:
    """Alone, it cannot know whether the loop returns."""
    short, long = loop(3000, 2000), loop(3000, 60_000)
    alone = SurvivalFunction.from_histogram(short)
    assert alone.never_returned == 1
    continued = alone.continued_by(SurvivalFunction.from_histogram(short + long))
    assert continued(4000) == pytest.approx(0, abs=0.05)
    np.testing.assert_array_equal(continued(alone.edges_accesses), alone.survival)


def test_nothing_is_continued_by_less() -> None:
    long = SurvivalFunction.from_histogram(loop(3000, 60_000))
    assert long.continued_by(SurvivalFunction.from_histogram(loop(10, 500))) is long
