from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memsampd.models.exact import ExactRandom
from memsampd.models.histogram import ReuseHistogram
from memsampd.models.statcache import StatCache
from memsampd.models.survival import SurvivalFunction

SIZES_LINES = np.array([16, 64, 256, 700, 1024, 2048, 4096, 16384])


@pytest.mark.parametrize("kind", ["mixed", "zipf", "loop"])
def test_agrees_with_the_simulator(streams: Any, kind: str) -> None:
    stream = {
        "mixed": lambda: streams.mixed(600_000, 7),
        "zipf": lambda: streams.zipf(20_000, 600_000, 7),
        "loop": lambda: streams.loop(1500, 600_000),
    }[kind]()
    exact = ExactRandom(SIZES_LINES.tolist(), seed=1)
    exact.feed(stream[:100_000])
    exact.take_misses()
    exact.feed(stream[100_000:])
    truth = exact.take_misses().miss_ratio
    survival = SurvivalFunction.from_histogram(ReuseHistogram.from_lines(stream))
    curve = StatCache().curve(survival, 64 * SIZES_LINES)
    assert curve.miss_ratio == pytest.approx(truth, abs=0.02)


@given(
    st.lists(st.integers(1, 5000), min_size=1, max_size=8),
    st.lists(st.floats(0, 1), min_size=8, max_size=8),
    st.sampled_from([2, 3, 10, 100, 1000]),
)
@settings(max_examples=200)
def test_is_the_largest_solution_of_the_equation(
    widths: list[int], falls: list[float], size: int
) -> None:
    edges = np.concatenate([[0], np.cumsum(widths)])
    survival = SurvivalFunction(edges, np.cumprod(np.array([1.0, *falls[: len(widths)]])), 1)
    share = -np.diff(survival.survival)
    middle = (edges[:-1] + edges[1:] - 1) / 2
    trial = np.linspace(0, 1, 2001)
    stays = (1 - 1 / size) ** (middle[:, None] * trial[None, :])
    excess = share @ (1 - stays) + survival.never_returned - trial
    largest = trial[np.flatnonzero(excess >= -1e-12)[-1]]
    found = StatCache().curve(survival, np.array([64 * size])).high[0]
    # The root lies between the last trial that is not above it and the next. Distances less than
    # 1 % apart are one.
    assert largest - 1e-3 <= found <= largest + 1 / 2000 + 1e-3


def largest_root(share: Any, distance: Any, never: float, size: int) -> float:
    """The miss ratio of a cache of so many lines, from above in small steps that never pass it."""
    ratio = 1.0
    for _ in range(3000):
        told = float(share @ (1 - (1 - 1 / size) ** (distance * ratio))) + never
        if ratio - told < 1e-9:
            break
        ratio = told
    return ratio


def test_distances_that_are_taken_together_hardly_matter() -> None:
    """Against all of them, one by one."""
    lines = np.random.default_rng(1).zipf(1.3, 300_000).clip(max=100_000).astype(np.uint64)
    survival = SurvivalFunction.from_histogram(ReuseHistogram.from_lines(lines))
    share = -np.diff(survival.survival)
    middle = (survival.edges_accesses[:-1] + survival.edges_accesses[1:] - 1) / 2
    every = [largest_root(share, middle, survival.never_returned, size) for size in SIZES_LINES]
    np.testing.assert_allclose(StatCache().curve(survival, 64 * SIZES_LINES).high, every, atol=1e-5)


def test_what_is_beyond_the_horizon_matters_little_to_small_caches() -> None:
    stream = np.arange(100_000, dtype=np.uint64)
    survival = SurvivalFunction.from_histogram(ReuseHistogram.from_lines(stream))
    curve = StatCache().curve(survival, 64 * 2 ** np.arange(0, 20, 3))
    gap = curve.high - curve.low
    assert gap[0] < 1e-9
    assert (np.diff(gap) >= 0).all()
    assert gap[-1] == 1


def test_bounds_that_meet_are_equal_to_the_last_bit() -> None:
    """Sizes at which they are not equal are not known."""
    lines = np.random.default_rng(2).zipf(1.6, 200_000).clip(max=50_000).astype(np.uint64)
    survival = SurvivalFunction.from_histogram(ReuseHistogram.from_lines(lines))
    curve = StatCache().curve(survival, 64 * SIZES_LINES)
    assert survival.never_returned > 0
    meet = curve.high - curve.low < 1e-9
    assert meet[0]
    assert not meet[-1]
    assert np.array_equal(curve.high[meet], curve.low[meet])


def test_a_size_has_the_ratio_that_it_has_alone() -> None:
    lines = np.random.default_rng(3).zipf(1.3, 100_000).clip(max=50_000).astype(np.uint64)
    survival = SurvivalFunction.from_histogram(ReuseHistogram.from_lines(lines))
    together = StatCache().curve(survival, 64 * SIZES_LINES)
    for at, size in enumerate(SIZES_LINES.tolist()):
        alone = StatCache().curve(survival, np.array([64 * size]))
        assert together.high[at] == pytest.approx(alone.high[0], abs=1e-8)
        assert together.low[at] == pytest.approx(alone.low[0], abs=1e-8)
