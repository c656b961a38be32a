"""Windows and the bursts nearest to them, at once and while they come."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation.nearest import burst_curves, nearest
from memsampd.models.histogram import ReuseHistogram
from memsampd.models.records import MissRatioCurve
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
